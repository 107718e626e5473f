"""Files that change, or are replaced, while they are read, and reads and closes that do less than was asked for."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bad_files import DATA, THREE, covers, npy_of
from command import Child, open_fifo, reduce, refused, snapshot

import mpired
import mpired.sources.local


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def _touch(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 1))


_CHANGES = {
    "replaced": _replace,
    "cut": lambda path: os.truncate(path, 100),
    "appended to": lambda path: os.truncate(path, 1000),
    "written anew": _touch,
    "removed": os.unlink,
}


@covers(38)
@pytest.mark.parametrize("change", _CHANGES)
def test_file_that_changes_between_check_and_read(change, folder):
    """The second rank is a FIFO: when it is opened, the first has been checked, and nothing has been read of it."""
    os.mkfifo(folder / "slow.npy")
    child = Child("reduce", "-q", "--op", "sum", "good.npy", "slow.npy", "-o", "out", "-f", cwd=folder)
    with open_fifo(folder / "slow.npy") as fifo:
        _CHANGES[change](folder / "good.npy")
        with_change = snapshot(folder)
        fifo.write(npy_of(THREE))
    outcome = child.finish()
    if change == "removed":
        refused(outcome, 4, "good.npy", "No such file")
    else:
        refused(outcome, 3, "good.npy", "changed while being read")
    assert snapshot(folder) == with_change


def at_reads(change: Callable[[], object], times: int | None = None) -> Callable[[], None]:
    """Return a setup that lets a change happen before each read of elements, or before the first few."""

    def setup() -> None:
        original, left = os.preadv, itertools.count() if times is None else iter(range(times))

        def preadv(*arguments: object) -> int:
            if next(left, None) is not None:
                change()
            return original(*arguments)

        os.preadv = preadv

    return setup


@covers(38)
@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
@pytest.mark.parametrize("change", ["cut", "appended to"])
def test_file_that_changes_while_it_is_read(name, change, folder):
    """Whoever changes it goes on with that, so that it is read in vain a few times."""
    words = ("--op", "sum", "--type", "double", name, name, "-o", "out", "-f")
    outcome = reduce(*words, cwd=folder, setup=at_reads(lambda: _CHANGES[change](Path(name))))
    refused(outcome, 3, name)
    assert (folder / "out").read_bytes() == b"the old result"


@covers(38)
@pytest.mark.parametrize("times", [1, 2, None])
def test_file_that_is_replaced_while_it_is_read_is_read_again(times, folder):
    """A writer that comes in between, as `accumulate` does, is no reason to fail; one that does so each time is."""
    new = npy_of(np.asarray(THREE) * 5)

    def change() -> None:
        Path("other").write_bytes(new)
        os.replace("other", "good.npy")

    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=at_reads(change, times))
    if times is None:
        refused(outcome, 3, "good.npy: changed while being read")
    else:
        assert outcome == (0, npy_of(np.asarray(THREE) * 10), "")


def test_a_change_within_the_second_of_a_coarse_file_time_is_noticed(folder):
    """A file system with times of one second: two changes within it look alike, so that the reader waits before."""
    path = folder / "good.npy"

    def write(factor: int) -> None:
        with path.open("r+b") as file:
            file.seek(-len(DATA), 2)
            file.write((THREE * factor).tobytes())
        os.utime(path, (int(time.time()),) * 2)

    def setup() -> None:
        original, reads = os.preadv, itertools.count()

        def preadv(*arguments: object) -> int:
            if next(reads) == 1:  # between the first rank and the second
                write(100)
            return original(*arguments)

        os.preadv = preadv

    time.sleep(1 - time.time() % 1)  # so that both changes would be in one second
    write(10)
    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=setup)
    assert outcome == (0, npy_of(THREE * 200), "")


@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
def test_reads_that_give_less_than_asked_for_are_repeated(name, folder):
    def setup() -> None:
        pread, preadv = os.pread, os.preadv
        os.pread = lambda fd, nbytes, offset: pread(fd, min(nbytes, 5), offset)
        os.preadv = lambda fd, buffers, offset: preadv(fd, [memoryview(buffers[0]).cast("B")[:5]], offset)

    outcome = reduce("--op", "sum", "--type", "double", name, name, "--to", "raw", cwd=folder, setup=setup)
    assert outcome == (0, (THREE * 2).tobytes(), "")
    with open(folder / name, "rb") as stdin:
        outcome = reduce("--op", "sum", "--type", "double", "-", name, "--to", "raw", cwd=folder, setup=setup,
                         stdin=stdin.fileno())  # fmt: skip
    assert outcome == (0, (THREE * 2).tobytes(), "")


@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR, errno.EAGAIN])
def test_a_close_that_fails_after_all_was_read_is_no_failure(number, folder):
    def setup() -> None:
        close = os.close

        def failing(fd: int) -> None:
            only_read = not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            close(fd)
            if only_read:
                raise OSError(number, os.strerror(number))

        os.close = failing

    for name in "good.npy", "good.bin":
        outcome = reduce("--op", "sum", "--type", "double", name, "--to", "raw", cwd=folder, setup=setup)
        assert outcome == (0, DATA, "")


def test_times_in_the_future_are_not_waited_for(folder, monkeypatch):
    os.utime(folder / "good.npy", (2**33, 2**33))
    monkeypatch.setattr(mpired.sources.local.time, "sleep", None)
    assert mpired.info(folder / "good.npy").buffers[0].count == 3
