"""One update is stopped or killed at each of its calls, and another comes: nothing is lost or applied twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Child, run
from faults import Counter, Fault, at, recover
from shared_target import BASE, reset, value, words

from mpired.files import access, calls, lock, transaction
from mpired.sources import local


def interleavings(folder: Path, first: str, second: str, end: signal.Signals, step: int = 1) -> Iterator[str]:
    """Stop one update at each call, or each of so many, run another meanwhile and after; yield what is wrong."""
    counter = Counter()
    for number in range(1, 200, step):
        reset(folder)
        counter.clear()
        setup = at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        stopped = Child(*words(1, first), cwd=folder, setup=setup)
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            assert number > 20
            return
        seen = value(folder)
        meanwhile = run(*words(16, second, "--lock-timeout", "0"), cwd=folder)
        os.kill(stopped.pid, end)
        if end != signal.SIGKILL:
            os.kill(stopped.pid, signal.SIGCONT)
        status = stopped.finish().status
        after = run(*words(16, second), cwd=folder)
        recover(folder / "targets" / BASE)  # a new file that got a name, but not its place
        # A killed one may have committed, which the value tells.
        ones = {0, 1} if status == -signal.SIGKILL else {int(status == 0)}
        expected = {16 * (meanwhile.status == 0) + 16 * (after.status == 0) + each for each in ones}
        call = counter.read()[1]
        where = f"{first} stopped at call {number} ({call}), then {second}, {end.name}"
        if after.status or meanwhile.status not in {0, 5}:
            yield f"{where}: {meanwhile} {after}"
        if value(folder) not in expected or os.listdir(folder / "targets") != [BASE]:
            yield f"{where}: {value(folder)} instead of {expected}, {os.listdir(folder / 'targets')}"
        if seen == 1 and meanwhile.status == 0 and "sync" in call:
            yield f"{where}: the other came in before the end of the commit"


@pytest.mark.parametrize("second", ["rename", "journal"])
@pytest.mark.parametrize("first", ["rename", "journal"])
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_another_update_at_any_moment(first, second, end, long, folder):
    assert list(interleavings(folder, first, second, end, 1 if long else 14)) == []


# What is left out, and where that shows: the protocol, and what becomes of the one that was stopped.
MUTANTS = {
    "lock": ([(calls, "lock", lambda *_, **__: True)], "rename", signal.SIGCONT),
    # What it would let through the reading notices as well, and it is tried again.
    "second look": (
        [(lock.os.path, "samestat", lambda *_: True), (local, "_stamp", lambda status: (0, 0, status.st_size, 0))],
        "rename",
        signal.SIGCONT,
    ),
    "recovery": (
        [(module, "has_log", lambda *_, **__: False) for module in (access, local)],
        "journal",
        signal.SIGKILL,
    ),
    "lock on the new file": ([(transaction, "lock_own", lambda _fd: True)], "rename", signal.SIGCONT),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_step_is_needed(mutant, folder, monkeypatch):
    """Without it some interleaving loses an update, or lets another see one that is not safe yet."""
    patches, commit, end = MUTANTS[mutant]
    for patch in patches:
        monkeypatch.setattr(*patch)
    assert next(interleavings(folder, commit, commit, end), None) is not None
