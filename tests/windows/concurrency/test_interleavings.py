"""A command is stopped or killed at each of its calls, and another comes: nothing is lost, and none waits for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Child, run
from faults import Counter, Fault, at, stopped
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
