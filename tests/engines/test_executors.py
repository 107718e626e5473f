"""Executors: threads, and processes that are no children of this one, elsewhere; ranks and ops have relative paths."""

import math
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import eager_command
import numpy as np
import pytest
from command import unchanged

import mpired
from mpired.collectives import plan as planning
from mpired.errors import UsageError, WorkerError
from mpired.files.transaction import Draft

NRANKS, COUNT = 3, 21_000
RANKS = [f"r{rank}.npy" for rank in range(NRANKS)]
OPS = """
import os, time
def alone(invec, inoutvec):
    os.mkdir("inside")  # which can be made once, by any thread
    time.sleep(0.01)
    os.rmdir("inside")
    return invec + inoutvec
"""


def arrays() -> list[np.ndarray]:
    """Return numbers whose sum shows the order in which they were added."""
    return [np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (3 * rank) for rank in range(NRANKS)]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Ranks in the working directory, with a folder for temporary files beside it; little data is enough."""
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for name, nbytes in eager_command.SIZES.items():
        monkeypatch.setattr(planning, name, nbytes)
    for name, array in zip(RANKS, arrays(), strict=True):
        np.save(name, array)
    Path("ops.py").write_text(OPS)
    yield tmp_path / "here"
    assert os.listdir(tmp_path / "tmp") == []


def test_sums_of_threads(here):
    threads = ThreadPoolExecutor(3)
    ranks = arrays()
    assert np.array_equal(mpired.reduce(RANKS, "sum", engine=threads), ranks[0] + ranks[1] + ranks[2])
    exact = [math.fsum(elements) for elements in zip(*(each.tolist() for each in ranks), strict=True)]
    assert mpired.reduce(RANKS, "sum", exact=True, engine=threads).tolist() == exact
    # Functions of the user run in one thread at a time.
    assert np.array_equal(mpired.reduce(RANKS, "ops.py:alone", engine=threads), ranks[0] + ranks[1] + ranks[2])
    threads.shutdown()


def test_what_workers_do_not_have_is_refused(here):
    with unchanged(here), ThreadPoolExecutor(3) as threads:
        with pytest.raises(UsageError, match=r"is a function of this process, .* as FILE.py:FUNCTION"):
            mpired.reduce(RANKS, lambda invec, inoutvec: invec + inoutvec, output="out.npy", engine=threads)
        with pytest.raises(UsageError, match=r"`op_timeout`: cannot stop a call"):
            mpired.reduce(RANKS, "ops.py:alone", output="out.npy", op_timeout=5, engine=threads)
        with pytest.raises(UsageError, match=r"`scheduler`"):
            mpired.reduce(RANKS, "sum", scheduler="tcp://127.0.0.1:1", engine=threads)


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


def test_scans_of_processes_in_another_directory(here):
    """They are interpreters of their own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=os.chdir, initargs=("/",)) as processes:
        mpired.scan(RANKS, "sum", output="out{rank}.npy", engine=processes)
    expected = np.cumsum(arrays(), axis=0)
    assert all(np.array_equal(np.load(f"out{rank}.npy"), expected[rank]) for rank in range(NRANKS))


def test_something_else_under_the_name_of_a_draft_is_not_opened(here):
    with Draft("out.npy", named=True) as made:
        shared = made.shared
        (name,) = (path.name for path in here.glob(".out*"))
        os.close(shared.open())
        os.rename(name, "moved")
        Path("precious").write_bytes(b"precious")
        os.link("precious", name)
        with pytest.raises(OSError, match="something took its name"):
            shared.open()
        os.unlink(name)
        os.symlink("precious", name)
        with pytest.raises(OSError, match="symbolic links"):
            shared.open()
        os.unlink(name)
    assert Path("precious").read_bytes() == b"precious"
