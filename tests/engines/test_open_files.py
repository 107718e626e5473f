"""What workers open and hold: a rank once each, and nothing after a run; blocks as the file system wishes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import eager_command
import numpy as np
import pytest
from mpiexec import EAGER, MPIEXEC, PROGRAM, command, launched
from needs import needs

import mpired

NRANKS, COUNT = 12, 100_000  # more than a look at a worker takes, and for each worker several segments

WISH = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
static int wished(int failed, struct stat *status) {
    if (!failed && S_ISREG(status->st_mode)) status->st_blksize = 1 << 20;
    return failed;
}
int stat(const char *path, struct stat *status) { return wished(fstatat(AT_FDCWD, path, status, 0), status); }
int stat64(const char *path, struct stat64 *status) { return stat(path, (struct stat *)status); }
"""
# A run with two buffers, an error, and one with one buffer; after each, what of the ranks is open in all processes.
BLOCK = f"""\
{PROGRAM}
from mpi4py import MPI
pids = MPI.COMM_WORLD.allgather(os.getpid())
def tell(what):
    MPI.Comm.Get_parent()  # nothing of the engine
    import time
    names, until = None, time.monotonic() + 20
    while names != [] and time.monotonic() < until:  # a worker may still be about to close them
        names = []
        for pid in pids:
            for fd in os.listdir(f"/proc/{{pid}}/fd"):
                try:
                    names.append(os.path.basename(os.readlink(f"/proc/{{pid}}/fd/{{fd}}")))
                except FileNotFoundError:
                    pass
        names = [name for name in names if name.endswith((".npy", ".npz"))]
    print(what, names, flush=True)
with mpired.mpi() as engine:
    mpired.reduce([f"r{{rank}}.npz" for rank in range(4)], "sum", output="a.npz", engine=engine)
    tell("two buffers")
    try:
        mpired.reduce([f"r{{rank}}.npy" for rank in range(4)], "ops.py:refuse", engine=engine)
    except UserOpError:
        tell("an error")
    mpired.reduce([f"r{{rank}}.npy" for rank in range(4)], "sum", output="b.npy", engine=engine)
    tell("one buffer")
"""
REFUSE = """
calls = []
def refuse(invec, inoutvec):
    calls.append(1)
    if len(calls) > 30:
        raise ValueError("no")
    return invec + inoutvec
"""


@pytest.fixture
def ranks(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for rank in range(NRANKS):
        np.save(f"r{rank}.npy", np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (rank % 16))
    return [f"r{rank}.npy" for rank in range(NRANKS)]


def check_opened(ranks: list[str], most: int, folder: str) -> None:
    trace = "".join(path.read_text() for path in Path(folder).glob("trace.*"))
    opened = {name: len(re.findall(rf'openat\([^"]*"(?:[^"]*/)?{name}"[^=]*= \d', trace)) for name in ranks}
    assert set(opened.values()) <= set(range(1, most + 1)), opened


@pytest.mark.needs("strace")
def test_each_worker_opens_a_rank_once_and_the_command_once(ranks):
    """Each of its segments reads the files that are open from those before."""
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=openat", "-o", "trace.1"]
    words = command("reduce", "--verbose", "--op", "sum", "-o", "out.npy", *ranks)
    done = subprocess.run([*traced, MPIEXEC, "-n", "3", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"segments (\d+)", done.stderr)[0]) > 6
    check_opened(ranks, 3, ".")
    assert np.array_equal(np.load("out.npy"), mpired.reduce(ranks, "sum"))


@pytest.mark.needs("strace")
def test_local_workers_too(ranks):
    traced = ["strace", "-ff", "--seccomp-bpf", "-qq", "-e", "trace=openat", "-o", "trace"]
    words = [sys.executable, EAGER, "reduce", "-j", "2", "--op", "sum", "-o", "out.npy", *ranks]
    subprocess.run([*traced, *words], check=True, capture_output=True)
    check_opened(ranks, 3, ".")


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("count", "limit", "most"), [(500, [], 1), (500, ["--max-memory", "188M"], 2), (3000, [], 2)])
def test_small_ranks_are_opened_once(count, limit, most, tmp_path, monkeypatch):
    """They are read when they are looked at, if there is memory for all."""
    monkeypatch.chdir(tmp_path)
    ranks = [f"r{rank}.npy" for rank in range(100)]
    for rank, name in enumerate(ranks):
        np.save(name, np.full(count, float(rank)))
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=openat", "-o", "trace.1"]
    words = [sys.executable, "-m", "mpired", "reduce", "--op", "sum", *limit, "-o", "out.npy", *ranks]
    subprocess.run([*traced, *words], check=True, capture_output=True)
    trace = Path("trace.1").read_text()
    opened = re.findall(r'openat\([^"]*"([^"]*)"[^=]*= \d', trace)
    assert {opened.count(name) for name in ranks} == {most}
    assert np.load("out.npy").tolist() == [4950.0] * count


