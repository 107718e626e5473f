"""Copies keep all bytes, and the holes."""

from __future__ import annotations

import os
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


def test_holes_stay_holes(sparse):
    new = copied(sparse)
    assert new.read_bytes() == sparse.read_bytes()
    assert allocated(new) <= allocated(sparse) + MEBIBYTE // 4


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
