"""Statistics and rules of values against scalar twins, written with Python's floats."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statistics_twins import (
    CHOOSING,
    FLOATS,
    INTEGERS,
    TWINS,
    by_element,
    extreme_of,
    mean_of,
    number_of,
    ranks_of,
    reduced,
    same,
    variance_of,
)

import mpired
from mpired.collectives import plan as planning
from mpired.context import BASE_NBYTES
from mpired.errors import OpError, OverflowWarning, ResultOverflowError, UnknownOpError, UsageError


@given(ranks_of([*FLOATS, *INTEGERS]), st.sampled_from(sorted(TWINS)))
@settings(max_examples=40, deadline=None)
def test_a_statistic_is_its_twin(ranks, op):
    same(reduced(ranks, op), by_element(ranks, TWINS[op], number_of(ranks)))


@given(ranks_of(FLOATS), st.sampled_from(sorted(CHOOSING)))
@settings(max_examples=40, deadline=None)
def test_what_chooses_is_its_twin(ranks, op):
    assume(op != "range" or ranks.dtype == "f8")  # of narrower numbers the twin rounds twice
    same(reduced(ranks, op), by_element(ranks, CHOOSING[op], ranks.dtype))


@given(ranks_of(FLOATS), st.sampled_from(sorted({**TWINS, **CHOOSING, "sum": 0, "max": 0, "min": 0})))
@settings(max_examples=40, deadline=None)
def test_nan_is_left_out(ranks, op):
    """The same as the twin of those that are numbers; where there is none, NaN."""
    twins = {**TWINS, **CHOOSING, "max": extreme_of(max), "min": extreme_of(min), "sum": None}
    assume(op not in {"range", "sum"} or ranks.dtype == "f8")
    twin = twins[op] or (lambda numbers: mean_of(numbers) if not numbers else left_sum(numbers))
    expected = by_element(ranks, lambda column: twin([each for each in column if not math.isnan(each)]), ranks.dtype)
    found = reduced(ranks, op, nan="ignore")
    if op in {"max", "min"}:  # zeros of both signs are equal; which of them is left is that of the op of MPI
        found, expected = found + 0.0, expected + 0.0
    same(found, expected)


def left_sum(numbers):
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total


@given(
    ranks_of(["f4", "f8", "i4", "i8"], usual=True), st.sampled_from(["sum", "max", "mean", "std", "median", "count"])
)
@settings(max_examples=40, deadline=None)
def test_a_missing_value_is_left_out(ranks, op):
    """The most frequent of a few values is missing."""
    ranks = (ranks % 3).astype(ranks.dtype)
    twins = TWINS | {"sum": left_sum, "max": max, "count": len}
    code = {"sum": ranks.dtype, "max": ranks.dtype, "count": "i8"}.get(op, number_of(ranks))

    def twin(column):
        present = [each for each in column if each != 1]
        return twins[op](present) if present or op == "count" else 1

    same(reduced(ranks, op, missing=1), by_element(ranks, twin, code))


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


@pytest.mark.parametrize("code", ["c8", "c16"])
def test_complex_numbers(code):
    ranks = np.random.default_rng(5).normal(size=(4, 10, 2)).view("c16")[..., 0].astype(code)
    wide = ranks.astype("c16")
    assert reduced(ranks, "mean").dtype == code
    np.testing.assert_allclose(reduced(ranks, "mean"), wide.mean(0), rtol=1e-6)
    for op, known in {"var": wide.var(0), "std": wide.std(0), "rms": np.sqrt((abs(wide) ** 2).mean(0))}.items():
        assert reduced(ranks, op).dtype == ranks.real.dtype
        np.testing.assert_allclose(reduced(ranks, op), known, rtol=1e-6)


def test_long_double_is_computed_in_itself():
    ranks = np.array([[1], [np.finfo("g").eps]], "g")
    assert reduced(ranks, "mean")[0] * 2 == 1 + np.finfo("g").eps


def test_first_and_last_are_of_any_type():
    ranks = np.array([[(1.5, 2)], [(np.nan, 3)]], [("value", "f8"), ("index", "i4")])
    assert reduced(ranks, "first").tolist() == [(1.5, 2)]
    assert reduced(ranks, "last", nan="ignore").tolist() == [(1.5, 2)]
    assert reduced(np.array([[True], [False]]), "last").tolist() == [False]


def test_every_partial_result_is_one(monkeypatch):
    """Scan is the statistic of so many ranks, in any blocks; and exscan the one before."""
    ranks = np.random.default_rng(2).normal(size=(5, 100))
    for op in ("mean", "std", "median", "first", "count", "rms", "absmax", "range"):
        monkeypatch.setattr(planning, "_STATE_BLOCK_BYTES", 1 << 10)
        found = mpired.scan(list(ranks), op)
        for rank, each in enumerate(found):
            assert each.tolist() == reduced(ranks[: rank + 1], op).tolist()
        assert [None if each is None else each.tolist() for each in mpired.exscan(list(ranks), op)] == [
            None,
            *(each.tolist() for each in found[:-1]),
        ]


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


@pytest.mark.parametrize(("op", "ranks", "rank"), [("range", [[100], [-100]], 1), ("absmax", [[0], [-128], [-128]], 1)])
def test_integers_that_overflow(op, ranks, rank):
    with pytest.raises(ResultOverflowError, match=f"element 0 with rank {rank}"):
        mpired.reduce(list(np.array(ranks, "i1")), op, overflow="error")


@pytest.mark.parametrize(("op", "rank"), [("mean", 2), ("rms", 0), ("var", 1)])
def test_floats_that_overflow(op, rank):
    """The first rank with which it is infinite is told; one that is infinite itself is no overflow."""
    ranks = np.array([[1e308, np.inf], [-1e308 if op == "var" else 1e307, 1], [1e308, 1]])
    with pytest.raises(ResultOverflowError, match=f"element 0 with rank {rank}"):
        mpired.reduce(list(ranks), op, overflow="error")
    with pytest.warns(OverflowWarning):
        mpired.reduce(list(ranks), op)
    mpired.reduce(list(ranks[:, 1:]), op, overflow="error")
    mpired.reduce(list(ranks), op, overflow="wrap")


# What is refused


@pytest.mark.parametrize(
    ("op", "options", "error", "reason"),
    [
        ("max", {"exact": True}, UsageError, "rounds a sum once"),
        ("median", {"accumulate_in": "double"}, UsageError, "the op is median"),
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
    ],
)
def test_rules_that_make_no_sense(op, options, error, reason):
    with pytest.raises(error, match=reason):
        mpired.reduce([np.zeros(3), np.zeros(3)], op, **options)


@pytest.mark.parametrize("missing", [1.5, 300, -1, math.inf])
def test_a_missing_value_that_no_element_has(missing):
    with pytest.raises(UsageError, match="no element is equal"):
        mpired.reduce([np.zeros(3, "u1"), np.zeros(3, "u1")], "sum", missing=missing)


def test_nan_as_the_missing_value_is_left_out():
    assert mpired.reduce([np.array([1.0]), np.array([math.nan])], "sum", missing=math.nan).tolist() == [1]


def test_an_exact_sum_of_integers_is_no_other():
    with pytest.raises(OpError, match="leave `exact` out"):
        mpired.reduce([np.zeros(3, "i4")], "sum", exact=True)


def test_statistics_of_a_window(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    with pytest.raises(OpError, match="reductions only"):
        mpired.Window(tmp_path / "t.npy").accumulate(np.ones(3), "mean")


# Blocks and workers


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("mean", {}),
        ("std", {"exact": True}),
        ("sum", {"exact": True}),
        ("sum", {"nan": "ignore"}),
        ("median", {"nan": "ignore"}),
        ("max", {"missing": 1}),
        ("max", {"nan": "mpi"}),
    ],
)
def test_blocks_and_workers_do_not_show(tmp_path, monkeypatch, op, options):
    ranks = np.random.default_rng(8).normal(size=(6, 600)) * 10.0 ** np.arange(-150, 150, 0.5)
    ranks[ranks > 1e140] = np.nan
    ranks[:, ::7] = 1
    for rank, each in enumerate(ranks):
        np.save(tmp_path / f"r{rank}.npy", each)
    paths = [str(tmp_path / f"r{rank}.npy") for rank in range(6)]
    expected = reduced(ranks, op, **options)
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    monkeypatch.setattr(planning, "_STATE_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(planning, "_STATE_COUNT", 3)
    monkeypatch.setattr(planning, "_BLOCK_BYTES", 1 << 10)
    for jobs in (1, 3):
        same(reduced(paths, op, jobs=jobs, **options), expected)


def test_a_median_needs_memory_for_all_ranks(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros(1))
    paths, allowed = [tmp_path / "r.npy"] * 400, BASE_NBYTES + (24 << 10)
    assert mpired.reduce(paths, "sum", max_memory=allowed).tolist() == [0]
    with pytest.raises(UsageError, match=r"too little, one process needs \d+M"):
        mpired.reduce(paths, "median", max_memory=allowed)


def test_times_that_are_none_are_left_out():
    ranks = np.array([["2020-01-01", "NaT", "NaT"], ["2021-01-01", "2021-01-01", "NaT"]], "M8[s]")
    assert reduced(ranks, "min", nan="ignore").astype(str).tolist() == [
        "2020-01-01T00:00:00",
        "2021-01-01T00:00:00",
        "NaT",
    ]
    assert reduced(ranks, "count", nan="ignore").tolist() == [2, 1, 0]
    assert np.isnat(reduced(ranks, "min")).tolist() == [False, True, True]


# How many ranks have a value


@pytest.mark.parametrize("op", ["sum", "mean", "median"])
@pytest.mark.parametrize("suffix", ["npy", "bin", "csv"])
def test_valid_elements_are_counted(tmp_path, op, suffix):
    ranks = np.random.default_rng(8).normal(size=(4, 50))
    ranks[ranks > 1] = np.nan
    out, counts = tmp_path / f"out.{suffix}", tmp_path / f"n.{suffix}"
    mpired.reduce(list(ranks), op, nan="ignore", output=out, count_valid=counts)
    expected = (~np.isnan(ranks)).sum(0)
    if suffix == "csv":
        assert [int(line) for line in counts.read_text().split()[1:]] == expected.tolist()
    else:
        found = np.load(counts) if suffix == "npy" else np.fromfile(counts, "i8")
        assert (found.dtype, found.tolist()) == ("i8", expected.tolist())
        result = np.load(out) if suffix == "npy" else np.fromfile(out, "f8")
        same(result, reduced(ranks, op, nan="ignore"))


def test_counts_go_with_the_results_of_several_ranks(tmp_path):
    ranks = np.where(np.eye(3, 5) > 0, np.nan, 1.0)
    mpired.scan(
        list(ranks), "sum", nan="ignore", output=str(tmp_path / "s{rank}.npy"), count_valid=tmp_path / "n{rank}.npy"
    )
    for rank in range(3):
        expected = (~np.isnan(ranks[: rank + 1])).sum(0)
        assert np.load(tmp_path / f"n{rank}.npy").tolist() == expected.tolist()
    with pytest.raises(UsageError, match="beside the result"):
        mpired.reduce(list(ranks), "sum", count_valid=tmp_path / "n.npy")
    with pytest.raises(UsageError):
        mpired.reduce(list(ranks), "sum", output=tmp_path / "n.npy", count_valid=tmp_path / "n.npy")
    assert not (tmp_path / "n.npy").exists()


# Windows


@pytest.mark.parametrize(
    ("op", "nan", "expected"),
    [
        ("sum", "ignore", [3, 3, math.nan, 4]),
        ("max", "ignore", [2, 3, math.nan, 4]),
        ("min", "propagate", [1, math.nan, math.nan, math.nan]),
        ("max", "mpi", [2, 3, math.nan, math.nan]),  # as MPICH has it: the kernel's lower operand is the origin
    ],
)
def test_nan_in_a_window(tmp_path, op, nan, expected):
    target = tmp_path / "t.npy"
    np.save(target, [1, math.nan, math.nan, 4])
    mpired.Window(target).accumulate(np.array([2, 3, math.nan, math.nan]), op, nan=nan)
    assert repr(np.load(target).tolist()) == repr(np.array(expected, float).tolist())


@pytest.mark.parametrize("share", [0.05, 0.6])
@pytest.mark.parametrize("op", ["median", "mean", "max", "sum"])
def test_few_or_many_nans_left_out(tmp_path, op, share):
    rng = np.random.default_rng(5)
    ranks = rng.integers(-50, 50, (4, 200)).astype("f8")
    ranks[rng.random(ranks.shape) < share] = np.nan
    ranks[0, np.isnan(ranks).all(axis=0)] = 1
    for i, rank in enumerate(ranks):
        np.save(tmp_path / f"r{i}.npy", rank)
    found = mpired.reduce(sorted(tmp_path.glob("r?.npy")), op=op, nan="ignore")
    np.testing.assert_array_equal(found, getattr(np, f"nan{op}")(ranks, axis=0))
