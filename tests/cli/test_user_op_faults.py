"""All that user-defined ops, their files and packages can do wrong: status 7, one line, and no process is left."""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from command import Child, alive, children, refused, run, succeeded, unchanged, wait_until
from needs import needs
from packages import install
from rows import each
from setups import seeing

PR_SET_CHILD_SUBREAPER = 36
RANKS = ("rank0.npy", "rank1.npy", "rank2.npy")
OPS = """
import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np
import mpired
from mpired.errors import DatatypeError

number = 3

def add(invec, inoutvec, count, datatype):
    np.add(invec, inoutvec, out=inoutvec)

# wrong arguments
def one(invec): pass
def three(invec, inoutvec, count): pass
# wrong results
def returns_array(invec, inoutvec, count, datatype): return invec + inoutvec
def wrong_dtype(invec, inoutvec): return invec.astype("f4")
# exceptions
class Unspeakable(Exception):
    def __str__(self): raise RuntimeError
class Unpicklable(Exception):
    def __init__(self, one, two): super().__init__("text")
    def __reduce__(self): raise TypeError

def raises(invec, inoutvec, count, datatype): raise ValueError("bad\\nnumber")
def unspeakable(invec, inoutvec, count, datatype): raise Unspeakable
def unpicklable(invec, inoutvec, count, datatype): raise Unpicklable(1, 2)
def control(invec, inoutvec, count, datatype): raise ValueError("\\x1b[2J\\udcff")
def system_exit(invec, inoutvec, count, datatype): sys.exit(0)
def of_mpired(invec, inoutvec, count, datatype): raise DatatypeError("somewhere", "something")
def aborts(invec, inoutvec, count, datatype): raise mpired.Abort("the norm of element 3 is zero")
# what it must not touch
def writes_invec(invec, inoutvec, count, datatype): invec[0] = 1
def adds_to_inoutvec(invec, inoutvec): inoutvec += invec; return inoutvec

# ways to end
def looks_around(invec, inoutvec, count, datatype): inoutvec += invec[0]
def compares(invec, inoutvec): return invec if invec > inoutvec else inoutvec
def exits(invec, inoutvec, count, datatype): os._exit(0)
def crashes(invec, inoutvec, count, datatype): ctypes.string_at(0)

# ways not to
def loops(invec, inoutvec, count, datatype):
    while True: pass
def sleeps(invec, inoutvec, count, datatype): time.sleep(600)
def sleeps_through_signals(invec, inoutvec, count, datatype):
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)

# what is left behind
def child(): subprocess.Popen(["sleep", "600"])
def daemon(): subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
def twice_forked():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
def all_of_them():
    child(), daemon(), twice_forked()
    threading.Thread(target=time.sleep, args=(600,)).start()

def leaves_and_sleeps(invec, inoutvec, count, datatype): all_of_them(); time.sleep(600)

# standard output
def prints(invec, inoutvec, count, datatype):
    print("by print")
    os.write(1, b"by write\\n")
    subprocess.run(["echo", "by a child"])
    ctypes.CDLL(None).printf(b"by printf\\n")
    sys.stdout.write("without an end")

def prints_and_adds(invec, inoutvec, count, datatype):
    prints(invec, inoutvec, count, datatype)
    add(invec, inoutvec, count, datatype)

def prints_and_raises(invec, inoutvec, count, datatype):
    print("printed")
    raise ValueError("after it")
"""

DOUBLED = "is the name of 2 entry points (first:f of one, second:f of other); write the place of one instead"

distribution = partial(install, group="mpired.ops")

GOOD = """
import numpy as np, mpired
@mpired.op(commute=True, identity=-np.inf)
def f(a, b):
    'Good.'
    return a + b
"""

