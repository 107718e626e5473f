"""An executor with threads of this process, which combine what may run side by side, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import eager_command
import numpy as np
import pytest

import mpired
from mpired.collectives import plan as planning
from mpired.errors import WorkerError

NRANKS, COUNT = 3, 20_000
RANKS = [f"r{rank}.npy" for rank in range(NRANKS)]
# A folder can be made once, by any thread.
OPS = """
import os, time
def add(invec, inoutvec):
    os.mkdir("inside")
    time.sleep(0.01)
    os.rmdir("inside")
    return invec + inoutvec
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Ranks in the working directory; little data is enough for several threads."""
    monkeypatch.chdir(tmp_path)
    for name, nbytes in eager_command.SIZES.items():
        monkeypatch.setattr(planning, name, nbytes)
    for rank, name in enumerate(RANKS):
        np.save(name, np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (3 * rank))
    Path("ops.py").write_text(OPS)
    return tmp_path


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


def test_sums_of_threads(here, threads):
    ranks = [np.load(name) for name in RANKS]
    assert np.array_equal(mpired.reduce(RANKS, "sum", engine=threads), ranks[0] + ranks[1] + ranks[2])
    exact = [math.fsum(elements) for elements in zip(*(each.tolist() for each in ranks), strict=True)]
    assert mpired.reduce(RANKS, "sum", exact=True, engine=threads).tolist() == exact


def test_functions_of_the_user_run_in_one_thread_at_a_time(here, threads):
    ranks = [np.load(name) for name in RANKS]
    found = mpired.reduce(RANKS, "ops.py:add", engine=threads)
    assert np.array_equal(found, ranks[0] + ranks[1] + ranks[2])


class Lost(ThreadPoolExecutor):
    """An executor that cannot tell what came of its last tasks."""

    begun = 0

    def submit(self, function, /, *words, **options):
        self.begun += 1
        future = super().submit(function, *words, **options)
        if self.begun < 5:
            return future
        lost: Future = Future()
        lost.set_exception(RuntimeError("the node is gone"))
        return lost


def test_a_task_that_is_lost_is_an_error_of_the_engine(here):
    with Lost(3) as executor, pytest.raises(WorkerError, match=r"the node is gone.*nothing was written"):
        mpired.reduce(RANKS, "sum", output="out.npy", engine=executor)
    assert not Path("out.npy").exists()
