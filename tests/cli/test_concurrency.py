"""Several at one target: nothing is lost, nothing is applied twice, whoever is stopped or killed, and wherever."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, Child, run
from faults import Counter, Fault, at, recover
from values import folder_in_memory

from mpired.buffers import source
from mpired.rma import plan_accumulate
from mpired.storage import calls, lock, recovery, temporary

BASE = "total.npy"
COUNT = 3000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A target of zeros in a folder of its own, and origins of ones and of powers of 16."""
    with folder_in_memory() as outside:
        (outside / "targets").mkdir()
        for number in (1, 16):
            np.save(outside / f"add{number}.npy", np.full(COUNT, number))
        reset(outside)
        yield outside


def reset(folder: Path, count: int = COUNT) -> None:
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.zeros(count, np.int64))


def value(folder: Path) -> int | None:
    """Return the one value of all elements, None if they differ."""
    elements = np.load(folder / "targets" / BASE)
    return int(elements[0]) if (elements == elements[0]).all() else None


def words(number: int, commit: str, *others: str) -> tuple[str, ...]:
    return ("accumulate", "-q", "--op", "sum", "--commit", commit, *others, f"targets/{BASE}", f"add{number}.npy")


# One is stopped at each of its calls, and another comes


def interleavings(folder: Path, first: str, second: str, end: signal.Signals) -> Iterator[str]:
    """Stop one update at each call, run another meanwhile and after; yield what is wrong."""
    counter = Counter()
    for number in range(1, 200):
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
def test_another_update_at_any_moment(first, second, end, folder):
    assert list(interleavings(folder, first, second, end)) == []


