"""`--nulls`: what becomes of nulls, against pyarrow.compute, which sees the elements of all ranks as a column."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pytest
from command import run
from rows import check_refusals
from tables import read, write

import mpired
from mpired.collectives import plan as planning
from mpired.errors import DatatypeError, UsageError
from mpired.formats import Array

COUNT, NRANKS = 211, 4
POLICIES = ("ignore", "propagate")
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_those_of_arrow(layout, tmp_path):
    columns = {"x": drawn(FLOATS, 1), "n": drawn(INTEGERS, 2)}
    tables = [pa.table({name: each[i] for name, each in columns.items()}) for i in range(NRANKS)]
    paths, out = written(tmp_path, tables, layout), tmp_path / "out.arrow"
    for op, nulls in itertools.product([*TWINS][[*LAYOUTS].index(layout) :: len(LAYOUTS)], POLICIES):
        mpired.reduce(paths, op, nulls=nulls, output=out, overwrite=True)
        for name, kind in columns.items():
            expected = pa.array(twin(op, kind, nulls), pa.float64())
            found = read(out)[name].combine_chunks().cast(pa.float64())
            assert found.is_valid().equals(expected.is_valid()), (op, nulls, name)
            np.testing.assert_allclose(found.drop_null(), expected.drop_null(), rtol=1e-14)


@pytest.mark.parametrize(("op", "layout"), [("sum", "v2"), ("var", "compressed")])
def test_bits_are_the_same_for_any_workers_and_blocks(op, layout, tmp_path, monkeypatch):
    draw = np.random.default_rng(7)
    columns = [pa.array(draw.normal(size=3000), mask=draw.random(3000) < 0.5) for _ in range(NRANKS)]
    paths = written(tmp_path, [pa.table({"x": each}) for each in columns], layout)
    found = [mpired.reduce(paths, op, nulls="ignore")]
    monkeypatch.undo()
    found.append(mpired.reduce(paths, op, nulls="ignore"))
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    monkeypatch.setattr(planning, "_STREAMED_BLOCK_BYTES", 8 * 101)
    found.append(mpired.reduce(paths, op, nulls="ignore", jobs=3))
    assert len({(each.filled(0).tobytes(), each.mask.tobytes()) for each in found}) == 1
    assert all(isinstance(each, np.ma.MaskedArray) and each.mask.any() for each in found)


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


def pairs_of(seed):
    """Return structures of all ranks, some of them null, and some of their fields."""
    value, index = drawn(FLOATS, seed), drawn(INTEGERS, seed + 1)
    whole = np.random.default_rng(seed).random((NRANKS, COUNT)) < 0.1
    fields = [pa.field("value", FLOATS), pa.field("index", INTEGERS)]
    return [
        pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(mask))
        for *parts, mask in zip(value, index, whole, strict=True)
    ]


def greatest(pairs, nulls):
    """Return the pair with the greatest value, of these with the least index; None has no part that is None."""
    there = [(each["value"], -each["index"]) for each in pairs if each and None not in each.values()]
    if not there or (nulls == "propagate" and len(there) < len(pairs)):
        return None
    value, index = max(there)
    return {"value": value, "index": -index}


@pytest.mark.parametrize(("layout", "nulls"), [("v2", "propagate"), ("batches", "ignore")])
def test_a_pair_is_null_if_a_part_of_it_is(layout, nulls, tmp_path):
    columns = pairs_of(5)
    tables = [pa.table({"p": each, "v": each.flatten()[0], "i": each.flatten()[1]}) for each in columns]
    paths = written(tmp_path, tables, layout)
    expected = [greatest(each, nulls) for each in zip(*(column.to_pylist() for column in columns), strict=True)]
    mpired.reduce(paths, "maxloc", columns="p", nulls=nulls, output=(out := tmp_path / "p.parquet"))
    assert read(out)["p"].to_pylist() == expected
    mpired.reduce(paths, "maxloc", pair="v,i", nulls=nulls, output=(out := tmp_path / "vi.arrow"))
    assert read(out).to_pylist() == [
        {"v": (each or {}).get("value"), "i": (each or {}).get("index")} for each in expected
    ]
    found = mpired.reduce(paths, "maxloc", columns="v", index="rank", nulls=nulls)
    values = [column.to_pylist() for column in (table["v"] for table in tables)]
    for element, ranks in zip(found.tolist(), zip(*values, strict=True), strict=True):
        marked = [{"value": value, "index": rank} for rank, value in enumerate(ranks)]
        best = greatest(marked, nulls)
        assert element == ((None, None) if best is None else (best["value"], best["index"]))


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


def test_formats_without_nulls_have_a_value_or_are_refused(two):
    paths, out = [two / "a.parquet", two / "b.parquet"], two / "out.npy"

    def result(columns, op="sum", **options):
        mpired.reduce(paths, op, columns=columns, nulls="ignore", output=out, overwrite=True, **options)
        return np.load(out)

    assert result("x").tobytes() == np.array([-8, 7, np.nan], "f4").tobytes()
    assert result("n", missing=-1).tolist() == [-8, 7, -1]
    assert result("n", "mean").tolist()[:2] == [-4, 7]
    assert result("n", "count").tolist() == [2, 1, 0]
    assert result("t", "min").tolist() == np.array([-5, 7, "NaT"], "M8[us]").tolist()
    peaks = result("x", "maxloc", index="rank").tolist()
    assert peaks[:2] == [(-3, 1), (7, 0)]
    assert np.isnan(peaks[2][0])
    assert peaks[2][1] == -1
    out.unlink()
    reduce, reasons = (
        "reduce a.parquet b.parquet --columns n",
        "MPI_INT32_T / npy has no value / --to parquet / --missing",
    )
    np.save(two / "o.npy", np.zeros(3, "i4"))
    rows = [
        (f"{reduce} --nulls ignore --op sum -o x.npy", 2, f"--nulls ignore / {reasons}"),
        (f"{reduce} --nulls ignore --op sum -o x.bin", 2, "raw has no value"),
        (f"{reduce} --nulls propagate --op count -o x.npy", 2, "--nulls propagate"),
        (f"{reduce} --op sum", 3, "skip them with --nulls ignore, or fill them first"),
        ("accumulate --op sum --columns n a.parquet o.npy", 3, "has 1 null; skip them with --nulls ignore"),
    ]
    check_refusals(two, rows)


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


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_column_keeps_its_field_and_is_nullable_where_it_has_to_be(form, tmp_path):
    def rank(name, *columns, nullable=True):
        fields = [pa.field(name, pa.int16(), nullable=nullable, metadata={"units": "K"}) for name in "uv"]
        schema = pa.schema(fields, metadata={"made by": "a test"})
        return write(
            tmp_path / f"{name}.{form}",
            pa.Table.from_arrays([pa.array(each, pa.int16()) for each in columns], schema=schema),
        )

    paths = [rank("a", [1, 2], [3, 4], nullable=False), rank("b", [5, None], [6, 7])]
    whole = rank("whole", [5, 6], [6, 7])
    for nulls, nullable in (("ignore", False), ("propagate", True)):
        mpired.reduce(paths, "sum", nulls=nulls, output=(out := tmp_path / f"{nulls}.{form}"))
        assert read(out)["u"].to_pylist() == [6, 2 if nulls == "ignore" else None]
        assert [field.nullable for field in read(out).schema] == [nullable, False]
        assert read(out).schema.metadata == {b"made by": b"a test"}
        assert read(out).schema.field("u").metadata[b"units"] == b"K"
    mpired.reduce([paths[0], whole], "sum", nulls="propagate", output=(out := tmp_path / f"known.{form}"))
    assert not any(field.nullable for field in read(out).schema)
    mpired.reduce(paths, "sum", nulls="propagate", in_place=True, root=1)
    assert read(paths[1]).to_pydict() == {"u": [6, None], "v": [9, 11]}


def test_blocks_that_lack_all_elements(tmp_path, monkeypatch):
    """Negative integers before, whose bounds are known."""
    columns = [[-5, -1], [-3, -2], [None, -4], [-2, None]]
    paths = written(tmp_path, [pa.table({"n": pa.array(each, pa.int8())}) for each in columns], "plain")
    for name in ("_STREAMED_BLOCK_BYTES", "_BLOCK_BYTES", "_STATE_BLOCK_BYTES", "_MIN_BLOCK_BYTES"):
        monkeypatch.setattr(planning, name, 1)
    assert mpired.reduce(paths, "sum", nulls="ignore").tolist() == [-10, -7]
    assert mpired.reduce(paths, "sum", nulls="propagate").tolist() == [None, None]
    arrays = [np.array([0 if each is None else each for each in column], "i1") for column in columns]
    assert mpired.reduce(arrays, "sum", missing=0).tolist() == [-10, -7]


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
