"""The standard's second example of MINLOC, as files and as a program of a real MPI (MPI-4.1, 6.9.4).

Every rank has a nonempty array, as long as it likes. It looks for its own minimum, and MPI_Reduce with the pairs of
value and global index finds the value, the rank that has it, and the index there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpired

NRANKS, LENGTH = 4, 1000
PROGRAM = """
import json, sys
import numpy as np
from mpi4py import MPI

comm, folder, length = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
mine = np.load(f"{folder}/{comm.rank}.npy")
pair = np.dtype([("value", "f4"), ("index", "i4")], align=True)
for name, op, worse in (("minloc", MPI.MINLOC, np.greater), ("maxloc", MPI.MAXLOC, np.less)):
    own, out = np.zeros(1, pair), np.zeros(1, pair)
    own["value"], own["index"] = mine[0], 0
    for index in range(1, len(mine)):
        if worse(own["value"][0], mine[index]):
            own["value"], own["index"] = mine[index], index
    own["index"] += comm.rank * length
    comm.Reduce([own, 1, MPI.FLOAT_INT], [out, 1, MPI.FLOAT_INT], op, 0)
    if comm.rank == 0:
        found = float(out["value"][0]), int(out["index"][0]) // length, int(out["index"][0]) % length
        json.dump(found, open(f"{folder}/{name}.json", "w"))
"""


@pytest.mark.parametrize("seed", range(2))
def test_the_example_of_the_standard(seed, tmp_path):
    draw = np.random.default_rng(seed)
    for rank in range(NRANKS):  # so few values that there are ties within and between ranks
        np.save(tmp_path / f"{rank}.npy", draw.integers(-20, 20, draw.integers(1, LENGTH)).astype("f4") / 4)
    (tmp_path / "program.py").write_text(PROGRAM)
    mpiexec = Path(sys.executable).parent / "mpiexec"
    words = [mpiexec, "-n", str(NRANKS), sys.executable, tmp_path / "program.py", tmp_path, str(LENGTH)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    for op in ("minloc", "maxloc"):
        found = mpired.locate([tmp_path / f"{rank}.npy" for rank in range(NRANKS)], op)
        assert [float(found.value), found.rank, *found.index] == json.loads((tmp_path / f"{op}.json").read_text())
