"""The engine mpi, under a real mpiexec: the bits of one machine, and what is left when something goes wrong."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, unchanged
from mpiexec import EAGER, MPIEXEC, PROGRAM, beside, command, launched
from running import end_in_time

import mpired
from mpired.engines import ENGINES, probe

NRANKS, COUNT = 4, 20_000
RANKS = [f"r{rank}.npy" for rank in range(NRANKS)]


def run(nprocesses: int, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    return launched(nprocesses, *command(verb, *words))


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*"))}


CALLS = f"""\
{PROGRAM}
RANKS = {RANKS!r}
with mpired.mpi() as engine:
    for options in ({{"max_memory": 100 << 20}}, {{"jobs": 2}}):
        print(mpired.reduce(RANKS, "sum", engine=engine, output="out.npy", overwrite=True, **options).workers)
    print([each.value for each in mpired.locate(RANKS, "maxloc", top=3, engine=engine)])
    for op, ranks in (("sum", ["fifo", *RANKS]), ("ops.py:touch", RANKS)):
        try:
            mpired.reduce(ranks, op, engine=engine, output="never.npy")
        except mpired.MpiredError as error:
            print(error)
    mpired.reduce(RANKS, "ops.py:slow", engine=engine, engine_timeout=2, output="slow.npy")
"""


def test_calls_of_one_program(here):
    """Limits are of each process; a rank that changes once is not read again; an op takes as long as it needs."""
    os.mkfifo("fifo")  # nobody ever writes to it
    Path("program.py").write_text(CALLS)
    done = launched(4, sys.executable, "program.py")
    assert (done.returncode, done.stderr) == (0, "")
    limited, jobs, located, stream, changed = done.stdout.splitlines()
    assert (limited, jobs) == ("3", "2")  # on one machine 100M for all together would be too little for three
    assert located == str([each.value for each in mpired.locate(RANKS, "maxloc", top=3)])
    assert stream.startswith("fifo: is a stream of this process, which workers of the engine mpi cannot open; write it")
    said = "r3.npy: changed while being read; run again when its writer has finished"
    assert changed == f"{said} (on {os.uname().nodename})"
    assert not Path("never.npy").exists()
    assert np.array_equal(np.load("slow.npy"), mpired.reduce(RANKS, "sum"))


def test_an_error_is_told_once_with_its_status(here):
    with unchanged(here):
        done = run(3, "reduce", "--op", "ops.py:refuse", "-o", "out.npy", *RANKS)
    assert done.returncode == 7
    assert done.stderr.count("raised ValueError: no") == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_call_that_does_not_end_ends_with_the_error_of_another(here):
    """MPI_Abort: the worker in the call cannot be asked to leave it."""
    done = run(3, "reduce", "--op", "ops.py:one_refuses", "-o", "out.npy", *RANKS)
    assert done.returncode == 7
    assert "raised ValueError: no" in done.stderr
    assert not results(here)


def in_an_op(here: Path, *options: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a command, and return it and its workers when all of these are in a call that does not end."""
    words = [MPIEXEC, "-n", "3", *command("reduce", *options, "--op", "ops.py:all_wait", "-o", "out.npy", *RANKS)]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while len(workers := [int(path.suffix[1:]) for path in here.glob("in_it.*")]) < 2:
        assert started.poll() is None
        time.sleep(0.01)
    return started, workers


@pytest.mark.parametrize(("whom", "sent"), [("worker", "SIGKILL"), ("mpiexec", "SIGTERM")])
def test_nothing_is_left_of_what_is_killed(whom, sent, here):
    started, workers = in_an_op(here)
    try:
        os.kill(started.pid if whom == "mpiexec" else workers[0], getattr(signal, sent))
        started.communicate(timeout=60)
        assert started.returncode != 0
        end_in_time(workers)
    finally:
        started.kill()
        started.wait()
    assert not results(here)
    assert not list(here.glob(".*"))


def test_a_worker_that_stands_still_is_an_error(here):
    """It cannot be told from one that is at work, so that only the user can say how long is too long."""
    started, workers = in_an_op(here, "--engine-timeout", "4")
    try:
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 8
    assert re.match(rf"mpired: the worker of rank [12] on {os.uname().nodename}: has sent nothing for 4 s; ", said)
    end_in_time(workers)
    assert not results(here)


