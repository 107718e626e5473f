"""`--nulls`: what becomes of missing values, in results, in pairs and in place, as NumPy's masked arrays have it."""

import masked
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run, succeeded
from rows import check_refused, each
from tables import read, write

import mpired
from mpired.collectives import plan as planning
from mpired.errors import UsageError
from mpired.formats import Array

COUNT, NRANKS = 211, 4


def written(folder, ranks, form, rows, **settings):
    """Write masked arrays as columns of tables, with other borders of groups or batches in each."""
    tables = [pa.table({"n": pa.array(rank.data, mask=rank.mask)}) for rank in ranks]
    return [write(folder / f"{i}.{form}", table, rows + 7 * i, **settings) for i, table in enumerate(tables)]


def reduced(ranks, nulls):
    """Return the sum of masked arrays."""
    stack = np.ma.MaskedArray(ranks)
    every = stack.mask.all(axis=0) if nulls == "ignore" else stack.mask.any(axis=0)
    return np.ma.MaskedArray(stack.filled(0).sum(axis=0, dtype=stack.dtype), every)


@pytest.fixture
def in_small_blocks(monkeypatch):
    """What is decoded is decoded in this process, which is faster."""
    monkeypatch.setattr(Array, "isolated", False)
    for name in ("_STREAMED_BLOCK_BYTES", "_BLOCK_BYTES", "_STATE_BLOCK_BYTES", "_MIN_BLOCK_BYTES"):
        monkeypatch.setattr(planning, name, 16 * 29)
    monkeypatch.setattr(planning, "_STATE_COUNT", 1)


@pytest.mark.parametrize(
    ("form", "rows", "settings", "nulls"),
    [("parquet", 50, {"data_page_size": 64}, "ignore"), ("arrow", 37, {}, "propagate")],
)
@pytest.mark.usefixtures("in_small_blocks")
def test_each_partial_result_of_a_scan(form, rows, settings, nulls, tmp_path):
    ranks = [masked.drawn(seed, (COUNT,), "i4") for seed in range(NRANKS)]
    paths = written(tmp_path, ranks, form, rows, **settings)
    out, counts = tmp_path / "out{rank}.parquet", tmp_path / "n{rank}.npy"
    mpired.scan(paths, "sum", nulls=nulls, output=out, count_valid=counts)
    before = mpired.exscan(paths, "sum", nulls=nulls, exscan_first="identity")
    assert before[0].tolist() == [0] * COUNT
    for rank in range(NRANKS):
        expected = reduced(ranks[: rank + 1], nulls).tolist()
        assert read(tmp_path / f"out{rank}.parquet")["n"].to_pylist() == expected
        valid = np.ma.MaskedArray(ranks[: rank + 1]).count(axis=0)
        assert np.load(tmp_path / f"n{rank}.npy").tolist() == valid.tolist()
        if rank + 1 < NRANKS:
            assert before[rank + 1].tolist() == expected


@pytest.mark.parametrize("orders", ["CCCC", "FFFF", "CFFC", "FCCF"])
def test_arrays_in_both_orders(orders):
    drawn = [masked.drawn(seed, (5, 7)) for seed in range(NRANKS)]
    whole = np.ma.stack(drawn)
    ranks = [np.ma.array(each, order=order) for each, order in zip(drawn, orders, strict=True)]
    assert "".join("FC"[each.mask.flags.c_contiguous] for each in ranks) == orders
    for op, expected in {"sum": whole.sum(axis=0), "mean": whole.mean(axis=0), "max": whole.max(axis=0)}.items():
        for jobs in (1, 2):
            masked.check(mpired.reduce(ranks, op, nulls="ignore", jobs=jobs), expected)
    propagated = mpired.reduce(ranks, "sum", nulls="propagate")
    assert np.array_equal(propagated.mask, whole.mask.any(axis=0))
    assert mpired.locate(ranks, "maxloc", nulls="ignore").value == whole.max()


