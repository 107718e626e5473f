"""An op whose state is not its element, through every collective: a row of this test alone.

It counts the ranks that have a number: of each element two numbers are kept, and the result is an integer of two
bytes.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from command import in_child, unchanged

import mpired
from mpired import ops
from mpired.collectives import plan as planning
from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import from_dtype
from mpired.errors import OpError, UsageError
from mpired.ops import state, table

RESULT = from_dtype(np.dtype("i2"))
NRANKS, COUNT = 5, 1000


class Numbers(state.State):
    """How many numbers there are; with the greatest of them, so that an element needs 16 bytes."""

    itemsize = 16

    def begin(self, _start, count):
        self.elements = np.empty(count, self.datatype.form)
        self.count, self.greatest = np.zeros(count, "i8"), np.full(count, -np.inf)

    def free_block(self):
        return self.elements

    def add(self, _reread, _not_null=None):
        self.count += ~np.isnan(self.elements)
        self.greatest = np.fmax(self.greatest, self.elements)

    def result(self):
        return self.count.astype("i2"), None


NUMBERS = ops.get("SUM")._replace(
    name="NUMBERS", section="", nan="is not counted", uses=ops.Use.REDUCE, state=Numbers, gives=lambda datatype: RESULT
)


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setattr(table, "_BY_NAME", {row.name: row for row in (*ops.OPS, NUMBERS)})


@pytest.fixture(params=[1, 3])
def jobs(request, monkeypatch):
    """One worker, and several with small blocks, so that each has some of them and a rest."""
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    monkeypatch.setattr(planning, "_BLOCK_BYTES", 16 * 37)
    return request.param


def ranks_of(code="f4", count=COUNT):
    arrays = np.random.default_rng(3).integers(0, 99, (NRANKS, count)).astype(code)
    arrays[arrays % 3 == 0] = np.nan
    return arrays


def prefixes(arrays):
    return np.cumsum(~np.isnan(arrays), axis=0).astype("i2")


def saved(folder, arrays):
    for rank, array in enumerate(arrays):
        np.save(folder / f"r{rank}.npy", array)
    return [str(folder / f"r{rank}.npy") for rank in range(len(arrays))]


def as_lists(arrays):
    return [None if each is None else [each.dtype.str, each.tolist()] for each in arrays]


@pytest.mark.parametrize("code", ["f2", "f8"])
def test_every_collective(code, tmp_path, jobs):
    """In a process with one thread, which may fork."""
    whole = prefixes(ranks_of(code))
    paths, counts = saved(tmp_path, ranks_of(code)), [400, 0, 1, 599, 0]
    calls = {
        "reduce": (lambda: [mpired.reduce(paths, "numbers", jobs=jobs)], whole[-1:]),
        "one rank": (lambda: mpired.allreduce(paths[:1], "numbers", jobs=jobs), whole[:1]),
        "allreduce": (lambda: mpired.allreduce(paths, "Numbers", jobs=jobs), [whole[-1]] * NRANKS),
        "scan": (lambda: mpired.scan(paths, "numbers", jobs=jobs), whole),
        "exscan": (lambda: mpired.exscan(paths, "numbers", jobs=jobs), [None, *whole[:-1]]),
        "exscan from 0": (
            lambda: mpired.exscan(paths, "numbers", jobs=jobs, exscan_first="identity"), [0 * whole[0], *whole[:-1]],
        ),
        "reduce_scatter": (
            lambda: mpired.reduce_scatter(paths, "numbers", counts, jobs=jobs),
            np.split(whole[-1], np.cumsum(counts)[:-1]),
        ),
        "reduce_scatter_block": (
            lambda: mpired.reduce_scatter_block(paths, "numbers", jobs=jobs), np.split(whole[-1], NRANKS),
        ),
    }  # fmt: skip
    found = in_child(lambda: {name: as_lists(call()) for name, (call, _) in calls.items()})
    for name, (_, expected) in calls.items():
        assert found[name] == as_lists(expected), name


def test_more_ranks_than_are_open_at_once(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(planning, "_MAX_OPEN", 2)
    paths = saved(tmp_path, ranks_of())
    found = in_child(lambda: as_lists(mpired.scan(paths, "numbers", jobs=jobs)))
    assert found == as_lists(prefixes(ranks_of()))


# Files


@pytest.mark.parametrize("order", ["<", ">"])
def test_npy(tmp_path, jobs, order):
    arrays = [array.reshape(20, 50).astype(f"{order}f8", order="F") for array in ranks_of()]
    paths = saved(tmp_path, arrays)
    in_child(lambda: str(mpired.reduce(paths, "numbers", output=tmp_path / "out.npy", jobs=jobs)))
    found = np.load(tmp_path / "out.npy")
    assert (found.dtype, found.flags.f_contiguous) == (f"{order}i2", True)
    assert found.tolist() == np.sum([~np.isnan(array) for array in arrays], axis=0).tolist()


@pytest.mark.parametrize("declared", [{"type": "float"}, {"type": ">f4"}, {"type": "float", "datarep": "external32"}])
def test_raw(tmp_path, declared):
    order = "<" if declared == {"type": "float"} else ">"
    paths = [tmp_path / f"r{rank}.bin" for rank in range(NRANKS)]
    for path, array in zip(paths, ranks_of(), strict=True):
        path.write_bytes(array.astype(f"{order}f4").tobytes())
    mpired.scan(paths, "numbers", output=str(tmp_path / "out_{rank}.bin"), **declared)
    for rank, expected in enumerate(prefixes(ranks_of())):
        assert (tmp_path / f"out_{rank}.bin").read_bytes() == expected.astype(f"{order}i2").tobytes()


# What is refused


def test_in_place_and_in_a_window_the_datatype_stays(tmp_path):
    paths = saved(tmp_path, ranks_of())
    reason = "would put MPI_INT16_T (int16) in the place of MPI_FLOAT (float32); numbers needs"
    with unchanged(tmp_path):
        for verb in (mpired.reduce, mpired.scan, mpired.reduce_scatter_block):
            with pytest.raises(UsageError, match=re.escape(reason)):
                verb(paths, "numbers", in_place=True)
        with pytest.raises(OpError, match="is for reductions only"):
            mpired.Window(paths[0]).accumulate(paths[1], "numbers")


# Memory


def test_blocks_are_as_many_as_states_fit(tmp_path):
    """Two states of a block fit, whatever is allowed; a state has blocks of as many elements as are fast."""
    files = mpired_files(tmp_path)
    wide = planning.make_plan((NUMBERS,), files, Context(jobs=2))
    assert wide.block_counts[0] * Numbers.itemsize == planning._STATE_BLOCK_BYTES  # noqa: SLF001
    for extra in (1 << 20, 4 << 20, 9 << 20):
        allowed = BASE_NBYTES + extra  # what a process needs before its blocks
        tight = planning.make_plan((NUMBERS,), files, Context(allowed, jobs=1))
        assert tight.block_counts[0] * Numbers.itemsize == min(extra // 2, planning._STATE_BLOCK_BYTES)  # noqa: SLF001
    with pytest.raises(UsageError, match="too little"):
        planning.make_plan((NUMBERS,), files, Context(BASE_NBYTES + (4 << 10), jobs=1))


def mpired_files(folder):
    from mpired.formats import InputOptions, open_rank

    return [open_rank(path, InputOptions()) for path in saved(folder, ranks_of(count=1 << 16))]
