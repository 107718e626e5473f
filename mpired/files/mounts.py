"""Mounted file systems: their features, and whether locks are visible on other machines."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import NamedTuple

# These file systems implement posix_fallocate; on others the C library may write zeros instead.
WITH_EXTENTS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
# On these file systems each call waits for another machine or process.
_REMOTE = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "fuse"})


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str = ""  # type of the file system; "" if unknown, such as in a chroot(2)
    options: frozenset[str] = frozenset()
    is_remote: bool = False  # whether another machine or process serves it


@functools.lru_cache(maxsize=64)
def mount_of_device(device: int) -> Mount:
    """Return the mount of a device."""
    numbers = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        for mount in lines("/proc/self/mountinfo"):
            mount_fields, _, system_fields = mount.partition(" - ")
            if mount_fields.split()[2] == numbers:
                kind, *_, system_options = system_fields.split()
                options = frozenset((mount_fields.split()[5] + "," + system_options).split(","))
                return Mount(kind, options, kind.partition(".")[0] in _REMOTE)
    return Mount()


def lines(path: str) -> list[str]:
    """Return the lines of a file in /proc."""
    with open(path, errors="replace") as file:
        return file.read().splitlines()


def preferred_nbytes(path: str) -> int:
    """Return the preferred number of bytes of a read or write (`st_blksize`)."""
    try:
        return os.stat(path).st_blksize
    except OSError:  # raised again when the file is opened
        return 0


# Mounts whose locks are not visible on other machines: file systems; mount options with this effect, "" if it needs
# none; the start of a hint. NFS treats locks on open file descriptions as POSIX locks, so `local_lock=flock` is absent.
_LOCAL_LOCKS = (
    ({"lustre"}, {"localflock", "noflock"}, "mount it with `-o flock`, or "),
    ({"nfs", "nfs4"}, {"nolock", "local_lock=all", "local_lock=posix"}, "mount without it, or "),
    ({"cifs", "smb3", "9p", "fuse.sshfs"}, {""}, ""),
)


def obstacle(file: int | str) -> str | None:
    """Return why a file system does not show the locks of other machines, with a hint; None if it shows them."""
    kind, options, _ = mount_of_device(os.stat(file).st_dev)
    for kinds, local_options, hint in _LOCAL_LOCKS:
        if kind in kinds and (causes := local_options & (options | {""})):
            mount = f"{kind} with `{min(causes)}`" if min(causes) else kind
            reason = f"its file system ({mount}) does not show the locks of other machines, so no update is safe"
            return f"{reason}; {hint}copy the file elsewhere"
    return None
