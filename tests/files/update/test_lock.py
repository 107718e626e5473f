"""The lock of a target: who waits for it, for how long, and what is told meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import re

import numpy as np
import pytest
from command import Child, become_nobody, run, unchanged, wait_until
from faults import failing
from protocols import COMMITS
from rows import check_refusals
from updates import WORDS, add, has_open, hold, value

from mpired.errors import LockError
from mpired.files import lock

LOCAL = ("reduce-local", "--op", "sum", "ones.npy", "here/t.npy")


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


@pytest.mark.parametrize(("words", "kind"), [(WORDS, fcntl.F_RDLCK), (LOCAL, fcntl.F_WRLCK)])
def test_a_long_wait_is_told_again_and_again(words, kind, folder, monkeypatch):
    """With how to end the wait."""
    impatient(monkeypatch)
    fd = hold(folder / "here" / "t.npy", kind)
    waiting = Child(*words, cwd=folder)
    wait_until(lambda: waiting.messages().count("\n") > 1)
    os.close(fd)
    outcome = waiting.finish()
    assert outcome.status == 0
    told = [line for line in outcome.err.splitlines() if "waiting" in line]
    assert len(told) > 1
    for line in told:
        assert line.startswith("mpired: here/t.npy: waiting for another process, which has it locked; ")
        assert "ctrl-C" in line
        assert "--lock-timeout" in line


def test_how_long_it_was_locked_is_told(folder):
    fd = hold(folder / "here" / "t.npy")
    texts = {words[0]: run(*words, "--lock-timeout", "0.5", cwd=folder) for words in (WORDS, LOCAL)}
    os.close(fd)
    for command, outcome in texts.items():
        last = outcome.err.splitlines()[-1]
        seconds = re.fullmatch(r"mpired: here/t.npy: others kept it locked for ([0-9.]+) s; .*", last)
        assert outcome.status == 5, command
        assert seconds is not None, (command, last)
        assert len(seconds[1]) <= len("0.49")


def test_a_long_wait_is_logged_in_python(folder, monkeypatch, caplog):
    impatient(monkeypatch)
    fd = hold(folder / "here" / "t.npy")
    with caplog.at_level("INFO", "mpired"), pytest.raises(LockError):
        add(folder, lock_timeout=0.3)
    os.close(fd)
    name, level, text = caplog.record_tuples[0]
    assert (name, level) == ("mpired", 20)
    assert "t.npy: waiting for another process" in text
    assert "`lock_timeout`" in text


def test_a_lock_timeout_that_is_no_time(folder):
    commands = [
        "reduce --op sum ones.npy here/t.npy -f -o here/t.npy",
        "reduce-local --op sum ones.npy here/t.npy",
        "scan --op sum ones.npy here/t.npy --in-place",
        "pack --type byte ones.npy -f -o here/t.npy",
        "unpack --type byte ones.npy --into here/t.npy",
        "recover here/t.npy",
    ]
    for time in ("-1", "nan", "inf", "1e400", "x"):
        check_refusals(folder, [(f"{commands[0]} --lock-timeout {time}", 2, "--lock-timeout")])
    check_refusals(folder, [(f"{words} --lock-timeout -1", 2, "--lock-timeout") for words in commands])
    variable = {"MPIRED_LOCK_TIMEOUT": "nan"}
    check_refusals(folder, [(words, 2, "lock") for words in commands], env=variable)


def test_file_system_without_locks(folder):
    for number in (errno.ENOLCK, errno.EOPNOTSUPP):
        no_locks = failing(number, "fcntl", module=fcntl)
        check_refusals(folder, [(WORDS, 5, "here/t.npy", "has no locks")], setup=no_locks)


def test_who_may_only_read_can_read_between_two_updates(as_root, open_folder):
    np.save(open_folder / "t.npy", np.arange(3))
    (open_folder / "t.npy").chmod(0o644)
    words = ("fetch-and-op", "--op", "no_op", "--target-disp", "2", "t.npy")
    with unchanged(open_folder):
        whole = ("get-accumulate", "-q", "--op", "no_op", "--to", "text", "t.npy")
        assert run(*whole, cwd=open_folder, setup=become_nobody) == (0, b"0\n1\n2\n", "")
        assert run(*words, cwd=open_folder, setup=become_nobody) == (0, b"2\n", "")
    update = ("fetch-and-op", "--op", "sum", "t.npy", "1")
    check_refusals(open_folder, [(update, 4, "t.npy", "Permission denied")], setup=become_nobody)
    fd = hold(open_folder / "t.npy")
    locked = ((*words, "--lock-timeout", "0"), 5, "t.npy", "--lock-timeout")
    check_refusals(open_folder, [locked], setup=become_nobody)
    os.close(fd)


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
