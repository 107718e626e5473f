"""Ranks of several datatypes in one that has all their values, against NumPy."""

import gzip

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
from command import run, succeeded
from format_files import READERS, WRITERS
from rows import check_refusals, together

import mpired
from mpired.errors import DatatypeError

CODES = {"b": "?", "h": "f2", "f": "f4", "d": "f8", "i": "i4", "l": "i8", "u": "u4", "g": "g"}


def elements(code: str, rank: int) -> np.ndarray:
    numbers = (np.arange(2000) * (rank + 3) * 7919 + 17) % (2 if code == "b" else 101)
    return (numbers / (1 if code in "biul" else 4)).astype(CODES[code])


def test_each_format(tmp_path):
    """Also compressed, as a stream, and beside another format; the results of a scan are all of the wide datatype."""
    with together(tmp_path) as case:
        for form in ("npy", "parquet", "hdf5", "netcdf", "zarr"):
            with case(form) as folder:
                arrays = [elements(code, rank) for rank, code in enumerate("fdf")]
                suffix = {"hdf5": "h5", "netcdf": "nc", "zarr": "zarr.zip"}.get(form, form)
                names = [f"r{rank}.{suffix}" for rank in range(3)]
                for name, array in zip(names, arrays, strict=True):
                    (folder / name).write_bytes(WRITERS[form](array))
                words = ("--op", "sum", "--accumulate-in", "double", "-q", *names)
                for jobs in (1, 2):
                    out = f"out{jobs}.{suffix}"
                    succeeded(run("reduce", "-j", str(jobs), *words, "-o", out, cwd=folder))
                    result = READERS[form]((folder / out).read_bytes(), np.dtype("f8"))
                    assert result.dtype == np.float64
                    np.testing.assert_array_equal(result, np.sum([a.astype("f8") for a in arrays], axis=0))
                succeeded(run("scan", *words, "-o", f"s{{rank}}.{suffix}", cwd=folder))
                first = READERS[form]((folder / f"s0.{suffix}").read_bytes(), np.dtype("f8"))
                np.testing.assert_array_equal(first, arrays[0].astype("f8"))
        with case("mixed") as folder:
            f, d, h = (elements(code, rank) for rank, code in enumerate("fdh"))
            (folder / "f.npy.gz").write_bytes(gzip.compress(WRITERS["npy"](f)))
            (folder / "d.h5").write_bytes(WRITERS["hdf5"](d))
            words = ("--op", "sum", "--accumulate-in", "double", "-q", "f.npy.gz", "d.h5", "-", "-o", "out.npy")
            succeeded(run("reduce", *words, cwd=folder, stdin=WRITERS["npy"](h)))
            np.testing.assert_array_equal(np.load(folder / "out.npy"), (f.astype("f8") + d) + h)


def test_columns_match_by_name(tmp_path):
    """In another order too, of which only -v has a note; nulls are left out, and each column is of its widest type."""
    small = {"a": pa.array([1, None, 3], pa.int32()), "b": pa.array([0.5, 2, 3], pa.float32())}
    small["m"] = [True, False, True]
    large = {"m": [True, True, False], "b": pa.array([0.1, None, 3]), "a": pa.array([1 << 40, 5, None], pa.int64())}
    for name, columns in (("small.parquet", small), ("large.parquet", large)):
        pq.write_table(pa.table(columns), tmp_path / name)
    line = "reduce --op sum --nulls ignore --accumulate-in longdouble small.parquet large.parquet -f -o out.parquet"
    note = "columns match by name: some ranks have them in another order"
    assert note not in run(*line.split(), cwd=tmp_path).err
    assert note in run(*line.split(), "-v", cwd=tmp_path).err
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.schema.types == [pa.int64(), pa.float64(), pa.int64()]
    assert out.to_pydict() == {"a": [(1 << 40) + 1, 5, 3], "b": [0.1 + 0.5, 2, 6], "m": [2, 1, 1]}


def test_missing_values_have_the_precision_of_their_rank(tmp_path):
    """1e20 of a float is not that of a double, as `--missing` and as the fill value of a variable."""
    single, double = np.array([1e20, 1, 2], "f4"), np.array([1, 1e20, 2.5])
    result = mpired.reduce([single, double], op="sum", accumulate_in="double", missing=1e20)
    assert result.tolist() == [1, 1, 4.5]
    for name, array in (("s.nc", single), ("d.nc", double)):
        with netCDF4.Dataset(tmp_path / name, "w") as file:
            file.createDimension("x", 3)
            file.createVariable("t", array.dtype, ("x",), fill_value=1e20)[:] = array
    line = "reduce --op sum --nulls ignore --accumulate-in double s.nc d.nc -q -o out.nc"
    succeeded(run(*line.split(), cwd=tmp_path))
    with xarray.open_dataset(tmp_path / "out.nc") as out:
        assert out["t"].dtype == np.float64
        assert out["t"].values.tolist() == [1, 1, 4.5]


