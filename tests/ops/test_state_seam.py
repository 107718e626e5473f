"""An op whose state is not its element, through every collective: a row of this test alone.

It counts the ranks that have a number: of each element two numbers are kept, and the result is an integer of two
bytes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import in_child

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

    def room(self):
        return self.elements

    def add(self, _again, _there=None):
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


def saved(folder: Path, arrays) -> list[str]:
    for rank, array in enumerate(arrays):
        np.save(folder / f"r{rank}.npy", array)
    return [str(folder / f"r{rank}.npy") for rank in range(len(arrays))]


def called(call, *arguments, **options):
    """Return the arrays that a call of a process with one thread gives, which may fork; with their dtypes."""

    def as_lists():
        found = call(*arguments, **options)
        return [None if each is None else [each.dtype.str, each.tolist()] for each in found]

    return [None if each is None else np.array(each[1], each[0]) for each in in_child(as_lists)]


def same(found, expected):
    return [(each.dtype, each.tolist()) for each in found] == [(each.dtype, each.tolist()) for each in expected]


# Arrays


def test_reduce(tmp_path, jobs):
    arrays = ranks_of()
    (found,) = called(
        lambda *rest, **more: [mpired.reduce(*rest, **more)], saved(tmp_path, arrays), "numbers", jobs=jobs
    )
    assert same([found], [prefixes(arrays)[-1]])


def test_one_rank_is_counted_too(tmp_path, jobs):
    arrays = ranks_of()[:1]
    assert same(called(mpired.allreduce, saved(tmp_path, arrays), "numbers", jobs=jobs), prefixes(arrays))


def test_allreduce(tmp_path, jobs):
    arrays = ranks_of("f8")
    found = called(mpired.allreduce, saved(tmp_path, arrays), "Numbers", jobs=jobs)
    assert same(found, [prefixes(arrays)[-1]] * NRANKS)


def test_scan(tmp_path, jobs):
    arrays = ranks_of("f2")
    assert same(called(mpired.scan, saved(tmp_path, arrays), "numbers", jobs=jobs), prefixes(arrays))


@pytest.mark.parametrize("first", ["none", "identity"])
def test_exscan(tmp_path, jobs, first):
    arrays = ranks_of()
    paths = saved(tmp_path, arrays)
    zeroth, *others = called(mpired.exscan, paths, "numbers", jobs=jobs, exscan_first=first)
    assert same(others, prefixes(arrays)[:-1])
    assert zeroth is None if first == "none" else same([zeroth], [np.zeros(COUNT, "i2")])


def test_reduce_scatter(tmp_path, jobs):
    arrays = ranks_of()
    counts = [400, 0, 1, 599, 0]
    blocks = np.split(prefixes(arrays)[-1], np.cumsum(counts)[:-1])
    paths = saved(tmp_path, arrays)
    assert same(called(mpired.reduce_scatter, paths, "numbers", counts, jobs=jobs), blocks)
    blocks = np.split(prefixes(arrays)[-1], NRANKS)
    assert same(called(mpired.reduce_scatter_block, paths, "numbers", jobs=jobs), blocks)


def test_more_ranks_than_are_open_at_once(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(planning, "_MAX_OPEN", 2)
    arrays = ranks_of()
    assert same(called(mpired.scan, saved(tmp_path, arrays), "numbers", jobs=jobs), prefixes(arrays))


def test_the_shape_is_that_of_the_rank(tmp_path):
    arrays = [np.asfortranarray(array.reshape(20, 50)) for array in ranks_of()]
    found = mpired.reduce(saved(tmp_path, arrays), "numbers")
    assert same([found], [np.sum([~np.isnan(array) for array in arrays], axis=0).astype("i2")])


# Files


def done(call, *arguments, **options):
    """Call in a process with one thread."""
    in_child(lambda: call(*arguments, **options))


@pytest.mark.parametrize("order", ["<", ">"])
def test_npy(tmp_path, jobs, order):
    arrays = [array.reshape(20, 50).astype(f"{order}f8") for array in ranks_of()]
    done(mpired.reduce, saved(tmp_path, arrays), "numbers", output=tmp_path / "out.npy", jobs=jobs)
    found = np.load(tmp_path / "out.npy")
    assert (found.dtype, found.shape) == (f"{order}i2", (20, 50))
    assert found.tolist() == prefixes(np.array(arrays).reshape(NRANKS, -1))[-1].reshape(20, 50).tolist()


@pytest.mark.parametrize("declared", [{"type": "float"}, {"type": ">f4"}, {"type": "float", "datarep": "external32"}])
def test_raw(tmp_path, jobs, declared):
    arrays, big = ranks_of(), declared != {"type": "float"}
    paths = [tmp_path / f"r{rank}.bin" for rank in range(NRANKS)]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(array.astype(">f4" if big else "f4").tobytes())
    done(mpired.scan, paths, "numbers", output=str(tmp_path / "out_{rank}.bin"), jobs=jobs, **declared)
    for rank, expected in enumerate(prefixes(arrays)):
        assert (tmp_path / f"out_{rank}.bin").read_bytes() == expected.astype(">i2" if big else "<i2").tobytes()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("to", ["parquet", "arrow", "csv", "json"])
def test_columns(tmp_path, jobs, suffix, to):
    """Two columns, whose results have other types than the schema of the ranks."""
    arrays, others = ranks_of(), ranks_of("f8")[:, ::-1]
    for rank, columns in enumerate(zip(arrays, others, strict=True)):
        write_table(tmp_path / f"r{rank}.{suffix}", dict(zip("ab", columns, strict=True)))
    paths = [tmp_path / f"r{rank}.{suffix}" for rank in range(NRANKS)]
    done(mpired.reduce, paths, "numbers", output=tmp_path / f"out.{to}", jobs=jobs)
    expected = {"a": prefixes(arrays)[-1], "b": prefixes(others)[-1]}
    if to == "csv":
        lines = (tmp_path / "out.csv").read_text().splitlines()
        assert lines == ["a,b", *map("{},{}".format, *expected.values())]
    elif to == "json":
        found = json.loads((tmp_path / "out.json").read_text())["buffers"]
        assert [(each["name"], each["datatype"]) for each in found] == [("a", "MPI_INT16_T"), ("b", "MPI_INT16_T")]
        assert [each["data"] for each in found] == [each.tolist() for each in expected.values()]
    else:
        found = read_table(tmp_path / f"out.{to}")
        assert [(field.name, field.type) for field in found.schema] == [("a", pa.int16()), ("b", pa.int16())]
        assert all(found[name].to_pylist() == each.tolist() for name, each in expected.items())


def write_table(path, columns):
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=300)
        return
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=300)


def read_table(path):
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path.read_bytes()).read_all()


# What is refused


@pytest.mark.parametrize("verb", ["reduce", "scan", "reduce_scatter_block"])
def test_in_place_the_datatype_stays(tmp_path, verb):
    paths = saved(tmp_path, ranks_of())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reason = "would put MPI_INT16_T (int16) in the place of MPI_FLOAT (float32); numbers needs"
    with pytest.raises(UsageError, match=re.escape(reason)):
        getattr(mpired, verb)(paths, "numbers", in_place=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_window_holds_no_states(tmp_path):
    paths = saved(tmp_path, ranks_of())
    with pytest.raises(OpError, match="is for reductions only"):
        mpired.Window(paths[0]).accumulate(paths[1], "numbers")


# Memory


def test_blocks_are_as_many_as_states_fit(tmp_path):
    """Two states of a block fit, whatever is allowed; a state has blocks of as many elements as are fast."""
    files = mpired_files(tmp_path)
    wide = planning.make_plan(NUMBERS, files, Context(jobs=2))
    assert wide.block_counts[0] * Numbers.itemsize == planning._STATE_BLOCK_BYTES  # noqa: SLF001
    for extra in (1 << 20, 4 << 20, 9 << 20):
        allowed = BASE_NBYTES + extra  # what a process needs before its blocks
        tight = planning.make_plan(NUMBERS, files, Context(allowed, jobs=1))
        assert tight.block_counts[0] * Numbers.itemsize == min(extra // 2, planning._STATE_BLOCK_BYTES)  # noqa: SLF001
    with pytest.raises(UsageError, match="too little"):
        planning.make_plan(NUMBERS, files, Context(BASE_NBYTES + (4 << 10), jobs=1))


def mpired_files(folder):
    from mpired.formats import InputOptions, open_rank

    return [open_rank(path, InputOptions()) for path in saved(folder, ranks_of(count=1 << 16))]
