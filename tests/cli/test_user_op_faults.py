"""Everything a user-defined op can do wrong: exit status 7, one line that says which op and why, and nothing else.

Runs are forked children of the test process, which adopts what they leave behind: so nothing may be left.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from command import Child, alive, children, installed, refused, run, succeeded, unchanged, wait_until
from needs import has, needs
from packages import install

_PR_SET_CHILD_SUBREAPER = 36
RANKS = ("rank0.npy", "rank1.npy", "rank2.npy")
TIMEOUT = ("--op-timeout", "0.3")

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
def keywords(*, invec, inoutvec): pass

# wrong results
def returns_array(invec, inoutvec, count, datatype): return invec + inoutvec
def generator(invec, inoutvec, count, datatype): yield 1
def none(invec, inoutvec): pass
def short(invec, inoutvec): return invec[1:]
def long(invec, inoutvec): return np.append(invec, inoutvec)
def wrong_dtype(invec, inoutvec): return invec.astype("f4")
def objects(invec, inoutvec): return invec.astype(object)
def a_list(invec, inoutvec): return list(invec)
def scalar(invec, inoutvec): return invec.sum()
def two_dimensional(invec, inoutvec): return invec[:, None]
def masked(invec, inoutvec): return np.ma.masked_array(invec, mask=True)
def two_arrays(invec, inoutvec): return invec, inoutvec

# exceptions
class Unspeakable(Exception):
    def __str__(self): raise RuntimeError
class Unpicklable(Exception):
    def __init__(self, one, two): super().__init__("text")
    def __reduce__(self): raise TypeError

def raises(invec, inoutvec, count, datatype): raise ValueError("bad\\nnumber")
def without_text(invec, inoutvec, count, datatype): raise LookupError
def long_text(invec, inoutvec, count, datatype): raise ValueError("x" * 100_000)
def unspeakable(invec, inoutvec, count, datatype): raise Unspeakable
def unpicklable(invec, inoutvec, count, datatype): raise Unpicklable(1, 2)
def control(invec, inoutvec, count, datatype): raise ValueError("\\x1b[2J\\udcff")
def interrupt(invec, inoutvec, count, datatype): raise KeyboardInterrupt
def generator_exit(invec, inoutvec, count, datatype): raise GeneratorExit
def stop_iteration(invec, inoutvec, count, datatype): next(iter(()))
def memory(invec, inoutvec, count, datatype): raise MemoryError
def huge(invec, inoutvec, count, datatype): np.zeros(1 << 50)
def recursion(invec, inoutvec, count, datatype): recursion(invec, inoutvec, count, datatype)
def system_exit(invec, inoutvec, count, datatype): sys.exit(0)
def of_mpired(invec, inoutvec, count, datatype): raise DatatypeError("somewhere", "something")
def nested(invec, inoutvec, count, datatype): mpired.reduce(["missing.npy"], "sum")
def aborts(invec, inoutvec, count, datatype): raise mpired.Abort("the norm of element 3 is zero")
def at_the_end(invec, inoutvec, count, datatype):
    if inoutvec[-1] < 0: raise ValueError("negative")

# what it must not touch
def writes_invec(invec, inoutvec, count, datatype): invec[0] = 1
def adds_to_invec(invec, inoutvec): invec += inoutvec; return invec
def adds_to_inoutvec(invec, inoutvec): inoutvec += invec; return inoutvec

# ways to end
def looks_around(invec, inoutvec, count, datatype): inoutvec += invec[0]
def compares(invec, inoutvec): return invec if invec > inoutvec else inoutvec
def slow(invec, inoutvec): time.sleep(0.7); return invec + inoutvec
def exits(invec, inoutvec, count, datatype): os._exit(0)
def terminates(invec, inoutvec, count, datatype): os.kill(os.getpid(), signal.SIGTERM)
def crashes(invec, inoutvec, count, datatype): ctypes.string_at(0)

# ways not to
def loops(invec, inoutvec, count, datatype):
    while True: pass
def loops_in_c(invec, inoutvec, count, datatype): sum(iter(int, 1))
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

def leaves_and_adds(invec, inoutvec, count, datatype): all_of_them(); add(invec, inoutvec, count, datatype)
def leaves_and_raises(invec, inoutvec, count, datatype): all_of_them(); raise ValueError("left")
def leaves_and_crashes(invec, inoutvec, count, datatype): all_of_them(); ctypes.string_at(0)
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

def prints_to_streams_and_adds(invec, inoutvec, count, datatype):
    print("to one", flush=True)
    print("to the other", file=sys.stderr, flush=True)
    add(invec, inoutvec, count, datatype)

def prints_and_raises(invec, inoutvec, count, datatype):
    print("printed")
    raise ValueError("after it")

def reads(invec, inoutvec, count, datatype):
    assert sys.stdin.read() == "" and os.read(0, 1) == b""
    add(invec, inoutvec, count, datatype)
"""
PRINTED = ["by a child", "by print", "by printf", "by write", "without an end"]

