"""Statistics and rules of values against scalar twins, written with Python's floats."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statistics_twins import by_element, ranks_of, reduced, same, variance_of

import mpired
from mpired.collectives import plan as planning
from mpired.context import BASE_NBYTES
from mpired.errors import OpError, ResultOverflowError, UnknownOpError, UsageError


@given(ranks_of(["f8", "i4"], usual=True), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_degrees_of_freedom(ranks, ddof):
    same(reduced(ranks, "var", ddof=ddof), by_element(ranks, lambda column: variance_of(column, ddof), "f8"))


def test_they_are_those_of_the_library():
    """Within rounding, those of Python's statistics; of integers exactly what fractions give, rounded once."""
    ranks = np.random.default_rng(5).normal(3, 2, (9, 50))
    for op, known in {"mean": statistics.fmean, "var": statistics.pvariance, "std": statistics.pstdev}.items():
        np.testing.assert_allclose(reduced(ranks, op), [known(column.tolist()) for column in ranks.T], rtol=1e-14)
    np.testing.assert_allclose(reduced(ranks, "std", ddof=1), [statistics.stdev(c.tolist()) for c in ranks.T], 1e-14)
    assert reduced(ranks, "median").tolist() == [statistics.median(column.tolist()) for column in ranks.T]
    for q in (0, 0.25, 0.9, 1):
        assert reduced(ranks, f"quantile:{q}").tolist() == np.quantile(ranks, q, axis=0).tolist()


def test_complex_numbers():
    for code in "c8", "c16":
        ranks = np.random.default_rng(5).normal(size=(4, 10, 2)).view("c16")[..., 0].astype(code)
        wide, real = ranks.astype("c16"), ranks.real.dtype
        rms = np.sqrt((abs(wide) ** 2).mean(0))
        rows = ("mean", code, wide.mean(0)), ("var", real, wide.var(0)), ("std", real, wide.std(0)), ("rms", real, rms)
        for op, form, known in rows:
            assert reduced(ranks, op).dtype == form, op
            np.testing.assert_allclose(reduced(ranks, op), known, rtol=1e-6)


# Results of another datatype than the elements


# Weights


def test_weights(tmp_path):
    ranks, weights = np.random.default_rng(4).normal(size=(3, 10)), [0.5, 0.25, 2]
    expected = (0.0 + ranks[0] * 0.5 + ranks[1] * 0.25 + ranks[2] * 2) / 2.75
    assert reduced(ranks, "mean", weights=weights).tolist() == expected.tolist()
    (tmp_path / "w.txt").write_text("0.5, 0.25\n2\n")
    assert reduced(ranks, "mean", weights_from=tmp_path / "w.txt").tolist() == expected.tolist()
    holes = ranks.copy()
    holes[1] = np.nan
    expected = (0.0 + ranks[0] * 0.5 + ranks[2] * 2) / 2.5
    assert reduced(holes, "mean", weights=weights, nan="ignore").tolist() == expected.tolist()


# Rules of MPI's libraries


def test_nan_as_mpi_has_it():
    """The kernels of the libraries: `inout > in ? inout : in`, with in the lower rank's."""
    ranks = np.array([[5.0], [np.nan], [1.0]])
    assert reduced(ranks, "max", nan="mpi").tolist() == [5.0]
    assert reduced(ranks[[2, 1, 0]], "max", nan="mpi").tolist() == [5.0]
    assert np.isnan(reduced(ranks[[1, 0, 2]], "min", nan="mpi"))
    pairs = np.zeros((3, 1), [("value", "f8"), ("index", "i4")])
    pairs["value"], pairs["index"] = ranks, np.arange(3)[:, np.newaxis]
    assert reduced(pairs, "maxloc", nan="mpi").tolist() == [(1.0, 2)]
    assert reduced(pairs[::-1], "maxloc", nan="mpi").tolist() == [(5.0, 0)]
    assert reduced(pairs[[0, 2]], "maxloc", nan="mpi").tolist() == [(5.0, 0)]


# Overflow


def test_integers_that_overflow():
    for op, ranks in ("range", [[100], [-100]]), ("absmax", [[0], [-128], [-128]]):
        with pytest.raises(ResultOverflowError, match="element 0 with rank 1"):
            mpired.reduce(list(np.array(ranks, "i1")), op, overflow="error")


