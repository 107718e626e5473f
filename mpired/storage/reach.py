"""How far locks reach: on some mounts no machine sees those of the others, and one that is free says nothing there.

What a command makes on such a mount says on which machine, and in which boot of it: its lock is seen there.
"""

from __future__ import annotations

import functools
import os
import zlib
from typing import NamedTuple

from mpired.storage import calls


class _Short(NamedTuple):
    """Mounts on which locks end at the machine: file systems, the options that make it so, "" for any, a way out."""

    types: frozenset[str]
    options: frozenset[str]
    way_out: str


# A lock on an open file description is one of POSIX to these. So `local_lock=flock` is not among them.
_SHORT = (
    _Short(frozenset({"lustre"}), frozenset({"localflock", "noflock"}), "mount it with `-o flock`"),
    _Short(frozenset({"nfs", "nfs4"}), frozenset({"nolock", "local_lock=all", "local_lock=posix"}), "mount without it"),
    _Short(frozenset({"cifs", "smb3", "9p", "fuse.sshfs"}), frozenset({""}), ""),
)


class Obstacle(NamedTuple):
    """Why locks of other machines are not seen, and the way out."""

    reason: str
    way_out: str


def obstacle(fd: int) -> Obstacle | None:
    """Return what keeps the locks of other machines from being seen on the file system of `fd`; None for nothing."""
    kind = calls.filesystem_type(fd)
    for row in _SHORT:
        if (
            kind in row.types
            and (found := min(row.options & (calls.mount_options(fd) | {""}), default=None)) is not None
        ):
            mount = f"{kind} with `{found}`" if found else kind
            way_out = f"{row.way_out}, or copy the file elsewhere" if row.way_out else "copy the file elsewhere"
            return Obstacle(f"its file system ({mount}) does not show the locks of other machines", way_out)
    return None


def mark(fd: int) -> str:
    """Return what a command says of itself in what it makes on the file system of `fd`; "" where locks reach all."""
    return machine() if obstacle(fd) else ""


def digits(mark: str) -> str:
    """Return a mark as it is in names of files: eight digits, "" for none."""
    return f"{zlib.crc32(mark.encode()):08x}" if mark else ""


def is_conclusive(fd: int, made: str, here: str) -> bool:
    """Tell whether a lock that is free shows that the command has ended that took it."""
    # Where locks reach is up to each machine's mount: what has a mark was made where they do not.
    return made == (here if made or obstacle(fd) else "")


@functools.cache
def machine() -> str:
    """Return this machine and its boot; without the number of that a name that no other process has."""
    try:
        (boot,) = calls.lines("/proc/sys/kernel/random/boot_id")
    except (OSError, ValueError):
        boot = os.urandom(16).hex()
    return f"{os.uname().nodename} {boot}"
