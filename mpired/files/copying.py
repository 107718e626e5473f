"""Copies of whole files and directories: shared blocks where the file system has them, holes as holes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mpired.errors import OutputExistsError
from mpired.files import calls, metadata

if TYPE_CHECKING:
    from pathlib import Path

_BLOCKS_UNIT = 512  # bytes, whatever the blocks of the file system are (inode(7))
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
    # A file system is not asked where the holes are: some were found to answer wrong, and elements would be lost.
    status = os.fstat(source)
    if status.st_blocks * _BLOCKS_UNIT < status.st_size:
        calls.copy_range(source, target, start, stop, to, zeros=False)
    else:
        _copy_in_kernel(source, target, start, stop, to)


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
    """Copy directories, without Python's bytecode, into a new or empty one, and call `on_commit`."""
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
                    os.fchmod(file.fileno(), metadata.default_mode())
        on_commit()
        undo.pop_all()
