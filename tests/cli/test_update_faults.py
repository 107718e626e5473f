"""Whatever fails at whichever call: the target is old or new, never half, and the exit status tells which."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, run
from faults import Counter, Fault, at, recover
from values import folder_in_memory

from mpired.storage import calls

BASE = "total.npy"
COUNT = 1500  # elements: pages and a part of one
OLD, NEW = 1.0, 3.0
KILLS = [Fault("kill before"), Fault("kill after"), Fault("short, then kill")]
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.EPERM)
IN_SHORT = 3  # of them
ERRORS = [Fault("error", number) for number in NUMBERS]
STICKY = [Fault("error from here on", number) for number in (errno.EIO, errno.ENOSPC, errno.EROFS)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as outside:
        np.save(outside / "origin.npy", np.full(COUNT, 2.0))
        (outside / "targets").mkdir()
        yield outside


def reset(folder: Path) -> None:
    """Put the old target there, and nothing else."""
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.full(COUNT, OLD))


def value(folder: Path) -> float | None:
    """Return the one value of all elements, None if they differ."""
    elements = np.load(folder / "targets" / BASE)
    assert elements.shape == (COUNT,)
    return float(elements[0]) if (elements == elements[0]).all() else None


def accumulate(folder: Path, commit: str, setup: Callable[[], None]) -> Outcome:
    words = ("accumulate", "-q", "--op", "sum", "--commit", commit, "--once-key", "k", f"targets/{BASE}", "origin.npy")
    return run(*words, cwd=folder, setup=setup)


def calls_of_a_run(folder: Path, commit: str) -> int:
    """Return how many calls a run without faults makes."""
    counter = Counter()
    reset(folder)
    assert accumulate(folder, commit, at(0, Fault("none"), counter, BASE)) == (0, b"", "")
    assert value(folder) == NEW
    return counter.read()[0]


def each_point(folder: Path, commit: str, faults: list[Fault]) -> Iterator[tuple[Fault, str, Outcome, float | None]]:
    """Run the command once for each call and fault; yield the fault, the call, the outcome and the value left."""
    counter = Counter()
    for number in range(1, calls_of_a_run(folder, commit) + 1):
        for fault in faults:
            reset(folder)
            counter.clear()
            outcome = accumulate(folder, commit, at(number, fault, counter, BASE))
            fired = counter.read()[1]
            assert fired, f"call {number} was not made"
            yield fault, fired, outcome, value(folder)


@pytest.fixture(params=["rename", "named", "journal"])
def commit(request, monkeypatch) -> str:
    """The protocol; "named" is rename where a file system has no files without a name."""
    if request.param == "named":
        monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    return request.param.replace("named", "rename")


def test_kill_at_any_call(commit, folder):
    points, left = 0, set()
    for fault, call, outcome, found in each_point(folder, commit, KILLS):
        assert outcome.status in {-signal.SIGKILL, 0}, (fault, call, outcome.err)
        assert outcome.status == 0 or not outcome.err
        if commit == "rename":
            assert found in {OLD, NEW}, (fault, call)
        recover(folder / "targets" / BASE)
        assert value(folder) in {OLD, NEW}, (fault, call, value(folder))
        assert os.listdir(folder / "targets") == [BASE], (fault, call)
        if outcome.status == 0:
            assert value(folder) == NEW
        left.add(found)
        points += 1
    assert left == ({OLD, NEW} if commit == "rename" else {OLD, NEW, None})
    assert points >= 90, points


def truth_told(outcome: Outcome, left: float | None, after: float | None) -> bool:
    """Tell whether the exit status says what happened."""
    if outcome.status == 4:
        return left == OLD and after == OLD
    return outcome.status in {0, 6} and after == NEW and (outcome.status == 6 or left == NEW)


@pytest.mark.parametrize("faults", [ERRORS, STICKY], ids=["once", "from here on"])
def test_error_at_any_call_tells_the_truth(faults, commit, long, folder):
    points, ends = 0, set()
    for fault, call, outcome, left in each_point(folder, commit, faults if long else faults[:IN_SHORT]):
        assert "Traceback" not in outcome.err, outcome.err
        assert outcome.err.count("\n") == (outcome.status != 0), (fault, call, outcome)
        litter = set(os.listdir(folder / "targets")) - {BASE}
        # What cannot be removed stays, until the next command.
        may_stay = call == "unlink" or outcome.status == 6 or fault.name != "error"
        assert not litter or may_stay, (fault, call, litter)
        if outcome.status == 4 and not may_stay:
            assert "user.mpired.once" not in os.listxattr(folder / "targets" / BASE), (fault, call)
        recover(folder / "targets" / BASE)
        assert truth_told(outcome, left, value(folder)), (fault, call, outcome, left, value(folder))
        assert os.listdir(folder / "targets") == [BASE]
        ends.add(outcome.status)
        points += 1
    assert {4, 6} <= ends
    assert points >= 90, points


def test_short_writes_are_continued(commit, folder):
    for fault, call, outcome, left in each_point(folder, commit, [Fault("short")]):
        assert (outcome.status, outcome.err, left) == (0, "", NEW), (fault, call)


def test_to_continue_short_writes_is_needed(commit, folder, monkeypatch):
    monkeypatch.setattr(calls, "pwrite_all", lambda fd, data, offset: os.pwrite(fd, data, offset))
    assert any(left != NEW for *_, left in each_point(folder, commit, [Fault("short")]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_at_any_call_means_nothing_changed_or_success(number, commit, folder):
    ends = set()
    for _, call, outcome, left in each_point(folder, commit, [Fault("signal", number)]):
        assert outcome.err == ""
        assert os.listdir(folder / "targets") == [BASE], call
        ends.add((outcome.status, left))
    assert ends == {(-number, OLD), (0, NEW)}


def left_by_a_kill(folder: Path, number: int) -> None:
    """Leave what a journal update leaves that is killed in the middle of its writing to the target."""
    reset(folder)
    accumulate(folder, "journal", at(number, Fault("short, then kill"), Counter(), BASE))
    assert value(folder) is None


@pytest.fixture
def killed_at(folder) -> int:
    """The number of the call that writes to the target."""
    for number in range(1, calls_of_a_run(folder, "journal") + 1):
        reset(folder)
        accumulate(folder, "journal", at(number, Fault("short, then kill"), Counter(), BASE))
        if value(folder) is None:
            return number
    raise AssertionError("no call writes to the target")


FAULTS = (Fault("kill before"), Fault("short, then kill"), Fault("error from here on", errno.EIO))


@pytest.mark.parametrize("words", [("recover",), ("info",), ("accumulate", "--op", "max", "-q", f"targets/{BASE}")])
def test_faults_in_the_recovery(words, killed_at, folder):
    """Every command finishes the update first; killed or failing in that, it leaves that to the next one."""
    words = (*words, "origin.npy") if words[0] == "accumulate" else (*words, f"targets/{BASE}")
    counter, points = Counter(), 0
    for number in range(1, 200):
        for fault in FAULTS if words[0] == "recover" else FAULTS[:1]:
            left_by_a_kill(folder, killed_at)
            counter.clear()
            outcome = run(*words, cwd=folder, setup=at(number, fault, counter, BASE))
            if not counter.read()[1]:
                assert points >= 20, points
                return
            assert outcome.status in {0, -signal.SIGKILL, 4, 6}, (fault, outcome)
            recover(folder / "targets" / BASE)
            assert value(folder) == NEW, (fault, counter.read())
            assert os.listdir(folder / "targets") == [BASE]
            points += 1
    raise AssertionError("the run does not end")


def test_the_recovered_file_is_what_is_read(killed_at, folder):
    left_by_a_kill(folder, killed_at)
    outcome = run("reduce", "-q", "--op", "sum", f"targets/{BASE}", "--to", "raw", cwd=folder)
    assert outcome[:2] == (0, np.full(COUNT, NEW).tobytes())
    assert outcome.err.startswith(f"mpired: targets/{BASE}: finished an update of")