def test_a_list_with_ops_that_compute_in_no_wider_datatype():
    """These take the elements as the others have them."""
    single = elements("f", 0) / 3
    ranks = [single, single + np.random.default_rng(7).choice([0, 1e-12, -1e-12], len(single))]
    words = ["mean", "maxloc", "minloc", "first", "count"]
    results = mpired.reduce(ranks, words, index="rank", accumulate_in="double")
    wide = np.array([each.astype("f8") for each in ranks])
    for op, where in (("maxloc", wide.argmax(0)), ("minloc", wide.argmin(0))):
        np.testing.assert_array_equal(results[op]["index"], where)
        np.testing.assert_array_equal(results[op]["value"], np.choose(where, wide))
    for op, expected in (("mean", wide.sum(0) / 2), ("first", wide[0]), ("count", np.full(len(single), 2))):
        np.testing.assert_array_equal(results[op], expected)
        assert results[op].dtype == expected.dtype
        alone = mpired.reduce(ranks, op, accumulate_in="double", **({"index": "rank"} if op == "maxloc" else {}))
        np.testing.assert_array_equal(alone, results[op])
    assert mpired.reduce([np.array([True])] * 2, "first", accumulate_in="int64_t").dtype == bool
    for each in (words, "maxloc"):
        with pytest.raises(DatatypeError, match="accumulate_in='double'"):
            mpired.reduce(ranks, each, index="rank")


def test_truth_values_of_a_list(tmp_path):
    """An op that takes them gives what it gives alone, beside one that takes true as 1, also with missing ones."""
    ranks = [np.ma.MaskedArray(elements("b", rank), np.arange(2000) % (rank + 5) == 0) for rank in range(3)]
    is_one, words = np.ma.stack(ranks), ["land", "sum", "lxor", "mean", "first", "count", "last"]
    for order in (words, words[::-1]):
        done = mpired.reduce(ranks, order, accumulate_in="double", nulls="ignore", output=tmp_path / f"{order[0]}.csv")
        assert done.buffers[0]["dtype"] == "bool"
        found = mpired.reduce(ranks, order, accumulate_in="double", nulls="ignore")
        for op, wanted in (("land", is_one.all(0)), ("lxor", is_one.sum(0) % 2 == 1), ("sum", is_one.sum(0))):
            np.testing.assert_array_equal(found[op], wanted)
            assert found[op].dtype == (np.float64 if op == "sum" else bool)
        np.testing.assert_allclose(found["mean"], is_one.mean(0), rtol=1e-15)
        np.testing.assert_array_equal(found["count"], is_one.count(0))
        for op in ("land", "first", "last"):
            np.testing.assert_array_equal(found[op], mpired.reduce(ranks, op, nulls="ignore"))
    mixed = mpired.reduce([elements("b", 0), elements("i", 1)], ["sum", "land"], accumulate_in="int64_t")
    assert mixed["land"].dtype == np.int32


def test_refusals(tmp_path):
    """A loss is refused, and the way out is one that loses nothing; so is a result in the place of narrow elements."""
    for name in ("h", "f", "d", "i", "l", "u", "b", "d1", "d2", "d3"):
        np.save(tmp_path / f"{name}.npy", elements(name[0], 0))
    np.save(tmp_path / "z.npy", elements("f", 0).astype("c8"))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["t"] = elements("f", 0)
    check_refusals(tmp_path, [
        ("reduce --op sum f.npy d.npy", 3, "compute in a wider one with --accumulate-in double, or skip"),
        ("reduce --op sum f.npy d.npy d1.npy d2.npy d3.npy", 3, "4 of 5 ranks: datatype / d.npy, d1.npy, d2.npy,"),
        ("reduce --op sum i.npy l.npy", 3, "compute in a wider one with --accumulate-in int64_t, or skip"),
        ("reduce --op mean i.npy l.npy", 3, "compute in a wider one with --accumulate-in longdouble, or skip"),
        ("reduce --op mean,maxloc i.npy l.npy", 3, "with --accumulate-in longdouble and --index rank, or skip"),
        ("reduce --op sum --accumulate-in double l.npy f.npy", 3, "with --accumulate-in longdouble"),
        ("reduce --op sum --accumulate-in double f.npy z.npy", 3, "convert to one datatype, or skip"),
        ("reduce --op land i.npy b.npy", 3, "with --accumulate-in int64_t, or skip"),
        ("reduce --op land i.npy f.npy", 3, "convert to one datatype, or skip"),
        ("reduce --op sum --accumulate-in double --in-place f.npy d.npy", 2, "in the place of MPI_FLOAT"),
        ("reduce --op sum --accumulate-in double --in-place t.h5 d.npy", 2, "in the place of MPI_FLOAT"),
        ("reduce --op mean --accumulate-in int64_t b.npy b.npy", 2, "would round mean of MPI_INT64_T (int64)"),
    ])  # fmt: skip
    out = run("reduce", "-k", "--op", "sum", "f.npy", "d.npy", "f.npy", "-o", "k.npy", cwd=tmp_path)
    assert out.status == 9
    assert "1 of 3 ranks left out" in out.err
    with pytest.raises(DatatypeError, match="accumulate_in='double'"):
        mpired.reduce([np.zeros(2, "f4"), np.zeros(2)], op="sum")
