"""Missing results in formats with arrays: pairs, in two variables; and results that go back into the files."""

from __future__ import annotations

import masked
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run, succeeded
from rows import check_refused, each

import mpired


def best(ranks):
    """Return the greatest values of masked arrays, and which has them."""
    stack = np.ma.MaskedArray(ranks)
    return stack.max(axis=0), np.ma.MaskedArray(
        np.argmax(stack.filled(-1000), axis=0).astype("i4"), stack.mask.all(axis=0)
    )


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


def test_scans_and_results_in_place(tmp_path):
    ranks = [masked.drawn(seed, (6,)) for seed in range(3)]
    names = [masked.write(tmp_path / f"{i}.4.nc", t=array) for i, array in enumerate(ranks)]
    mpired.scan(names, "maxloc", index="rank", nulls="ignore", columns="t", output=tmp_path / "s{rank}.4.nc")
    for i in range(3):
        for name, expected in zip(("t", "t_index"), best(ranks[: i + 1]), strict=True):
            masked.check(masked.read(tmp_path / f"s{i}.4.nc", name), expected)
    pairs = [tmp_path / f"s{i}.4.nc" for i in range(2)]
    mpired.reduce(pairs, "maxloc", pair="t,t_index", nulls="ignore", in_place=True)
    masked.check(masked.read(pairs[0], "t_index"), best(ranks[:2])[1])


@pytest.mark.parametrize("form", ["3.nc", "h5"])
def test_missing_pairs_are_an_error_without_nulls(form, tmp_path):
    t, i = masked.drawn(1, (5,), "f4"), masked.drawn(2, (5,), "i4")
    masked.write(tmp_path / f"p.{form}", t=t, i=i)
    words = f"reduce --op maxloc --pair t,i p.{form}"
    check_refused(tmp_path, words, 3, "'t,i' has", "missing elements; skip them with --nulls ignore")
    found = mpired.reduce([tmp_path / f"p.{form}"], "maxloc", pair="t,i", nulls="ignore", output=tmp_path / "o.csv")
    found = (tmp_path / "o.csv").read_text().splitlines()[1:]
    assert [each in {"", '"",""', ","} for each in found] == (t.mask | i.mask).tolist(), found


# In place


def reduced(arrays, nulls):
    """Return the sum of masked arrays."""
    stack = np.ma.MaskedArray(arrays)
    every = stack.mask.all(axis=0) if nulls == "ignore" else stack.mask.any(axis=0)
    return np.ma.MaskedArray(stack.filled(0).sum(axis=0, dtype=stack.dtype), every)


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
