"""Whose update is believed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, refused, run, unchanged
from protocols import JOURNAL
from users import ACCESS_LIST, LIST, MEMBER, OWNER, PROJECT, STRANGER, USERS, become, belonging, killed, value


def known(user: int, *groups: int) -> Callable[[], None]:
    """Return a setup by which the user database knows a user and the groups that it is in."""

    def setup() -> None:
        entry = pwd.struct_passwd(("anna", "x", user, USERS, "", "/", "/bin/sh"))
        others = pwd.getpwuid
        pwd.getpwuid = lambda uid: entry if uid == user else others(uid)
        os.getgrouplist = lambda name, group: [group, *groups] if name == "anna" else []

    return setup


def next_command(folder: Path, user: int, *setups: Callable[[], None], words: tuple[str, ...] = ("info",)) -> Outcome:
    setups = (*setups, become(user, PROJECT) if user else lambda: None)
    return run(*words, "t.npy", cwd=folder, setup=lambda: [setup() for setup in setups])


@pytest.mark.parametrize("who", [OWNER, 0], ids=["owner", "root"])
@pytest.mark.parametrize(
    ("writer", "database", "mode"),
    [
        (OWNER, (), 0o600),
        (MEMBER, (PROJECT,), 0o660),
        (MEMBER, (PROJECT,), 0o664),
        (STRANGER, (), 0o666),
        (STRANGER, (), 0o646),
    ],
)
def test_an_update_of_any_user_who_may_write_is_finished(writer, database, mode, who, shared):
    belonging(shared, OWNER, PROJECT, mode)
    killed(shared, become(writer, *database))
    outcome = next_command(shared, who, known(writer, *database))
    assert outcome.status == 0, outcome.err
    assert value(shared) == 1
    assert not (shared / JOURNAL).exists()


@pytest.mark.parametrize("who", [OWNER, 0], ids=["owner", "root"])
@pytest.mark.parametrize(
    ("writer", "database", "mode"),
    [
        (STRANGER, (), 0o600),
        (STRANGER, (), 0o664),
        (STRANGER, (PROJECT + 1,), 0o660),
        (MEMBER, (PROJECT,), 0o644),
        (MEMBER, (PROJECT,), 0o646),  # others may write, the group may not
    ],
)
def test_an_update_of_a_user_who_may_not_write_is_not_applied(writer, database, mode, who, shared):
    """A whole journal that fits the file, which he has forged, or wrote when he still had the right."""
    belonging(shared, writer, PROJECT, 0o666)
    killed(shared, become(writer, *database))
    belonging(shared, OWNER, PROJECT, mode)
    os.chmod(shared / JOURNAL, 0o644)
    name, as_known = f"user anna ({writer})", known(writer, *database)
    with unchanged(shared):
        for words in (("info",), ("recover",), ("reduce-local", "--op", "sum", "ones.npy")):
            outcome = next_command(shared, who, as_known, words=words)
            refused(outcome, 3, "t.npy", f"update of {name}", "`mpired recover`", "--discard --force")
            assert "another file" not in outcome.err
        refused(
            next_command(shared, who, as_known, words=("recover", "--discard")), 3, "half changed", "--discard --force"
        )
        listed = next_command(shared, who, as_known, words=("recover", "--list"))
        assert b"only its user" in listed.out
    half = np.load(shared / "t.npy")
    assert next_command(shared, who, words=("recover", "--discard", "--force")).status == 0
    assert (np.load(shared / "t.npy") == half).all()
    assert not (shared / JOURNAL).exists()


def test_a_user_whose_update_is_not_known_to_others_finishes_it(shared):
    belonging(shared, OWNER, PROJECT, 0o664)
    killed(shared, become(MEMBER, PROJECT))
    refused(next_command(shared, OWNER), 3, f"update of user {MEMBER} waits")
    assert next_command(shared, MEMBER).status == 0
    assert value(shared) == 1


def test_of_a_file_with_an_access_list_the_owner_is_believed(shared):
    """The mode says that the group may write, but that is the limit for all users in the list."""
    belonging(shared, OWNER, PROJECT, 0o660)
    killed(shared, become(MEMBER, PROJECT))
    os.setxattr(shared / "t.npy", ACCESS_LIST, LIST)
    with unchanged(shared):
        refused(next_command(shared, OWNER, known(MEMBER, PROJECT)), 3, "update of user anna")
    os.chown(shared / JOURNAL, OWNER, PROJECT)
    os.chmod(shared / JOURNAL, 0o600)
    assert next_command(shared, OWNER).status == 0


@pytest.mark.parametrize(
    ("group", "mode", "trusted"), [(PROJECT, 0o660, True), (USERS, 0o660, False), (USERS, 0o640, True)]
)
def test_a_journal_that_another_group_can_write_to(group, mode, trusted, shared):
    belonging(shared, OWNER, PROJECT, 0o660)
    killed(shared, become(OWNER, PROJECT))
    os.chown(shared / JOURNAL, OWNER, group)
    os.chmod(shared / JOURNAL, mode)
    if trusted:
        assert next_command(shared, OWNER).status == 0
        assert value(shared) == 1
    else:
        with unchanged(shared):
            refused(next_command(shared, OWNER), 3, "to which others can write who may not write to the file")


def test_a_journal_that_may_not_be_read_names_its_user(shared):
    belonging(shared, OWNER, PROJECT, 0o660)
    killed(shared, become(OWNER))
    with unchanged(shared):
        refused(next_command(shared, MEMBER), 4, "t.npy", f"user {OWNER} or root finishes it")
    assert next_command(shared, 0).status == 0
    assert value(shared) == 1


@pytest.mark.parametrize("content", [b"garbage", None], ids=["not whole", "of another file"])
def test_a_journal_that_may_not_be_removed_names_folder_and_way_out(content, shared):
    belonging(shared, OWNER, PROJECT, 0o666)
    np.save(shared / "u.npy", np.zeros(500))
    killed(shared, become(STRANGER))
    if content is not None:
        (shared / JOURNAL).write_bytes(content)
    os.rename(shared / "u.npy", shared / "t.npy")
    belonging(shared, OWNER, PROJECT, 0o666)
    shared.chmod(0o1777)
    discard = ("recover", "--discard") + (("--force",) if content is None else ())
    with unchanged(shared):
        outcome = next_command(shared, OWNER, words=discard)
        refused(outcome, 4, "t.npy", JOURNAL, "sticky", f"only user {STRANGER}, its owner and root can do that")
    assert next_command(shared, 0, words=discard).status == 0