RULES = [
    ("std", {"exact": True, "ddof": 1}, lambda x: np.ma.std(x, axis=0, ddof=1)),
    ("mean", {"weights": [1, 2, 3, 4]}, lambda x: np.ma.average(x, axis=0, weights=[1, 2, 3, 4])),
    ("sum", {"exact": True}, lambda x: x.sum(axis=0)),
    ("rms", {}, lambda x: np.ma.sqrt((x**2).mean(axis=0))),
    ("sum", {"accumulate_in": "longdouble"}, lambda x: x.sum(axis=0)),
    ("range", {"nan": "ignore"}, lambda x: x.max(axis=0) - x.min(axis=0)),
    ("prod", {}, lambda x: x.prod(axis=0)),
    ("max", {}, lambda x: x.max(axis=0)),
    ("min", {}, lambda x: x.min(axis=0)),
    ("median", {}, lambda x: np.ma.median(x, axis=0)),
    ("absmax", {"missing": 3}, lambda x: np.ma.abs(np.ma.masked_equal(x, 3)).max(axis=0)),
]


@pytest.mark.usefixtures("in_small_blocks")
def test_other_rules_go_together_with_it(tmp_path):
    numbers = np.ma.MaskedArray([masked.drawn(seed, (COUNT,)) for seed in range(NRANKS)])
    pages = {"data_page_version": "2.0", "data_page_size": 64, "compression": "zstd"}
    paths = written(tmp_path, numbers, "parquet", 90, **pages)
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
    for name, column in (("a", [-5, 7, None]), ("b", [-3, None, None])):
        kinds = {"n": pa.int32(), "t": pa.timestamp("us")}
        write(tmp_path / f"{name}.parquet", pa.table({key: pa.array(column, kind) for key, kind in kinds.items()}))
    return tmp_path


def test_nulls_as_text(two):
    head = '{"buffers": [\n{"name": "n", "datatype": "MPI_INT32_T", "dtype": "int32", "count": 3, '
    texts = {
        "csv": 'n\n-8\n7\n""\n',
        "json": head + '"data": [\n-8,\n7,\nnull]}\n]}\n',
        "text": "-8\n7\nnull\n",
        "table": "element     n\n      0    -8\n      1     7\n      2  null\n",
    }
    words = ("reduce", "-q", "--op", "sum", "--nulls", "ignore", "--columns", "n", "a.parquet", "b.parquet")
    for to, content in texts.items():
        outcome = run(*words, "--to", to, cwd=two)
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


@pytest.mark.usefixtures("in_small_blocks")
def test_a_null_does_not_overflow(tmp_path, recwarn):
    numbers, missing = np.array([[100, 100], [100, 0], [1, 100], [-127, 100]], "i1"), [[0, 0], [0, 1], [0, 0], [0, 0]]
    paths = written(tmp_path, np.ma.MaskedArray(numbers, missing), "arrow", 37)
    assert mpired.reduce(paths[1:], "sum", nulls="propagate").tolist() == [-26, None]
    assert not recwarn.list
    with pytest.warns(mpired.errors.OverflowWarning, match="once, first in element 0 with rank 1"):
        assert mpired.reduce(paths[:2], "sum", nulls="propagate").tolist() == [-56, None]


def test_pairs_of_tables(tmp_path):
    """A structure that may be null has two arrays, too; without nulls HDF5 keeps it."""
    kind = pa.struct([("v", "f8"), ("i", "i4")])
    for i, pairs in enumerate(([(1.0, 1), None, None], [(3.0, 2), (2.0, 5), None])):
        column = pa.array([None if each is None else dict(zip("vi", each, strict=True)) for each in pairs], kind)
        pq.write_table(pa.table({"p": column}), tmp_path / f"{i}.parquet")
    for out in ("out.nc", "out.h5"):
        words = ("reduce", "-q", "--op", "maxloc", "--nulls", "ignore", "0.parquet", "1.parquet", "-o", out)
        assert run(*words, cwd=tmp_path).status == 0
        with netCDF4.Dataset(tmp_path / out) as file:
            assert file["p"][...].tolist() == [3, 2, None]
            assert file["p_index"][...].tolist() == [2, 5, None]