# Files that cannot be loaded, each with a function in it.
FILES = {
    "syntax.py": "def f(:\n",
    "import_error.py": "import nonexistent_package\ndef f(a, b): pass\n",
    "raises.py": "raise ValueError('at import')\n",
    "exits.py": "import sys; sys.exit(0)\n",
    "ends.py": "import os; os._exit(0)\n",
    "hangs.py": "import time; time.sleep(600)\n",
    "datatype.py": "import mpired\n@mpired.op(datatypes=['duble'])\ndef f(a, b): pass\n",
    "identity.py": "import mpired\n@mpired.op(identity='zero')\ndef f(a, b): pass\n",
    "bytes.py": "x = '\udcff'\n",
    "empty.py": "",
    "text.txt": "def f(a, b): pass\n",
    "text.so": "this is no library\n",
}

C = """
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#define OP(name) void name(double *in, double *inout, int *len, void **datatype)
OP(segv) { *(volatile int *)0 = 1; }
OP(aborts) { abort(); }
OP(fpe) { raise(SIGFPE); }
OP(exits) { exit(0); }
OP(after) { inout[*len] = 1; }
OP(before) { inout[-1] = 1; }
OP(far_after) { ((char *)(inout + *len))[63] = 1; }
OP(after_in) { in[*len] = 1; }
OP(before_in) { in[-1] = 1; }
OP(loops) { for (volatile int i = 0;; i = 0) {} }
"""
CONSTRUCTOR = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"


class Fault(NamedTuple):
    """What is wrong, the text of --op, and what the message has to say besides it."""

    name: str
    op: str
    reason: str
    options: tuple[str, ...] = ()
    own_text: str = ""


def python(name, reason, *options, own_text=""):
    return Fault(name, f"./ops.py:{name}", reason, options, own_text)


RETURNS = "an op of two arguments returns an array of float64 with the shape (4,)"
ARGUMENTS = "takes neither (invec, inoutvec, len, datatype) nor two arrays"
TOO_LONG = "took longer than 0.3 s; nothing was written"

DOUBLED = "is the name of 2 entry points (first:f of one, second:f of other); write the place of one instead"

