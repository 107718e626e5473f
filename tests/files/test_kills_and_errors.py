"""A command that is killed or fails at each of its calls: the files are old or new, and the status says which."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import in_child, run
from faults import CHANGING, SHORTENED, Counter, Fault, at
from scenarios import SCENARIOS, Scenario, before, cleaned, found, is_kept, leftovers, make, names
from values import folder_in_memory

from mpired.context import NO_LIMITS
from mpired.errors import MpiredError, exit_status
from mpired.files.access import recover_for_reading

pytestmark = pytest.mark.filterwarnings("ignore::mpired.errors.HardLinkWarning", "ignore::DeprecationWarning")

ERRORS = (
    Fault("error", errno.EIO), Fault("error", errno.ENOSPC), Fault("error", errno.EDQUOT),
    Fault("error from here on", errno.EIO), Fault("no memory"),
)  # fmt: skip
NO_MEMORY = 99
SHORT = Fault("short, then kill")
MAY_CHANGE = CHANGING - {"fsync", "fdatasync"} | {"open", "ioctl"}  # what other processes see


def outcomes(
    scenario: Scenario, fault: Fault, numbers: Iterable[int] = range(1, 1000)
) -> Iterator[tuple[int, str, Path]]:
    """Run a scenario once for each of its calls, with a fault there; yield status, the call and the folders."""
    counter = Counter()
    for number in numbers:
        with folder_in_memory() as outside:
            tree = outside / "tree"
            make(tree, scenario)
            counter.clear()
            pid = os.fork()
            if pid == 0:
                os._exit(_run(scenario, tree, number, fault, counter))
            _, code = os.waitpid(pid, 0)
            _, fired = counter.read()
            if not fired:
                assert number > 5
                return
            yield os.waitstatus_to_exitcode(code), fired, tree


def calls_of(scenario: Scenario) -> list[str]:
    """Return the names of the calls of a scenario."""
    counter = Counter()

    def names_of_calls(tree: Path) -> list[str]:
        make(tree, scenario)
        assert _run(scenario, tree, 0, SHORT, counter) == 0
        return counter.names

    with folder_in_memory() as outside:
        return in_child(lambda: names_of_calls(outside / "tree"))


def _run(scenario: Scenario, tree: Path, number: int, fault: Fault, counter: Counter) -> int:
    at(number, fault, counter, "")()
    try:
        scenario.run(tree)
    except MemoryError:
        return NO_MEMORY
    except Exception as error:  # noqa: BLE001 - as of a command
        return exit_status(error) if isinstance(error, MpiredError | OSError) else 1
    return 0


def recovered(tree: Path, scenario: Scenario) -> None:
    """Look at all files, as commands do that read them."""
    for name in reversed(names(scenario)):
        recover_for_reading(str(tree / name), NO_LIMITS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_kills(name, long, record_property):
    """After each call that may change something, and in the middle of those that move bytes; with `--long` at all."""
    scenario, seen, runs = SCENARIOS[name], set(), 0
    made = calls_of(scenario)
    after = [number for number, call in enumerate(made, 1) if long or call in MAY_CHANGE]
    moving = [number for number, call in enumerate(made, 1) if call in SHORTENED]

    def check(status: int, call: str, tree: Path) -> None:
        assert status == -signal.SIGKILL, call
        recovered(tree, scenario)
        now = found(tree, scenario)
        assert is_kept(scenario, now), (call, now)
        assert not leftovers(tree, "mpired"), call
        assert not cleaned(tree, scenario), call
        seen.add(tuple(now.values()))

    for fault, numbers in ((Fault("kill before"), [1]), (Fault("kill after"), after), (SHORT, moving)):
        assert numbers
        for status, call, tree in outcomes(scenario, fault, numbers):
            check(status, f"{fault} {call}", tree)
            runs += 1
    assert seen >= {tuple(before(scenario).values()), tuple("new" for _ in names(scenario))}
    record_property("runs", runs)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("fault", ERRORS, ids=str)
@pytest.mark.parametrize("name", SCENARIOS)
def test_errors(name, fault, record_property):
    scenario, ends, runs = SCENARIOS[name], set(), 0
    numbers: Iterable[int] = range(1, 1000)
    if fault.name == "no memory":  # which the others are not asked for
        numbers = [number for number, call in enumerate(calls_of(scenario), 1) if call in CHANGING]
    for status, call, tree in outcomes(scenario, fault, numbers):
        assert status in {0, 3, 4, 5, 6, NO_MEMORY}, call
        if status == 6:
            recovered(tree, scenario)
        now = found(tree, scenario)
        if status == 6 and fault.name == "error from here on":  # which keeps it from taking anything back
            assert is_kept(scenario, now), (call, now)
            continue
        expected = before(scenario) if status in {3, 4, 5, NO_MEMORY} else dict.fromkeys(now, "new")
        assert now == expected, (call, status)
        recovered(tree, scenario)
        assert found(tree, scenario) == expected, (call, status)
        assert not cleaned(tree, scenario), call
        ends.add(status)
        runs += 1
    assert ends & {4, NO_MEMORY}
    record_property("runs", runs)


SET = ("allreduce", "-q", "--op", "sum", "--in-place", "a.npy", "b.npy")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(number, long, tmp_path):
    """A command that one ends has changed nothing; after the commit none ends it."""
    counter, ends = Counter(), set()
    for which in range(1, 1000, 1 if long else 9):
        for name in ("a.npy", "b.npy"):
            np.save(tmp_path / name, np.ones(9))
        counter.clear()
        outcome = run(*SET, cwd=tmp_path, setup=at(which, Fault("signal", number), counter, ""))
        if not counter.read()[1]:
            break
        ends.add(outcome.status)
        expected = 1.0 if outcome.status else 2.0
        assert [np.load(tmp_path / name)[0] for name in ("a.npy", "b.npy")] == [expected] * 2, counter.read()
        assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy"], counter.read()
    assert ends == {0, -number}
