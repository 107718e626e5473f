"""Logs, marks and targets that cannot be looked at are not missing, and a missing target keeps its name."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable

import pytest
from command import refused, run, unchanged
from protocols import LOG
from users import killed, value


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
@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_log_that_cannot_be_looked_for_is_an_error(words, number, shared):
    """Of it nothing is known, least of all that there is none: the target is half new."""
    killed(shared)
    with unchanged(shared):
        outcome = run(*words, "t.npy", cwd=shared, setup=failing("lstat", number, LOG))
        refused(outcome, 4, "t.npy", os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("words", READING[:3], ids=lambda words: words[0])
def test_a_mark_that_cannot_be_looked_for_is_an_error(words, number, shared):
    os.rename(shared / "t.npy", shared / "u.npy")
    os.link(shared / "u.npy", shared / "t.npy")
    killed(shared)
    with unchanged(shared):
        refused(run(*words, "u.npy", cwd=shared, setup=failing("getxattr", number, "u.npy")), 4, os.strerror(number))


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
        refused(run("info", "t.npy", cwd=shared, setup=generation(8)), 3, "is not the file any more", "t.npy.mpired")
        refused(run("info", "t.npy", cwd=shared, setup=generation(refusing(errno.EIO))), 4, "t.npy", "Input/output")


@pytest.mark.parametrize(
    "words",
    [
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-o", "t.npy"),
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-f", "-o", "t.npy"),
        ("reduce", "--op", "sum", "ones.npy", "ones.npy", "-o", "alias.npy"),
        ("accumulate", "--op", "sum", "--create", "500", "t.npy", "ones.npy"),
        ("info", "t.npy"),
        ("reduce", "--op", "sum", "t.npy", "ones.npy"),
    ],
    ids=" ".join,
)
def test_no_file_takes_the_name_of_one_whose_update_waits(words, shared):
    """Its log would be of another file then, and its update lost."""
    killed(shared)
    os.unlink(shared / "t.npy")
    os.symlink("t.npy", shared / "alias.npy")
    with unchanged(shared):
        refused(run(*words, cwd=shared), 3, "has an unfinished update, and cannot be opened", "--discard --force")