FAULTS = [
    # row 79 of the catalogue: the file
    Fault("missing file", "./missing.py:f", "there is no file ./missing.py"),
    Fault("missing library", "./missing.so:f", "there is no file ./missing.so"),
    Fault("folder", ".:f", "raised"),
    Fault("folder with a slash", "./:f", "./ is not a regular file"),
    Fault("FIFO", "./fifo.py:f", "./fifo.py is not a regular file"),
    Fault("text file", "./text.txt:f", "./text.txt is not a Python file (.py)"),
    Fault("no function", "./ops.py:", "names no function"),
    Fault("no file", ":f", "names no function"),
    # row 80: loading it
    Fault("syntax error", "./syntax.py:f", "raised SyntaxError: invalid syntax (syntax.py, line 1)"),
    Fault("import error", "./import_error.py:f", "raised ModuleNotFoundError: No module named 'nonexistent_package'"),
    Fault("exception at import", "./raises.py:f", "raised ValueError: at import (raises.py, line 1)"),
    Fault("sys.exit at import", "./exits.py:f", "raised SystemExit: 0 (exits.py, line 1)"),
    Fault("os._exit at import", "./ends.py:f", "it ended with status 0"),
    Fault("hang at import", "./hangs.py:f", TOO_LONG, TIMEOUT),
    Fault("not UTF-8", "./bytes.py:f", "raised SyntaxError"),
    Fault("module missing", "nonexistent_package:f", "raised ModuleNotFoundError"),
    Fault("module of a file", "numpy.nonexistent:f", "raised ModuleNotFoundError"),
    Fault("relative module", ".ops:f", "raised TypeError"),
    Fault("unknown datatype", "./datatype.py:f", "raised UnknownDatatypeError: ^duble: no datatype has this name"),
    Fault("identity", "./identity.py:f", "raised TypeError: the identity is str"),
    # row 81: the function
    Fault("function missing", "./empty.py:f", "there is no 'f' in"),
    Fault("attribute missing", "numpy:linalg.nothing", "there is no 'nothing' in"),
    Fault("not callable", "./ops.py:number", "is int, not a function"),
    Fault("one argument", "./ops.py:one", ARGUMENTS),
    Fault("three arguments", "./ops.py:three", ARGUMENTS),
    Fault("keywords", "./ops.py:keywords", ARGUMENTS),
    Fault("unary ufunc", "numpy:cos", ARGUMENTS),
    Fault("built-in function", "builtins:abs", ARGUMENTS),
    # row 82: what it returns
    python("returns_array", "returned ndarray of float64 with the shape (4,); an op of four arguments leaves"),
    python("generator", "returned generator; an op of four arguments leaves its result in inoutvec"),
    python("none", f"returned NoneType; {RETURNS}"),
    python("short", f"returned ndarray of float64 with the shape (3,); {RETURNS}"),
    python("long", f"returned ndarray of float64 with the shape (8,); {RETURNS}"),
    python("wrong_dtype", f"returned ndarray of float32 with the shape (4,); {RETURNS}"),
    python("objects", f"returned ndarray of object with the shape (4,); {RETURNS}"),
    python("a_list", f"returned list; {RETURNS}"),
    python("scalar", f"returned float64; {RETURNS}"),
    python("two_dimensional", f"returned ndarray of float64 with the shape (4, 1); {RETURNS}"),
    python("masked", f"returned MaskedArray of float64 with the shape (4,); {RETURNS}"),
    python("two_arrays", f"returned tuple; {RETURNS}"),
    Fault("boolean ufunc", "numpy:equal", f"returned ndarray of bool with the shape (4,); {RETURNS}"),
    # row 83: exceptions
    python("raises", "raised ValueError: bad number (ops.py, line "),
    python("without_text", "raised LookupError (ops.py, line "),
    python("long_text", "raised ValueError: xxx"),
    python("unspeakable", "raised Unspeakable: (and its message cannot be had)"),
    python("unpicklable", "raised Unpicklable: text"),
    python("control", r"raised ValueError: \x1b[2J\udcff"),
    python("interrupt", "raised KeyboardInterrupt"),
    python("generator_exit", "raised GeneratorExit"),
    python("stop_iteration", "raised StopIteration"),
    python("memory", "raised MemoryError"),
    python("huge", "raised MemoryError: Unable to allocate 8.00 PiB"),
    python("recursion", "raised RecursionError"),
    python("system_exit", "raised SystemExit: 0"),
    python("of_mpired", "raised DatatypeError: somewhere: something"),
    python("nested", "raised FileNotFoundError"),
    python("aborts", "aborted: the norm of element 3 is zero"),
    # row 84: read-only operands
    python("writes_invec", "raised ValueError: assignment destination is read-only"),
    python("adds_to_invec", "raised ValueError: output array is read-only"),
    python("adds_to_inoutvec", "raised ValueError: output array is read-only"),
    python("looks_around", "gives other bits for 4 elements at once than for 2 and the rest"),
    python("compares", "an op gets arrays, not numbers: use numpy.maximum, numpy.where and the like"),
    # row 85: standard output
    python("prints_and_raises", "raised ValueError: after it", own_text="printed\n"),
    # row 86: no end, and ends of the wrong kind
    python("loops", TOO_LONG, *TIMEOUT),
    python("loops_in_c", TOO_LONG, *TIMEOUT),
    python("sleeps", TOO_LONG, *TIMEOUT),
    python("sleeps_through_signals", TOO_LONG, *TIMEOUT),
    python("exits", "it ended with status 0"),
    python("terminates", "it was killed by SIGTERM"),
    python("crashes", "it was killed by SIGSEGV"),
    python("leaves_and_raises", "raised ValueError: left"),
    python("leaves_and_crashes", "it was killed by SIGSEGV"),
    python("leaves_and_sleeps", TOO_LONG, *TIMEOUT),
    # row 87: libraries
    Fault("not a library", "./text.so:f", "cannot be loaded ("),
    Fault("truncated library", "./cut.so:f", "cannot be loaded ("),
    Fault("other machine", "./foreign.so:segv", "cannot be loaded ("),
    Fault("constructor that aborts", "./constructor.so:f", "it was killed by SIGABRT"),
    Fault("missing symbol", "./faults.so:missing", "there is no symbol 'missing' in ./faults.so"),
    Fault("unlikely symbol", "./faults.so:__class__", "there is no symbol '__class__' in ./faults.so"),
    Fault("bare name", "faults.so:segv", "a library needs a path; write ./faults.so:segv"),
    Fault("bare name of the system", "libm.so.6:pow", "a library needs a path; write ./libm.so.6:pow"),
    Fault("unknown variant", "./faults.so:segv:long", "has ':long' behind the symbol, where only :count can be"),
    Fault("SIGSEGV", "./faults.so:segv", "it was killed by SIGSEGV"),
    Fault("abort()", "./faults.so:aborts", "it was killed by SIGABRT"),
    Fault("SIGFPE", "./faults.so:fpe", "it was killed by SIGFPE"),
    Fault("exit()", "./faults.so:exits", "it ended with status 0"),
    Fault("overrun", "./faults.so:after", "wrote outside its buffers of 4 elements of MPI_DOUBLE"),
    Fault("underrun", "./faults.so:before", "wrote outside its buffers of 4 elements of MPI_DOUBLE"),
    Fault("overrun by 64 bytes", "./faults.so:far_after", "wrote outside its buffers"),
    Fault("overrun of invec", "./faults.so:after_in", "wrote outside its buffers"),
    Fault("underrun of invec", "./faults.so:before_in", "wrote outside its buffers"),
    Fault("loop", "./faults.so:loops", TOO_LONG, TIMEOUT),
    # row 88: packages
    Fault("two entry points", "doubled", DOUBLED),
    Fault("entry point of nothing", "absent", "raised ModuleNotFoundError: No module named 'absent_package'"),
    Fault("entry point that raises", "raising", "raised ValueError: at import (raising_package.py, line 1)"),
    Fault("entry point that exits", "exiting", "raised SystemExit: 0 (exiting_package.py, line 1)"),
    Fault("entry point that ends", "ending", "it ended with status 0"),
    Fault("entry point of a module", "module", "is module, not a function"),
    Fault("entry point without sense", "senseless", "raised "),
]


