"""A command is stopped or killed at each of its calls, and another comes: nothing is lost, and none waits for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Child, run
from faults import Counter, Fault, at, recover, stopped
from protocols import COMMITS
from shared_target import ADDING, BASE, in_place, reset, value, words

from mpired.files import calls


def stops(folder: Path, command: tuple[str, ...] | str, counter: Counter, step: int) -> Iterator[tuple[int, Child]]:
    """Yield a command, or one in place by its name, that is stopped at each of its calls, or at each `step`-th."""
    for number in range(1, 400, step):
        reset(folder)
        all_words = in_place(folder, command) if isinstance(command, str) else command
        counter.clear()
        child = stopped(*all_words, cwd=folder, setup=at(number, Fault("stop", signal.SIGSTOP), counter, BASE))
        if child is None:
            break
        yield number, child
    assert number > 20


@pytest.mark.parametrize("first", COMMITS)
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_another_update_at_any_moment(first, end, long, folder):
    counter, wrong = Counter(), []
    for number, child in stops(folder, words(1, first), counter, 1 if long else 13):
        second = COMMITS[number % 2]
        seen = value(folder)
        meanwhile = run(*words(16, second, "--lock-timeout", "0"), cwd=folder)
        os.kill(child.pid, end)
        os.kill(child.pid, signal.SIGCONT)
        status = child.finish().status
        after = run(*words(16, second), cwd=folder)
        recover(folder / "targets" / BASE)  # a new file that got a name, but not its place
        # A killed one may have committed, which the value tells.
        ones = {0, 1} if status == -signal.SIGKILL else {int(status == 0)}
        expected = {16 * (meanwhile.status == 0) + 16 * (after.status == 0) + each for each in ones}
        where = number, second, counter.read(), meanwhile, after
        if after.status or meanwhile.status not in {0, 5}:
            wrong.append((*where, "failed"))
        if value(folder) not in expected or os.listdir(folder / "targets") != [BASE]:
            wrong.append((*where, value(folder), expected, os.listdir(folder / "targets")))
        if seen == 1 and meanwhile.status == 0 and "sync" in counter.read()[1]:
            wrong.append((*where, "the other came in before the end of the commit"))
    assert wrong == []


COUNTERS = {
    "fetch-and-op": ("fetch-and-op", "-q", "--op", "sum", f"targets/{BASE}", "1"),
    "compare-and-swap": ("compare-and-swap", "-q", f"targets/{BASE}", "0", "1"),
}


@pytest.mark.parametrize("name", [*ADDING, *COUNTERS])
def test_an_update_that_comes_in_between_counts(name, long, folder):
    """It is refused for the lock, or is in the result: a command looks at the elements under the lock alone."""
    counter, done = Counter(), set()
    for number, child in stops(folder, COUNTERS.get(name, name), counter, 1 if long else 19):
        update = run(*words(16, COMMITS[number % 2], "--lock-timeout", "0"), cwd=folder)
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.finish()
        added = 16 * (update.status == 0)
        where = number, counter.read(), update
        assert (outcome.status, outcome.err) == (0, ""), where
        if name in COUNTERS:
            before = int(outcome.out)
            assert before in {0, added}, where
            changed = name == "fetch-and-op" or before == 0
            assert np.load(folder / "targets" / BASE)[0] == changed + added, where
        else:
            assert value(folder) == 1 + added, where
        done.add(update.status)
    assert done == {0, 5}


# Several windows are locked in one order


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
