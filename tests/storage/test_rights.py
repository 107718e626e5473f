"""Who may read what an update writes, and whose update is believed: several users and groups at one file."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, run
from faults import Counter, Fault, at

# Users, and groups of which the first is the primary one of both.
OWNER, MEMBER, STRANGER = 61001, 61002, 61003
USERS, PROJECT = 62000, 62001
JOURNAL = ".t.npy.mpired-journal"
ACCESS_LIST = "system.posix_acl_access"


def become(user: int, *groups: int) -> Callable[[], None]:
    """Return a setup of `Child` that makes it a process of a user, of its primary group and of others."""

    def setup() -> None:
        os.setgroups(groups)
        os.setgid(USERS)
        os.setuid(user)
        ctypes.CDLL(None).prctl(4, 1)  # as a process that was never root

    return setup


@pytest.fixture
def shared(as_root, open_folder) -> Path:
    """A folder that all users can write to, with a target of zeros and an origin of ones."""
    open_folder.chmod(0o777)
    np.save(open_folder / "t.npy", np.zeros(500))
    np.save(open_folder / "ones.npy", np.ones(500))
    return open_folder


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
    """Leave what a journal update leaves that dies when it has written half of the target."""
    for number in range(1, 100):
        accumulate(folder, "journal", *setups, at(number, Fault("short, then kill"), Counter(), "t.npy"))
        if value(folder) is None:
            return
    raise AssertionError("no call writes to the target")


def value(folder: Path) -> float | None:
    elements = np.load(folder / "t.npy")
    return float(elements[0]) if (elements == elements[0]).all() else None


REPLACING = [
    ("accumulate", "-q", "--op", "sum", "--commit", "rename", "t.npy", "ones.npy"),
    ("reduce", "-q", "--op", "sum", "t.npy", "ones.npy", "-f", "-o", "t.npy"),
    ("reduce", "-q", "--op", "sum", "t.npy", "ones.npy", "--root", "0", "--in-place"),
    ("reduce-local", "-q", "--op", "sum", "ones.npy", "t.npy"),
    ("scan", "-q", "--op", "sum", "ones.npy", "-f", "-o", "t{rank}.npy"),
]


@pytest.mark.parametrize("words", REPLACING, ids=lambda words: words[0])
def test_a_member_keeps_the_group_of_what_he_replaces(words, shared):
    os.link(shared / "t.npy", shared / "t0.npy")
    belonging(shared, OWNER, PROJECT, 0o660)
    os.unlink(shared / ("t.npy" if words[0] == "scan" else "t0.npy"))
    assert run(*words, cwd=shared, setup=become(MEMBER, PROJECT)).status == 0
    assert rights(shared / ("t0.npy" if words[0] == "scan" else "t.npy")) == (MEMBER, PROJECT, 0o660)


# What the target had, and what is left of it where its owner replaces it and may not keep the group.
LEFT = {
    0o660: 0o600,
    0o664: 0o644,
    0o640: 0o600,
    0o646: 0o644,
    0o606: 0o600,
    0o666: 0o666,
    0o6755: 0o755,
    0o2660: 0o600,
}


@pytest.mark.parametrize(("mode", "left"), LEFT.items(), ids=oct)
def test_where_the_group_cannot_be_kept_it_gets_what_both_had(mode, left, shared):
    belonging(shared, OWNER, PROJECT, mode)
    assert accumulate(shared, "rename", become(OWNER)).status == 0
    assert value(shared) == 1
    assert rights(shared / "t.npy") == (OWNER, USERS, left)


@pytest.mark.parametrize(
    ("user", "groups", "mode", "left"),
    [
        (MEMBER, (PROJECT,), 0o660, (MEMBER, PROJECT, 0o660)),
        (MEMBER, (PROJECT,), 0o664, (MEMBER, PROJECT, 0o664)),
        (OWNER, (), 0o660, (OWNER, USERS, 0o600)),
        (OWNER, (), 0o664, (OWNER, USERS, 0o644)),
        (STRANGER, (), 0o666, (STRANGER, USERS, 0o666)),
        (STRANGER, (), 0o646, (STRANGER, USERS, 0o644)),
        (0, (), 0o640, (OWNER, PROJECT, 0o640)),
        (OWNER, (PROJECT,), 0o755, (OWNER, PROJECT, 0o644)),
    ],
)
def test_a_journal_is_open_to_no_more_users_than_the_target(user, groups, mode, left, shared):
    belonging(shared, OWNER, PROJECT, mode)
    killed(shared, *([become(user, *groups)] if user else []))
    assert rights(shared / JOURNAL) == left


def access_list(*entries: tuple[int, int, int]) -> bytes:
    """Return an access control list: tag (1 owner, 2 user, 4 group, 16 mask, 32 others), rights, user."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ANY = 0xFFFFFFFF