distribution = partial(install, group="mpired.ops")


GOOD = """
import numpy as np, mpired
@mpired.op(commute=True, identity=-np.inf)
def f(a, b):
    'Good.'
    return a + b
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of installed packages, most of them broken in some way."""
    folder = tmp_path_factory.mktemp("site")
    distribution(folder, "good", {"good": "good_package:f"}, good_package=GOOD)
    distribution(folder, "one", {"doubled": "first:f"})
    distribution(folder, "other", {"doubled": "second:f"})
    distribution(folder, "shadow", {"sum": "good_package:f", "MPI_PROD": "good_package:f"})
    distribution(folder, "absent", {"absent": "absent_package:f"})
    distribution(folder, "raising", {"raising": "raising_package:f"}, raising_package="raise ValueError('at import')")
    distribution(folder, "exiting", {"exiting": "exiting_package:f"}, exiting_package="raise SystemExit(0)")
    distribution(folder, "ending", {"ending": "ending_package:f"}, ending_package="import os; os._exit(0)")
    distribution(folder, "printing", {"printing": "printing:f"}, printing=f"print('printed')\n{GOOD}")
    distribution(folder, "strange", {"module": "good_package", "senseless": "3:::4"})
    (distribution(folder, "torn", {"torn": "good_package:f"}) / "entry_points.txt").write_text("[mpired.ops]\ntorn\n")
    (distribution(folder, "binary", {"binary": "x:y"}) / "entry_points.txt").write_bytes(b"[mpired.ops]\n\xff = \xff\n")
    return folder


