"""Copies of files and directories with their blocks, holes, owner, mode, access control list and attributes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpired.errors import OutputExistsError
from mpired.files import calls

if TYPE_CHECKING:
    from pathlib import Path

# Extended attributes of mpired itself belong to the content, so another content does not inherit them.
OWN_ATTRIBUTES = "user.mpired."
_ACCESS_LIST, _NO_LIST = "system.posix_acl_access", calls.UNSUPPORTED | {errno.ENODATA}
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
        os.ftruncate(target, nbytes)
        copy_sparse(source, target, 0, nbytes, 0)


def copy_sparse(source: int, target: int, start: int, stop: int, to: int) -> None:
    """Copy the bytes from `start` to `stop` of one file to the offset `to` of another, where that has a hole."""
    # A file system is not asked where the holes are: some were found to answer wrong, and elements would be lost.
    status = os.fstat(source)
    is_sparse = status.st_blocks * _BLOCKS_UNIT < status.st_size
    while start < stop and not is_sparse:  # the kernel copies
        try:
            done = os.copy_file_range(source, target, min(stop - start, calls.TRANSFER), start, to)
        except OSError as error:
            if error.errno not in calls.UNSUPPORTED | {errno.EXDEV}:
                raise
            done = 0
        if done == 0:
            break
        start += done
        to += done
    if start < stop:
        calls.copy_range(source, target, start, stop, to, zeros=not is_sparse)


def copy_into(directory: str, sources: Sequence[Path], *, on_commit: Callable[[], None]) -> None:
    """Copy directories, without Python's bytecode, into a new or empty one, and call `on_commit`."""
    is_new = not os.path.lexists(directory)
    if not is_new and (not os.path.isdir(directory) or os.listdir(directory)):
        raise OutputExistsError(directory, "already exists, and is not an empty directory; name a new one")
    with calls.errors_name(directory), contextlib.ExitStack() as undo:
        if is_new:
            os.mkdir(directory)
            undo.callback(os.rmdir, directory)
        for source in sources:
            for each in (source, *sorted(source.rglob("*"))):
                copy = os.path.join(directory, each.relative_to(source.parent))
                if "__pycache__" in each.parts:
                    continue
                if each.is_dir():
                    os.mkdir(copy)
                    undo.callback(os.rmdir, copy)
                    continue
                with os.fdopen(calls.open_new(copy), "wb") as file:
                    undo.callback(calls.unlink, copy)
                    file.write(each.read_bytes())
                    os.fchmod(file.fileno(), calls.default_mode())
        on_commit()
        undo.pop_all()


def copy_metadata(
    source: os.stat_result,
    path: str | int,
    fd: int,
    *,
    bits: int = 0o7777,
    within: Sequence[str] = (),
    attributes: bool = True,
) -> None:
    """Give `fd`, so far open to its owner alone, what an existing file has, as far as allowed.

    That is its owner and its rights, and its extended `attributes`.
    """
    with contextlib.suppress(OSError):
        for name in os.listxattr(path) if attributes else ():
            if name.startswith(("user.", "security.selinux")) and not name.startswith(OWN_ATTRIBUTES):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(path, name))
    # At no moment can a user open it who cannot open `path`, and the files `within` of its content, in the same way:
    # rights that cannot be kept are taken away.
    statuses = map(os.stat, within)
    may_read = all(each.st_uid == source.st_uid or each.st_mode & stat.S_IROTH for each in statuses)
    owner = source.st_uid if may_read else -1
    try:
        os.fchown(fd, owner, source.st_gid)
    except OSError:
        with contextlib.suppress(OSError):  # the owner may only be changed by root, the group by its members too
            os.fchown(fd, -1, source.st_gid)
    listed = access_list(path) if os.fstat(fd).st_gid == source.st_gid else b""
    with contextlib.suppress(OSError):
        if listed and all(access_list(each) == listed for each in within):
            os.setxattr(fd, _ACCESS_LIST, listed)
        elif access_list(fd):  # of the directory's, whose users `path` does not let in
            os.removexattr(fd, _ACCESS_LIST)
    mode = mode_within(source, path, fd) & bits
    os.fchmod(fd, mode & widest(within, fd) if within else mode)


def widest(within: Sequence[str], fd: int) -> int:
    """Return the widest mode for `fd` that lets in its owner, and the users who may open all files `within`."""
    mode = 0o7777
    for path in within:
        mode &= 0o600 | mode_within(os.stat(path), path, fd)
    return mode


def limit_readers(fd: int, readers: Sequence[str]) -> None:
    """Let a new file be read by its owner, and by users who may open all of some files: it has the first's group."""
    with contextlib.suppress(OSError):
        os.fchown(fd, -1, os.stat(readers[0]).st_gid)
    with contextlib.suppress(OSError):
        os.removexattr(fd, _ACCESS_LIST)  # of the directory's
    os.fchmod(fd, widest(readers, fd) & 0o644)


def mode_within(source: os.stat_result, path: str | int, fd: int) -> int:
    """Return the widest mode for `fd`, with the owner and group that it has, that lets no more users in than `path`."""
    mode, own = stat.S_IMODE(source.st_mode), os.fstat(fd)
    if (own.st_uid, own.st_gid) != (source.st_uid, source.st_gid):
        mode &= 0o777  # set-uid for another owner would be a gift
    if access_list(fd) != access_list(path):
        return mode & 0o700  # with a list the bits of the group are a limit for all users in the list
    if own.st_gid != source.st_gid:
        # Members of the old group are others now, and members of the new one had at least the rights of others.
        common = mode >> 3 & mode & 0o7
        mode = mode & 0o700 | common << 3 | common
    return mode


def access_list(file: str | int) -> bytes:
    """Return the access control list of a file, b"" if it has none beyond its mode."""
    return calls.attribute(file, _ACCESS_LIST, _NO_LIST)  # of a file that is gone it is not known
