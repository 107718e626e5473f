"""A command that a launcher starts several times, without the engine for that: it says so once."""

import subprocess

import numpy as np
import pytest
from command import COMMAND, run
from mpiexec import MPIEXEC

import mpired

STARTED = "mpired: warning: started {} times by a launcher; each process does the whole command."
ENGINE, ONCE = f"{STARTED} One command for all: --engine mpi\n", f"{STARTED} Start it once\n"
SIZES = {"PMI_SIZE": "PMI_RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}


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


def test_the_first_process_says_it(here):
    words = ["reduce", "-q", "--op", "sum", "-fo", "out.npy", "a.npy"]
    wrong = []
    for size, rank_of in SIZES.items():
        first = {size: "4", rank_of: "0"}
        for command, env, said in [
            (words, first, ENGINE.format(4)),
            (words, {size: "4", rank_of: "1"}, ""),
            (words, {size: "1", rank_of: "0"}, ""),
            (words, {size: "four", rank_of: "0"}, ""),
            ([*words, "--dry-run"], first, ENGINE.format(4)),
            (["reduce", "--json", *words[2:]], first, ENGINE.format(4)),
            (["info", "a.npy"], first, ""),
            (["fetch-and-op", "-q", "--op", "sum", "total.npy", "1"], first, ONCE.format(4)),
            (["reduce-local", "-q", "--op", "sum", "a.npy", "b.npy"], first, ONCE.format(4)),
        ]:
            done = run(*command, cwd=here, env=env)
            wrong += [(command, env, done)] if (done.status, done.err) != (0, said) else []
    assert wrong == []


def test_a_program_is_not_warned(here, monkeypatch, recwarn):
    """Each process of one may call what it likes, on files of its own."""
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    mpired.reduce([here / "a.npy"], "sum", output=here / "out.npy")
    assert not recwarn.list
