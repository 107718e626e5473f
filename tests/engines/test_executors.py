"""Executors: threads of this process, and processes that are no children of it, in another working directory.

Ranks and ops are named by relative paths, as a user in the working directory does.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import eager_command
import numpy as np
import pyarrow as pa
import pytest
from command import unchanged
from tables import write

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


def saved(suffix: str) -> list[str]:
    """Write the ranks into the working directory, and return their names."""
    names = [f"r{rank}.{suffix}" for rank in range(NRANKS)]
    for name, array in zip(names, arrays(), strict=True):
        if suffix == "npy":
            np.save(name, array)
        elif suffix == "bin":
            array.tofile(name)
        else:
            write(Path(name), pa.table({"value": array}), 700)
    return names


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Ranks in the working directory, with a folder for temporary files beside it; little data is enough."""
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for name, nbytes in eager_command.SIZES.items():
        monkeypatch.setattr(planning, name, nbytes)
    saved("npy")
    Path("ops.py").write_text(OPS)
    yield tmp_path / "here"
    assert os.listdir(tmp_path / "tmp") == []


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Interpreters of their own in another working directory, which stay from run to run."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, initializer=os.chdir, initargs=("/",)) as executor:
        yield executor


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


VERBS = ("reduce", "allreduce", "scan", "exscan", "reduce_scatter", "reduce_scatter_block")


def call(verb: str, ranks: list[str], suffix: str, **options: object) -> None:
    counts = ([COUNT - 5000, 0, 5000],) if verb == "reduce_scatter" else ()
    output = f"out.{suffix}" if verb == "reduce" else f"out_{{rank}}.{suffix}"
    getattr(mpired, verb)(ranks, "sum", *counts, output=output, **options)


def results(here: Path, verb: str, ranks: list[str], suffix: str, **options: object) -> dict[str, bytes]:
    """Call a collective, and take what it has written away."""
    call(verb, ranks, suffix, **options)
    assert not list(here.glob(".*"))
    found = {path.name: path.read_bytes() for path in here.glob("out*")}
    for name in found:
        os.unlink(name)
    return found


@pytest.mark.parametrize("suffix", ["bin", "parquet"])
def test_every_collective_gives_the_same_files(suffix, here, processes):
    options = {"type": "double"} if suffix == "bin" else {}
    ranks = saved(suffix)
    expected = {verb: results(here, verb, ranks, suffix, **options) for verb in VERBS}
    found = {verb: results(here, verb, ranks, suffix, engine=processes, **options) for verb in VERBS}
    assert all(expected.values())
    assert [verb for verb in VERBS if found[verb] != expected[verb]] == []


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
