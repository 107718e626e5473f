"""Copies of whole files and directories: shared blocks where the file system has them, holes as holes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mpired.errors import OutputExistsError
from mpired.files import calls, metadata, mounts

if TYPE_CHECKING:
    from pathlib import Path

_BLOCKS_UNIT = 512  # bytes, whatever the blocks of the file system are (inode(7))
# A file of few ranges has them in its inode; else some of its blocks list them, about this many in each.
_RANGES_IN_INODE, _RANGES_A_BLOCK = 4, 300
_FICLONE = 0x40049409  # ioctl_ficlone(2), which Python does not name


def clone(source: int, target: int) -> bool:
    """Let `target` share all blocks of `source` (a reflink); return whether the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_file(source: int, target: int) -> None:
    """Copy a file to an empty one, by sharing its blocks where the file system can, else with its holes."""
    if not clone(source, target):
        nbytes = os.fstat(source).st_size
        calls.set_size(target, nbytes)
        copy_sparse(source, target, 0, nbytes, 0)


def copy_sparse(source: int, target: int, start: int, stop: int, to: int) -> None:
    """Copy the bytes from `start` to `stop` of one file to the offset `to` of another, where that has a hole."""
    # Holes stay holes. The file system is asked for them only if it is known to tell the truth, and believed only if
    # that agrees with the blocks of the file; else all is read, and blocks of zeros become holes.
    status = os.fstat(source)
    if status.st_blocks * _BLOCKS_UNIT >= status.st_size:
        _copy_in_kernel(source, target, start, stop, to)
        return
    ranges = _between_holes(source, status) if mounts.has_extents(source) else None
    if ranges is None:
        calls.copy_range(source, target, start, stop, to, zeros=False)
        return
    for data, hole in ranges:
        first, last = max(data, start), min(hole, stop)
        if first < last:
            _copy_in_kernel(source, target, first, last, first + to - start)
    if (size := os.fstat(source).st_size) < stop:
        raise calls.ended_early(size, stop)


def _between_holes(source: int, status: os.stat_result) -> list[tuple[int, int]] | None:
    """Return the ranges of a file that are not holes, from and to; None if the answers of the system do not agree."""
    # It has been seen to find no data behind a place where there is some.
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < status.st_size and (data := _next(source, at, os.SEEK_DATA)) is not None:
        hole = _next(source, data, os.SEEK_HOLE)
        if hole is None or not at <= data < hole:
            return None
        ranges.append((data, min(hole, status.st_size)))
        at = hole
    if at < status.st_size and _next(source, at, os.SEEK_HOLE) != at:
        return None
    unit = status.st_blksize
    nbytes = sum(-(-hole // unit) * unit - data // unit * unit for data, hole in ranges)
    if len(ranges) > _RANGES_IN_INODE:
        nbytes += unit * (len(ranges) // _RANGES_A_BLOCK + 1)
    return ranges if nbytes >= status.st_blocks * _BLOCKS_UNIT else None


def _next(source: int, at: int, whence: int) -> int | None:
    """Return where the next data or hole is; None if there is none, or the system cannot tell."""
    try:
        return os.lseek(source, at, whence)
    except OSError as error:
        if error.errno not in calls.UNSUPPORTED | {errno.ENXIO}:
            raise
        return None


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


def copy_into(directory: str, sources: Sequence[Path], *, on_commit: Callable[[], None]) -> None:
    """Copy directories, without Python's bytecode, into a new or empty one, sync them, and call `on_commit`."""
    is_new = not os.path.lexists(directory)
    if not is_new and (not os.path.isdir(directory) or os.listdir(directory)):
        raise OutputExistsError(directory, "already exists, and is not an empty directory; name a new one")
    copied = [
        (each, os.path.join(directory, each.relative_to(source.parent)))
        for source in sources
        for each in (source, *sorted(source.rglob("*")))
        if "__pycache__" not in each.parts
    ]
    folders = [target for each, target in copied if each.is_dir()]
    with calls.errors_name(directory), ExitStack() as undo:
        for folder in (directory, *folders) if is_new else folders:
            os.mkdir(folder)
            undo.callback(os.rmdir, folder)
        for each, target in copied:
            if each.is_file():
                with os.fdopen(calls.open_new(target), "wb") as file:
                    undo.callback(calls.unlink, target)
                    file.write(each.read_bytes())
                    file.flush()
                    os.fchmod(file.fileno(), metadata.default_mode())
                    calls.fsync(file.fileno())
        for folder in (*folders, directory):
            with calls.directory(folder) as dirfd:
                calls.fsync_directory(dirfd)
        on_commit()
        undo.pop_all()
