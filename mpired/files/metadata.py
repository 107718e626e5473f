"""Owner, mode, access control list and extended attributes of files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from mpired.files import calls, mounts

# Extended attributes of mpired itself belong to the content, so another content does not inherit them.
OWN_ATTRIBUTES = "user.mpired."
_ACCESS_LIST = "system.posix_acl_access"


def copy_metadata(source: os.stat_result, path: str, fd: int, *, within: Sequence[str] = ()) -> None:
    """Give `fd` the extended attributes, the owner and the rights of the existing file `path`, as far as allowed."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(path):
            if name.startswith(("user.", "security.selinux")) and not name.startswith(OWN_ATTRIBUTES):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, name, os.getxattr(path, name))
    copy_access(source, path, fd, within=within)


def copy_access(
    source: os.stat_result, path: str | int, fd: int, *, bits: int = 0o7777, within: Sequence[str] = ()
) -> None:
    """Give `fd`, so far open to its owner alone, the owner and rights of an existing file, as far as allowed."""
    # At no moment can a user open it who cannot open `path`, and the files `within` of its content, in the same way:
    # rights that cannot be kept are taken away.
    owner = source.st_uid if all(_may_read(source.st_uid, each) for each in within) else -1
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
    os.fchmod(fd, mode_within(source, path, fd) & bits & widest(within, fd))


def _may_read(user: int, path: str) -> bool:
    """Return whether a user may read a file as its owner, or as any other user."""
    status = os.stat(path)
    return user == status.st_uid or bool(status.st_mode & stat.S_IROTH)


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
    return calls.attribute(file, _ACCESS_LIST)


def default_mode() -> int:
    """Return the permissions of a new file: 0666 less the umask."""
    for line in mounts.lines("/proc/self/status"):
        if line.startswith("Umask:"):
            return 0o666 & ~int(line.split()[1], 8)
    return 0o600
