"""The lock of a target: who waits for it, for how long, and what is told meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os

import numpy as np
import pytest
from command import Child, unchanged, wait_until
from faults import failing
from protocols import COMMITS
from rows import check_refusals
from updates import WORDS, add, has_open, hold, value

from mpired.errors import LockError
from mpired.files import lock


@pytest.mark.parametrize("kind", [fcntl.F_WRLCK, fcntl.F_RDLCK])
def test_lock_that_is_held(kind, folder):
    fd = hold(folder / "here" / "t.npy", kind)
    times = [((*WORDS, "--lock-timeout", time), 5, "here/t.npy", "--lock-timeout") for time in ("0", "0.05")]
    check_refusals(folder, times)
    with unchanged(folder), pytest.raises(LockError):
        add(folder, lock_timeout=0)
    os.close(fd)
    add(folder, lock_timeout=0)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.05)
    monkeypatch.setattr(lock, "_REMINDER", 0.1)


def test_a_long_wait_is_logged_in_python(folder, monkeypatch, caplog):
    impatient(monkeypatch)
    fd = hold(folder / "here" / "t.npy")
    with caplog.at_level("INFO", "mpired"), pytest.raises(LockError):
        add(folder, lock_timeout=0.3)
    os.close(fd)
    name, level, text = caplog.record_tuples[0]
    assert (name, level) == ("mpired", 20)
    assert "t.npy: waiting for another process, which has it locked; " in text
    assert "`lock_timeout`" in text


def test_file_system_without_locks(folder):
    for number in (errno.ENOLCK, errno.EOPNOTSUPP):
        no_locks = failing(number, "fcntl", module=fcntl)
        check_refusals(folder, [(WORDS, 5, "here/t.npy", "has no locks")], setup=no_locks)


@pytest.mark.parametrize("commit", COMMITS)
def test_target_replaced_while_waiting(commit, folder):
    """The lock that was waited for is on a file that has no name any more: the new one is locked, and changed."""
    path = folder / "here" / "t.npy"
    fd = hold(path)
    child = Child(*WORDS, "--commit", commit, cwd=folder)
    wait_until(lambda: has_open(child.pid, path))
    np.save(folder / "new.npy", np.full(500, 10.0))
    os.replace(folder / "new.npy", path)
    os.close(fd)
    assert child.finish() == (0, b"", "")
    assert value(folder) == 11
