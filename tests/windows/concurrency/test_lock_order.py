"""Several windows are locked in one order, and elements are looked at under the lock alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest
from command import Child, run
from faults import Counter, Fault, at
from shared_target import BASE, reset, stopped, words

from mpired.files import calls


def stopping_at_lock(number: int) -> Callable[[], None]:
    """Return a setup that stops the process before it takes its n-th lock."""

    def setup() -> None:
        original, left = calls.lock, number

        def lock_(*arguments: object, **settings: object) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **settings)

        calls.lock = lock_

    return setup


def test_windows_in_opposite_order_do_not_wait_for_each_other(folder):
    """In the order of inodes they would: a target that is replaced gets another inode."""
    names = ["targets/a.npy", "targets/b.npy"]
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name in names:
        np.save(folder / name, np.zeros(1, np.int64))

    def update(*order: str) -> tuple[str, ...]:
        windows = [word for name in order for word in ("--window", name)]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "4", "one.npy")

    first = stopped(*update(*names), cwd=folder, setup=stopping_at_lock(1))
    for _ in range(50):
        replaced = run("accumulate", "-q", "--op", "sum", "--commit", "rename", names[0], "one.npy", cwd=folder)
        assert replaced.status == 0
        if os.stat(folder / names[0]).st_ino > os.stat(folder / names[1]).st_ino:
            break
    else:
        raise AssertionError("a new file never got a greater inode")
    second = stopped(*update(*names[::-1]), cwd=folder, setup=stopping_at_lock(2))
    os.kill(first.pid, signal.SIGCONT)
    time.sleep(0.3)  # for it to take what it can, which is what makes the two wait for each other in a wrong order
    os.kill(second.pid, signal.SIGCONT)
    assert [first.finish(), second.finish()] == [(0, b"", "")] * 2


def test_hard_links_that_cross_do_not_wait_for_each_other(folder):
    """By their paths the first comes to `a` before `b`, and the second the other way round."""
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name, other in [("a", "z"), ("b", "y")]:
        np.save(folder / f"targets/{name}.npy", np.zeros(1, np.int64))
        os.link(folder / f"targets/{name}.npy", folder / f"targets/{other}.npy")

    def update(*names: str) -> tuple[str, ...]:
        windows = [word for name in names for word in ("--window", f"targets/{name}.npy")]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "20", "one.npy")

    children = [
        stopped(*update("a", "y"), cwd=folder, setup=stopping_at_lock(2)),
        stopped(*update("b", "z"), cwd=folder, setup=stopping_at_lock(2)),
    ]
    for child in children:
        os.kill(child.pid, signal.SIGCONT)
    assert [child.finish() for child in children] == [(0, b"", "")] * 2
    assert [np.load(folder / f"targets/{name}.npy")[0] for name in "abyz"] == [1, 1, 1, 1]


@pytest.mark.parametrize("commit", ["rename", "journal"])
@pytest.mark.parametrize("command", ["fetch-and-op", "compare-and-swap"])
def test_counters_look_at_the_target_under_the_lock_alone(command, commit, long, folder):
    """Whatever another does to the target before, the element is taken as it is then."""
    counter = Counter()
    for number in range(1, 100, 1 if long else 5):
        reset(folder)
        counter.clear()
        operands = ("1",) if command == "fetch-and-op" else ("0", "1")
        options = ("--op", "sum") if command == "fetch-and-op" else ()
        setup = at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        child = Child(command, "-q", *options, f"targets/{BASE}", *operands, cwd=folder, setup=setup)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            break
        update = run(*words(16, commit, "--lock-timeout", "0"), cwd=folder)
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.finish()
        assert (outcome.status, outcome.err) == (0, ""), counter.read()
        before = int(outcome.out)
        assert before in {0, 16 * (update.status == 0)}
        swapped = command == "fetch-and-op" or before == 0
        assert np.load(folder / "targets" / BASE)[0] == swapped + 16 * (update.status == 0)
    assert number > 10