def test_nothing_is_open_in_workers_after_a_run(ranks):
    """Neither after one with an error, nor of the buffer before the last."""
    del ranks
    for rank in range(4):
        array = np.arange(COUNT, dtype=float) + rank
        np.savez(f"r{rank}.npz", x=array, y=array[::-1].copy())
    Path("ops.py").write_text(REFUSE)
    Path("block.py").write_text(BLOCK)
    done = launched(3, sys.executable, "block.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["two buffers []", "an error []", "one buffer []"]


@pytest.mark.parametrize("limit", [[], ["--max-memory", "64M"]])
@pytest.mark.sampled(2)
def test_blocks_are_as_long_as_the_file_system_wishes(limit, tmp_path, monkeypatch):
    """A library before the C library says that files are best read by 1 MiB, as a parallel file system does."""
    needs("gcc", "strace")
    monkeypatch.chdir(tmp_path)
    Path("wish.c").write_text(WISH)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "wish.so", "wish.c"], check=True)
    ranks = [f"r{rank}.bin" for rank in range(4)]
    for rank, name in enumerate(ranks):
        np.full(13 << 20, 1 << rank, np.uint8).tofile(name)
    start = [sys.executable, "-m", "mpired", "reduce", "--engine", "mpi", "--type", "uint8_t", "--op", "bor"]
    traced = 'exec env LD_PRELOAD=$PWD/wish.so strace -f -qq -y -e trace=preadv,preadv2,pread64 -o trace.$PMI_RANK "$@"'
    done = launched(3, "sh", "-c", traced, "sh", *start, *limit, "-o", "out.bin", *ranks)
    assert done.returncode == 0, done.stderr
    lengths = [
        int(length)
        for path in Path().glob("trace.*")
        for length in re.findall(r"preadv?2?\(\d+<[^>]*\.bin>, .* = (\d+)$", path.read_text(), re.MULTILINE)
    ]
    assert (1 << 18) < max(lengths) <= 1 << 20
    assert limit or max(lengths) == 1 << 20
    assert Path("out.bin").read_bytes() == bytes([15]) * (13 << 20)


def test_threads_share_the_files_that_a_process_may_have_open(tmp_path, monkeypatch):
    """Each of many has its own readers; together they are fewer than the limit."""
    monkeypatch.chdir(tmp_path)
    ranks = [f"r{rank}.npy" for rank in range(60)]
    for rank, name in enumerate(ranks):
        np.save(name, np.arange(20_000) * rank)

    program = f"""\
import sys
sys.path[:0] = {[str(Path(eager_command.__file__).parent)]!r}
import eager_command, mpired, resource
from concurrent.futures import ThreadPoolExecutor
eager_command.make_all_large()
with ThreadPoolExecutor(8) as executor:
    list(executor.map(abs, range(100)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
    print(mpired.reduce({ranks!r}, "sum", engine=executor)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{sum(range(60))}\n", "")


PEAK = """\
import sys
import mpired.__main__
from mpired.engines import mpi
leave = mpi._leave
def told(*words):
    with open("/proc/self/status") as status:
        sys.stderr.write(next(line for line in status if line.startswith("VmHWM")))
    leave(*words)
mpi._leave = told
sys.argv[0] = "mpired"
mpired.__main__.run()
"""


def test_each_process_holds_little_of_a_result_that_is_sent_back(tmp_path, monkeypatch):
    """Less than the limit for each, which is less than half of the result."""
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        with open(f"r{rank}.bin", "wb") as file:
            file.truncate(160 << 20)
    words = ["--engine", "mpi", "--type", "uint8_t", "--op", "bor", "--max-memory", "72M", "-o", "out.bin"]
    done = launched(3, sys.executable, "-c", PEAK, "reduce", *words, "r0.bin", "r1.bin")
    assert done.returncode == 0, done.stderr
    peaks = [int(kibibytes) << 10 for kibibytes in re.findall(r"VmHWM:\s+(\d+) kB", done.stderr)]
    assert len(peaks) == 3
    assert max(peaks) < 72 << 20