# What is left out, and where that shows: the protocol, and what becomes of the one that was stopped.
MUTANTS = {
    "lock": ([(calls, "lock", lambda *_, **__: True)], "rename", signal.SIGCONT),
    "second look": ([(lock.os.path, "samestat", lambda *_: True)], "rename", signal.SIGCONT),
    "recovery": (
        [
            (recovery, "settle", lambda *_, **__: ""),
            (recovery, "has_journal", lambda _: False),
            (source, "has_journal", lambda _: False),
        ],
        "journal",
        signal.SIGKILL,
    ),
    "lock on the new file": ([(temporary, "_lock", lambda _fd: True)], "rename", signal.SIGCONT),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_step_is_needed(mutant, folder, monkeypatch):
    """Without it some interleaving loses an update, or lets another see one that is not safe yet."""
    patches, commit, end = MUTANTS[mutant]
    for patch in patches:
        monkeypatch.setattr(*patch)
    assert next(interleavings(folder, commit, commit, end), None) is not None


# Many at once


def forked(function: Callable[[], object]) -> int:
    """Call a function in a child, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(100)
        function()
        status = 0
    finally:
        os._exit(status)


def ended_well(pids: list[int]) -> None:
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextlib.contextmanager
def many(functions: list[Callable[[], object]]) -> Iterator[None]:
    """Run functions in children beside the block."""
    pids = [forked(function) for function in functions]
    try:
        yield
    finally:
        ended_well(pids)


MIXED = ["rename", "journal", "auto", "journal", "rename", "auto", "journal", "rename"]


def test_eight_processes_add_ones(folder):
    """8 processes, 200 increments each, of 10,000 elements, in overlapping and in separate ranges."""
    count, increments = 10_000, 200
    reset(folder, count)
    np.save(folder / "ones.npy", np.ones(count, np.int64))
    np.save(folder / "part.npy", np.full(1000, 1 << 32))

    def work(number: int) -> None:
        for i in range(increments):
            origin, options = ("ones.npy", {}) if i % 2 else ("part.npy", {"target_disp": 1000 * number})
            plan = plan_accumulate(
                [folder / "targets" / BASE], [folder / origin], "sum", commit=MIXED[number], lock_timeout=100, **options
            )
            plan.run()

    with many([lambda n=n: work(n) for n in range(8)]):
        pass
    expected = np.full(count, 8 * increments // 2)
    expected[:8000] += increments // 2 << 32
    assert (np.load(folder / "targets" / BASE) == expected).all()
    assert os.listdir(folder / "targets") == [BASE]


@pytest.mark.parametrize(
    ("op", "start", "origin", "times"),
    [
        ("max", np.int64(-(2**63)), np.int64(7), 1),
        ("bxor", np.uint32(0), np.uint32(0xDEADBEEF), 5),
        ("prod", np.uint64(1), np.uint64(0x9E3779B97F4A7C15), 3),
        ("sum", np.float64(0), np.float64(2.0**-30), 8),
    ],
)
def test_other_ops_are_exact(op, start, origin, times, folder):
    target = folder / "targets" / BASE
    np.save(target, np.full(COUNT, start))
    np.save(folder / "origin.npy", np.full(COUNT, origin))

    def work(commit: str) -> None:
        for _ in range(times):
            plan_accumulate([target], [folder / "origin.npy"], op, commit=commit).run()

    with many([lambda commit=commit: work(commit) for commit in MIXED]):
        pass
    expected = start
    with np.errstate(over="ignore"):
        for _ in range(8 * times):
            expected = {"max": np.maximum, "bxor": np.bitwise_xor, "prod": np.multiply, "sum": np.add}[op](
                expected, origin
            )
    assert (np.load(target) == expected).all()


def test_the_installed_command_many_times(folder):
    def work(commit: str) -> None:
        for _ in range(25):
            subprocess.run([COMMAND, *words(1, commit)], cwd=folder, check=True)

    with many([lambda commit=commit: work(commit) for commit in ("rename", "journal", "auto", "journal")]):
        pass
    assert value(folder) == 100


# Killed and killed again


class Acknowledged:
    """A counter for each writer that outlives it."""

    def __init__(self, nwriters: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, 8 * nwriters)).cast("q")

    def add(self, writer: int) -> None:
        # One store: `struct.pack_into` writes zeros first, and a kill between would lose the count.
        self._counts[writer] += 1

    def total(self) -> int:
        return sum(self._counts)


def kill_storm(folder: Path, commit: str, kills: int) -> None:
    """Let four writers add ones, and kill one after the other."""
    acknowledged, target, random_ = Acknowledged(4), folder / "targets" / BASE, random.Random(commit)

    def write(number: int) -> None:
        while True:
            plan_accumulate([target], [folder / "add1.npy"], "sum", commit=commit).run()
            acknowledged.add(number)

    writers = [forked(lambda n=n: write(n)) for n in range(4)]
    for _ in range(kills - 4):
        time.sleep(random_.uniform(0, 0.01))
        number = random_.randrange(4)
        os.kill(writers[number], signal.SIGKILL)
        os.waitpid(writers[number], 0)
        writers[number] = forked(lambda n=number: write(n))
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert run("recover", f"targets/{BASE}", cwd=folder).status == 0
    assert acknowledged.total() > 0
    found = value(folder)
    assert found is not None
    assert acknowledged.total() <= found <= acknowledged.total() + kills
    assert os.listdir(folder / "targets") == [BASE]


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_five_hundred_kills(commit, long, folder):
    kill_storm(folder, commit, 5000 if long else 500)


def test_the_storm_finds_an_update_in_place_without_a_journal(folder, monkeypatch):
    """It has teeth: what a plain write leaves behind is half."""

    def plain(folder: Path) -> None:
        target = folder / "targets" / BASE
        elements = np.load(target)
        with open(target, "r+b", buffering=0) as file:
            for start in range(0, COUNT, 100):
                file.seek(128 + 8 * start)
                file.write((elements[start : start + 100] + 1).tobytes())

    random_, halves = random.Random(3), 0
    for _ in range(200):
        pid = forked(lambda: [plain(folder) for _ in range(1000)])
        time.sleep(random_.uniform(0.002, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        halves += value(folder) is None
        if halves:
            return
        reset(folder)
    raise AssertionError("no kill left a half-written file")


# Readers that know nothing of mpired


def test_a_reader_without_locks_sees_the_old_or_the_new(folder):
    target, reads = folder / "targets" / BASE, 5000
    done = mmap.mmap(-1, 1)

    def write() -> None:
        while not done[0]:
            plan_accumulate([target], [folder / "add1.npy"], "sum", commit="rename", durability="process").run()

    seen = set()
    with many([write]):
        try:
            for _ in range(reads):
                with open(target, "rb") as file:
                    elements = np.frombuffer(file.read()[128:], np.int64)
                assert len(elements) == COUNT
                assert elements.min() == elements.max()
                seen.add(int(elements[0]))
        finally:
            done[0] = 1
    assert len(seen) > 20


def test_reduce_waits_for_the_end_of_an_update(folder):
    """A command that opens the target while a journal is written from it waits, and reads the whole."""
    counter = Counter()
    for number in range(1, 200):
        reset(folder)
        counter.clear()
        stopped = Child(
            *words(1, "journal"), cwd=folder, setup=at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        )
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            return
        journal_there = (folder / "targets" / f".{BASE}.mpired-journal").exists()
        reader = Child("reduce", "-q", "--op", "sum", f"targets/{BASE}", "--to", "raw", cwd=folder)
        if not journal_there:
            assert reader.finish().out == np.load(folder / "targets" / BASE).tobytes()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.finish().status == 0
        if journal_there:
            assert reader.finish() == (0, np.ones(COUNT, np.int64).tobytes(), "")