# What is refused


SENSELESS = [
    ("max", {"exact": True}, UsageError, "rounds a sum once"),
    ("first", {"accumulate_in": "double"}, UsageError, "the op is first"),
    ("sum", {"ddof": 1}, UsageError, "is for variances"),
    ("sum", {"weights": [1, 2]}, UsageError, "is for weighted means"),
    ("mean", {"weights": [1]}, UsageError, "has 1 value for 2 ranks"),
    ("mean", {"weights": [1, 2], "exact": True}, UsageError, "weighted"),
    ("mean", {"weights": "1,2"}, UsageError, "is one text"),
    ("mean", {"weights": [1, -1]}, UsageError, "add up to 0"),
    ("mean", {"result_type": "int"}, UsageError, "would round"),
    ("first", {"result_type": "int"}, UsageError, "leave it out"),
    ("median:0.5", {}, UnknownOpError, "median takes nothing"),
    ("max:0.5", {}, UnknownOpError, "takes nothing"),
    ("mean", {"accumulate_in": "int64_t"}, UsageError, "would round"),
    ("sum", {"accumulate_in": "int64_t"}, UsageError, "would round"),
    ("sum", {"accumulate_in": "double", "exact": True}, UsageError, "leave `accumulate_in` out"),
    ("mean", {"nan": "mpi"}, UsageError, "the op is mean"),
    ("sum", {"nan": "maybe"}, UsageError, "none of propagate, ignore, mpi"),
    ("sum", {"missing": "x"}, UsageError, "not a number"),
    ("max", {"exact": True, "missing": 0}, UsageError, "rounds a sum once"),
    ("sum", {"result_type": "double_int"}, UsageError, "not a type of real numbers"),
    ("quantile", {}, UnknownOpError, "quantile:0.9"),
    ("quantile:2", {}, UnknownOpError, "between 0 and 1"),
    ("quantile:x", {}, UnknownOpError, "between 0 and 1"),
    ("quantile:0.\u0665", {}, UnknownOpError, "between 0 and 1"),
    ("sum", {"exact": True}, OpError, "leave `exact` out"),
]


def test_rules_that_make_no_sense():
    for op, options, error, reason in SENSELESS:
        ranks = np.zeros((2, 3), "i4" if error is OpError else "f8")
        with pytest.raises(error, match=reason):
            mpired.reduce(list(ranks), op, **options)


# Blocks and workers


def test_blocks_and_workers_do_not_show(tmp_path, monkeypatch):
    ranks = np.random.default_rng(8).normal(size=(6, 600)) * 10.0 ** np.arange(-150, 150, 0.5)
    ranks[ranks > 1e140] = np.nan
    ranks[:, ::7] = 1
    paths = [tmp_path / f"r{rank}.npy" for rank in range(6)]
    for path, each in zip(paths, ranks, strict=True):
        np.save(path, each)
    cases = [("mean", {}), ("std", {"exact": True}), ("sum", {"exact": True}), ("sum", {"nan": "ignore"})]
    cases += [("median", {"nan": "ignore"}), ("max", {"missing": 1}), ("max", {"nan": "mpi"})]
    expected = [reduced(ranks, op, **options) for op, options in cases]
    for name in ("_STATE_BLOCK_BYTES", "_BLOCK_BYTES"):
        monkeypatch.setattr(planning, name, 1 << 10)
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    monkeypatch.setattr(planning, "_STATE_COUNT", 3)
    for number, ((op, options), each) in enumerate(zip(cases, expected, strict=True)):
        same(reduced(paths, op, jobs=1, **options), each)
        if number % 2 == 0:
            same(reduced(paths, op, jobs=3, **options), each)


def test_a_median_needs_memory_for_all_ranks(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros(1))
    paths, allowed = [tmp_path / "r.npy"] * 400, BASE_NBYTES + (24 << 10)
    assert mpired.reduce(paths, "sum", max_memory=allowed).tolist() == [0]
    with pytest.raises(UsageError, match=r"too little, one process needs \d+M"):
        mpired.reduce(paths, "median", max_memory=allowed)
