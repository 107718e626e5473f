"""File systems and their mounts: features, and the reach of locks.

On some mounts no machine sees the locks of the others, so a free lock proves nothing there.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import NamedTuple

# posix_fallocate is a promise of space on these; elsewhere the C library may emulate it by writing.
WITH_EXTENTS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
# Each call on these waits for another machine, or for another process.
_REMOTE = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "fuse"})


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str = ""  # its type; "" if not known, as in a chroot(2)
    options: frozenset[str] = frozenset()
    is_remote: bool = False  # whether it is of other machines, or of another process


@functools.lru_cache(maxsize=64)
def mount_of_device(device: int) -> Mount:
    """Return the mount of a device."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for mount in lines("/proc/self/mountinfo"):
            left, _, right = mount.partition(" - ")
            if left.split()[2] == wanted:
                kind, *_, of_all = right.split()
                options = frozenset((left.split()[5] + "," + of_all).split(","))
                return Mount(kind, options, kind.partition(".")[0] in _REMOTE)
    return Mount()


def lines(path: str) -> list[str]:
    """Return the lines of a file in /proc."""
    with open(path, errors="replace") as file:
        return file.read().splitlines()


def preferred_nbytes(path: str) -> int:
    """Return the best number of bytes to read and write at a time (`st_blksize`)."""
    try:
        return os.stat(path).st_blksize
    except OSError:  # raised again where the file is opened
        return 0


# A lock on an open file description is one of POSIX to these. So `local_lock=flock` is not among them.
# File systems; options of their mounts by which locks end at the machine, "" for any; a way out.
_SHORT = (
    ({"lustre"}, {"localflock", "noflock"}, "mount it with `-o flock`, or "),
    ({"nfs", "nfs4"}, {"nolock", "local_lock=all", "local_lock=posix"}, "mount without it, or "),
    ({"cifs", "smb3", "9p", "fuse.sshfs"}, {""}, ""),
)


def obstacle(file: int | str) -> str | None:
    """Return why locks of other machines are not seen on a file system, and a way out; None if they are."""
    kind, options, _ = mount_of_device(os.stat(file).st_dev)
    for types, short, hint in _SHORT:
        if kind in types and (found := short & (options | {""})):
            mount = f"{kind} with `{min(found)}`" if min(found) else kind
            reason = f"its file system ({mount}) does not show the locks of other machines, so no update is safe"
            return f"{reason}; {hint}copy the file elsewhere"
    return None
