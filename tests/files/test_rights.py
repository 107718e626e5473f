"""Who may read what an update writes: the target, its log, fetched elements; and what cannot be seen is not missing."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import users
from command import run
from faults import failing
from protocols import LOG
from rows import check_refusals
from users import LIST, MEMBER, OWNER, PROJECT, STRANGER, USERS, accumulate, become, belonging, killed, rights

from mpired.files.places import MARK


@pytest.fixture
def shared(as_root, open_folder) -> Path:
    """A folder that all users can write to, with a target of zeros and an origin of ones."""
    open_folder.chmod(0o777)
    np.save(open_folder / "t.npy", np.zeros(500))
    np.save(open_folder / "ones.npy", np.ones(500))
    return open_folder


REPLACING = [
    ("accumulate", "-q", "--op", "sum", "--commit", "rename", "t.npy", "ones.npy"),
    ("reduce", "-q", "--op", "sum", "ones.npy", "-f", "-o", "t.npy"),
    ("reduce", "-q", "--op", "sum", "t.npy", "ones.npy", "--root", "0", "--in-place"),
    ("reduce-local", "-q", "--op", "sum", "ones.npy", "t.npy"),
    ("scan", "-q", "--op", "sum", "ones.npy", "-f", "-o", "t{rank}.npy"),
]


def target(folder, owner: int, group: int, mode: int, name: str = "t.npy") -> None:
    """Make the target, or another file, anew with rights."""
    path = folder / name
    path.unlink(missing_ok=True)
    np.save(path, np.zeros(500))
    os.chown(path, owner, group)
    path.chmod(mode)


def test_a_member_keeps_the_group_of_what_he_replaces(shared):
    """The set-user-id bit goes, which would be a gift to him."""
    found = {}
    for words in REPLACING:
        name = "t0.npy" if words[0] == "scan" else "t.npy"
        target(shared, OWNER, PROJECT, 0o4660, name)
        assert run(*words, cwd=shared, setup=become(MEMBER, PROJECT)).status == 0, words
        found[words[0]] = rights(shared / name)
    assert found == {words[0]: (MEMBER, PROJECT, 0o660) for words in REPLACING}


def test_a_log_is_open_to_no_more_users_than_the_target(shared):
    expected = {
        (MEMBER, (PROJECT,), 0o660): (MEMBER, PROJECT, 0o640),
        (OWNER, (), 0o660): (OWNER, USERS, 0o600),
        (STRANGER, (), 0o666): (STRANGER, USERS, 0o644),
        (0, (), 0o640): (0, PROJECT, 0o640),
        (OWNER, (PROJECT,), 0o755): (OWNER, PROJECT, 0o644),
    }
    found = {}
    for user, groups, mode in expected:
        (shared / LOG).unlink(missing_ok=True)
        target(shared, OWNER, PROJECT, mode)
        killed(shared, *([become(user, *groups)] if user else []))
        found[user, groups, mode] = rights(shared / LOG)
    assert found == expected


def test_the_list_of_the_folder_lets_no_other_user_in(shared):
    """New files inherit it; the target came from elsewhere and has none."""
    os.setxattr(shared, "system.posix_acl_default", LIST)
    belonging(shared, OWNER, PROJECT, 0o660)
    assert accumulate(shared, "rename", become(OWNER, PROJECT)).status == 0
    assert rights(shared / "t.npy") == (OWNER, PROJECT, 0o660)
    killed(shared, become(OWNER, PROJECT))
    assert rights(shared / LOG) == (OWNER, PROJECT, 0o640)
    assert [users.ACCESS_LIST in os.listxattr(shared / name) for name in ("t.npy", LOG)] == [False, False]


def fetched(folder, user: int, *words: str) -> tuple[int, int, int]:
    """Fetch the zeros of the target as a user, and return the rights of the file that has them."""
    command = ("get-accumulate", "-q", "--op", "no_op", "-f", "--fetch", "old.npy", *words)
    setup = become(user) if user else None
    assert run(*command, cwd=folder, setup=setup) == (0, b"", ""), command
    assert not np.load(folder / "old.npy").any()
    return rights(folder / "old.npy")


# The mode of the target; the owner and the mode of the file that is replaced, None for a new one; who fetches; and the
# owner and the mode of the file then. Its group is another one than that of the target, the umask is 002.
FETCHED = [
    *((mode, None, None, OWNER, OWNER, left)
      for mode, left in [(0o600, 0o600), (0o640, 0o600), (0o644, 0o644), (0o664, 0o644), (0o666, 0o664)]),
    *((mode, OWNER, old, OWNER, OWNER, left)
      for mode, old, left in [(0o600, 0o666, 0o600), (0o640, 0o666, 0o600), (0o640, 0o640, 0o600),
                              (0o644, 0o666, 0o644), (0o644, 0o600, 0o600), (0o666, 0o6777, 0o666)]),
    # Root replaces the file of a user by elements of another one's, who may read them or not.
    (0o600, MEMBER, 0o600, 0, 0, 0o600), (0o640, MEMBER, 0o600, 0, 0, 0o600), (0o644, MEMBER, 0o600, 0, MEMBER, 0o600),
]  # fmt: skip


def test_fetched_elements_have_no_more_readers_than_the_target(shared):
    wrong = []
    before = os.umask(0o002)
    try:
        for case in FETCHED:
            mode, old_owner, old, user, owner, left = case
            target(shared, OWNER, PROJECT, mode)
            (shared / "old.npy").unlink(missing_ok=True)
            if old is not None:
                target(shared, old_owner, USERS, old, "old.npy")
            if (found := fetched(shared, user, "t.npy")) != (owner, USERS, left):
                wrong.append((case, found))
    finally:
        os.umask(before)
    assert wrong == []


def test_fetched_elements_lose_a_list_that_the_target_has_not(shared):
    belonging(shared, OWNER, PROJECT, 0o600)
    target(shared, OWNER, PROJECT, 0o600, "old.npy")
    os.setxattr(shared / "old.npy", users.ACCESS_LIST, LIST)
    assert fetched(shared, 0, "t.npy") == (OWNER, PROJECT, 0o600)
    assert users.ACCESS_LIST not in os.listxattr(shared / "old.npy")


READING = [
    "info", "reduce -q --op sum -o x.npy ones.npy", "reduce-local --op sum ones.npy",
    "reduce --op sum ones.npy ones.npy -f -o", "scan --op sum ones.npy -f -o x{rank}.npy",
]  # fmt: skip


def named(name: str) -> Callable[..., bool]:
    """Return whether the first argument of a call leads to a file of that name."""
    return lambda path, *_: isinstance(path, str | bytes) and os.path.basename(os.fsdecode(path)) == name


def test_what_cannot_be_looked_for_is_an_error(shared):
    """A log, or the mark of a hard link: nothing is known, least of all that there is none. The target is half new."""
    os.link(shared / "t.npy", shared / "u.npy")
    killed(shared)
    assert MARK in os.listxattr(shared / "u.npy")
    cases = [(f"{words} t.npy", 4, "t.npy", "Input/output error") for words in READING]
    check_refusals(shared, cases, setup=failing(errno.EIO, "stat", when=named(".t.npy.mpired")))
    cases = [(f"{words} u.npy", 4, "Permission denied") for words in READING[:3]]
    check_refusals(shared, cases, setup=failing(errno.EACCES, "getxattr", when=named("u.npy")))


def test_no_file_takes_the_name_of_one_whose_update_waits(shared):
    """Its log would be of another file then, and its update lost."""
    killed(shared)
    os.unlink(shared / "t.npy")
    os.symlink("t.npy", shared / "alias.npy")
    reasons = "has an unfinished update, and cannot be opened", "--discard --force"
    commands = [
        *("reduce --op sum ones.npy ones.npy -f -o t.npy", "reduce --op sum ones.npy ones.npy -o alias.npy"),
        *("accumulate --op sum --create 500 t.npy ones.npy", "info t.npy", "reduce --op sum t.npy ones.npy"),
    ]
    check_refusals(shared, [(words, 3, *reasons) for words in commands])