# A user may write, the group may not: that the mode says 0664 is the mask.
LIST = access_list((1, 6, ANY), (2, 6, STRANGER), (4, 0, ANY), (16, 6, ANY), (32, 4, ANY))


@pytest.mark.parametrize("commit", ["rename", "journal"])
@pytest.mark.parametrize(("groups", "kept"), [((PROJECT,), True), ((), False)])
def test_an_access_list_goes_with_its_group(groups, kept, commit, shared):
    belonging(shared, OWNER, PROJECT, 0o600)
    os.setxattr(shared / "t.npy", ACCESS_LIST, LIST)
    if commit == "rename":
        assert accumulate(shared, commit, become(OWNER, *groups)).status == 0
    else:
        killed(shared, become(OWNER, *groups))
    path = shared / ("t.npy" if commit == "rename" else JOURNAL)
    assert rights(path) == ((OWNER, PROJECT, 0o664) if kept else (OWNER, USERS, 0o600))
    assert (ACCESS_LIST in os.listxattr(path)) == kept
    if kept:
        assert os.getxattr(path, ACCESS_LIST) == LIST


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_the_list_of_the_folder_lets_no_other_user_in(commit, shared):
    """New files inherit it; the target came from elsewhere and has none."""
    os.setxattr(shared, "system.posix_acl_default", LIST)
    belonging(shared, OWNER, PROJECT, 0o660)
    if commit == "rename":
        assert accumulate(shared, commit, become(OWNER, PROJECT)).status == 0
    else:
        killed(shared, become(OWNER, PROJECT))
    path = shared / ("t.npy" if commit == "rename" else JOURNAL)
    assert rights(path) == (OWNER, PROJECT, 0o660)
    assert ACCESS_LIST not in os.listxattr(path)


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o002)
    yield
    os.umask(old)


@pytest.mark.parametrize(
    ("mode", "left"), [(0o600, 0o600), (0o640, 0o600), (0o644, 0o644), (0o664, 0o644), (0o666, 0o664)]
)
def test_fetched_elements_can_be_read_by_no_more_users_than_the_target(mode, left, umask, shared):
    """The group of the new file is another one than that of the target, the umask is 002."""
    belonging(shared, OWNER, PROJECT, mode)
    words = ("get-accumulate", "-q", "--op", "sum", "--fetch", "old.npy", "t.npy", "ones.npy")
    assert run(*words, cwd=shared, setup=become(OWNER)) == (0, b"", "")
    assert rights(shared / "old.npy") == (OWNER, USERS, left)
    assert not np.load(shared / "old.npy").any()


@pytest.mark.parametrize("closed", ["t.npy", "u.npy"])
def test_fetched_elements_of_several_windows(closed, shared):
    """The narrowest of the windows counts, wherever the elements are from."""
    np.save(shared / "u.npy", np.zeros(500))
    (shared / closed).chmod(0o600)
    words = ("get-accumulate", "-q", "--op", "no_op", "--fetch", "old.npy", "--window", "t.npy", "--window", "u.npy")
    assert run(*words, "--target-rank", "1", "--target-count", "1", cwd=shared) == (0, b"", "")
    assert rights(shared / "old.npy") == (0, 0, 0o600)