@pytest.mark.parametrize("form", ["3.nc", "h5"])
def test_missing_pairs_are_an_error_without_nulls(form, tmp_path):
    t, i = masked.drawn(1, (5,), "f4"), masked.drawn(2, (5,), "i4")
    masked.write(tmp_path / f"p.{form}", t=t, i=i)
    words = f"reduce --op maxloc --pair t,i p.{form}"
    check_refused(tmp_path, words, 3, "'t,i' has", "missing elements; skip them with --nulls ignore")
    mpired.reduce([tmp_path / f"p.{form}"], "maxloc", pair="t,i", nulls="ignore", output=tmp_path / "o.csv")
    found = (tmp_path / "o.csv").read_text().splitlines()[1:]
    assert [each in {"", '"",""', ","} for each in found] == (t.mask | i.mask).tolist(), found
    words = ("--op", "maxloc,count", "--pair", "t,i", "--nulls", "ignore", f"p.{form}", "--count-valid", f"n.{form}")
    assert run("reduce", "-q", *words, "-o", f"o.{form}", cwd=tmp_path).status == 0
    with netCDF4.Dataset(tmp_path / f"o.{form}") as both, netCDF4.Dataset(tmp_path / f"n.{form}") as counts:
        assert {*both.variables, *counts.variables} - {"x"} == {"t_maxloc", "i_maxloc", "t_count", "t"}


def test_pairs_of_two_arrays_become_two_arrays(tmp_path):
    for rank in range(2):
        np.savez(tmp_path / f"{rank}.npz", v=np.arange(3.0) * (-1) ** rank, i=np.full(3, rank))
    for first, *place in (("0.npz", "-o", "out.npz"), ("out.npz", "--in-place")):  # the result is a rank again
        words = ("-q", "--op", "maxloc", "--pair", "v,i", first, "1.npz", *place)
        assert run("reduce", *words, cwd=tmp_path).status == 0
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {"v": [0, 1, 2], "i": [0, 0, 0]}


@each("form, call, nulls", [
    ("parquet", "reduce-local", "ignore"), ("arrow", "scan", "propagate"), ("3.nc", "reduce", "propagate"),
    ("3.nc", "reduce-local", "ignore"), ("4.nc", "allreduce", "ignore"), ("h5", "reduce-local", "propagate"),
    ("h5", "exscan", "ignore"), ("2.zarr.zip", "reduce-local", "ignore"), ("3.zarr.zip", "reduce", "ignore"),
])  # fmt: skip
def test_results_go_back_as_missing(form, call, nulls, tmp_path_factory):
    folder, shape = tmp_path_factory.mktemp("in_place"), (12,) if form in masked.TABLES else (3, 4)
    ranks = [masked.drawn(seed, shape, "i4" if form == "h5" else "f8") for seed in range(2)]
    names = [masked.write(folder / f"{i}.{form}", t=array) for i, array in enumerate(ranks)]
    whole, first = reduced(ranks, nulls), reduced(ranks[:1], nulls)
    results = {
        "reduce": [whole, ranks[1]], "reduce-local": [ranks[0], whole], "allreduce": [whole, whole],
        "scan": [first, whole], "exscan": [ranks[0], first],
    }  # fmt: skip
    place = () if call == "reduce-local" else ("--in-place",)
    outcome = run(call, "-q", "--op", "sum", "--nulls", nulls, *place, *map(str, names), cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    for name, expected in zip(names, results[call], strict=True):
        masked.check(masked.read(name, "t"), expected)


@pytest.mark.filterwarnings("error")
def test_pairs_of_half_precision_give_no_warning():
    ranks = [np.ma.MaskedArray([[1, 2]], [[0, 1]], "f2"), np.ma.MaskedArray([[0, 3]], [[0, 0]], "f2")]
    found = mpired.reduce(ranks, "maxloc", index="rank", nulls="ignore")
    assert np.ma.getdata(found).tolist() == [[(1, 0), (3, 1)]]


def test_values_that_stand_for_missing_ones(tmp_path):
    for name, array in (("a", [1, -9, -9]), ("b", [5, 7, -9])):
        np.save(tmp_path / f"{name}.npy", np.array(array, "i4"))
    mpired.reduce_local(tmp_path / "a.npy", tmp_path / "b.npy", "sum", missing=-9)
    assert np.load(tmp_path / "b.npy").tolist() == [6, 7, -9]
    masked.write(tmp_path / "n.parquet", x=np.ma.MaskedArray([1, 2, 3], [1, 0, 1], "i4"))
    words = "reduce-local --op sum --nulls propagate n.parquet b.npy"
    check_refused(tmp_path, words, 2, "--nulls propagate", "npy has no value", "say with --missing")
    succeeded(run(*words.split(), "-q", "--missing", "-9", cwd=tmp_path))
    assert np.load(tmp_path / "b.npy").tolist() == [-9, 9, -9]
