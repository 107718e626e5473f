"""An update of the target here/t.npy: how it is made, held up, and left unfinished."""

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest
from protocols import LOG
from values import one_value

import mpired
from mpired.errors import MpiredError
from mpired.files import log


def add(folder: Path, target: str = "here/t.npy", **how: object) -> None:
    mpired.Window(folder / target, **how).accumulate(folder / "ones.npy", "sum")


def value(folder: Path, target: str = "here/t.npy") -> float | None:
    return one_value(folder / target)


WORDS = ("accumulate", "-q", "--op", "sum", "here/t.npy", "ones.npy")


def hold(path: Path, kind: int = fcntl.F_WRLCK) -> int:
    """Hold the lock as another program may, and return the descriptor."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
    return fd


def has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open; a descriptor may be closed while it is looked at."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == str(path.resolve()):
                return True
    return False


def pending(folder: Path) -> bytes:
    """Leave a whole log that was not applied, and return it."""
    kept: list[bytes] = []
    apply = log.apply
    try:

        def stop(*_arguments: object, **_settings: object) -> None:
            kept.append((folder / "here" / LOG).read_bytes())
            raise OSError(errno.EIO, "stopped")

        log.apply = stop
        with pytest.raises(MpiredError, match="do not repeat"):
            add(folder, commit="journal")
    finally:
        log.apply = apply
    assert value(folder) == 0
    return kept[0]
