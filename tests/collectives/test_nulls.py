"""`--nulls`: what becomes of nulls, against pyarrow.compute, which sees the elements of all ranks as a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pytest
from command import run
from tables import read, write

import mpired
from mpired.collectives import plan as planning
from mpired.errors import DatatypeError, UsageError
from mpired.formats import Array

COUNT, NRANKS = 211, 4
# How ranks are written: the format, the most rows of a row group or a record batch, and more.
LAYOUTS = {
    "dictionary": ("parquet", 50, {"data_page_size": 64}),
    "plain": ("parquet", 300, {"use_dictionary": False, "data_page_size": 100, "write_statistics": False}),
    "v2": ("parquet", 90, {"data_page_version": "2.0", "data_page_size": 64, "compression": "zstd"}),
    "batches": ("arrow", 37, {}),
    "compressed": ("arrow", 100, {"compression": "lz4"}),
}
TWINS = {
    "sum": pc.sum,
    "prod": pc.product,
    "max": pc.max,
    "min": pc.min,
    "mean": pc.mean,
    "var": pc.variance,
    "median": lambda column: pc.quantile(column, 0.5)[0],
    "first": pc.first,
    "last": pc.last,
    "count": pc.count,
}
FLOATS, INTEGERS = pa.float64(), pa.int32()


def drawn(kind, seed, count=COUNT):
    """Return columns of all ranks, half of them null, and some elements of all ranks."""
    draw = np.random.default_rng(seed)
    missing = draw.random((NRANKS, count)) < draw.choice([0, 0.4, 0.9], count)
    missing[:, :2], missing[0, -1] = True, False
    numbers = draw.integers(-9, 9, (NRANKS, count))
    return [pa.array(row, kind, mask=mask) for row, mask in zip(numbers, missing, strict=True)]


def written(folder, tables, layout):
    """Write a file for each table, with different borders."""
    form, rows, settings = LAYOUTS[layout]
    return [write(folder / f"{i}.{form}", table, rows + 7 * i, **settings) for i, table in enumerate(tables)]


def twin(op, columns, nulls):
    """Return what Arrow makes of each element."""
    elements = zip(*(column.to_pylist() for column in columns), strict=True)
    return [
        None if nulls == "propagate" and None in each else TWINS[op](pa.array(each, columns[0].type)).as_py()
        for each in elements
    ]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """What is decoded is decoded in this process, which is faster; blocks are small."""
    monkeypatch.setattr(Array, "isolated", False)
    for name in ("_STREAMED_BLOCK_BYTES", "_BLOCK_BYTES", "_STATE_BLOCK_BYTES", "_MIN_BLOCK_BYTES"):
        monkeypatch.setattr(planning, name, 16 * 29)
    monkeypatch.setattr(planning, "_STATE_COUNT", 1)


@pytest.mark.parametrize(("layout", "nulls"), [("dictionary", "ignore"), ("batches", "propagate")])
def test_each_partial_result_of_a_scan(layout, nulls, tmp_path):
    columns = drawn(INTEGERS, 3)
    paths = written(tmp_path, [pa.table({"n": each}) for each in columns], layout)
    out, counts = tmp_path / "out{rank}.parquet", tmp_path / "n{rank}.npy"
    mpired.scan(paths, "sum", nulls=nulls, output=out, count_valid=counts)
    before = mpired.exscan(paths, "sum", nulls=nulls, exscan_first="identity")
    assert before[0].tolist() == [0] * COUNT
    for rank in range(NRANKS):
        expected = twin("sum", columns[: rank + 1], nulls)
        assert read(tmp_path / f"out{rank}.parquet")["n"].to_pylist() == expected
        assert np.load(tmp_path / f"n{rank}.npy").tolist() == twin("count", columns[: rank + 1], "ignore")
        if rank + 1 < NRANKS:
            assert before[rank + 1].tolist() == expected


RULES = [
    ("std", {"exact": True, "ddof": 1}, lambda x: np.ma.std(x, axis=0, ddof=1)),
    ("mean", {"weights": [1, 2, 3, 4]}, lambda x: np.ma.average(x, axis=0, weights=[1, 2, 3, 4])),
    ("sum", {"exact": True}, lambda x: x.sum(axis=0)),
    ("rms", {}, lambda x: np.ma.sqrt((x**2).mean(axis=0))),
    ("sum", {"accumulate_in": "longdouble"}, lambda x: x.sum(axis=0)),
    ("range", {"nan": "ignore"}, lambda x: x.max(axis=0) - x.min(axis=0)),
    ("absmax", {"missing": 3}, lambda x: np.ma.abs(np.ma.masked_equal(x, 3)).max(axis=0)),
]


def test_other_rules_go_together_with_it(tmp_path):
    columns = drawn(FLOATS, 4)
    paths = written(tmp_path, [pa.table({"x": each}) for each in columns], "v2")
    numbers = np.ma.masked_invalid([each.to_numpy(zero_copy_only=False) for each in columns])
    for op, options, twin in RULES:
        expected = twin(numbers)
        found = mpired.reduce(paths, op, nulls="ignore", **options)
        free = (~numbers.mask).sum(axis=0) > options.get("ddof", 0)
        assert (np.ma.getmaskarray(found)[free] == np.ma.getmaskarray(expected)[free]).all(), (op, options)
        np.testing.assert_allclose(found[free].filled(0), expected[free].filled(0), rtol=1e-14)
        nulls = mpired.reduce(paths, op, nulls="propagate", **options)
        assert np.ma.getmaskarray(nulls)[numbers.mask.any(axis=0)].all(), (op, options)


@pytest.fixture
def two(tmp_path):
    """Two ranks, of whose elements the first has one null and the second two; the last has no value."""
    schema = pa.schema([pa.field("n", pa.int32()), pa.field("x", pa.float32()), pa.field("t", pa.timestamp("us"))])
    for name, column in (("a", [-5, 7, None]), ("b", [-3, None, None])):
        write(tmp_path / f"{name}.parquet", pa.table({"n": column, "x": column, "t": column}, schema))
    return tmp_path


WORDS = ("reduce", "--nulls", "ignore", "a.parquet", "b.parquet")


def test_nulls_as_text(two):
    head = '{"buffers": [\n{"name": "n", "datatype": "MPI_INT32_T", "dtype": "int32", "count": 3, '
    texts = {
        "csv": 'n\n-8\n7\n""\n',
        "json": head + '"data": [\n-8,\n7,\nnull]}\n]}\n',
        "text": "-8\n7\nnull\n",
        "table": "element     n\n      0    -8\n      1     7\n      2  null\n",
    }
    for to, content in texts.items():
        outcome = run(*WORDS, "-q", "--op", "sum", "--columns", "n", "--to", to, cwd=two)
        assert (outcome.out.decode(), outcome.err) == (content, ""), to


def test_ranks_of_formats_without_nulls_go_together_with_others(two):
    """With one of them no element is left out in all ranks, but any null propagates."""
    np.save(two / "c.npy", np.array([1, 2, 3], "i4"))
    paths = [two / "a.parquet", two / "c.npy"]
    mpired.reduce(paths, "sum", columns="n", nulls="ignore", output=two / "out.npy")
    assert np.load(two / "out.npy").tolist() == [-4, 9, 3]
    with pytest.raises(UsageError, match="may give nulls"):
        mpired.reduce(paths, "sum", columns="n", nulls="propagate", output=two / "new.npy")
    found = mpired.reduce([two / "c.npy", two / "c.npy"], "sum", nulls="propagate")
    assert (found.tolist(), type(found)) == ([2, 4, 6], np.ma.MaskedArray)


def test_a_null_does_not_overflow(tmp_path, recwarn):
    columns = [[100, 100], [100, None], [1, 100], [-127, 100]]
    paths = written(tmp_path, [pa.table({"n": pa.array(each, pa.int8())}) for each in columns], "batches")
    assert mpired.reduce(paths[1:], "sum", nulls="propagate").tolist() == [-26, None]
    assert not recwarn.list
    with pytest.warns(mpired.errors.OverflowWarning, match="once, first in element 0 with rank 1"):
        assert mpired.reduce(paths[:2], "sum", nulls="propagate").tolist() == [-56, None]


def test_without_it_nulls_are_an_error_that_names_it(two):
    with pytest.raises(DatatypeError, match=r"'n' has 1 null.*`nulls='ignore'`"):
        mpired.reduce([two / "a.parquet"], "sum", columns="n")
    assert "--nulls" not in run("diff", "a.parquet", "b.parquet", cwd=two).err
    with pytest.raises(UsageError, match="`nulls`: is for predefined ops"):
        mpired.reduce([two / "a.parquet"], np.hypot, columns="n", nulls="ignore")