# Files that cannot be loaded, each with a function in it.
FILES = {
    "syntax.py": "def f(:\n",
    "import_error.py": "import nonexistent_package\ndef f(a, b): pass\n",
    "ends.py": "import os; os._exit(0)\n",
    "hangs.py": "import time; time.sleep(600)\n",
    "datatype.py": "import mpired\n@mpired.op(datatypes=['duble'])\ndef f(a, b): pass\n",
    "empty.py": "",
    "text.txt": "def f(a, b): pass\n",
    "text.so": "this is no library\n",
}

C = """
#define OP(name) void name(double *in, double *inout, int *len, void **datatype)
OP(segv) { *(volatile int *)0 = 1; }
OP(after) { inout[*len] = 1; }
OP(before_in) { in[-1] = 1; }
OP(loops) { for (volatile int i = 0;; i = 0) {} }
"""
CONSTRUCTOR = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A folder of installed packages, most of them broken in some way."""
    folder = tmp_path_factory.mktemp("site")
    distribution(folder, "good", {"good": "good_package:f"}, good_package=GOOD)
    distribution(folder, "one", {"doubled": "first:f"})
    distribution(folder, "other", {"doubled": "second:f"})
    distribution(folder, "shadow", {"sum": "good_package:f", "MPI_PROD": "good_package:f"})
    distribution(folder, "absent", {"absent": "absent_package:f"})
    distribution(folder, "ending", {"ending": "ending_package:f"}, ending_package="import os; os._exit(0)")
    distribution(folder, "printing", {"printing": "printing:f"}, printing=f"print('printed')\n{GOOD}")
    distribution(folder, "strange", {"module": "good_package", "senseless": "3:::4"})
    (distribution(folder, "torn", {"torn": "good_package:f"}) / "entry_points.txt").write_text("[mpired.ops]\ntorn\n")
    (distribution(folder, "binary", {"binary": "x:y"}) / "entry_points.txt").write_bytes(b"[mpired.ops]\n\xff = \xff\n")
    return folder


@contextlib.contextmanager
def nothing_left():
    """Check that no process is left of what the block starts: this process adopts them."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = children(os.getpid())
    try:
        yield
        assert children(os.getpid()) == before
    finally:
        for left in set(children(os.getpid())) - set(before):
            os.kill(left, signal.SIGKILL)
            os.waitpid(left, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def gcc(source, library):
    words = ["gcc", "-w", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(words, input=source, text=True, check=True)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A folder with ranks, an existing output, and all that is broken."""
    needs("gcc")
    folder = tmp_path_factory.mktemp("workshop")
    for rank, name in enumerate(RANKS):
        np.save(folder / name, np.arange(4.0) + rank)
    (folder / "output.npy").write_bytes(b"what was there before")
    (folder / "ops.py").write_text(OPS)
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    os.mkfifo(folder / "fifo.py")
    gcc(C, folder / "faults.so")
    gcc(CONSTRUCTOR, folder / "constructor.so")
    return folder


@pytest.fixture(autouse=True)
def without_mpi4py(monkeypatch):
    """Forget what another test has imported into this process: with it functions of three arguments are ops."""
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


TIMEOUT = ("--op-timeout", "0.3")

RETURNS = "an op of two arguments returns an array of float64 with the shape (4,)"
ARGUMENTS = "must take two arrays, or (invec, inoutvec, len, datatype)"
TOO_LONG = "took longer than 0.3 s; nothing was written"

FAULTS = [
    ("./fifo.py:f", "./fifo.py is not a regular file"),
    ("./text.txt:f", "./text.txt is not a Python file (.py)"),
    ("./import_error.py:f", "raised ModuleNotFoundError: No module named 'nonexistent_package'"),
    ("./ends.py:f", "it ended with status 0"),
    ("./hangs.py:f", TOO_LONG, *TIMEOUT),
    ("./datatype.py:f", "raised UnknownDatatypeError: unknown datatype 'duble'"),
    ("./empty.py:f", "there is no 'f' in"),
    ("./ops.py:number", "is int, not a function"),
    ("./ops.py:one", ARGUMENTS),
    ("./ops.py:three", "takes three arguments, as functions of mpi4py do"),
    ("./ops.py:returns_array", "returned ndarray of float64 with the shape (4,); an op of four arguments leaves"),
    ("./ops.py:wrong_dtype", f"returned ndarray of float32 with the shape (4,); {RETURNS}"),
    ("./ops.py:raises", "raised ValueError: bad number (ops.py, line "),
    ("./ops.py:unspeakable", "raised Unspeakable: (and its message cannot be had)"),
    ("./ops.py:unpicklable", "raised Unpicklable: text"),
    ("./ops.py:control", r"raised ValueError: \x1b[2J\udcff"),
    ("./ops.py:system_exit", "raised SystemExit: 0"),
    ("./ops.py:of_mpired", "raised DatatypeError: somewhere: something"),
    ("./ops.py:aborts", "aborted: the norm of element 3 is zero"),
    ("./ops.py:writes_invec", "raised ValueError: assignment destination is read-only"),
    ("./ops.py:adds_to_inoutvec", "an op of two arrays returns the result, any other writes it to inoutvec, not"),
    ("./ops.py:looks_around", "gives other bits for 4 elements at once than for 2 and the rest"),
    ("./ops.py:compares", "an op gets arrays, not numbers: use numpy.maximum, numpy.where and the like"),
    ("./ops.py:prints_and_raises", "raised ValueError: after it"),
    ("./ops.py:loops", TOO_LONG, *TIMEOUT),
    ("./ops.py:sleeps_through_signals", TOO_LONG, *TIMEOUT),
    ("./ops.py:exits", "it ended with status 0"),
    ("./ops.py:crashes", "it was killed by SIGSEGV"),
    ("./ops.py:leaves_and_sleeps", TOO_LONG, *TIMEOUT),
    ("./text.so:f", "cannot be loaded ("),
    ("./constructor.so:f", "it was killed by SIGABRT"),
    ("./faults.so:missing", "there is no symbol 'missing' in ./faults.so"),
    ("./faults.so:segv", "it was killed by SIGSEGV"),
    ("./faults.so:after", "wrote outside its buffers of 4 elements of MPI_DOUBLE"),
    ("./faults.so:before_in", "wrote outside its buffers"),
    ("./faults.so:loops", TOO_LONG, *TIMEOUT),
    ("doubled", DOUBLED),
    ("absent", "raised ModuleNotFoundError: No module named 'absent_package'"),
    ("module", "is module, not a function"),
    ("senseless", "raised "),
]


@each("row", FAULTS)
def test_fault(row, workshop, site):
    """With a file or with standard output in turn."""
    op, reason, *options = row
    target = ("output.npy", "-")[FAULTS.index(row) % 2]
    with unchanged(workshop), nothing_left():
        outcome = run("reduce", "--op", op, *options, "-f", "-o", target, *RANKS, cwd=workshop, setup=seeing(site))
    refused(outcome._replace(err=outcome.err.removeprefix("printed\n")), 7, f"mpired: {op}: ", reason)
    assert len(outcome.err) < 1000
    assert outcome.err.startswith("printed\n") == ("prints" in op)


def test_what_an_op_prints_goes_to_standard_error(workshop):
    words = ("reduce", "-q", "--op", "./ops.py:prints_and_adds", "--to", "raw", *RANKS)
    outcome = run(*words, cwd=workshop, setup=seeing())
    assert (outcome.status, np.frombuffer(outcome.out).tolist()) == (0, [3, 6, 9, 12])
    printed = re.findall("by a child|by printf?|by write|without an end", outcome.err)
    assert sorted(printed) == sorted(["by a child", "by print", "by printf", "by write", "without an end"] * 4)


def test_a_worker_does_not_outlive_the_command(workshop):
    child = Child("reduce", "--op", "./ops.py:sleeps", *RANKS, cwd=workshop)
    wait_until(lambda: children(child.pid))
    (worker,) = children(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.finish()
    wait_until(lambda: not alive(worker))


def test_ops_of_a_file(workshop, tmp_path):
    (tmp_path / "my.py").write_text(
        "import mpired\n"
        "@mpired.op(commute=False, datatypes=['int', 'double'], name='first')\n"
        "def one(a, b):\n    'One.'\n"
        "@mpired.op()\n"
        "def two(a, b): pass\n"
        "def plain(a, b): pass\n"
    )
    outcome = run("ops", "./my.py", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines() == [
        "first (./my.py:one): does not commute, MPI_INT, MPI_DOUBLE; One.",
        "two (./my.py:two): commute not declared, any datatype",
    ]
    rows = json.loads(run("ops", "--json", "my.py", cwd=tmp_path).out)
    listed = [(row["name"], row["place"], row["commute"]) for row in rows]
    assert listed == [("first", "my.py:one", False), ("two", "my.py:two", None)]
    message = "mpired: empty.py: no function in it is decorated with @mpired.op\n"
    assert run("ops", "empty.py", cwd=workshop) == (0, b"", message)


@each("file, reason", [
    ("missing.py", "the file does not exist"),
    (".", "is not a regular file"),
    ("text.txt", "is not a Python file"),
    ("syntax.py", "raised SyntaxError"),
    ("ends.py", "it ended with status 0"),
])  # fmt: skip
def test_files_that_cannot_be_listed(workshop, file, reason):
    with unchanged(workshop), nothing_left():
        refused(run("ops", file, cwd=workshop), 7, f"mpired: {file}: ", reason)


def test_list_of_ops_as_json_beside_broken_packages(workshop, site):
    outcome = run("ops", "--json", cwd=workshop, setup=seeing(site))
    listed = json.loads(outcome.out)
    rows = {row["name"]: row for row in listed}
    assert outcome.status == 0
    assert len(listed) == 14 + 12 + 9
    assert {tuple(row) for row in listed} == {tuple(rows["MPI_SUM"])}
    known = {"place": "good_package:f", "doc": "Good.", "commute": True, "identity": "-inf", "uses": ["reduce"]}
    assert rows["good"].items() >= (known | {"nan": None, "groups": [], "datatypes": [], "error": None}).items()
    assert rows["absent"]["error"].startswith("raised ModuleNotFoundError")
    assert rows["absent"]["commute"] is None


def test_only_the_chosen_package_is_loaded(workshop, tmp_path):
    marker = tmp_path / "loaded"
    distribution(tmp_path, "other", {"other": "other:f"}, other=f"open({str(marker)!r}, 'w').close()")
    distribution(tmp_path, "chosen", {"chosen": "chosen:f"}, chosen=GOOD)
    succeeded(run("reduce", "-q", "--op", "chosen", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(tmp_path)))
    assert not marker.exists()


def test_the_example_package(workshop, tmp_path):
    package = Path(__file__).parents[2] / "examples" / "mpired-quaternion"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    distribution(tmp_path / "site", project["name"], project["entry-points"]["mpired.ops"])
    settings = {"cwd": tmp_path, "setup": seeing(tmp_path / "site", package)}
    units = {"i": (0, 1, 0, 0), "j": (0, 0, 1, 0), "k": (0, 0, 0, 1)}
    for rank, name in enumerate(units):
        np.save(tmp_path / f"{rank}.npy", np.array([units[name], (2, 0, 0, rank)], [(part, "f8") for part in "wxyz"]))
    files = [f"{rank}.npy" for rank in range(3)]
    for op, ranks, expected in (
        ("product", files, b"-1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("product", files[::-1], b"1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("sum", files, b"0.0,1.0,1.0,1.0\n6.0,0.0,0.0,3.0"),
    ):
        words = ("reduce", "-q", "--op", f"quaternion_{op}", "--to", "csv", *ranks)
        assert run(*words, **settings) == (0, b"w,x,y,z\n" + expected + b"\n", "")
    wrong = run("reduce", "--op", "quaternion_product", *RANKS, **settings | {"cwd": workshop})
    refused(wrong, 7, "quaternion_product: aborted: quaternions are structures of w, x, y and z, not MPI_DOUBLE")
