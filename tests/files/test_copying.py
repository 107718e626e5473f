"""Copies keep all bytes, whatever a file system says of holes; and where it can be believed, the holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpired.files import calls, copying, mounts

MEBIBYTE = 1 << 20
DATA = b"elements" * 1000


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A file of 8 MiB with something at its beginning, in its middle and at its end."""
    with open(tmp_path / "sparse", "wb") as file:
        for at in (0, 4 * MEBIBYTE + 100, 8 * MEBIBYTE - len(DATA)):
            file.seek(at)
            file.write(DATA)
    return tmp_path / "sparse"


def copied(path: Path) -> Path:
    new = path.with_name("new")
    with open(path, "rb") as source, open(new, "wb") as target:
        target.truncate(path.stat().st_size)
        copying.copy_sparse(source.fileno(), target.fileno(), 0, path.stat().st_size, 0)
    return new


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def lying(answer: Callable[[int], int]) -> Callable[[int, int, int], int]:
    """Be a file system that answers so where data is looked for."""
    return lambda _fd, position, whence: answer(position) if whence == os.SEEK_DATA else position + 1000


def once(number: int, answer: Callable[[int], int]) -> Callable[[int, int, int], int]:
    """Lie at one call, and tell the truth at all others."""
    asked, lseek = iter(range(1000)), os.lseek
    return lambda fd, at, whence: answer(at) if next(asked) == number else lseek(fd, at, whence)


def _nothing(_at: int) -> int:
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))


def _no_more(position: int) -> int:
    return _nothing(position) if position > 0 else position


LIES = {"nothing but a hole": lambda position: 1 << 40, "no more data": _no_more, "less data": lambda at: at + 5000}
ANSWERS = {"nothing": _nothing, "later": lambda at: at + MEBIBYTE, "far": lambda _at: 1 << 40, "here": lambda at: at}


def test_holes_are_not_believed_where_it_is_not_known_that_they_are_told(sparse, monkeypatch):
    for kind in ("overlay", "fuse.something", "nfs4", ""):
        for lie, answer in LIES.items():
            with monkeypatch.context() as patch:
                patch.setattr(mounts, "filesystem_type", lambda _fd, kind=kind: kind)
                patch.setattr(os, "lseek", lying(answer))
                new = copied(sparse)
            assert new.read_bytes() == sparse.read_bytes(), (kind, lie)
            assert allocated(new) <= 3 * MEBIBYTE, (kind, lie)  # blocks of zeros become holes all the same


def test_holes_are_not_believed_if_they_contradict_the_blocks(sparse, monkeypatch):
    """A file system that is known to tell them, and fails once."""
    monkeypatch.setattr(mounts, "filesystem_type", lambda _fd: "ext4")
    wrong = []
    for number in range(6):
        for name, answer in ANSWERS.items():
            with monkeypatch.context() as patch:
                patch.setattr(os, "lseek", once(number, answer))
                if copied(sparse).read_bytes() != sparse.read_bytes():
                    wrong.append((number, name))
    assert wrong == []


def test_a_file_without_holes_is_not_asked_for_them(tmp_path, monkeypatch):
    path = tmp_path / "dense"
    path.write_bytes(DATA * 100)
    for lie, answer in LIES.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, "lseek", lying(answer))
            assert copied(path).read_bytes() == DATA * 100, lie


def test_holes_stay_holes(sparse):
    new = copied(sparse)
    assert new.read_bytes() == sparse.read_bytes()
    assert allocated(new) <= allocated(sparse) + MEBIBYTE // 8


def test_a_hole_up_to_the_end_of_a_file_that_was_cut_is_none(sparse, monkeypatch):
    """Else what was cut off would become zeros."""

    def cut(position: int) -> int:
        os.truncate(sparse, 1000)
        return _nothing(position)

    monkeypatch.setattr(os, "lseek", lying(cut))
    with pytest.raises(OSError, match="ends at byte 1000, and had 8388608"):
        copied(sparse)


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_a_file_that_is_cut_while_it_is_copied_is_an_error(kind, sparse, monkeypatch):
    monkeypatch.setattr(mounts, "filesystem_type", lambda _fd: kind)
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    original = calls.pread_into

    def cut(fd: int, buffer: memoryview, offset: int) -> int:
        os.truncate(sparse, 1000)
        return original(fd, buffer, offset)

    monkeypatch.setattr(calls, "pread_into", cut)
    with pytest.raises(OSError, match="ends at byte 1000"):
        copied(sparse)


def test_the_file_system_is_known_where_the_mounts_are_not_listed(tmp_path, monkeypatch):
    """As in a chroot(2)."""
    monkeypatch.setattr(mounts, "mount_of_device", lambda _device: mounts.Mount())
    with (Path("/dev/shm") / tmp_path.name).open("wb") as file:
        os.unlink(file.name)
        assert mounts.filesystem_type(file.fileno()) == "tmpfs"
    with open("/proc/self/status", "rb") as file:
        assert mounts.filesystem_type(file.fileno()) == ""
