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

# mpired's own extended attributes belong to the content of a file, so a new file does not get them.
OWN_ATTRIBUTES = "user.mpired."
_ACCESS_LIST, _NO_LIST = "system.posix_acl_access", calls.UNSUPPORTED | {errno.ENODATA}
_BLOCKS_UNIT = 512  # bytes in a unit of `st_blocks` (inode(7))
_FICLONE = 0x40049409  # a request of ioctl_ficlone(2), without a name in Python


def clone(source: int, target: int) -> bool:
    """Let `target` share all blocks of `source` (a reflink); return whether the file system supports that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_file(source: int, target: int) -> None:
    """Copy a file to an empty file: share its blocks if possible, otherwise keep its holes."""
    if not clone(source, target):
        nbytes = os.fstat(source).st_size
        os.ftruncate(target, nbytes)
        copy_sparse(source, target, 0, nbytes, 0)


def copy_sparse(source: int, target: int, start: int, stop: int, target_start: int) -> None:
    """Copy the bytes from `start` to `stop` of `source` to `target_start` of `target`, into a hole."""
    # The positions of the holes are not requested: some file systems return wrong positions, and data would be lost.
    status = os.fstat(source)
    is_sparse = status.st_blocks * _BLOCKS_UNIT < status.st_size
    while start < stop and not is_sparse:  # the kernel copies
        try:
            nbytes = os.copy_file_range(source, target, min(stop - start, calls.TRANSFER), start, target_start)
        except OSError as error:
            if error.errno not in calls.UNSUPPORTED | {errno.EXDEV}:
                raise
            break
        if nbytes == 0:
            break
        start += nbytes
        target_start += nbytes
    if start < stop:
        calls.copy_range(source, target, start, stop, target_start, zeros=not is_sparse)


def copy_into(directory: str, sources: Sequence[Path], *, on_commit: Callable[[], None]) -> None:
    """Copy directories, without Python's bytecode, into a new or empty directory, and call `on_commit`."""
    is_new = not os.path.lexists(directory)
    if not is_new and (not os.path.isdir(directory) or os.listdir(directory)):
        raise OutputExistsError(directory, "already exists, and is not an empty directory; name a new one")
    with calls.errors_name(directory), contextlib.ExitStack() as undo:
        if is_new:
            os.mkdir(directory)
            undo.callback(os.rmdir, directory)
        for source in sources:
            for path in (source, *sorted(source.rglob("*"))):
                copy = os.path.join(directory, path.relative_to(source.parent))
                if "__pycache__" in path.parts:
                    continue
                if path.is_dir():
                    os.mkdir(copy)
                    undo.callback(os.rmdir, copy)
                    continue
                with os.fdopen(calls.open_new(copy), "wb") as file:
                    undo.callback(calls.unlink, copy)
                    file.write(path.read_bytes())
                    os.fchmod(file.fileno(), calls.default_mode())
        on_commit()
        undo.pop_all()


def copy_metadata(
    source: os.stat_result,
    path: str | int,
    fd: int,
    *,
    bits: int = 0o7777,  # mask of the mode
    content_of: Sequence[str] = (),  # other files whose content the new file has
    attributes: bool = True,  # whether extended attributes are copied too
) -> None:
    """Give a new file owner, rights and extended attributes of an existing file, as far as allowed.

    The new file must be accessible to its owner only.
    """
    with contextlib.suppress(OSError):
        for name in os.listxattr(path) if attributes else ():
            if name.startswith(("user.", "security.selinux")) and not name.startswith(OWN_ATTRIBUTES):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(path, name))
    # At each moment only users who can open `path` and all files of `content_of` can open the new file. Rights that
    # cannot be copied are removed.
    statuses = map(os.stat, content_of)
    owner_may_read = all(status.st_uid == source.st_uid or status.st_mode & stat.S_IROTH for status in statuses)
    try:
        os.fchown(fd, source.st_uid if owner_may_read else -1, source.st_gid)
    except OSError:
        with contextlib.suppress(OSError):  # only root may change the owner, but members of a group may set the group
            os.fchown(fd, -1, source.st_gid)
    acl = access_list(path) if os.fstat(fd).st_gid == source.st_gid else b""
    with contextlib.suppress(OSError):
        if acl and all(access_list(other) == acl for other in content_of):
            os.setxattr(fd, _ACCESS_LIST, acl)
        elif access_list(fd):  # inherited from the directory, with users who may not open `path`
            os.removexattr(fd, _ACCESS_LIST)
    mode = _limited_mode(source, path, fd) & bits
    os.fchmod(fd, mode & common_mode(content_of, fd) if content_of else mode)


def common_mode(paths: Sequence[str], fd: int) -> int:
    """Return the maximum mode of `fd` that admits its owner, and only users who may open all `paths`."""
    mode = 0o7777
    for path in paths:
        mode &= 0o600 | _limited_mode(os.stat(path), path, fd)
    return mode


def limit_readers(fd: int, paths: Sequence[str]) -> None:
    """Limit the readers of a new file to its owner, and to users who may open all `paths`."""
    with contextlib.suppress(OSError):
        os.fchown(fd, -1, os.stat(paths[0]).st_gid)
    with contextlib.suppress(OSError):
        os.removexattr(fd, _ACCESS_LIST)  # inherited from the directory
    os.fchmod(fd, common_mode(paths, fd) & 0o644)


def _limited_mode(source: os.stat_result, path: str | int, fd: int) -> int:
    """Return the maximum mode of `fd`, with its present owner and group, that admits only users of `path`."""
    mode, status = stat.S_IMODE(source.st_mode), os.fstat(fd)
    if (status.st_uid, status.st_gid) != (source.st_uid, source.st_gid):
        mode &= 0o777  # the set-user-ID bit must not give the rights of another owner
    if access_list(fd) != access_list(path):
        return mode & 0o700  # with an access list the group bits limit all users in the list
    if status.st_gid != source.st_gid:
        # Members of the old group are now "others", and members of the new group had at least the rights of "others".
        common = mode >> 3 & mode & 0o7
        mode = mode & 0o700 | common << 3 | common
    return mode


def access_list(file: str | int) -> bytes:
    """Return the access control list of a file; b"" if the mode has all rights."""
    return calls.attribute(file, _ACCESS_LIST, _NO_LIST)  # ENOENT is an error: the list of a removed file is unknown
