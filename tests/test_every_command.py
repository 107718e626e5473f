"""Every command that writes, ended or failed at each of its calls: all is old or new, and the status says which.

A scenario is a row: what is there, and the command. The old state is what was there before, the new one what the
command leaves when nothing happens to it. After each fault `mpired recover` runs, and then each file must be old or
new, all of them together where the command promises that, and nothing else may be left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Outcome, run
from faults import Counter, Fault, at
from values import folder_in_memory

COUNT = 1500  # elements: pages and a part of one
ENDS = (
    Fault("kill before"), Fault("short, then kill"), Fault("short"),
    *(Fault("signal", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
)  # fmt: skip
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.EPERM)
ERRORS = tuple(Fault("error", number) for number in NUMBERS)
STICKY = tuple(Fault("error from here on", number) for number in (errno.EIO, errno.ENOSPC, errno.EROFS))
# One of so many points is tried: in the short form, and of the errors in the long one.
EVERY, EVERY_ERROR, EVERY_ERROR_LONG = 331, 613, 3


class Scenario(NamedTuple):
    """What is there, and a command.

    Parameters
    ----------
    words
        The command.
    prepare
        Makes what is there.
    together
        Whether all files are old or all are new; otherwise each by itself.
    before
        Files that are in place before anything else changes.
    """

    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    together: bool = True
    before: tuple[str, ...] = ()


def ranks(folder: Path) -> None:
    for rank in range(3):
        np.save(folder / f"r{rank}.npy", np.full(COUNT, rank + 1.0))


def target(folder: Path) -> None:
    ranks(folder)
    np.save(folder / "t.npy", np.ones(COUNT))


def two_folders(folder: Path) -> None:
    for rank in range(4):
        (folder / "ab"[rank % 2]).mkdir(exist_ok=True)
        np.save(folder / "ab"[rank % 2] / f"r{rank}.npy", np.full(COUNT, rank + 1.0))


def columns(folder: Path) -> None:
    ranks(folder)
    table = pa.table({"x": np.ones(COUNT), "name": ["a"] * COUNT})
    pq.write_table(table, folder / "t.parquet")
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def two_windows(folder: Path) -> None:
    target(folder)
    np.save(folder / "w.npy", np.ones(COUNT))
    np.save(folder / "both.npy", np.full(2 * COUNT, 2.0))


def records(folder: Path) -> None:
    np.zeros(2 * COUNT).tofile(folder / "records.bin")
    np.ones(COUNT).tofile(folder / "elements.bin")


SUM = ("-q", "--op", "sum")
ALL = ("r0.npy", "r1.npy", "r2.npy")
INTO = ("accumulate", *SUM, "t.npy", "r1.npy")
SCENARIOS = {
    "accumulate as fits": Scenario(INTO, target),
    "accumulate many": Scenario(("accumulate", *SUM, "t.npy", *ALL), target),
    "accumulate into parquet": Scenario(("accumulate", *SUM, "t.parquet", "r1.npy", "--columns", "x"), columns),
    "accumulate into arrow": Scenario(("accumulate", *SUM, "t.arrow", "r1.npy", "--columns", "x"), columns),
    "accumulate creates": Scenario(("accumulate", *SUM, "new.npy", "r1.npy", "--create", str(COUNT)), target),
    "accumulate into two windows": Scenario(
        ("accumulate", *SUM, "both.npy", "--window", "t.npy", "--window", "w.npy", "--map", "map.npy"),
        two_windows,
        together=False,
    ),
    "get-accumulate": Scenario(
        ("get-accumulate", *SUM, "t.npy", "r1.npy", "--fetch", "old.npy"), target, together=False, before=("old.npy",)
    ),
    "fetch-and-op": Scenario(("fetch-and-op", "--op", "sum", "t.npy", "5"), target),
    "compare-and-swap": Scenario(("compare-and-swap", "--type", "int64_t", "i.npy", "0", "7"), target),
    "reduce": Scenario(("reduce", *SUM, *ALL, "-o", "x.npy"), ranks),
    "reduce to parquet": Scenario(("reduce", *SUM, *ALL, "-o", "x.parquet"), ranks),
    "reduce over a file": Scenario(("reduce", *SUM, "r1.npy", "r2.npy", "-f", "-o", "t.npy"), target),
    "reduce in place": Scenario(("reduce", *SUM, *ALL, "--in-place"), ranks),
    "reduce-local": Scenario(("reduce-local", *SUM, "r0.npy", "r1.npy"), ranks),
    "scan": Scenario(("scan", *SUM, *ALL, "-o", "s{rank}.npy"), ranks),
    "scan in two folders": Scenario(
        ("scan", *SUM, "a/r0.npy", "b/r1.npy", "a/r2.npy", "b/r3.npy", "--in-place"), two_folders
    ),
    "exscan": Scenario(("exscan", *SUM, *ALL, "-o", "s{rank}.parquet"), ranks),
    "allreduce with links": Scenario(("allreduce", *SUM, *ALL, "--link", "-o", "s{rank}.npy"), ranks),
    "reduce-scatter": Scenario(("reduce-scatter", *SUM, *ALL, "--counts", "700,0,800", "-o", "s{rank}.npy"), ranks),
    "reduce-scatter-block": Scenario(("reduce-scatter-block", *SUM, *ALL, "-o", "s{rank}.npy"), ranks),
    "pack": Scenario(("pack", "-q", "--type", "resized(0,16,double)", "records.bin", "-o", "x.npy"), records),
    "unpack": Scenario(
        ("unpack", "-q", "--type", "resized(0,16,double)", "elements.bin", "--into", "records.bin"), records
    ),
}  # fmt: skip


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each of the rows."""
    return SCENARIOS[request.param]


