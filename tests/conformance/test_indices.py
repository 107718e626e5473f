"""The first example of MPI_MAXLOC in the standard (MPI-4.1, 6.9.4): 30 doubles a rank, by a real MPI and by --index."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run, succeeded

NRANKS = 5
# Each process has 30 doubles, and makes pairs of these and its rank.
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI

folder, comm = sys.argv[1], MPI.COMM_WORLD
pairs = np.zeros(30, np.dtype([("value", "f8"), ("index", "i4")], align=True))
pairs["value"], pairs["index"] = np.load(f"{folder}/rank{comm.rank}.npy"), comm.rank
for op in ("MAXLOC", "MINLOC"):
    found = np.zeros_like(pairs)
    comm.Reduce([pairs, 30, MPI.DOUBLE_INT], [found, 30, MPI.DOUBLE_INT], getattr(MPI, op), 0)
    if comm.rank == 0:
        np.save(f"{folder}/{op.lower()}.npy", found)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The ranks, with many ties, and what MPI made of them."""
    folder = tmp_path_factory.mktemp("ranks")
    draw = np.random.default_rng(30)
    for rank in range(NRANKS):
        np.save(folder / f"rank{rank}.npy", draw.integers(-3, 4, 30) / 2)
    (folder / "program.py").write_text(PROGRAM)
    mpiexec = Path(sys.executable).parent / "mpiexec"
    words = [mpiexec, "-n", str(NRANKS), sys.executable, folder / "program.py", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("op", ["maxloc", "minloc"])
def test_thirty_doubles_a_rank(op, folder):
    expected = np.load(folder / f"{op}.npy")
    assert len(set(expected["index"].tolist())) == NRANKS
    words = ("reduce", "-q", "--op", op, "--index", "rank", *(f"rank{rank}.npy" for rank in range(NRANKS)))
    succeeded(run(*words, "--split", f"{op}_v.npy,{op}_i.npy", cwd=folder))
    value, index = (np.load(folder / f"{op}_{part}.npy") for part in "vi")
    assert (value.tolist(), index.tolist()) == (expected["value"].tolist(), expected["index"].tolist())
    assert (value.dtype, index.dtype) == (np.dtype("f8"), np.dtype("i4"))
    succeeded(run(*words, "-o", f"{op}_pairs.npy", cwd=folder))
    assert np.load(folder / f"{op}_pairs.npy").tolist() == expected.tolist()
