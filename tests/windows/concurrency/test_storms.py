"""Many processes at one target or in one directory, all at once, or killed again and again."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from command import run
from shared_target import BASE, COUNT, forked, value

import mpired
from mpired.errors import MpiredError
from mpired.files import keys

NWRITERS = 12


class Noted:
    """Numbers of the writers that outlive them: how many of their changes are done, and how many began."""

    def __init__(self) -> None:
        # Each count is one store: one in two steps would be lost by a kill between them.
        self.done = memoryview(mmap.mmap(-1, 8 * NWRITERS)).cast("q")
        self.begun = memoryview(mmap.mmap(-1, 8 * NWRITERS)).cast("q")


def written(folder: Path, writer: int, number: int, *, both: bool) -> None:
    """Replace p and q together by elements of one value, or replace one file."""
    own = folder / f"writer{writer}"
    own.mkdir(exist_ok=True)
    for name, element in {"p": 0, "q": writer << 32 | number}.items():
        np.save(own / f"{name}.npy", np.full(COUNT, element))
    ranks, how = [own / "p.npy", own / "q.npy"], {"overwrite": True, "jobs": 1}
    if both:
        mpired.allreduce(ranks, "bor", output=folder / "targets" / "{stem}.npy", **how)
    else:
        mpired.reduce(ranks, "bor", output=folder / "targets" / "one.npy", **how)


def added(folder: Path, commit: str, once_key: str | None = None) -> None:
    how = {} if once_key is None else {"once_key": once_key}
    mpired.Window(folder / "targets" / BASE, commit=commit).accumulate(folder / "add1.npy", "sum", **how)


def looked(folder: Path) -> None:
    """Read the set: both are alike, or they changed each time that they were read."""
    with open(folder / "targets" / "one.npy", "rb") as file:  # by a reader that knows nothing of locks
        elements = np.frombuffer(file.read()[128:], np.int64)
    assert len(elements) == COUNT
    assert elements.min() == elements.max()
    try:
        total = mpired.reduce([folder / "targets" / f"{name}.npy" for name in "pq"], "bxor", jobs=1)
    except MpiredError as error:
        assert "changed while being read" in str(error)  # noqa: PT017 - one of two ends
        return
    assert not total.any()


KINDS: list[Callable[[Path, int, int], None]] = [
    lambda folder, _writer, _number: added(folder, "rename"),
    lambda folder, _writer, _number: added(folder, "journal"),
    lambda folder, writer, number: added(folder, "auto", f"{writer}: {number}"),
    lambda folder, writer, number: written(folder, writer, number, both=True),
    lambda folder, writer, number: written(folder, writer, number, both=False),
    lambda folder, _writer, _number: looked(folder),
]
WITH_KEYS = 2


def work(folder: Path, noted: Noted, writer: int) -> None:
    """Change files again and again; what may not have been done is done once more."""
    for number in itertools.count(noted.done[writer]):
        noted.begun[writer] += 1
        KINDS[writer % len(KINDS)](folder, writer, number)
        noted.done[writer] += 1


def test_writers_of_six_kinds(folder, long, record_property):
    """They are killed again and again."""
    noted, chance, kills = Noted(), random.Random(5), 3000 if long else 20
    for name in ("p", "q", "one"):
        np.save(folder / "targets" / f"{name}.npy", np.zeros(COUNT, np.int64))
    writers = [forked(lambda n=n: work(folder, noted, n)) for n in range(NWRITERS)]
    ended = []
    for _ in range(kills):
        time.sleep(chance.uniform(0, 0.02))
        number = chance.randrange(NWRITERS)
        os.kill(writers[number], signal.SIGKILL)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(writers[number], 0)[1]))
        writers[number] = forked(lambda n=number: work(folder, noted, n))
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert set(ended) == {-signal.SIGKILL}  # none has failed
    names = [BASE, "p.npy", "q.npy", "one.npy"]
    assert run("recover", *(f"targets/{name}" for name in names), cwd=folder).status == 0

    def sums(numbers: memoryview, *kinds: int) -> int:
        return sum(numbers[writer] for writer in range(NWRITERS) if writer % len(KINDS) in kinds)

    with keys.of_file(folder / "targets" / BASE) as known:
        with_keys = known.count
    in_flight = sum(writer % len(KINDS) == WITH_KEYS for writer in range(NWRITERS))
    assert sums(noted.done, WITH_KEYS) <= with_keys <= sums(noted.done, WITH_KEYS) + in_flight
    found = value(folder)
    assert found is not None
    assert sums(noted.done, 0, 1) <= found - with_keys <= sums(noted.begun, 0, 1)
    p, q, one = (np.load(folder / "targets" / name) for name in names[1:])
    assert (p == q).all()
    assert (p == p[0]).all()
    assert (one == one[0]).all()
    assert sorted(os.listdir(folder / "targets")) == sorted([*names, f"{BASE}.mpired-keys"])
    record_property("done", sums(noted.done, *range(6)))
    record_property("kills", kills)
