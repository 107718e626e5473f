"""Everything a user-defined op can do wrong: exit status 7, one line that says which op and why, and nothing else.

Runs are forked children of the test process, which adopts what they leave behind: so nothing may be left.
"""

import pytest
from command import refused, run, unchanged
from op_faults import DOUBLED, RANKS, nothing_left
from rows import each
from setups import seeing

TIMEOUT = ("--op-timeout", "0.3")


RETURNS = "an op of two arguments returns an array of float64 with the shape (4,)"
ARGUMENTS = "must take two arrays, or (invec, inoutvec, len, datatype)"
TOO_LONG = "took longer than 0.3 s; nothing was written"

FAULTS = [
    ("./missing.py:f", "the file does not exist"),
    (".:f", "raised"),
    ("./fifo.py:f", "./fifo.py is not a regular file"),
    ("./text.txt:f", "./text.txt is not a Python file (.py)"),
    ("./ops.py:", "names no function"),
    ("./import_error.py:f", "raised ModuleNotFoundError: No module named 'nonexistent_package'"),
    ("./ends.py:f", "it ended with status 0"),
    ("./hangs.py:f", TOO_LONG, *TIMEOUT),
    ("./bytes.py:f", "raised SyntaxError"),
    ("nonexistent_package:f", "raised ModuleNotFoundError"),
    (".ops:f", "raised TypeError"),
    ("./datatype.py:f", "raised UnknownDatatypeError: unknown datatype 'duble'"),
    ("./empty.py:f", "there is no 'f' in"),
    ("./ops.py:number", "is int, not a function"),
    ("./ops.py:one", ARGUMENTS),
    ("./ops.py:three", "takes three arguments, as functions of mpi4py do"),
    ("numpy:cos", ARGUMENTS),
    ("./ops.py:returns_array", "returned ndarray of float64 with the shape (4,); an op of four arguments leaves"),
    ("./ops.py:none", f"returned NoneType; {RETURNS}"),
    ("./ops.py:wrong_dtype", f"returned ndarray of float32 with the shape (4,); {RETURNS}"),
    ("./ops.py:raises", "raised ValueError: bad number (ops.py, line "),
    ("./ops.py:unspeakable", "raised Unspeakable: (and its message cannot be had)"),
    ("./ops.py:unpicklable", "raised Unpicklable: text"),
    ("./ops.py:control", r"raised ValueError: \x1b[2J\udcff"),
    ("./ops.py:interrupt", "raised KeyboardInterrupt"),
    ("./ops.py:memory", "raised MemoryError"),
    ("./ops.py:system_exit", "raised SystemExit: 0"),
    ("./ops.py:of_mpired", "raised DatatypeError: somewhere: something"),
    ("./ops.py:aborts", "aborted: the norm of element 3 is zero"),
    ("./ops.py:writes_invec", "raised ValueError: assignment destination is read-only"),
    ("./ops.py:adds_to_inoutvec", "raised ValueError: output array is read-only"),
    ("./ops.py:looks_around", "gives other bits for 4 elements at once than for 2 and the rest"),
    ("./ops.py:compares", "an op gets arrays, not numbers: use numpy.maximum, numpy.where and the like"),
    ("./ops.py:prints_and_raises", "raised ValueError: after it"),
    ("./ops.py:loops", TOO_LONG, *TIMEOUT),
    ("./ops.py:sleeps", TOO_LONG, *TIMEOUT),
    ("./ops.py:sleeps_through_signals", TOO_LONG, *TIMEOUT),
    ("./ops.py:exits", "it ended with status 0"),
    ("./ops.py:crashes", "it was killed by SIGSEGV"),
    ("./ops.py:leaves_and_sleeps", TOO_LONG, *TIMEOUT),
    ("./text.so:f", "cannot be loaded ("),
    ("./cut.so:f", "cannot be loaded ("),
    ("./constructor.so:f", "it was killed by SIGABRT"),
    ("./faults.so:missing", "there is no symbol 'missing' in ./faults.so"),
    ("faults.so:segv", "a library needs a path; write ./faults.so:segv"),
    ("./faults.so:segv:long", "has ':long' behind the symbol, where only :count can be"),
    ("./faults.so:segv", "it was killed by SIGSEGV"),
    ("./faults.so:after", "wrote outside its buffers of 4 elements of MPI_DOUBLE"),
    ("./faults.so:far_after", "wrote outside its buffers"),
    ("./faults.so:before_in", "wrote outside its buffers"),
    ("./faults.so:loops", TOO_LONG, *TIMEOUT),
    ("doubled", DOUBLED),
    ("absent", "raised ModuleNotFoundError: No module named 'absent_package'"),
    ("ending", "it ended with status 0"),
    ("module", "is module, not a function"),
    ("senseless", "raised "),
]
PARTS = 3


# Each fault with a file or with standard output in turn.
@pytest.mark.parametrize("part", range(PARTS))
def test_fault(part, workshop, site):
    chosen = [(*row[:2], row[2:], ("output.npy", "-")[i % 2]) for i, row in enumerate(FAULTS[part::PARTS])]

    @each("op, reason, options, target", chosen)
    def is_told(op, reason, options, target):
        words = ("reduce", "--op", op, *options, "--force", "-o", target, *RANKS)
        with unchanged(workshop), nothing_left():
            outcome = run(*words, cwd=workshop, setup=seeing(site))
        refused(outcome._replace(err=outcome.err.removeprefix("printed\n")), 7, f"mpired: {op}: ", reason)
        assert len(outcome.err) < 1000
        assert outcome.err.startswith("printed\n") == ("prints" in op)

    is_told()
