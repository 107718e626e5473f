"""A target is wholly old or wholly new whenever the power goes, and new once the command has said so."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from powercut import Event, File, Recorder, Shelf, State, crashes, no_clone
from values import folder_in_memory

from mpired.errors import MpiredError
from mpired.options import ACCUMULATE, checked
from mpired.storage import recovery, update
from mpired.storage.lock import Waiting, lock_target
from mpired.windows.call import plan_accumulate

pytestmark = pytest.mark.filterwarnings("ignore::mpired.errors.HardLinkWarning")

BASE = "total.npy"
COUNT = 400  # elements, 3200 bytes and a header: seven sectors
PAIRS = [("rename", "rename"), ("journal", "journal"), ("journal", "rename"), ("rename", "journal")]


@pytest.fixture(autouse=True)
def no_reflinks(monkeypatch):
    monkeypatch.setattr(fcntl, "ioctl", no_clone)


@pytest.fixture
def one_name(monkeypatch):
    """Let the target count as a file with one name: the other is that by which the tests keep its inode."""
    monkeypatch.setattr(update, "_has_several_names", lambda _status: False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a target of ones, and next to it origins with powers of two; in memory, because of the syncs."""
    with folder_in_memory() as outside:
        where = outside / "targets"
        where.mkdir()
        np.save(where / BASE, np.ones(COUNT))
        for number in (1, 2):
            np.save(outside / f"origin{number}.npy", np.full(COUNT, 2.0**number))
        yield where


def accumulate(folder: Path, number: int, commit: str, **options: object) -> None:
    """Add the origin of that number."""
    origin = folder.parent / f"origin{number}.npy"
    said = checked(ACCUMULATE, {"commit": commit, **options})
    plan_accumulate([folder / BASE], [origin], "sum", said).run()


def recorded(folder: Path, commits: tuple[str, ...], **options: object) -> tuple[State, list[Event], list[int]]:
    """Run updates; return the state before, all calls, and how many there were at the end of each update."""
    before, ends = Shelf(folder, BASE).state(), []
    with Recorder(folder) as recorder:
        for number, commit in enumerate(commits, 1):
            accumulate(folder, number, commit, **options)
            ends.append(len(recorder.events))
    return before, recorder.events, ends


def value(file: File) -> float | None:
    """Return the one value that all elements have, None if they differ."""
    if len(file.data) != 128 + 8 * COUNT:
        return None
    elements = np.frombuffer(file.data, offset=128)
    return elements[0] if (elements == elements[0]).all() else None


def recovered(folder: Path, name: str = BASE) -> None:
    """Do what every command does first."""
    with lock_target(str(folder / name), Waiting()) as target:
        recovery.recover(target)
        recovery.clean(target)


def after_recovery(shelf: Shelf, state: State, name: str = BASE) -> tuple[float | None, list[str]]:
    """Put a state on files, recover, and return the target's value and what else is there."""
    shelf.put(state)
    try:
        recovered(shelf.folder, name)
    except MpiredError as error:  # nothing that a crash leaves is a reason to refuse
        return None, [str(error)]
    names = dict(shelf.state().names)
    found = dict(shelf.state().files)[names.pop(BASE)]
    return value(found), sorted(names)


def allowed(number: int, ends: list[int]) -> set[float]:
    """Return the values that are right after so many calls: what was acknowledged, or the update at work."""
    values = [1.0, 3.0, 7.0][: len(ends) + 1]
    done = sum(number >= end for end in ends)
    return set(values[done : done + 2])


def violations(folder: Path, start: State, events: list[Event], ends: list[int]) -> tuple[int, int]:
    """Return how many states there are, and in how many the target is neither old nor new."""
    shelf, states, wrong = Shelf(folder, BASE), 0, 0
    for number, state in crashes(start, events, random.Random(1)):
        states += 1
        found, litter = after_recovery(shelf, state)
        wrong += found not in allowed(number, ends) or bool(litter)
    return states, wrong


@pytest.fixture(params=["one name", "several names"])
def names(request):
    """How many names the target has; of one with several a mark leads to the journal."""
    if request.param == "one name":
        request.getfixturevalue("one_name")
    return request.param


def test_power_cuts_in_two_updates(names, folder):
    total = 0
    for commits in PAIRS:
        shelf = Shelf(folder, BASE)
        before = shelf.state()
        start, events, ends = recorded(folder, commits)
        states, wrong = violations(folder, start, events, ends)
        assert wrong == 0, commits
        total += states
        shelf.put(before)
    assert total >= 1000, total


def test_power_cuts_met_by_another_name(folder):
    """The update was begun by one name; the next command uses the other name, and the one after it the first."""
    other = "other.npy"
    os.link(folder / BASE, folder / other)
    shelf, total = Shelf(folder, BASE), 0
    for commits in (("journal",), ("journal", "journal")):
        before = shelf.state()
        start, events, ends = recorded(folder, commits)
        for number, state in crashes(start, events, random.Random(6)):
            found, litter = after_recovery(shelf, state, other)
            assert found in allowed(number, ends), (commits, number, litter)
            # What was never committed may wait for a command on the name that it is beside.
            recovered(folder)
            names = dict(shelf.state().names)
            assert value(dict(shelf.state().files)[names[BASE]]) == found
            assert sorted(names) == sorted([BASE, other]), (commits, number)
            total += 1
        shelf.put(before)
    assert total >= 500, total


