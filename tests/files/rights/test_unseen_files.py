"""Logs, marks and targets that cannot be looked at are not missing, and a missing target keeps its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from faults import failing
from rows import check_refusals
from users import killed

from mpired.files.names import MARK

READING = [
    "info",
    "reduce -q --op sum -o x.npy ones.npy",
    "reduce-local --op sum ones.npy",
    "reduce --op sum ones.npy ones.npy -f -o",
    "scan --op sum ones.npy -f -o x{rank}.npy",
]


def named(name: str) -> Callable[..., bool]:
    """Return whether the first argument of a call leads to a file of that name."""
    return lambda path, *_: isinstance(path, str | bytes) and os.path.basename(os.fsdecode(path)) == name


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_be_looked_for_is_an_error(number, shared):
    """A log, or the mark of a hard link: nothing is known, least of all that there is none. The target is half new."""
    os.link(shared / "t.npy", shared / "u.npy")
    killed(shared)
    assert MARK in os.listxattr(shared / "u.npy")
    text = os.strerror(number)
    cases = [(f"{words} t.npy", 4, "t.npy", text) for words in READING]
    check_refusals(shared, cases, setup=failing(number, "lstat", when=named(".t.npy.mpired")))
    cases = [(f"{words} u.npy", 4, text) for words in READING[:3]]
    check_refusals(shared, cases, setup=failing(number, "getxattr", when=named("u.npy")))


def test_no_file_takes_the_name_of_one_whose_update_waits(shared):
    """Its log would be of another file then, and its update lost."""
    killed(shared)
    os.unlink(shared / "t.npy")
    os.symlink("t.npy", shared / "alias.npy")
    commands = [
        "reduce --op sum ones.npy ones.npy -o t.npy",
        "reduce --op sum ones.npy ones.npy -f -o t.npy",
        "reduce --op sum ones.npy ones.npy -o alias.npy",
        "accumulate --op sum --create 500 t.npy ones.npy",
        "info t.npy",
        "reduce --op sum t.npy ones.npy",
    ]
    reasons = "has an unfinished update, and cannot be opened", "--discard --force"
    check_refusals(shared, [(words, 3, *reasons) for words in commands])
