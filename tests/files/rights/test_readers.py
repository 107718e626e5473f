"""Who may read what an update writes: the target, its log and the elements that are fetched."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from command import run
from protocols import LOG
from users import (
    ACCESS_LIST,
    LIST,
    MEMBER,
    OWNER,
    PROJECT,
    STRANGER,
    USERS,
    accumulate,
    become,
    belonging,
    killed,
    rights,
    value,
)

REPLACING = [
    ("accumulate", "-q", "--op", "sum", "--commit", "rename", "t.npy", "ones.npy"),
    ("reduce", "-q", "--op", "sum", "ones.npy", "-f", "-o", "t.npy"),
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
        (MEMBER, (PROJECT,), 0o660, (MEMBER, PROJECT, 0o640)),
        (MEMBER, (PROJECT,), 0o664, (MEMBER, PROJECT, 0o644)),
        (OWNER, (), 0o660, (OWNER, USERS, 0o600)),
        (OWNER, (), 0o664, (OWNER, USERS, 0o644)),
        (STRANGER, (), 0o666, (STRANGER, USERS, 0o644)),
        (STRANGER, (), 0o646, (STRANGER, USERS, 0o644)),
        (0, (), 0o640, (0, PROJECT, 0o640)),
        (OWNER, (PROJECT,), 0o755, (OWNER, PROJECT, 0o644)),
    ],
)
def test_a_log_is_open_to_no_more_users_than_the_target(user, groups, mode, left, shared):
    belonging(shared, OWNER, PROJECT, mode)
    killed(shared, *([become(user, *groups)] if user else []))
    assert rights(shared / LOG) == left


@pytest.mark.parametrize(("groups", "kept"), [((PROJECT,), True), ((), False)])
def test_an_access_list_goes_with_its_group(groups, kept, shared):
    belonging(shared, OWNER, PROJECT, 0o600)
    path = shared / "t.npy"
    os.setxattr(path, ACCESS_LIST, LIST)
    assert accumulate(shared, "rename", become(OWNER, *groups)).status == 0
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
    path = shared / ("t.npy" if commit == "rename" else LOG)
    assert rights(path) == (OWNER, PROJECT, 0o660 if commit == "rename" else 0o640)
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


@pytest.mark.parametrize(
    ("mode", "old", "left"),
    [(0o600, 0o666, 0o600), (0o640, 0o666, 0o600), (0o640, 0o640, 0o600), (0o644, 0o666, 0o644), (0o644, 0o600, 0o600),
     (0o666, 0o6777, 0o666)],
)  # fmt: skip
def test_fetched_elements_that_replace_a_file_have_no_more_readers_than_the_target(mode, old, left, shared):
    """The file that is replaced is of another group than the target."""
    belonging(shared, OWNER, PROJECT, mode)
    (shared / "old.npy").write_bytes(b"")
    os.chown(shared / "old.npy", OWNER, USERS)
    (shared / "old.npy").chmod(old)
    words = ("get-accumulate", "-q", "--op", "sum", "-f", "--fetch", "old.npy", "t.npy", "ones.npy")
    assert run(*words, cwd=shared, setup=become(OWNER)) == (0, b"", "")
    assert rights(shared / "old.npy") == (OWNER, USERS, left)
    assert not np.load(shared / "old.npy").any()


@pytest.mark.parametrize(("mode", "owner"), [(0o600, 0), (0o640, 0), (0o644, MEMBER)])
def test_fetched_elements_are_given_to_no_user_who_may_not_read_the_target(mode, owner, shared):
    """Root replaces the file of a user by elements of another one's."""
    belonging(shared, OWNER, PROJECT, mode)
    (shared / "old.npy").write_bytes(b"")
    os.chown(shared / "old.npy", MEMBER, USERS)
    (shared / "old.npy").chmod(0o600)
    words = ("get-accumulate", "-q", "--op", "no_op", "-f", "--fetch", "old.npy", "t.npy")
    assert run(*words, cwd=shared) == (0, b"", "")
    assert rights(shared / "old.npy") == (owner, USERS, 0o600)


def test_fetched_elements_lose_a_list_that_the_target_has_not(shared):
    belonging(shared, OWNER, PROJECT, 0o600)
    (shared / "old.npy").write_bytes(b"")
    os.chown(shared / "old.npy", OWNER, PROJECT)
    os.setxattr(shared / "old.npy", ACCESS_LIST, LIST)
    words = ("get-accumulate", "-q", "--op", "no_op", "-f", "--fetch", "old.npy", "t.npy")
    assert run(*words, cwd=shared) == (0, b"", "")
    assert rights(shared / "old.npy") == (OWNER, PROJECT, 0o600)
    assert ACCESS_LIST not in os.listxattr(shared / "old.npy")


@pytest.mark.parametrize("closed", ["t.npy", "u.npy"])
def test_fetched_elements_of_several_windows(closed, shared):
    """The narrowest of the windows counts, wherever the elements are from."""
    np.save(shared / "u.npy", np.zeros(500))
    (shared / closed).chmod(0o600)
    words = ("get-accumulate", "-q", "--op", "no_op", "--fetch", "old.npy", "--window", "t.npy", "--window", "u.npy")
    assert run(*words, "--target-rank", "1", "--target-count", "1", cwd=shared) == (0, b"", "")
    assert rights(shared / "old.npy") == (0, 0, 0o600)
