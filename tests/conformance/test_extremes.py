"""The examples of MPI_MAXLOC and MPI_MINLOC in the standard (MPI-4.1, 6.9.4), by a real MPI and by mpired.

In the first every rank has 30 doubles, and the result has of each the rank that it is from. In the second every rank
has an array as long as it likes, and looks for its own minimum; the pairs of value and global index tell the value,
the rank that has it, and the index there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run, succeeded

import mpired

NRANKS, LENGTH = 5, 1000
PROGRAM = """
import json, sys
import numpy as np
from mpi4py import MPI

comm, folder, length = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
pairs = np.zeros(30, np.dtype([("value", "f8"), ("index", "i4")], align=True))
pairs["value"], pairs["index"] = np.load(f"{folder}/rank{comm.rank}.npy"), comm.rank
mine = np.load(f"{folder}/{comm.rank}.npy")
pair = np.dtype([("value", "f4"), ("index", "i4")], align=True)
for name, op, worse in (("minloc", MPI.MINLOC, np.greater), ("maxloc", MPI.MAXLOC, np.less)):
    found = np.zeros_like(pairs)
    comm.Reduce([pairs, 30, MPI.DOUBLE_INT], [found, 30, MPI.DOUBLE_INT], op, 0)
    own, out = np.zeros(1, pair), np.zeros(1, pair)
    own["value"], own["index"] = mine[0], 0
    for index in range(1, len(mine)):
        if worse(own["value"][0], mine[index]):
            own["value"], own["index"] = mine[index], index
    own["index"] += comm.rank * length
    comm.Reduce([own, 1, MPI.FLOAT_INT], [out, 1, MPI.FLOAT_INT], op, 0)
    if comm.rank == 0:
        np.save(f"{folder}/{name}.npy", found)
        where = float(out["value"][0]), int(out["index"][0]) // length, int(out["index"][0]) % length
        json.dump(where, open(f"{folder}/{name}.json", "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The ranks, with ties within and between them, and what MPI made of them."""
    folder = tmp_path_factory.mktemp("ranks")
    draw = np.random.default_rng(30)
    for rank in range(NRANKS):
        np.save(folder / f"rank{rank}.npy", draw.integers(-3, 4, 30) / 2)
        np.save(folder / f"{rank}.npy", draw.integers(-20, 20, draw.integers(1, LENGTH)).astype("f4") / 4)
    (folder / "program.py").write_text(PROGRAM)
    mpiexec = Path(sys.executable).parent / "mpiexec"
    words = [mpiexec, "-n", str(NRANKS), sys.executable, folder / "program.py", folder, str(LENGTH)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_rank_of_each_of_thirty_doubles(folder):
    for op in "maxloc", "minloc":
        expected = np.load(folder / f"{op}.npy")
        assert len(set(expected["index"].tolist())) == NRANKS
        words = ("reduce", "-q", "--op", op, "--index", "rank", *(f"rank{rank}.npy" for rank in range(NRANKS)))
        succeeded(run(*words, "--split", f"{op}_v.npy,{op}_i.npy", cwd=folder))
        value, index = (np.load(folder / f"{op}_{part}.npy") for part in "vi")
        assert (value.tolist(), index.tolist()) == (expected["value"].tolist(), expected["index"].tolist())
        assert (value.dtype, index.dtype) == (np.dtype("f8"), np.dtype("i4"))
        succeeded(run(*words, "-o", f"{op}_pairs.npy", cwd=folder))
        assert np.load(folder / f"{op}_pairs.npy").tolist() == expected.tolist()


def test_the_value_the_rank_and_the_index_there(folder):
    for op in "minloc", "maxloc":
        found = mpired.locate([folder / f"{rank}.npy" for rank in range(NRANKS)], op)
        assert [float(found.value), found.rank, *found.index] == json.loads((folder / f"{op}.json").read_text())
