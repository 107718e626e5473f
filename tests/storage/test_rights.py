"""Who may read what an update writes, and whose update is believed: several users and groups at one file."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, refused, run, unchanged
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


_KILLED_AT: list[int] = []  # which call wrote to the target the last time


def killed(folder: Path, *setups: Callable[[], None]) -> None:
    """Leave what a journal update leaves that dies when it has written half of the target."""
    old = (folder / "t.npy").read_bytes()
    for number in [*_KILLED_AT[-1:], *range(1, 100)]:
        (folder / "t.npy").write_bytes(old)
        accumulate(folder, "journal", *setups, at(number, Fault("short, then kill"), Counter(), "t.npy"))
        if value(folder) is None:
            _KILLED_AT.append(number)
            return
    raise AssertionError("no call writes to the target")


def value(folder: Path) -> float | None:
    elements = np.load(folder / "t.npy")
    return float(elements[0]) if (elements == elements[0]).all() else None


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


# Whose update is believed


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


# What cannot be seen


def failing(call: str, number: int, at_name: str) -> Callable[[], None]:
    """Return a setup by which a call of `os` fails for a file of that name."""

    def setup() -> None:
        original = getattr(os, call)

        def fail(path: object, *arguments: object, **settings: object) -> object:
            if isinstance(path, str | bytes) and os.path.basename(os.fsdecode(path)) == at_name:
                raise OSError(number, os.strerror(number), path)
            return original(path, *arguments, **settings)

        setattr(os, call, fail)

    return setup


READING = [
    ("info",),
    ("reduce", "-q", "--op", "sum", "-o", "x.npy", "ones.npy"),
    ("reduce-local", "--op", "sum", "ones.npy"),
    ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-f", "-o"),
    ("scan", "--op", "sum", "ones.npy", "-f", "-o", "x{rank}.npy"),
]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", [JOURNAL, "t.npy"])
@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_journal_that_cannot_be_looked_for_is_an_error(words, name, number, shared):
    """Of it nothing is known, least of all that there is none: the target is half new."""
    killed(shared)
    # What is replaced is locked first, and its journal opened rather than looked for.
    call = "open" if words[-1] == "-o" and name == JOURNAL else "lstat"
    with unchanged(shared):
        outcome = run(*words, "t.npy", cwd=shared, setup=failing(call, number, name))
        refused(outcome, 4, "t.npy", os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("words", READING[:3], ids=lambda words: words[0])
def test_a_mark_that_cannot_be_looked_for_is_an_error(words, number, shared):
    os.rename(shared / "t.npy", shared / "u.npy")
    os.link(shared / "u.npy", shared / "t.npy")
    killed(shared)
    with unchanged(shared):
        refused(run(*words, "u.npy", cwd=shared, setup=failing("getxattr", number, "u.npy")), 4, os.strerror(number))


@pytest.mark.parametrize("words", [("recover",), ("recover", "--discard"), ("info",), READING[1]])
def test_a_target_that_cannot_be_looked_at_is_not_missing(words, shared):
    killed(shared)
    with unchanged(shared):
        refused(run(*words, "t.npy", cwd=shared, setup=failing("stat", errno.EIO, "t.npy")), 4, "t.npy", "Input/output")


def generation(value: int | OSError) -> Callable[[], None]:
    """Return a setup by which the system says that of every file."""

    def setup() -> None:
        original = fcntl.ioctl

        def ioctl(fd: int, request: int, *arguments: object) -> object:
            if request != 0x80087601:
                return original(fd, request, *arguments)
            if isinstance(value, OSError):
                raise value
            return struct.pack("q", value)

        fcntl.ioctl = ioctl

    return setup


def refusing(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("then", [7, 0, refusing(errno.ENOTTY), refusing(errno.EPERM), refusing(errno.EOPNOTSUPP)])
@pytest.mark.parametrize("now", [7, 0, refusing(errno.ENOTTY), refusing(errno.EPERM)])
def test_a_generation_that_is_not_known_is_no_other_one(then, now, shared):
    """The file system is met by a mount, or in a sandbox, that does not tell it."""
    killed(shared, generation(then))
    assert run("info", "t.npy", cwd=shared, setup=generation(now)).status == 0
    assert value(shared) == 1


def test_another_generation_is_another_file_and_an_error_is_none(shared):
    killed(shared, generation(7))
    with unchanged(shared):
        refused(run("info", "t.npy", cwd=shared, setup=generation(8)), 3, "of another file")
        refused(run("info", "t.npy", cwd=shared, setup=generation(refusing(errno.EIO))), 4, "t.npy", "Input/output")


# A file that is missing, while its update waits for it


@pytest.mark.parametrize(
    "words",
    [
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-o", "t.npy"),
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-f", "-o", "t.npy"),
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-o", "alias.npy"),
        ("scan", "--op", "sum", "elsewhere/t.npy", "-o", "{stem}.npy"),
        ("allreduce", "--op", "sum", "elsewhere/t.npy", "-f", "-o", "{stem}.npy"),
        ("get-accumulate", "--op", "sum", "--fetch", "t.npy", "other.npy", "ones.npy"),
        ("accumulate", "--op", "sum", "--create", "500", "t.npy", "ones.npy"),
        ("accumulate", "--op", "sum", "t.npy", "ones.npy"),
        ("pack", "--type", "double", "raw.bin", "-o", "t.npy"),
        ("unpack", "--type", "double", "raw.bin", "--into", "t.npy"),
        ("info", "t.npy"),
        ("reduce", "--op", "sum", "t.npy", "ones.npy"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_file_takes_the_name_of_one_whose_update_waits(words, shared):
    """Its journal would be of another file then, which no command opens any more."""
    killed(shared)
    os.unlink(shared / "t.npy")
    os.symlink("t.npy", shared / "alias.npy")
    np.save(shared / "other.npy", np.zeros(500))
    (shared / "raw.bin").write_bytes(bytes(80))
    (shared / "elsewhere").mkdir()
    np.save(shared / "elsewhere" / "t.npy", np.zeros(500))
    with unchanged(shared):
        refused(
            run(*words, cwd=shared), 3, "is missing, but its journal", JOURNAL, "`mpired recover --discard --force`"
        )