def gcc(source, library):
    subprocess.run(
        ["gcc", "-w", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True
    )


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder with ranks, an existing output, and all that is broken."""
    folder = tmp_path_factory.mktemp("workshop")
    for rank, name in enumerate(RANKS):
        np.save(folder / name, np.arange(4.0) + rank)
    (folder / "output.npy").write_bytes(b"what was there before")
    (folder / "ops.py").write_text(OPS)
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    os.mkfifo(folder / "fifo.py")
    if has("gcc"):
        gcc(C, folder / "faults.so")
        gcc(CONSTRUCTOR, folder / "constructor.so")
        library = (folder / "faults.so").read_bytes()
        (folder / "cut.so").write_bytes(library[:100])
        (folder / "foreign.so").write_bytes(library[:18] + b"\xf3\x00" + library[20:])  # e_machine: RISC-V
    return folder


@pytest.fixture(autouse=True)
def libraries(request):
    """Skip the ops of libraries where those could not be compiled."""
    chosen = getattr(getattr(request.node, "callspec", None), "params", {})
    if ".so" in getattr(chosen.get("fault"), "op", chosen.get("op", "")):
        needs("gcc")


@contextlib.contextmanager
def nothing_left():
    """Check that no process is left of what the block starts: this process adopts them."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = children(os.getpid())
    try:
        yield
        assert children(os.getpid()) == before
    finally:
        for left in set(children(os.getpid())) - set(before):
            os.kill(left, signal.SIGKILL)
            os.waitpid(left, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def seeing(site):
    def setup():
        sys.path.insert(0, str(site))
        quiet()

    return setup


def quiet():
    """Undo what pytest does to the process: it has the interpreter write a report of a crash."""
    faulthandler.disable()


@pytest.mark.parametrize("target", ["output.npy", "-"])
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_fault(workshop, site, fault, target):
    words = ("reduce", "--op", fault.op, *fault.options, "--force", "-o", target, *RANKS)
    with unchanged(workshop), nothing_left():
        outcome = run(*words, cwd=workshop, setup=seeing(site))
    assert outcome.err.startswith(fault.own_text)
    refused(outcome._replace(err=outcome.err.removeprefix(fault.own_text)), 7, f"mpired: {fault.op}: ", fault.reason)
    assert len(outcome.err) < 1000


@pytest.mark.parametrize("jobs", ["1", "2", "7"])
@pytest.mark.parametrize("target", ["output.npy", "new.npy", "output.csv", "-"])
def test_fault_in_the_last_element_when_all_others_are_written(tmp_path, monkeypatch, jobs, target):
    monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", 64)
    monkeypatch.setattr("mpired.collectives.plan._SMALL_BYTES", 0)
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "output.npy").write_bytes(b"what was there before")
    for name in RANKS:
        array = np.arange(1001.0)
        array[-1] = -1
        np.save(tmp_path / name, array)
    words = ("reduce", "--op", "./ops.py:at_the_end", "-j", jobs, "--force", "-o", target, *RANKS)
    with unchanged(tmp_path), nothing_left():
        outcome = run(*words, cwd=tmp_path)
    refused(outcome, 7, "./ops.py:at_the_end: raised ValueError: negative")


def total(out):
    return np.frombuffer(out, "f8").tolist()


def test_what_an_op_leaves_behind_is_ended_when_it_succeeds(workshop):
    with nothing_left():
        outcome = run("reduce", "-q", "--op", "./ops.py:leaves_and_adds", "--to", "raw", *RANKS, cwd=workshop)
    succeeded(outcome)
    assert total(outcome.out) == [3.0, 6.0, 9.0, 12.0]


def test_each_call_has_its_own_time(workshop):
    """The first elements are combined three times, which together takes longer than one call may."""
    outcome = run("reduce", "-q", "--op", "./ops.py:slow", "--op-timeout", "2", "--to", "raw", *RANKS[:2], cwd=workshop)
    succeeded(outcome)


def test_what_an_op_prints_goes_to_standard_error(workshop):
    outcome = run("reduce", "-q", "--op", "./ops.py:prints_and_adds", "--to", "raw", *RANKS, cwd=workshop)
    assert outcome.status == 0
    assert total(outcome.out) == [3.0, 6.0, 9.0, 12.0]
    assert sorted(re.findall("by a child|by printf?|by write|without an end", outcome.err)) == sorted(PRINTED * 4)


@pytest.mark.parametrize("stream", ["closed", "full", "without a reader"])
def test_what_an_op_prints_may_get_lost(workshop, stream):
    def setup():
        if stream == "closed":
            os.close(2)
            return
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(os.open("/dev/full", os.O_WRONLY) if stream == "full" else writer, 2)

    words = ("reduce", "-q", "--op", "./ops.py:prints_to_streams_and_adds", "--to", "raw", *RANKS)
    outcome = run(*words, cwd=workshop, setup=setup)
    assert (outcome.status, outcome.err) == (0, "")
    assert total(outcome.out) == [3.0, 6.0, 9.0, 12.0]


def test_an_op_that_reads_standard_input_finds_it_empty(workshop):
    words = ("reduce", "-q", "--op", "./ops.py:reads", "--to", "raw", "-", RANKS[1])
    outcome = run(*words, cwd=workshop, stdin=(workshop / RANKS[0]).read_bytes())
    succeeded(outcome)
    assert total(outcome.out) == [1.0, 3.0, 5.0, 7.0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("op", ["./ops.py:leaves_and_sleeps", "./hangs.py:f", "./faults.so:loops"])
def test_an_op_that_hangs_is_ended_by_a_signal(workshop, op, number):
    with unchanged(workshop), nothing_left():
        child = Child("reduce", "--op", op, "--force", "-o", "output.npy", *RANKS, cwd=workshop)
        wait_until(lambda: children(child.pid))
        if op == "./ops.py:leaves_and_sleeps":
            wait_until(lambda: any(map(children, children(child.pid))))
        os.kill(child.pid, number)
        outcome = child.finish()
    assert (outcome.status, outcome.out, outcome.err) == (-number, b"", "")


def test_a_worker_does_not_outlive_the_command(workshop):
    child = Child("reduce", "--op", "./ops.py:sleeps", *RANKS, cwd=workshop)
    wait_until(lambda: children(child.pid))
    (worker,) = children(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.finish()
    wait_until(lambda: not alive(worker))


# ---- installed packages


def test_other_ops_work_beside_broken_packages(workshop, site):
    outcome = run("reduce", "-q", "--op", "good", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(site))
    succeeded(outcome)
    assert total(outcome.out) == [3.0, 6.0, 9.0, 12.0]
    outcome = run("reduce", "-q", "--op", "./ops.py:add", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(site))
    succeeded(outcome)


@pytest.mark.parametrize(("op", "expected"), [("sum", [3.0, 6.0, 9.0, 12.0]), ("MPI_PROD", [0.0, 6.0, 24.0, 60.0])])
def test_predefined_ops_cannot_be_shadowed(workshop, site, op, expected):
    outcome = run("reduce", "--op", op, "--to", "raw", *RANKS, cwd=workshop, setup=seeing(site))
    assert outcome.status == 0
    assert outcome.err.startswith(f"mpired: MPI_{op.upper().removeprefix('MPI_')} of 3 ranks")
    assert total(outcome.out) == expected


def test_list_of_ops_beside_broken_packages(workshop, site):
    with nothing_left():
        outcome = run("ops", cwd=workshop, setup=seeing(site))
    assert outcome.status == 0
    assert outcome.err == "printed\n"
    listed = outcome.out.decode().partition("user-defined ops that are installed:\n")[2].splitlines()
    hidden = "hidden by the predefined op of that name"
    assert listed == [
        f"MPI_PROD (good_package:f): {hidden}",
        "absent (absent_package:f): raised ModuleNotFoundError: No module named 'absent_package'",
        "doubled (first:f, second:f): " + DOUBLED,
        "ending (ending_package:f): a worker died: it ended with status 0; nothing was written",
        "exiting (exiting_package:f): raised SystemExit: 0 (exiting_package.py, line 1)",
        "good (good_package:f): commutes, identity -inf, any datatype; Good.",
        "module (good_package): is module, not a function",
        "printing (printing:f): commutes, identity -inf, any datatype; Good.",
        "raising (raising_package:f): raised ValueError: at import (raising_package.py, line 1)",
        *[line for line in listed if line.startswith("senseless (3:::4): raised ")],
        f"sum (good_package:f): {hidden}",
    ]
    assert len(listed) == 11


def test_list_of_ops_as_json_beside_broken_packages(workshop, site):
    outcome = run("ops", "--json", cwd=workshop, setup=seeing(site))
    listed = json.loads(outcome.out)
    rows = {row["name"]: row for row in listed}
    assert outcome.status == 0
    assert len(listed) == 14 + 11
    assert {tuple(row) for row in listed} == {tuple(rows["MPI_SUM"])}
    assert rows["good"] == {
        "name": "good",
        "place": "good_package:f",
        "doc": "Good.",
        "commute": True,
        "identity": "-inf",
        "uses": ["reduce"],
        "groups": [],
        "datatypes": [],
        "error": None,
    }
    assert rows["absent"]["error"].startswith("raised ModuleNotFoundError")
    assert rows["absent"]["commute"] is None


def test_a_package_that_hangs_is_left_out_of_the_list_in_time(workshop, tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.engines.userops._LISTING_TIMEOUT", 0.3)
    distribution(tmp_path, "hanging", {"hanging": "hanging:f"}, hanging="import time; time.sleep(600)")
    with nothing_left():
        outcome = run("ops", cwd=workshop, setup=seeing(tmp_path))
    assert outcome.status == 0
    assert b"hanging (hanging:f): took longer than 0.3 s" in outcome.out


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["reduce", "--help"], ["ops", "--help"], ["types"]])
def test_no_package_is_loaded_where_none_is_asked_for(workshop, tmp_path, words):
    marker = tmp_path / "loaded"
    text = f"open({str(marker)!r}, 'w').close()\nraise ValueError"
    distribution(tmp_path, "broken", {"broken": "broken:f"}, broken=text)
    outcome = installed(*words, cwd=workshop, env=os.environ | {"PYTHONPATH": path_with(tmp_path)})
    assert (outcome.status, outcome.err) == (0, "")
    assert not marker.exists()


def path_with(folder):
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_only_the_chosen_package_is_loaded(workshop, tmp_path):
    marker = tmp_path / "loaded"
    distribution(tmp_path, "other", {"other": "other:f"}, other=f"open({str(marker)!r}, 'w').close()")
    distribution(tmp_path, "chosen", {"chosen": "chosen:f"}, chosen=GOOD)
    outcome = run("reduce", "-q", "--op", "chosen", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(tmp_path))
    succeeded(outcome)
    assert not marker.exists()


def test_a_package_that_is_found_twice_is_one(workshop, tmp_path):
    for name in "first", "second":
        distribution(tmp_path / name, "good", {"good": "good_package:f"}, good_package=GOOD)

    def setup():
        sys.path[:0] = [str(tmp_path / "first"), str(tmp_path / "second")]

    succeeded(run("reduce", "-q", "--op", "good", "--to", "raw", *RANKS, cwd=workshop, setup=setup))


# ---- listing the ops of a file


def test_ops_of_a_file(tmp_path):
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
        "two (./my.py:two): commute not said, any datatype",
    ]
    rows = json.loads(run("ops", "--json", "my.py", cwd=tmp_path).out)
    assert [(row["name"], row["place"], row["commute"]) for row in rows] == [
        ("first", "my.py:one", False),
        ("two", "my.py:two", None),
    ]


def test_a_file_without_decorated_functions(workshop):
    outcome = run("ops", "empty.py", cwd=workshop)
    assert (outcome.status, outcome.out) == (0, b"")
    assert outcome.err == "mpired: empty.py: no function in it is decorated with @mpired.op\n"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("missing.py", "there is no file"),
        (".", "is not a regular file"),
        ("text.txt", "is not a Python file"),
        ("syntax.py", "raised SyntaxError"),
        ("exits.py", "raised SystemExit: 0"),
        ("ends.py", "it ended with status 0"),
    ],
)
def test_files_that_cannot_be_listed(workshop, file, reason):
    with unchanged(workshop), nothing_left():
        refused(run("ops", file, cwd=workshop), 7, f"mpired: {file}: ", reason)