def test_power_cuts_in_a_recovery_after_a_power_cut(names, folder):
    """Where a journal is left the recovery is cut too, at each of its calls."""
    start, events, ends = recorded(folder, ("journal",))
    shelf, total = Shelf(folder, BASE), 0
    for number, state in list(crashes(start, events, random.Random(2))):
        if len(state.names) == 1:
            continue
        shelf.put(state)
        with Recorder(folder) as recorder:
            recovered(folder)
        for _, second in crashes(state, recorder.events, random.Random(3)):
            found, litter = after_recovery(shelf, second)
            assert found in allowed(number, ends)
            assert not litter
            total += 1
    assert total >= 1000, total


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_keys_change_with_the_data(commit, names, folder):
    start, events, ends = recorded(folder, (commit,), once_key="this")
    shelf, found_both = Shelf(folder, BASE), set()
    for number, state in crashes(start, events, random.Random(4)):
        found, litter = after_recovery(shelf, state)
        keys = dict(dict(shelf.state().files)[dict(shelf.state().names)[BASE]].attributes).get("user.mpired.once", b"")
        assert found in allowed(number, ends)
        assert any(keys) == (found == 3.0), (number, found, keys)
        assert not litter
        found_both.add(found)
    assert found_both == {1.0, 3.0}


def _syncs(events: list[Event]) -> list[int]:
    return [number for number, event in enumerate(events) if event.kind.startswith("sync")]


@pytest.mark.parametrize(
    ("commit", "names", "count"),
    [("rename", "one name", 2), ("journal", "one name", 4), ("journal", "several names", 6)],
    indirect=["names"],
)
def test_every_sync_is_needed(commit, names, count, folder):
    """Without any one of the syncs some power cut breaks a promise, by the one name of the target or the other."""
    by = BASE if names == "one name" else "other.npy"
    if by != BASE:
        os.link(folder / BASE, folder / by)
    shelf = Shelf(folder, BASE)
    before = shelf.state()
    start, events, ends = recorded(folder, (commit,))
    if commit == "journal":
        # Some other program writes to the target afterwards, and its work must not be undone.
        inode = dict(start.names)[BASE]
        foreign = [
            Event("write", inode=inode, offset=128, data=np.full(COUNT, 5.0).tobytes()),
            Event("sync", inode=inode),
        ]
        events += foreign
    assert len(_syncs(events)) == count + (commit == "journal")
    for dropped in _syncs(events)[:count]:
        kept = [event for number, event in enumerate(events) if number != dropped]
        shelf.put(before)
        wrong = 0
        for number, state in crashes(start, kept, random.Random(5)):
            found, _ = after_recovery(shelf, state, by)
            if by != BASE and found is not None:
                found, _ = after_recovery(shelf, shelf.state())
            right = {5.0} if number == len(kept) and commit == "journal" else allowed(number, [ends[0] - 1])
            if commit == "journal" and ends[0] - 1 <= number < len(kept):
                right = {3.0, 5.0, None}  # while the other program writes
            wrong += found not in right
        assert wrong, f"nothing noticed that sync {dropped} ({events[dropped].kind}) is missing"
        shelf.put(before)


class _NoDigest:
    """A digest that says the same of everything."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def update(self, _data: object) -> None:
        pass

    def digest(self) -> bytes:
        return bytes(16)

    def hexdigest(self) -> str:
        return "0" * 32


def test_the_digest_is_needed(one_name, folder, monkeypatch):
    monkeypatch.setattr(hashlib, "blake2b", _NoDigest)
    start, events, ends = recorded(folder, ("journal",))
    assert violations(folder, start, events, ends)[1] > 0
    assert hashlib.blake2b is _NoDigest


def test_the_order_of_the_calls(one_name, folder):
    """The journal is on the disk, with its name, before a byte of the target changes."""
    start, events, _ = recorded(folder, ("journal",))
    target = dict(start.names)[BASE]
    kinds = [
        f"{event.kind} {'target' if event.inode == target else 'journal'}" if "name" not in event.kind else event.kind
        for event in events
        if event.kind not in {"grow", "resize"}
    ]
    kinds = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    assert kinds == [
        "name", "write journal", "sync journal", "sync names", "write target", "sync data target", "unlink journal",
        "sync names",
    ]  # fmt: skip


def test_a_lower_durability_syncs_nothing(folder):
    for commit in ("rename", "journal"):
        for durability in ("process", "none"):
            shelf = Shelf(folder, BASE)
            before = shelf.state()
            _, events, _ = recorded(folder, (commit,), durability=durability)
            assert not _syncs(events)
            assert [event for event in events if event.kind in {"name", "rename"}]
            shelf.put(before)
    assert os.listdir(folder) == [BASE]
