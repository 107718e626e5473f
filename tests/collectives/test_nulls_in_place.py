"""`--nulls` with `--in-place` and reduce-local: results that are missing go back into the files as missing."""

from __future__ import annotations

import masked
import numpy as np
from command import run, succeeded
from rows import check_refused, each

import mpired


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
