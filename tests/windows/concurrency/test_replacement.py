"""Commands that replace a file take its lock too."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal

import numpy as np
import pytest
from command import refused, run, snapshot
from faults import failing
from shared_target import BASE, forked, in_place, value

from mpired.files import access, lock


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("command", ["reduce-local", "unpack --into"])
def test_without_locks_files_are_replaced_all_the_same(command, number, folder):
    """There nothing can be accumulated into them."""
    outcome = run(*in_place(folder, command), cwd=folder, setup=failing(number, "fcntl", module=fcntl))
    assert (outcome.status, outcome.err) == (0, "")
    assert value(folder) == 1


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
        refused(outcome, 4, "r00.bin", "100 files", "ulimit -n")
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
