"""Commands that replace a file take its lock too."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal

import numpy as np
import pytest
from command import become_nobody, refused, run, snapshot
from faults import failing, stopped
from shared_target import BASE, COUNT, IN_PLACE, forked, in_place, stopping_at, value, words

from mpired.files import access, lock


@pytest.mark.parametrize("command", IN_PLACE)
def test_a_file_is_replaced_under_its_lock(command, folder):
    """No update comes in before that, and it does not come in while an update is at work."""
    target = folder / "targets" / BASE
    child = stopped(*in_place(folder, command), cwd=folder, setup=stopping_at("fsync"))
    before = target.read_bytes()
    update = run(*words(16, "auto", "--lock-timeout", "0"), cwd=folder)
    after = target.read_bytes()
    os.kill(child.pid, signal.SIGCONT)
    outcome = child.finish()
    assert (outcome.status, outcome.err) == (0, "")
    assert (update.status, after) == (5, before), update.err
    words_ = in_place(folder, command)
    child = stopped(*words(16, "rename"), cwd=folder, setup=stopping_at("replace"))
    before = target.read_bytes()
    outcome = run(*words_, "--lock-timeout", "0", cwd=folder)
    after = target.read_bytes()
    os.kill(child.pid, signal.SIGCONT)
    assert child.finish().status == 0
    assert (outcome.status, after) == (5, before), outcome.err


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("command", ["reduce-local", "unpack --into"])
def test_without_locks_files_are_replaced_all_the_same(command, number, folder):
    """There nothing can be accumulated into them."""
    outcome = run(*in_place(folder, command), cwd=folder, setup=failing(number, "fcntl", module=fcntl))
    assert (outcome.status, outcome.err) == (0, "")
    assert value(folder) == 1


def test_a_file_that_may_only_be_read_is_replaced_under_a_lock(as_root, open_folder):
    """Its owner's updates are kept away by the lock of a reader."""
    folder = open_folder
    folder.chmod(0o777)
    for name in "t.npy", "o.npy":
        np.save(folder / name, np.ones(COUNT, np.int64))
        (folder / name).chmod(0o444)

    def setup() -> None:
        become_nobody()
        stopping_at("replace")()

    command = ("reduce-local", "-q", "--op", "sum", "o.npy", "t.npy")
    child = stopped(*command, cwd=folder, setup=setup)
    update = run("accumulate", "--op", "sum", "t.npy", "o.npy", "--lock-timeout", "0", cwd=folder)
    os.kill(child.pid, signal.SIGCONT)
    outcome = child.finish()
    assert (outcome.status, outcome.err) == (0, "")
    assert update.status == 5, update.err
    assert np.load(folder / "t.npy").tolist() == [2] * COUNT
    child = stopped("accumulate", "-q", "--op", "sum", "t.npy", "o.npy", cwd=folder, setup=stopping_at("replace"))
    refused(run(*command, "--lock-timeout", "0", cwd=folder, setup=become_nobody), 5, "t.npy", "--lock-timeout")
    os.kill(child.pid, signal.SIGCONT)
    assert child.finish().status == 0


def test_the_log_of_a_file_is_finished_before_the_file_is_replaced(folder):
    words_ = in_place(folder, "reduce-local")
    update = stopped(*words(16, "journal"), cwd=folder, setup=stopping_at("fdatasync"))
    os.kill(update.pid, signal.SIGKILL)
    update.finish()
    assert (folder / "targets" / f".{BASE}.mpired").exists()
    outcome = run(*words_, cwd=folder)
    assert outcome.status == 0
    assert "finished an update" in outcome.err
    assert value(folder) == 17
    assert os.listdir(folder / "targets") == [BASE]


def test_two_names_of_one_file_are_one_lock(folder):
    """Each rank gets its result under its own name."""
    in_place(folder, "reduce-local")
    os.link(folder / "add1.npy", folder / "name.npy")
    outcome = run("scan", "-q", "--op", "sum", "add1.npy", "name.npy", "--in-place", "--lock-timeout", "0", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert np.load(folder / "add1.npy")[0] == 1
    assert np.load(folder / "name.npy")[0] == 2


@pytest.mark.parametrize("hard", [64, 20_000])
def test_more_files_than_descriptors_are_locked(hard, folder):
    for rank in range(100):
        np.full(10, 1).tofile(folder / f"r{rank:02}.bin")
    names = [f"r{rank:02}.bin" for rank in range(100)]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    words_ = ("scan", "-q", "--op", "sum", "--type", "int64_t", *names, "--in-place")
    before = snapshot(folder)
    outcome = run(*words_, cwd=folder, setup=few)
    if hard == 64:
        refused(outcome, 4, "Too many open files")
        assert snapshot(folder) == before
    else:
        assert (outcome.status, outcome.err) == (0, "")
        assert [int(np.fromfile(folder / name, np.int64)[0]) for name in names] == list(range(1, 101))


def test_workers_do_not_keep_the_lock(folder):
    """A command that is killed has no lock any more, whatever became of its workers."""
    target = folder / "targets" / BASE
    with access.lock_all([str(target)], lock.LockTimeout(timeout=0)):
        inherited = forked(signal.pause)
    try:
        with access.lock_all([str(target)], lock.LockTimeout(timeout=10)):
            pass
    finally:
        os.kill(inherited, signal.SIGKILL)
        os.waitpid(inherited, 0)