@pytest.mark.needs("mount")
@pytest.mark.parametrize("elsewhere", ["hidden ranks", "hidden results"])
def test_a_worker_with_other_mounts(elsewhere, here):
    """Ranks that it does not see are refused; results that another file system would hide are sent back."""
    ranks, results = here / "ranks", here / "results"
    for folder in (ranks, results):
        folder.mkdir()
    for name in RANKS:
        (here / name).rename(ranks / name)
    mount = f"mount -t tmpfs tmpfs {ranks if elsewhere == 'hidden ranks' else results}"
    paths = sorted(ranks.iterdir())
    words = command("scan", "--op", "sum", "-o", f"{results}/out{{rank}}.npy", *map(str, paths))
    done = beside(words, "unshare", "--mount", "sh", "-c", f'{mount} && cd / && exec "$@"', "sh")
    if elsewhere == "hidden ranks":
        assert done.returncode == 2
        assert f"{ranks}/r0.npy: rank 0 is not the same file for the worker on {os.uname().nodename}" in done.stderr
        assert "No such file or directory" in done.stderr
        assert os.listdir(results) == []
        return
    assert done.returncode == 0, done.stderr
    expected = np.cumsum([np.load(path) for path in paths], axis=0)
    assert all(np.array_equal(np.load(results / f"out{i}.npy"), expected[i]) for i in range(NRANKS))


def test_a_worker_with_other_programs(here):
    """Before any work, with both versions and the machine."""
    own = probe.versions()
    assert list(own) == ["mpired", "NumPy", "the byte order", "long double"]
    (here / "site").mkdir()
    (here / "site" / "sitecustomize.py").write_text("import numpy; numpy.__version__ = 'other'")
    done = beside(command("reduce", "--op", "sum", "-o", "out.npy", *RANKS), "env", f"PYTHONPATH={here}/site")
    assert done.returncode == 2
    said = f"NumPy is other in the worker on {os.uname().nodename}, and {own['NumPy']} here; let all have the same"
    assert done.stderr == f"mpired: --engine: {said}\n"
    assert not results(here)


ABORT = """
import os, sys
from mpired.engines import mpi
class World:
    def Abort(self, status):
        os._exit(status)
mpi._PATIENCE = 60
print("why", file=sys.stderr)
open("written", "x").close()
mpi._abort(World(), 7)
"""


def test_processes_end_after_the_launcher_has_read_the_error(tmp_path, monkeypatch):
    """MPICH's launcher drops what is in the pipe when it hears of MPI_Abort."""
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ABORT], stderr=subprocess.PIPE) as started:
        while not os.path.exists("written"):
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.3)
        assert os.read(started.stderr.fileno(), 100) == b"why\n"
        assert started.wait(60) == 7


def test_workers_are_listed(here):
    started = launched(3, sys.executable, EAGER, "engines")
    assert started.stdout.count("and started: PMI_SIZE is 3") == 1  # the first process speaks for all
    assert len(started.stdout.splitlines()) == len(ENGINES)
    done = run(3, "engines", "r0.npy", "r1.npy")
    assert [line for line in done.stdout.splitlines() if "; sees 2 of 2 ranks" in line] == done.stdout.splitlines()[:2]


STARTED = "mpired: warning: started 2 times by a launcher; each process does the whole command."


def test_a_command_that_a_launcher_starts_several_times_says_so_once(here):
    """Without the engine for that; an update is then done as often."""
    np.save("total.npy", np.zeros(COUNT))
    done = launched(2, COMMAND, "accumulate", "-q", "--op", "sum", "total.npy", "r0.npy")
    assert (done.returncode, done.stderr) == (0, f"{STARTED} Start it once\n")
    assert np.array_equal(np.load("total.npy"), 2 * np.load("r0.npy"))
    done = launched(2, COMMAND, "reduce", "-q", "--op", "sum", "-fo", "out.npy", *RANKS)
    assert (done.returncode, done.stderr) == (0, f"{STARTED} One command for all: --engine mpi\n")
    assert np.array_equal(np.load("out.npy"), mpired.reduce(RANKS, "sum"))
