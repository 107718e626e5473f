"""Many processes at one target, all at once or killed again and again."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, run
from shared_target import BASE, COUNT, forked, many, reset, value, words

from mpired.context import NO_LIMITS
from mpired.options import ACCUMULATE, checked
from mpired.windows.call import plan_accumulate
from mpired.windows.transaction import transact

MIXED = ["rename", "journal", "auto", "journal", "rename", "auto", "journal", "rename"]


def test_eight_processes_add_ones(long, folder):
    """8 processes, up to 200 increments each, of 10,000 elements, in overlapping and in separate ranges."""
    count, increments = 10_000, 200 if long else 60
    reset(folder, count)
    np.save(folder / "ones.npy", np.ones(count, np.int64))
    np.save(folder / "part.npy", np.full(1000, 1 << 32))

    def work(number: int) -> None:
        for i in range(increments):
            origin, options = ("ones.npy", {}) if i % 2 else ("part.npy", {"target_disp": 1000 * number})
            said = checked(ACCUMULATE, {"commit": MIXED[number], "lock_timeout": 100, **options})
            transact(plan_accumulate([folder / "targets" / BASE], [folder / origin], "sum", said, NO_LIMITS))

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
        said = checked(ACCUMULATE, {"commit": commit})
        for _ in range(times):
            transact(plan_accumulate([target], [folder / "origin.npy"], op, said, NO_LIMITS))

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
        for _ in range(5):
            subprocess.run([COMMAND, *words(1, commit)], cwd=folder, check=True)

    with many([lambda commit=commit: work(commit) for commit in ("rename", "journal", "auto", "journal")]):
        pass
    assert value(folder) == 20


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
    said = checked(ACCUMULATE, {"commit": commit})
    acknowledged, target, random_ = Acknowledged(4), folder / "targets" / BASE, random.Random(commit)

    def write(number: int) -> None:
        while True:
            transact(plan_accumulate([target], [folder / "add1.npy"], "sum", said, NO_LIMITS))
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
def test_hundreds_of_kills(commit, long, record_property, folder):
    kills = 5000 if long else 30
    kill_storm(folder, commit, kills)
    record_property("tried", kills)


def test_the_storm_finds_an_update_in_place_without_a_log(folder, monkeypatch):
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
