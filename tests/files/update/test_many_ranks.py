"""Updates that stand half done when many ranks of one directory are looked at together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Child, Outcome, open_fifo, run
from protocols import LOG
from updates import pending, value

NAMES = ["t.npy", *(f"r{rank}.npy" for rank in range(99))]
WORDS = ("reduce", "-q", "--op", "sum", "--to", "raw")


@pytest.fixture
def ranks(folder: Path) -> Path:
    for name in NAMES[1:]:
        np.save(folder / "here" / name, np.full(500, 0.5))
    return folder / "here"


def half_done(ranks: Path) -> Callable[[], None]:
    """Return what leaves an update in the middle: its log, and half of the elements."""
    pending(ranks.parent)
    kept = ranks.parent / "kept"
    (ranks / LOG).rename(kept)

    def leave() -> None:
        kept.rename(ranks / LOG)
        with open(ranks / "t.npy", "r+b") as file:
            file.seek(-4000, os.SEEK_END)
            file.write(np.ones(250).tobytes())

    return leave


def at_first(call: str, path: str, leave: Callable[[], None]) -> Callable[[], None]:
    """Return a setup in which the update stands there just before the first such call of the system for a path."""

    def setup() -> None:
        original, left = getattr(os, call), [leave]

        def called(name: object, **settings: object) -> object:
            if name == path and left:
                left.pop()()
            return original(name, **settings)

        setattr(os, call, called)

    return setup


def check_finished(outcome: Outcome, ranks: Path) -> None:
    assert outcome[:2] == (0, np.full(500, 50.5).tobytes())
    assert outcome.err.startswith("mpired: t.npy: finished an update of 4000 bytes")
    assert value(ranks.parent) == 1


def test_an_update_that_was_interrupted(ranks):
    """Before the command; before its look at the file; and between that and the look for its log."""
    for path in ("", "t.npy", LOG):
        np.save(ranks / "t.npy", np.zeros(500))
        leave = half_done(ranks)
        if not path:
            leave()
        check_finished(run(*WORDS, *NAMES, cwd=ranks, setup=at_first("lstat", path, leave)), ranks)


def beside(ranks: Path, *names: str) -> Outcome:
    """Reduce ranks and one that comes late, from a FIFO; an update stands half done when that one is waited for."""
    leave = half_done(ranks)
    os.mkfifo(ranks / "slow.npy")
    child = Child(*WORDS, *names, "slow.npy", cwd=ranks)
    with open_fifo(ranks / "slow.npy") as fifo:
        leave()
        fifo.write((ranks / "r0.npy").read_bytes())
    return child.finish()


def test_an_update_that_begins_behind_the_look(ranks):
    """What was read with the look is the file as it was before."""
    outcome = beside(ranks, *NAMES)
    assert outcome == (0, np.full(500, 50.0).tobytes(), "") or (outcome.status == 3 and "changed" in outcome.err)


def test_an_update_of_another_file_is_none_of_a_rank(ranks):
    """Its log stays as it is."""
    assert beside(ranks, *NAMES[1:]) == (0, np.full(500, 50.0).tobytes(), "")
    assert (ranks / LOG).exists()
