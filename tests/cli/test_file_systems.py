"""File systems with ways of their own: FUSE, which keeps a name of what is open, and those without locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, succeeded
from needs import needs
from rows import each

RANKS = [f"r{rank}.npy" for rank in range(4)]
SCAN = (1.0, 3.0, 6.0, 10.0)
# Commands, and what their results hold.
MANY = [
    (("scan", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": SCAN[rank] for rank in range(4)}),
    (("scan", "-f", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": SCAN[rank] for rank in range(4)}),
    (("scan", *RANKS, "--in-place"), {f"r{rank}.npy": SCAN[rank] for rank in range(4)}),
    (("allreduce", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
    (("allreduce", "--link", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
    (("reduce-scatter-block", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
]
ONE = [
    (("reduce", *RANKS, "-o", "x.npy"), {"x.npy": 10.0}),
    (("reduce", "-f", *RANKS[:3], "-o", "other.npy"), {"other.npy": 6.0}),
    (("reduce-local", "r0.npy", "r1.npy"), {"r1.npy": 3.0}),
    (("accumulate", "r0.npy", "r1.npy"), {"r0.npy": 3.0}),
    (("accumulate", "--commit", "journal", "r0.npy", "r1.npy"), {"r0.npy": 3.0}),
]


def fill(folder: Path) -> None:
    """Make four ranks of ones, twos, threes and fours."""
    for rank, name in enumerate(RANKS):
        np.save(folder / name, np.full(8, rank + 1.0))


def litter(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if "mpired" in name or name.startswith(".")]


@pytest.fixture
def fuse(open_folder: Path) -> Iterator[Path]:
    """A folder on a FUSE file system, which passes everything on to another folder."""
    needs("bindfs")
    (open_folder / "below").mkdir()
    with mounted("bindfs", open_folder / "below", open_folder / "mounted") as folder:
        fill(folder)
        yield folder


@contextlib.contextmanager
def mounted(program: str, source: Path, folder: Path) -> Iterator[Path]:
    """Mount what a program of FUSE makes of a source, for the block."""
    folder.mkdir()
    subprocess.run([program, source, folder], capture_output=True, check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def small_inodes(open_folder: Path) -> Iterator[Path]:
    """A folder on an ext4 whose inodes have room for times of whole seconds only."""
    needs("fuse2fs")
    image = open_folder / "image"
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-I", "128", image], capture_output=True, check=True)
    with mounted("fuse2fs", image, open_folder / "mounted") as folder:
        yield folder


def test_two_changes_within_a_second_of_small_inodes_are_told_apart(small_inodes):
    """A change between the first rank and the second, which leaves the file the time that it had."""
    path = small_inodes / "t.npy"
    np.save(path, np.zeros(4096))

    def write(value: float) -> None:
        with path.open("r+b") as file:
            file.seek(-4096 * 8, 2)
            file.write(np.full(4096, float(value)).tobytes())

    def setup() -> None:
        original, reads = os.preadv, itertools.count()

        def preadv(*arguments: object) -> int:
            if arguments[2] == 128 and next(reads) == 1:  # behind the header
                write(100)
            return original(*arguments)

        os.preadv = preadv

    time.sleep(1 - time.time() % 1)  # so that both changes would be in one second
    write(10)
    assert path.stat().st_mtime_ns % 1_000_000_000 == 0
    outcome = run("reduce", "-q", "--op", "sum", "t.npy", "t.npy", "--to", "raw", cwd=small_inodes, setup=setup)
    assert outcome == (0, np.full(4096, 200.0).tobytes(), "")


def no_locks(number: int) -> Callable[[], None]:
    """Return what lets every lock fail, as on a file system that has none."""

    def setup() -> None:
        original = fcntl.fcntl

        def call(fd: int, request: int, *arguments: object) -> object:
            if request == fcntl.F_OFD_SETLK:
                raise OSError(number, os.strerror(number))
            return original(fd, request, *arguments)

        fcntl.fcntl = call

    return setup


def check(folder: Path, words: tuple[str, ...], results: dict[str, float], setup: Callable[[], None] | None) -> None:
    """Run a command on four ranks, and look at its results and at what it leaves."""
    for path in folder.glob("*.npy"):
        path.unlink()
    fill(folder)
    if "-f" in words:
        for name in results:
            np.save(folder / name, np.zeros(3))
    succeeded(run(words[0], "-q", "--op", "sum", *words[1:], cwd=folder, setup=setup))
    assert {name: np.load(folder / name)[0] for name in results} == results
    assert litter(folder) == []


@each("words, results", [*MANY, *ONE])
def test_results_on_fuse(words, results, fuse):
    check(fuse, words, results, None)


@each("words, results", MANY)
@each("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_many_results_without_locks(words, results, number, tmp_path):
    check(tmp_path, words, results, no_locks(number))


def ended_between_the_renames(folder: Path) -> None:
    """Let a scan in place end when one of its results is in place."""

    def setup() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            if next(count):
                os._exit(99)
            original(*arguments, **settings)

        os.replace = replace

    assert run("scan", "-q", "--op", "sum", *RANKS, "--in-place", cwd=folder, setup=setup).status == 99
    assert litter(folder) != []


def test_the_next_command_finishes_on_fuse(fuse):
    ended_between_the_renames(fuse)
    assert run("reduce", "-q", "--op", "max", "r3.npy", "--to", "json", cwd=fuse).status == 0
    assert [np.load(fuse / name)[0] for name in RANKS] == [1, 3, 6, 10]
    assert litter(fuse) == []


def test_another_error_of_a_lock_leaves_nothing_behind(tmp_path):
    fill(tmp_path)
    before = sorted(os.listdir(tmp_path))
    words = ("scan", "-q", "--op", "sum", *RANKS, "-o", "s{rank}.npy")
    refused(run(*words, cwd=tmp_path, setup=no_locks(errno.EIO)), 4, "s0.npy", "Input/output error")
    assert sorted(os.listdir(tmp_path)) == before


def test_root_whom_a_file_server_takes_for_another_user(tmp_path):
    """All that a process makes there belongs to that user, and not to the one that it runs as."""
    fill(tmp_path)

    def setup() -> None:
        os.geteuid = lambda: 12345

    words = ("scan", "-q", "--op", "sum", *RANKS, "-o", "s{rank}.npy")
    succeeded(run(*words, cwd=tmp_path, setup=setup))
    assert np.load(tmp_path / "s3.npy")[0] == 10
    assert litter(tmp_path) == []