# ---- the rest of the words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--op", "./ops.py:add", "--op-timeout", "0"), "--op-timeout: 0.0 is not a time"),
        (("--op", "./ops.py:add", "--op-timeout", "nan"), "--op-timeout: nan is not a time"),
        (("--op", "sum", "--commute"), "--commute: is for user-defined ops; MPI_SUM is predefined"),
        (("--op", "./ops.py"), "./ops.py: is a file; say which function in it, as ./ops.py:FUNCTION"),
        (("--op", "goood"), "goood: is not an MPI op"),
    ],
)
def test_usage(workshop, words, reason):
    with unchanged(workshop):
        refused(run("reduce", *words, "-o", "new.npy", *RANKS, cwd=workshop), 2, reason)


def test_an_op_that_is_not_for_the_datatype_is_an_error_of_mpi(workshop):
    (workshop / "floats.py").write_text("import mpired\n@mpired.op(datatypes='float')\ndef f(a, b): return a\n")
    with unchanged(workshop):
        outcome = run("reduce", "--op", "./floats.py:f", "-o", "new.npy", *RANKS, cwd=workshop)
    refused(outcome, 3, "./floats.py:f: is not defined for MPI_DOUBLE (float64); it takes MPI_FLOAT")


@pytest.mark.parametrize(("option", "said"), [("--commute", True), ("--no-commute", False)])
def test_what_is_said_of_commuting_is_reported(workshop, option, said):
    outcome = run("reduce", "--json", "--op", "./ops.py:add", option, "--to", "raw", *RANKS, cwd=workshop)
    assert outcome.status == 0
    assert json.loads(outcome.err)["commute"] is said


