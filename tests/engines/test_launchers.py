"""A command that a launcher starts several times, without the engine for that: it says so once."""

import subprocess

import numpy as np
import pytest
from command import COMMAND
from mpiexec import MPIEXEC

STARTED = "mpired: warning: started {} times by a launcher; each process does the whole command."
ENGINE, ONCE = f"{STARTED} One command for all: --engine mpi\n", f"{STARTED} Start it once\n"


@pytest.fixture
def here(tmp_path):
    for name in ("a.npy", "b.npy", "total.npy"):
        np.save(tmp_path / name, np.arange(3.0))
    return tmp_path


def launched(here, *words):
    started = [MPIEXEC, "-n", "2", COMMAND, *words]
    return subprocess.run(started, check=False, cwd=here, capture_output=True, text=True, timeout=100)


def test_a_real_launcher(here):
    done = launched(here, "accumulate", "-q", "--op", "sum", "total.npy", "a.npy")
    assert (done.returncode, done.stderr) == (0, ONCE.format(2))
    assert np.load(here / "total.npy").tolist() == [0, 3, 6]  # which is why it is warned of
    words = ("reduce", "-q", "--op", "sum", "-fo", "out.npy", "a.npy", "b.npy")
    for engine, said in ((), ENGINE.format(2)), (("--engine", "mpi"), ""):
        done = launched(here, *words, *engine)
        assert (done.returncode, done.stderr) == (0, said)
        assert np.load(here / "out.npy").tolist() == [0, 2, 4]
