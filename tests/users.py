"""Several users and groups at one target, and an update that one of them leaves half done."""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import command
from command import Outcome, run
from faults import kill_half_way
from values import one_value

# Users, and groups of which the first is the primary one of both.
OWNER, MEMBER, STRANGER = 61001, 61002, 61003
USERS, PROJECT = 62000, 62001

ACCESS_LIST = "system.posix_acl_access"


def become(user: int, *groups: int) -> Callable[[], None]:
    """Return a setup of `Child` that makes it a process of a user, of its primary group and of others."""

    return lambda: command.become(user, USERS, [*groups])


def belonging(folder: Path, owner: int, group: int, mode: int) -> None:
    os.chown(folder / "t.npy", owner, group)
    (folder / "t.npy").chmod(mode)


def rights(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def accumulate(folder: Path, commit: str, *setups: Callable[[], None]) -> Outcome:
    words = ("accumulate", "-q", "--op", "sum", "--commit", commit, "t.npy", "ones.npy")
    return run(*words, cwd=folder, setup=lambda: [setup() for setup in setups])


def killed(folder: Path, *setups: Callable[[], None]) -> None:
    """Leave what a patch leaves that dies when it has written half of the target."""
    accumulate(folder, "journal", *setups, kill_half_way)
    assert value(folder) is None


def value(folder: Path) -> float | None:
    return one_value(folder / "t.npy")


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Return an access control list: tag (1 owner, 2 user, 4 group, 16 mask, 32 others), rights, user."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ANY = 0xFFFFFFFF
# A user may write, the group may not: that the mode says 0664 is the mask.
LIST = access_list((1, 6, ANY), (2, 6, STRANGER), (4, 0, ANY), (16, 6, ANY), (32, 4, ANY))
