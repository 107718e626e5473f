"""Copies of whole files: shared blocks where the file system has them, holes as holes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator

from mpired.storage import calls

_BLOCKS_UNIT = 512  # bytes, whatever the blocks of the file system are (inode(7))
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
    """Copy the bytes from `start` to `stop` of one file to the offset `to` of another, where that has a hole.

    Holes stay holes. Where they are the file system is asked only if it is known to tell the truth; elsewhere
    all is read, and blocks of zeros become holes.

    Raises
    ------
    OSError
        If the file has become shorter.
    """
    status = os.fstat(source)
    if status.st_blocks * _BLOCKS_UNIT >= status.st_size:
        _copy_in_kernel(source, target, start, stop, to)
    elif calls.tells_holes(source):
        for data, hole in _between_holes(source, start, stop):
            _copy_in_kernel(source, target, data, hole, data + to - start)
    else:
        calls.copy_range(source, target, start, stop, to, zeros=False)


def _between_holes(source: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are not holes, from and to."""
    while start < stop:
        try:
            data = min(os.lseek(source, start, os.SEEK_DATA), stop)
            hole = min(os.lseek(source, data, os.SEEK_HOLE), stop)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end, wherever that is now
                if (size := os.fstat(source).st_size) < stop:
                    raise calls.ended_early(size, stop) from error
                return
            if error.errno not in calls.UNSUPPORTED:
                raise
            data, hole = start, stop
        if data < hole:
            yield data, hole
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
