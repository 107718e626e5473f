"""`with mpired.mpi() as engine:` in programs that a real mpiexec runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpiexec import PROGRAM, launched

import mpired

NRANKS = 4
RANKS = [f"r{rank}.npy" for rank in range(NRANKS)]
BEGINNING = f"""\
{PROGRAM}
from mpi4py import MPI
RANK = MPI.COMM_WORLD.rank
RANKS = [f"r{{rank}}.npy" for rank in range(4)]
def say(text):
    os.write(1, (text + "\\n").encode())
"""


def run(nprocesses: int, program: str) -> subprocess.CompletedProcess[str]:
    Path("program.py").write_text(BEGINNING + program)
    if nprocesses:
        return launched(nprocesses, sys.executable, "program.py")
    return subprocess.run([sys.executable, "program.py"], check=False, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("nprocesses", [3, 1])
def test_rank_0_runs_the_block_and_all_go_on(nprocesses, here):
    """The others lend what they have, a second block is like the first, and an error in the block harms nothing."""
    done = run(
        nprocesses,
        """
import signal
before = sys.stdout, signal.getsignal(signal.SIGINT), os.readlink("/proc/self/fd/0"), sys.gettrace()
for op, output in (("sum", "sum.npy"), ("ops.py:prints", "user.npy")):
    with mpired.mpi() as engine:
        say(f"in {RANK}")
        summary = mpired.reduce(RANKS, op, output=output, engine=engine)
    say(f"after {RANK}")
with mpired.mpi() as engine:
    try:
        mpired.reduce(RANKS, "ops.py:refuse", output="out.npy", engine=engine)
    except UserOpError:
        mpired.scan(RANKS, "sum", output="scan{rank}.npy", engine=engine)
assert before == (sys.stdout, signal.getsignal(signal.SIGINT), os.readlink("/proc/self/fd/0"), sys.gettrace())
found = MPI.COMM_WORLD.allgather(RANK)
sys.stdout.write(" ".join(["end", *map(str, found)]) + "\\n")
sys.stdout.flush()
if not RANK:
    say(f"{summary.engine} {summary.workers}")
    try:
        mpired.reduce(RANKS, "sum", engine=engine)
    except mpired.MpiredError as error:
        say(str(error))
""",
    )
    assert (done.returncode, done.stderr.replace("in an op\n", "")) == (0, "")
    said = done.stdout.splitlines()
    assert said.count("in 0") == 2
    assert not [line for line in said if line.startswith("in ") and line not in {"in 0", "in an op"}]
    for rank in range(nprocesses):
        assert said.count(f"after {rank}") == 2
    assert said.count(" ".join(["end", *map(str, range(nprocesses))])) == nprocesses
    assert f"mpi {max(1, nprocesses - 1)}" in said
    assert "`engine`: is that of a block of `mpired.mpi` that has ended; use it in the block" in said
    expected = mpired.reduce(RANKS, "sum")
    for name in ("sum.npy", "user.npy", "scan3.npy"):
        assert np.array_equal(np.load(name), expected)
    assert len(list(here.glob("in_it.*"))) == max(1, nprocesses - 1)


@pytest.mark.parametrize(("body", "status", "said"), [
    ('mpired.reduce(RANKS, "ops.py:refuse", output="out.npy", engine=engine)', 1, "raised ValueError: no"),
    ('raise KeyError("mine")', 1, "KeyError: 'mine'"),
    ('sys.exit("mine")', 1, "mine"),
    ("sys.exit()", 0, ""),
])  # fmt: skip
@pytest.mark.sampled(2)
def test_an_exception_in_the_block_ends_all(body, status, said, here):
    done = run(3, f'with mpired.mpi() as engine:\n    {body}\nsay("after")')
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count(said) == 1 if said else not done.stderr
    assert done.stderr.count("Traceback") == (1 if "raise" in said or "Key" in said else 0)
    assert not list(here.glob("out*"))


def test_without_a_launcher(here, monkeypatch):
    error = (
        'try:\n    with mpired.mpi() as engine:\n        say("in")\nexcept mpired.MpiredError as e:\n    say(str(e))'
    )
    reason = "mpi has one process, and no launcher has started it"
    assert run(0, error).stdout == f"`engine`: {reason}; write `mpiexec -n 4 python program.py`, or srun\n"
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    reason = "the launcher has started 8 processes (OMPI_COMM_WORLD_SIZE), and each"
    assert run(0, error).stdout.startswith(f"`engine`: {reason}")


def test_the_example_of_the_page_runs(here):
    """That on the page of engines, which needs a launcher."""
    page = (Path(__file__).parent.parent.parent / "docs" / "scaling.md").read_text()
    program = page.split("```python\n# mpiexec -n 64 python sums.py\n")[1].split("```")[0]
    (here / "run7").mkdir()
    for rank in range(NRANKS):
        (here / f"r{rank}.npy").rename(here / "run7" / f"rank{rank}.npy")
    done = run(3, program)
    assert (done.returncode, done.stderr) == (0, "")
    expected = mpired.reduce([f"run7/rank{rank}.npy" for rank in range(NRANKS)], "sum")
    assert np.array_equal(np.load("total.npy"), expected)
