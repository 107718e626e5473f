"""Whenever the power goes, files are wholly old or wholly new, and new once the command has said so."""

import errno
import fcntl
import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from powercut import Event, Recorder, Shelf, State, crashes, no_clone, seen
from scenarios import SCENARIOS, Scenario, before, cleaned, found, is_kept, leftovers, make, names, updated
from values import folder_in_memory

from mpired.context import NO_LIMITS
from mpired.errors import MpiredError, exit_status
from mpired.files import calls
from mpired.files.access import recover_for_reading

pytestmark = pytest.mark.filterwarnings("ignore::mpired.errors.HardLinkWarning")


class Failing(NamedTuple):
    """A sync that fails, or all from that one on, and whether it has brought the data to the disk all the same."""

    which: int
    on_disk: bool
    on: bool = False

    def begin(self) -> None:
        """Let the sync fail; the recorder, which is at work, ends that."""
        syncs = itertools.count()

        def failing(original: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: int) -> None:
                number = next(syncs)
                if number != self.which and not (self.on and number > self.which):
                    original(fd)
                    return
                if self.on_disk:
                    original(fd)
                raise OSError(errno.EIO, "Input/output error")

            return sync

        os.fsync, os.fdatasync = failing(os.fsync), failing(os.fdatasync)


class Scene:
    """A scenario that was played and recorded."""

    def __init__(
        self, scenario: Scenario, tree: Path, monkeypatch: pytest.MonkeyPatch, fault: Failing | None = None
    ) -> None:
        self.scenario, self.tree = scenario, tree
        make(tree, scenario)
        self.shelf = Shelf(tree)
        monkeypatch.setattr(calls, "names_of", self.shelf.names_of)
        self.start = self.shelf.state()
        self.status = 0
        with Recorder(self.shelf) as recorder:
            if fault is not None:
                fault.begin()
            try:
                scenario.run(tree)
            except (MpiredError, OSError) as error:
                self.status = exit_status(error)
        assert self.status == 0 or fault is not None
        self.events = recorder.events

    def recover(self) -> list[str]:
        """Do what commands do first that read one file after another; return what is wrong."""
        wrong = []
        for name in reversed(names(self.scenario)):
            try:
                recover_for_reading(str(self.tree / name), NO_LIMITS)
            except Exception as error:  # noqa: BLE001 - nothing that a crash leaves is a reason to refuse
                wrong.append(str(error))
            if self.found()[name] == "torn":
                wrong.append(f"{name} is torn")
        return wrong

    def found(self) -> dict[str, str]:
        """Return what the files are now."""
        return found(self.tree, self.scenario)

    def is_right(self, *, done: bool) -> bool:
        """Tell whether the files are as promised, and nothing is left of what they wait for."""
        wrong, now = self.recover(), self.found()
        if wrong or leftovers(self.tree, "mpired"):
            return False
        return set(now.values()) == {"new"} if done else is_kept(self.scenario, now)

    def cuts(self, events: list[Event]) -> Iterator[tuple[int, State, bool]]:
        """Yield each state that a power cut may leave, and whether all is right after a recovery from it."""
        for number, state in crashes(self.start, events, random.Random(1)):
            self.shelf.put(state)
            done = number == len(events)
            is_clean = not done or not leftovers(self.tree)  # when a command has ended, nothing of it comes back
            yield number, state, self.is_right(done=done) and is_clean


@pytest.fixture
def tree(monkeypatch) -> Iterator[Path]:
    """Two folders, in memory because of the syncs."""
    monkeypatch.setattr(fcntl, "ioctl", no_clone)
    with folder_in_memory() as outside:
        yield outside / "tree"


@pytest.fixture(params=SCENARIOS)
def scene(request, tree, monkeypatch) -> Scene:
    return Scene(SCENARIOS[request.param], tree, monkeypatch)


def _syncs(events: list[Event]) -> list[int]:
    return [number for number, event in enumerate(events) if event.kind.startswith("sync")]


def test_power_cuts(scene, record_property):
    """What only lies about afterwards goes with `mpired recover` of its file."""
    wrong, nstates = [], 0
    for number, _, right in scene.cuts(scene.events):
        nstates += 1
        is_left = nstates % 9 == 0 and cleaned(scene.tree, scene.scenario)
        if not right or is_left:
            wrong.append((scene.events[:number][-1:], is_left))
    assert wrong == []
    assert nstates > 2
    assert len(_syncs(scene.events)) == scene.scenario.syncs
    assert not leftovers(scene.tree)
    record_property("states", nstates)


def test_power_cuts_while_it_is_finished(scene, long, record_property):
    """Where a log is left the recovery is cut too, at each of its calls."""
    cuts, chance = 0, random.Random(2)
    for number, state in list(crashes(scene.start, scene.events, random.Random(1))):
        if not any(name.endswith(".mpired") for (_, name), _ in state.names) or not (long or chance.random() < 0.1):
            continue
        scene.shelf.put(state)
        with Recorder(scene.shelf) as recorder:
            scene.recover()
        found = set(scene.found().values())
        for _, second in crashes(state, recorder.events, random.Random(3)):
            scene.shelf.put(second)
            assert scene.is_right(done=number == len(scene.events))
            cuts += 1
            if found == {"new"} and scene.scenario.together:  # what was read as new stays so
                assert set(scene.found().values()) == {"new"}
    record_property("cuts", cuts)


def test_power_cuts_after_a_kill(scene, record_property):
    """A command is killed before a sync, the next one recovers what it sees, and then the power goes."""
    cuts = 0
    for killed in _syncs(scene.events):
        scene.shelf.put(seen(scene.start, scene.events[:killed]))
        if not leftovers(scene.tree, "mpired"):
            continue
        with Recorder(scene.shelf) as recorder:
            scene.recover()
        found, events = set(scene.found().values()), [*scene.events[:killed], *recorder.events]
        for number, state in crashes(scene.start, events, random.Random(5)):
            if number > killed:
                scene.shelf.put(state)
                assert scene.is_right(done=False)
                cuts += 1
                if number == len(events) and found == {"new"} and scene.scenario.together:  # which was read
                    assert set(scene.found().values()) == {"new"}
    record_property("cuts", cuts)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_sync_that_fails(name, tree, monkeypatch, long):
    """The status tells the truth, whatever is left when the power goes then."""
    scenario, ends = SCENARIOS[name], []
    for which, on_disk, on in itertools.product(range(scenario.syncs), (True, False), (True, False)):
        shutil.rmtree(tree, ignore_errors=True)
        scene = Scene(scenario, tree, monkeypatch, Failing(which, on_disk, on))
        ends.append(scene.status)
        for number, state in crashes(scene.start, scene.events, random.Random(1), only_at_end=not long):
            scene.shelf.put(state)
            assert scene.recover() == []
            now = scene.found()
            if number == len(scene.events) and scene.status in {3, 4}:
                assert now == before(scenario), (which, on_disk, on, scene.status)
            else:
                assert is_kept(scenario, now), (which, on_disk, on, scene.status)
    assert set(ends) == {4, 6}


def test_a_lower_durability_syncs_nothing(tree, monkeypatch):
    for commit in ("rename", "journal"):
        for durability in ("process", "none"):
            run = updated("a/x", commit=commit, durability=durability)
            scene = Scene(Scenario(("a/x",), (), run), tree, monkeypatch)
            assert not _syncs(scene.events)
            assert [event for event in scene.events if event.kind in {"name", "rename"}]
            assert scene.found() == {"a/x": "new"}
