"""Everything a user-defined op can do wrong: exit status 7, one line that says which op and why, and nothing else.

Runs are forked children of the test process, which adopts what they leave behind: so nothing may be left.
"""

from typing import NamedTuple

import numpy as np
import pytest
from command import refused, run, unchanged
from op_faults import DOUBLED, OPS, RANKS, nothing_left, seeing

TIMEOUT = ("--op-timeout", "0.3")


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
ARGUMENTS = "must take two arrays, or (invec, inoutvec, len, datatype)"
TOO_LONG = "took longer than 0.3 s; nothing was written"

FAULTS = [
    # row 79 of the catalogue: the file
    Fault("missing file", "./missing.py:f", "the file does not exist"),
    Fault("missing library", "./missing.so:f", "the file does not exist"),
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
    Fault("unknown datatype", "./datatype.py:f", "raised UnknownDatatypeError: unknown datatype 'duble'"),
    Fault("identity", "./identity.py:f", "raised TypeError: the identity is str"),
    # row 81: the function
    Fault("function missing", "./empty.py:f", "there is no 'f' in"),
    Fault("attribute missing", "numpy:linalg.nothing", "there is no 'nothing' in"),
    Fault("not callable", "./ops.py:number", "is int, not a function"),
    Fault("one argument", "./ops.py:one", ARGUMENTS),
    Fault("three arguments", "./ops.py:three", "takes three arguments, as functions of mpi4py do"),
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


# Each fault with a file or with standard output in turn.
@pytest.mark.parametrize(
    ("fault", "target"),
    [pytest.param(fault, ("output.npy", "-")[i % 2], id=fault.name) for i, fault in enumerate(FAULTS)],
)
@pytest.mark.sampled(2)
def test_fault(workshop, site, fault, target):
    words = ("reduce", "--op", fault.op, *fault.options, "--force", "-o", target, *RANKS)
    with unchanged(workshop), nothing_left():
        outcome = run(*words, cwd=workshop, setup=seeing(site))
    assert outcome.err.startswith(fault.own_text)
    refused(outcome._replace(err=outcome.err.removeprefix(fault.own_text)), 7, f"mpired: {fault.op}: ", fault.reason)
    assert len(outcome.err) < 1000


# Each number of workers with a file and with what is written as it comes.
@pytest.mark.parametrize(
    ("jobs", "target"),
    [("1", "output.npy"), ("1", "-"), ("2", "new.npy"), ("2", "output.csv"), ("7", "output.npy"), ("7", "-")],
)
def test_fault_in_the_last_element_when_all_others_are_written(tmp_path, monkeypatch, jobs, target):
    monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", 64)
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 0)
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
