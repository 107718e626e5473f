"""A command is stopped or killed at each of its calls, and an update comes: nothing is lost or applied twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Child, run
from faults import Counter, Fault, at, recover, stopped
from protocols import COMMITS
from shared_target import ADDING, BASE, in_place, reset, value, words


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
