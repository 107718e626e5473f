"""The engine mpi, under a real mpiexec: the bits of one machine, and what is left when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import command as command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import unchanged

import mpired
from mpired.engines import ENGINES, probe

MPIEXEC = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
EAGER = str(Path(__file__).parent.parent / "eager_command.py")
NRANKS, COUNT = 4, 20_000

OPS = """
import os, time
def add(invec, inoutvec):
    return invec + inoutvec
def refuse(invec, inoutvec):
    raise ValueError("no")
def touch(invec, inoutvec):
    os.utime("r3.npy", ns=(0, 1))
    return invec + inoutvec
def slow(invec, inoutvec):
    time.sleep(0.06)
    return invec + inoutvec
def wait(invec, inoutvec):
    with open(f"in_it.{os.getpid()}", "x"):
        time.sleep(100)
def one_refuses(invec, inoutvec):
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while not os.path.exists("in_it"):
            time.sleep(0.01)
        raise ValueError("no")
    open("in_it", "x").close()
    time.sleep(100)
"""


def words(nprocesses: int, *command: str) -> list[str]:
    start = [MPIEXEC, "-n", str(nprocesses)] if nprocesses else []
    return [*start, sys.executable, EAGER, *command]


def run(nprocesses: int, *command: str) -> subprocess.CompletedProcess[str]:
    engine = ("--engine", "mpi") if nprocesses else ()
    return subprocess.run(
        words(nprocesses, *command[:1], *engine, *command[1:]), check=False, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Ranks of npy, parquet and raw pairs in the working directory."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    for rank in range(NRANKS):
        array = random.standard_normal(COUNT) * 10.0 ** (3 * rank)
        np.save(f"r{rank}.npy", array)
        pq.write_table(pa.table({"x": array[:3000], "y": array[:3000] > 0}), f"r{rank}.parquet", row_group_size=700)
        pairs = np.zeros(3000, np.dtype([("value", "f8"), ("index", "i4")], align=True))
        pairs["value"], pairs["index"] = random.integers(0, 4, 3000), rank
        pairs.tofile(f"r{rank}.bin")
    Path("ops.py").write_text(OPS)
    return tmp_path


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*"))}


def check_same(here: Path, nprocesses: int, *command: str) -> None:
    """The command with the engine writes what it writes without."""
    assert command_line.run(*command, cwd=here).status == 0
    expected = results(here)
    for name in expected:
        os.unlink(name)
    done = run(nprocesses, *command)
    assert (done.returncode, done.stdout) == (0, "")
    nworkers = max(1, nprocesses - 1)
    assert f"{nworkers} worker{'s' if nworkers > 1 else ''} on 1 machine (mpi)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert expected
    assert results(here) == expected
    assert not list(here.glob(".*"))


@pytest.mark.parametrize("nprocesses", [5, 3, 1, 2])
@pytest.mark.sampled(2)
def test_any_number_of_processes_gives_the_same_bits(nprocesses, here):
    check_same(here, nprocesses, "reduce", "--op", "sum", "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS)))


@pytest.mark.parametrize(
    ("verb", "suffix", "options"),
    [
        ("reduce", "parquet", ["--op", "max", "--columns", "x", "-o", "out.parquet"]),
        ("reduce", "bin", ["--op", "maxloc", "--type", "double_int", "-o", "out.bin"]),
        ("reduce", "npy", ["--op", "ops.py:add", "-o", "out.npy"]),
        ("reduce", "npy", ["--op", "var", "-o", "out.csv"]),
        ("scan", "npy", ["--op", "prod", "--overflow", "wrap", "-o", "out{rank}.npy"]),
        ("allreduce", "npy", ["--op", "sum", "-o", "out{rank}.npy"]),
        ("exscan", "npy", ["--op", "sum", "--exscan-first", "identity", "-o", "out{rank}.npy"]),
        ("reduce-scatter-block", "npy", ["--op", "sum", "-o", "out{rank}.npy"]),
    ],
)
@pytest.mark.sampled(4)
def test_every_collective_and_form_gives_the_same_bits(verb, suffix, options, here):
    check_same(here, 3, verb, *options, *(f"r{i}.{suffix}" for i in range(NRANKS)))


@pytest.mark.parametrize(("options", "nworkers"), [([], 3), (["--max-memory", "100M"], 3), (["-j", "2"], 2)])
def test_limits_are_for_each_process(options, nworkers, here):
    """On one machine 100M are for all together, which is too little for three workers."""
    done = run(4, "reduce", "--op", "sum", *options, "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS)))
    assert f" {nworkers} workers on 1 machine (mpi)" in done.stderr


def test_locate_gives_the_same_answer(here):
    command = ("locate", "--op", "maxloc", "--top", "3", *(f"r{i}.npy" for i in range(NRANKS)))
    expected = mpired.locate([f"r{i}.npy" for i in range(NRANKS)], "maxloc", top=3)
    found = run(3, *command).stdout.splitlines()[:3]
    assert [line.split()[0] for line in found] == [str(each.value) for each in expected]


def test_a_stream_is_refused_before_it_is_read(here):
    os.mkfifo("fifo")
    done = run(3, "reduce", "--op", "sum", "-o", "out.npy", "fifo", "r1.npy")  # nobody ever writes to it
    assert done.returncode == 2
    assert "fifo: is a stream of this process, which workers of the engine mpi cannot open; write it" in done.stderr
    command = words(3, "reduce", "--engine", "mpi", "--op", "sum", "-o", "out.npy", "-", "r1.npy")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "standard input: is a stream of this process" in done.stderr


def test_an_error_is_told_once_with_its_status(here):
    with unchanged(here):
        done = run(3, "reduce", "--op", "ops.py:refuse", "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS)))
    assert done.returncode == 7
    assert done.stderr.count("raised ValueError: no") == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_rank_that_changes_is_told_with_the_machine_and_not_read_again(here):
    """It changes once, when the ranks before it are combined: a second attempt would succeed."""
    done = run(3, "reduce", "--op", "ops.py:touch", "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS)))
    assert done.returncode == 3
    said = "r3.npy: changed while being read; run again when its writer has finished"
    assert done.stderr == f"mpired: {said} (on {os.uname().nodename})\n"
    assert not results(here)


def test_a_call_that_does_not_end_ends_with_the_error_of_another(here):
    """MPI_Abort: the worker in the call cannot be asked to leave it."""
    done = run(3, "reduce", "--op", "ops.py:one_refuses", "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS)))
    assert done.returncode == 7
    assert "raised ValueError: no" in done.stderr
    assert not results(here)


@pytest.mark.parametrize(
    ("whom", "sent"), [("worker", "SIGKILL"), ("worker", "SIGTERM"), ("mpiexec", "SIGTERM"), ("mpiexec", "SIGINT")]
)
@pytest.mark.sampled(2)
def test_nothing_is_left_of_what_is_killed(whom, sent, here):
    command = words(
        3, "reduce", "--engine", "mpi", "--op", "ops.py:wait", "-o", "out.npy", *(f"r{i}.npy" for i in range(NRANKS))
    )
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while len(workers := [int(path.suffix[1:]) for path in here.glob("in_it.*")]) < 2:
            assert started.poll() is None
            time.sleep(0.01)
        os.kill(started.pid if whom == "mpiexec" else workers[0], getattr(signal, sent))
        assert started.wait(60) != 0
        until = time.monotonic() + 60
        while any(os.path.exists(f"/proc/{pid}") for pid in workers):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        started.kill()
        started.wait()
    assert not results(here)
    assert not list(here.glob(".*"))


def test_a_worker_that_stands_still_is_an_error(here):
    """It cannot be told from one that is at work, so that only the user can say how long is too long."""
    ranks = [f"r{rank}.npy" for rank in range(NRANKS)]
    options = ["--engine", "mpi", "--engine-timeout", "4", "--op", "ops.py:wait", "-o", "out.npy"]
    started = subprocess.Popen(words(3, "reduce", *options, *ranks), stderr=subprocess.PIPE, text=True)
    try:
        while len(workers := [int(path.suffix[1:]) for path in here.glob("in_it.*")]) < 2:
            assert started.poll() is None
            time.sleep(0.01)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 8
    host = os.uname().nodename
    assert re.match(
        rf"mpired: the worker of rank [12] on {host}: has sent nothing for 4 s; nothing was written\n", said
    )
    until = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not results(here)


def test_workers_that_send_something_take_as_long_as_they_need(here):
    """All calls of the op together take longer."""
    ranks = [f"r{rank}.npy" for rank in range(NRANKS)]
    done = run(3, "reduce", "--engine-timeout", "2", "--op", "ops.py:slow", "-o", "out.npy", *ranks)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load("out.npy"), mpired.reduce(ranks, "sum"))


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({}, ["-o", "out.npy"], "mpi needs a launcher: `mpiexec -n 4 mpired ... --engine mpi`, or srun"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ["-o", "out.npy"], "has started 8 processes (SLURM_STEP_NUM_TASKS), and each"),
        ({"PMI_SIZE": "1"}, [], "is standard output, which the launcher of mpi may write to; name a file"),
    ],
)
def test_what_cannot_work_is_refused(environment, options, said, here):
    command = [sys.executable, EAGER, "reduce", "--op", "sum", *options, "r0.npy"]
    with unchanged(here):
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | environment | {"MPIRED_ENGINE": "mpi"},
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.needs("mount")
@pytest.mark.parametrize("elsewhere", ["hidden", "another device"])
def test_a_worker_with_other_mounts(elsewhere, here):
    """It has another working directory. Ranks that it does not see are refused, another number of the device is not."""
    ranks = here / "ranks"
    ranks.mkdir()
    for path in here.glob("r*.npy"):
        path.rename(ranks / path.name)
    command = words(0, "reduce", "--engine", "mpi", "--op", "sum", "-o", "out.npy", *map(str, sorted(ranks.iterdir())))
    mount = f"mount -t tmpfs tmpfs {ranks}"
    if elsewhere == "another device":
        (here / "upper").mkdir()
        mount = (
            f"mount -t tmpfs tmpfs {here}/upper && mkdir {here}/upper/u {here}/upper/w && "
            f"mount -t overlay overlay -o lowerdir={ranks},upperdir={here}/upper/u,workdir={here}/upper/w {ranks}"
        )
    other = ["unshare", "--mount", "sh", "-c", f'{mount} && cd / && exec "$@"', "sh", *command]
    done = subprocess.run(
        [MPIEXEC, "-n", "2", *command, ":", "-n", "1", *other], capture_output=True, text=True, check=False
    )
    if elsewhere == "hidden":
        assert done.returncode == 2
        assert f"{ranks}/r0.npy: rank 0 is not the same file for the worker on {os.uname().nodename}" in done.stderr
        assert "No such file or directory" in done.stderr
        assert not results(here)
    else:
        assert done.returncode == 0
        expected = mpired.reduce(sorted(ranks.iterdir()), "sum")
        assert np.array_equal(np.load("out.npy"), expected)


@pytest.mark.needs("strace")
def test_workers_write_results_of_several_ranks_where_they_are_to_be(here):
    """And bring them to the disk; the command itself has no element to write."""
    command = words(
        0, "scan", "--engine", "mpi", "--op", "sum", "-o", "out{rank}.npy", *(f"r{i}.npy" for i in range(4))
    )
    traced = 'exec strace -f --seccomp-bpf -qq -y -e trace=pwrite64,fsync -o trace.$PMI_RANK "$@"'
    subprocess.run([MPIEXEC, "-n", "3", "sh", "-c", traced, "sh", *command], check=True, capture_output=True)
    expected = np.cumsum([np.load(f"r{i}.npy") for i in range(4)], axis=0)
    assert all(np.array_equal(np.load(f"out{i}.npy"), expected[i]) for i in range(4))
    traces = [Path(f"trace.{rank}").read_text() for rank in range(3)]
    written = [sum(map(int, re.findall(r"pwrite64\(.* = (\d+)", trace))) for trace in traces]
    assert written[0] < 8 * COUNT
    assert all(written[1:])  # each worker has one of the first tasks; who is done first gets the next
    assert written[1] + written[2] >= 4 * 8 * COUNT
    assert all(len(re.findall(r"fsync\(", trace)) >= 4 for trace in traces[1:])


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("ranks", "loading"), [(["r0.npy", "r1.npy"], ["0"]), (["r?.npy"], ["0", "1", "2"])])
def test_workers_load_numpy_where_they_may_have_work(here, ranks, loading):
    """Not for a few small files, which the command reads itself."""
    command = [command_line.COMMAND, "reduce", "--engine", "mpi", "--op", "sum", "-o", "out.npy", *ranks]
    traced = 'exec strace -f --seccomp-bpf -qq -e trace=openat -o trace.$PMI_RANK "$@"'
    subprocess.run([MPIEXEC, "-n", "3", "sh", "-c", traced, "sh", *command], check=True, capture_output=True)
    loaded = [rank for rank in "012" if "_multiarray_umath" in Path(f"trace.{rank}").read_text()]
    assert loaded == loading
    arrays = [np.load(path) for rank in ranks for path in sorted(here.glob(rank))]
    assert np.array_equal(np.load("out.npy"), np.cumsum(arrays, axis=0)[-1])


@pytest.mark.needs("mount")
@pytest.mark.parametrize("elsewhere", ["hidden", "layer"])
def test_a_worker_whose_results_would_not_arrive_sends_them_back(elsewhere, here):
    """Another file system lies over their directory, or a layer that takes what it writes there."""
    (here / "results").mkdir()
    (here / "upper").mkdir()
    results = here / "results"
    mount = f"mount -t tmpfs tmpfs {results}"
    if elsewhere == "layer":
        mount = (
            f"mount -t tmpfs tmpfs {here}/upper && mkdir {here}/upper/u {here}/upper/w && "
            f"mount -t overlay overlay -o lowerdir={results},upperdir={here}/upper/u,workdir={here}/upper/w {results}"
        )
    ranks = [f"r{i}.npy" for i in range(NRANKS)]
    command = words(0, "scan", "--engine", "mpi", "--op", "sum", "-o", "results/out{rank}.npy", *ranks)
    other = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    done = subprocess.run(
        [MPIEXEC, "-n", "2", *command, ":", "-n", "1", *other], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = np.cumsum([np.load(name) for name in ranks], axis=0)
    assert all(np.array_equal(np.load(results / f"out{i}.npy"), expected[i]) for i in range(NRANKS))


@pytest.mark.parametrize(
    ("op", "suffix", "warned"), [("ops.py:add", "npy", 1), ("sum", "npy", 0), ("ops.py:add", "i", 0)]
)
def test_processors_that_differ(op, suffix, warned, here):
    """NumPy says so of a worker that may not use all that its processor can do."""
    for rank in range(NRANKS):
        with open(f"r{rank}.i", "wb") as file:
            np.save(file, np.arange(COUNT))
    ranks = [f"r{rank}.{suffix}" for rank in range(NRANKS)]
    command = words(0, "reduce", "--engine", "mpi", "--op", op, "-o", "out.npy", *ranks)
    older = ["env", "NPY_DISABLE_CPU_FEATURES=AVX2 FMA3 X86_V3 X86_V4", *command]
    done = subprocess.run(
        [MPIEXEC, "-n", "2", *command, ":", "-n", "1", *older], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    host = os.uname().nodename
    said = re.findall(f"mpired: warning: the processor on {host} lacks .*: ops.py:add may round otherwise", done.stderr)
    assert len(said) == warned, done.stderr
    assert len(done.stderr.splitlines()) == 1 + warned


def beside(here: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    """A reduction with a worker that is started as this one is, and one that has something before its command."""
    command = words(0, "reduce", "--engine", "mpi", "--op", "sum", "-o", f"{here}/out.npy")
    command += [f"{here}/r{rank}.npy" for rank in range(NRANKS)]
    started = [MPIEXEC, "-n", "2", *command, ":", "-n", "1", *prefix, *command]
    return subprocess.run(started, capture_output=True, text=True, check=False)


def test_a_worker_with_another_directory_and_fewer_open_files(here):
    done = beside(here, "sh", "-c", 'cd / && ulimit -n 48 && exec "$@"', "sh")
    assert (done.returncode, done.stdout) == (0, "")
    assert " 2 workers on 1 machine (mpi)" in done.stderr
    assert np.array_equal(np.load("out.npy"), mpired.reduce([f"r{rank}.npy" for rank in range(NRANKS)], "sum"))


OTHER = "from mpired.engines import probe; own = probe._versions; probe._versions = lambda: own() | {%r: 'other'}"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("import mpired; mpired.__version__ = 'other'", "mpired"),
        ("import numpy; numpy.__version__ = 'other'", "NumPy"),
        (OTHER % "the byte order", "the byte order"),
        (OTHER % "long double", "long double"),
    ],
    ids=["mpired", "NumPy", "byte order", "long double"],
)
def test_a_worker_with_other_programs(change, what, here):
    """Before any work, with both values and the machine."""
    (here / "site").mkdir()
    (here / "site" / "sitecustomize.py").write_text(change)
    done = beside(here, "env", f"PYTHONPATH={here}/site")
    assert done.returncode == 2
    host, own = os.uname().nodename, probe.Probe()(0).versions[what]
    assert (
        done.stderr
        == f"mpired: --engine: {what} is other in the worker on {host}, and {own} here; let all have the same\n"
    )
    assert not results(here)


def test_workers_are_listed(here):
    started = subprocess.run(words(3, "engines"), capture_output=True, text=True, check=True)
    assert started.stdout.count("and started: PMI_SIZE is 3") == 1  # the first process speaks for all
    assert len(started.stdout.splitlines()) == len(ENGINES)
    done = run(3, "engines", "r0.npy", "r1.npy")
    assert [line for line in done.stdout.splitlines() if "; sees 2 of 2 ranks" in line] == done.stdout.splitlines()[:2]
