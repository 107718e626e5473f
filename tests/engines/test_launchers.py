"""A command that a launcher starts several times, without the engine for that: it says so once."""

import os
import subprocess
import sysconfig

import numpy as np
import pytest
from command import COMMAND, installed, run

import mpired

MPIEXEC = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
STARTED = "mpired: warning: started 4 times by a launcher; each process does the whole command."
ENGINE, ONCE = f"{STARTED} One command for all: --engine mpi\n", f"{STARTED} Start it once\n"
SIZES = {"PMI_SIZE": "PMI_RANK", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}


@pytest.fixture
def here(tmp_path):
    for name in ("a.npy", "b.npy", "total.npy"):
        np.save(tmp_path / name, np.arange(3.0))
    return tmp_path


def launched(here, *words):
    started = [MPIEXEC, "-n", "4", COMMAND, *words]
    return subprocess.run(started, check=False, cwd=here, capture_output=True, text=True, timeout=100)


def test_a_real_launcher(here):
    done = launched(here, "accumulate", "-q", "--op", "sum", "total.npy", "a.npy")
    assert (done.returncode, done.stderr) == (0, ONCE)
    assert np.load(here / "total.npy").tolist() == [0, 5, 10]  # which is why it is warned of
    for words, status in (("-f", 0), ("", 2)):
        done = launched(here, "reduce", "-q", "--op", "sum", "-o", "out.npy", "a.npy", "b.npy", *words.split())
        assert (done.returncode, done.stderr.count(ENGINE)) == (status, 1)
        assert np.load(here / "out.npy").tolist() == [0, 2, 4]
    done = launched(here, "reduce", "--engine", "mpi", "-q", "--op", "sum", "-fo", "out.npy", "a.npy", "b.npy")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("size", SIZES)
def test_the_first_process_says_it(here, size):
    words = ["reduce", "-q", "--op", "sum", "-fo", "out.npy", "a.npy"]
    for rank, count, said in (("0", "4", ENGINE), ("1", "4", ""), ("0", "1", ""), ("0", "four", "")):
        done = run(*words, cwd=here, env={size: count, SIZES[size]: rank})
        assert (done.status, done.err) == (0, said)
    env = {size: "4", SIZES[size]: "0"}
    assert run(*words, "--dry-run", cwd=here, env=env).err == ENGINE
    assert run("reduce", "--json", *words[2:], cwd=here, env=env).err == ENGINE
    assert run("info", "a.npy", cwd=here, env=env).err == ""
    for command in (
        ["fetch-and-op", "-q", "--op", "sum", "total.npy", "1"],
        ["reduce-local", "-q", "--op", "sum", "a.npy", "b.npy"],
    ):
        assert run(*command, cwd=here, env=env).err == ONCE
    installed_too = installed(*words, cwd=here, env={**os.environ, **env})
    assert (installed_too.status, installed_too.err) == (0, ENGINE)


def test_a_program_is_not_warned(here, monkeypatch, recwarn):
    """Each process of one may call what it likes, on files of its own."""
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "0")
    mpired.reduce([here / "a.npy"], "sum", output=here / "out.npy")
    assert not recwarn.list