def test_no_compiled_files_are_left(tmp_path):
    (tmp_path / "ops.py").write_text(OPS)
    for name in RANKS:
        np.save(tmp_path / name, np.arange(3.0))
    with unchanged(tmp_path):
        installed("reduce", "-q", "--op", "ops.py:add", "--to", "raw", *RANKS, cwd=tmp_path)


def test_the_example_package(workshop, tmp_path):
    package = Path(__file__).parents[2] / "examples" / "mpired-quaternion"
    words = "install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --target"
    subprocess.run([sys.executable, "-m", "pip", *words.split(), tmp_path / "site", package], check=True)
    form = np.dtype([(name, "f8") for name in "wxyz"])
    units = {"1": (1, 0, 0, 0), "i": (0, 1, 0, 0), "j": (0, 0, 1, 0), "k": (0, 0, 0, 1)}
    for rank, name in enumerate("ijk"):
        np.save(tmp_path / f"{rank}.npy", np.array([units[name], (2, 0, 0, rank)], form))
    env = os.environ | {"PYTHONPATH": path_with(tmp_path / "site")}
    files = [f"{rank}.npy" for rank in range(3)]
    outcome = installed("reduce", "-q", "--op", "quaternion_product", "--to", "csv", *files, cwd=tmp_path, env=env)
    succeeded(outcome)
    assert outcome.out == b"w,x,y,z\n-1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0\n"
    backwards = installed(
        "reduce", "-q", "--op", "quaternion_product", "--to", "csv", *files[::-1], cwd=tmp_path, env=env
    )
    assert backwards.out == b"w,x,y,z\n1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0\n"
    total = installed("reduce", "-q", "--op", "quaternion_sum", "--to", "csv", *files, cwd=tmp_path, env=env)
    assert total.out == b"w,x,y,z\n0.0,1.0,1.0,1.0\n6.0,0.0,0.0,3.0\n"
    listed = installed("ops", cwd=tmp_path, env=env).out.decode()
    assert "quaternion_product (mpired_quaternion:product): does not commute, identity [1.0, 0.0, 0.0, 0.0]" in listed
    wrong = installed("reduce", "--op", "quaternion_product", *RANKS, cwd=workshop, env=env)
    refused(wrong, 7, "quaternion_product: aborted: quaternions are structures of w, x, y and z, not MPI_DOUBLE")
