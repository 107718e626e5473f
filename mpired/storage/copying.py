"""Copies of whole files: shared blocks where the file system has them, holes as holes."""

from __future__ import annotations

import errno
import fcntl
import os

from mpired.storage import calls

_FICLONE = 0x40049409  # ioctl_ficlone(2), which Python does not name


def clone(source: int, target: int) -> bool:
    """Let `target` share all blocks of `source` (a reflink); tell whether the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_file(source: int, target: int) -> None:
    """Copy a file to an empty one, by sharing its blocks where the file system can, and else with its holes."""
    if not clone(source, target):
        nbytes = os.fstat(source).st_size
        calls.set_size(target, nbytes)
        copy_sparse(source, target, 0, nbytes, 0)


def copy_sparse(source: int, target: int, start: int, stop: int, to: int) -> None:
    """Copy the bytes from `start` to `stop` of one file to the offset `to` of another, and leave holes as holes."""
    shift = to - start
    while start < stop:
        try:
            data = min(os.lseek(source, start, os.SEEK_DATA), stop)
            hole = min(os.lseek(source, data, os.SEEK_HOLE), stop)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            if error.errno not in calls.UNSUPPORTED:
                raise
            data, hole = start, stop
        _copy_in_kernel(source, target, data, hole, data + shift)
        start = hole


def _copy_in_kernel(source: int, target: int, start: int, stop: int, to: int) -> None:
    while start < stop:
        try:
            done = os.copy_file_range(source, target, min(stop - start, calls.TRANSFER), start, to)
        except OSError as error:
            if error.errno not in calls.UNSUPPORTED | {errno.EXDEV}:
                raise
            done = 0
        if done == 0:
            calls.copy_range(source, target, start, stop, to)
            return
        start += done
        to += done