class Stage:
    """A folder in memory, in which a scenario is played again and again."""

    def __init__(self, scenario: Scenario, outside: Path) -> None:
        self._scenario = scenario
        self._template, self.folder = outside / "template", outside / "stage"
        self._template.mkdir()
        self._template.chmod(0o755)
        outside.chmod(0o755)
        np.save(self._template / "i.npy", np.zeros(3, "i8"))
        np.save(self._template / "map.npy", np.arange(2 * COUNT))
        scenario.prepare(self._template)
        self.counter = Counter()
        self.calls = self._undisturbed()

    def set(self) -> dict[str, tuple[object, ...]]:
        """Put what is there at first, and return it."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        shutil.copytree(self._template, self.folder)
        self.counter.clear()
        return state(self.folder)

    def run(self, number: int, fault: Fault) -> Outcome:
        """Run the command with a fault at a call."""
        return run(*self._scenario.words, cwd=self.folder, setup=at(number, fault, self.counter, ""))

    def _undisturbed(self) -> int:
        self.old = self.set()
        outcome = self.run(0, Fault("none"))
        assert (outcome.status, outcome.err) == (0, ""), outcome
        self.new = state(self.folder)
        assert self.new != self.old
        return self.counter.read()[0]

    def recover(self) -> dict[str, tuple[object, ...]]:
        """Recover every file that is there or should be, and return what there is then."""
        names = sorted({*self.old, *self.new})
        run("recover", *names, cwd=self.folder)  # finishes those that are not there, too
        there = [name for name in names if os.access(self.folder / name, os.W_OK)]
        outcome = run("recover", *there, cwd=self.folder)
        assert (outcome.status, outcome.err) == (0, ""), outcome
        return state(self.folder)

    @property
    def is_together(self) -> bool:
        """Whether all files are old or all are new."""
        return self._scenario.together

    def is_old_or_new(self, found: dict[str, tuple[object, ...]]) -> bool:
        """Tell whether nothing is half done, and nothing else is there."""
        if self._scenario.together:
            return found in (self.old, self.new)
        return all(
            found.get(name) in (self.old.get(name), self.new.get(name)) for name in {*found, *self.old, *self.new}
        )

    def kept_before(self, found: dict[str, tuple[object, ...]], fault: Fault) -> dict[str, tuple[object, ...]]:
        """Return the files that a command which fails later has put in place, and cannot remove as all calls fail."""
        names = self._scenario.before if fault.name == "error from here on" else ()
        return {name: found[name] for name in names if name in found}

    def points(self, faults: tuple[Fault, ...], every: int) -> Iterator[tuple[int, Fault]]:
        """Yield calls and faults, one of so many; which ones differs from scenario to scenario."""
        chosen = [(number, fault) for number in range(1, self.calls + 1) for fault in faults]
        yield from chosen[zlib.crc32(" ".join(self._scenario.words).encode()) % min(every, len(chosen)) :: every]


def state(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return the digest of the content and the mode of each file in a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            stat.S_IMODE(path.stat().st_mode),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def stage(as_root, scenario: Scenario) -> Iterator[Stage]:
    with folder_in_memory() as outside:
        yield Stage(scenario, outside)


@pytest.mark.timeout(1800)
@pytest.mark.sampled(2)
def test_each_call(stage, long, record_property):
    tried = 0
    ends, errors = (
        stage.points(ENDS, 1 if long else EVERY),
        stage.points(ERRORS + STICKY, EVERY_ERROR_LONG if long else EVERY_ERROR),
    )
    for number, fault in (*ends, *errors):
        stage.set()
        outcome = stage.run(number, fault)
        found = stage.recover()
        where = number, str(fault), stage.counter.read(), outcome, differing(stage, found)
        if fault.name.startswith("error"):
            check_error(stage, fault, outcome, found, where)
        elif fault.name == "short":
            assert (outcome.status, outcome.err, found) == (0, "", stage.new), where
        else:
            check_end(stage, fault, outcome, found, where)
        tried += 1
    assert tried > 0
    record_property("tried", tried)


def check_end(stage, fault, outcome, found, where) -> None:
    """Check what a kill or a signal leaves: after a signal that ends the command nothing is done."""
    ends = {0, -fault.number} if fault.name == "signal" else {0, -signal.SIGKILL, 8}  # 8: it was a worker
    assert outcome.status in ends, where
    assert "Traceback" not in outcome.err, where
    assert stage.is_old_or_new(found), where
    assert found == stage.new or outcome.status != 0, where
    if outcome.status == 8 or (fault.name == "signal" and outcome.status and stage.is_together):
        assert found == stage.old, where


def check_error(stage, fault, outcome, found, where) -> None:
    assert outcome.err.count("\n") == (outcome.status != 0), where
    assert outcome.status in {0, 3, 4, 5, 6, 8}, where
    if outcome.status == 6:
        assert stage.is_old_or_new(found), where
        assert found != stage.old, where
        return
    expected = stage.old if outcome.status else stage.new
    kept = {} if outcome.status == 0 else stage.kept_before(found, fault)
    if stage.counter.read()[1] == "fchown":  # a group that cannot be kept is no failure, and gives no rights
        assert all(found[name][1] & ~expected[name][1] == 0 for name in expected), where
        found, expected = contents_of(found), contents_of(expected)
    assert found == expected | kept, where


def contents_of(found: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Return what is in the files, without who may do what with them."""
    return {name: each[:1] for name, each in found.items()}


def differing(stage: Stage, found: dict[str, tuple[object, ...]]) -> dict[str, str]:
    """Say of each file that is not as it was whether it is new, or neither."""
    words = {}
    for name in {*found, *stage.old, *stage.new}:
        if found.get(name) != stage.old.get(name):
            words[name] = "new" if found.get(name) == stage.new.get(name) else f"neither: {found.get(name)}"
    return words
