"""Statistics and rules of values against scalar twins, written with Python's floats."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from command import unchanged
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statistics_twins import (
    CHOOSING,
    FLOATS,
    INTEGERS,
    TWINS,
    by_element,
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


# Results of another datatype than the elements


COUNTS = [5, 0, 44, 50, 1]


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_collective_of_results_of_another_datatype(jobs, tmp_path, engine, cut_into, monkeypatch):
    """In small blocks, and with more ranks than may be open."""
    cut_into(16 * 37)
    monkeypatch.setattr(planning, "_STATE_BLOCK_BYTES", 16 * 37)
    monkeypatch.setattr(planning, "_MAX_OPEN", 2)
    ranks = np.random.default_rng(3).integers(0, 99, (5, 100)).astype("f4")
    ranks[ranks % 3 == 0] = np.nan
    paths = [tmp_path / f"r{rank}.npy" for rank in range(5)]
    for path, each in zip(paths, ranks, strict=True):
        np.save(path, each)
    whole = np.cumsum(~np.isnan(ranks), axis=0)
    calls = {
        mpired.allreduce: ({}, [whole[-1]] * 5),
        mpired.scan: ({}, whole),
        mpired.exscan: ({}, [None, *whole[:-1]]),
        mpired.reduce_scatter: ({"counts": COUNTS}, np.split(whole[-1], np.cumsum(COUNTS)[:-1])),
        mpired.reduce_scatter_block: ({}, np.split(whole[-1], 5)),
    }
    for call, (options, expected) in calls.items():
        found = call(paths, "count", nan="ignore", jobs=jobs, **options)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None), call
            assert one is None or (one.dtype, one.tolist()) == ("i8", other.tolist()), call
    with unchanged(tmp_path):
        for call in (mpired.reduce, mpired.scan, mpired.reduce_scatter_block):
            with pytest.raises(UsageError, match=r"would put MPI_INT64_T \(int64\) in the place of MPI_FLOAT"):
                call(paths, "count", in_place=True)


def test_files_of_results_of_another_datatype(tmp_path):
    """They have the order of bytes and elements that the ranks have."""
    array = np.arange(12.0).reshape(3, 4)
    for order in "<>":
        np.save(tmp_path / "r.npy", array.astype(f"{order}f8", order="F"))
        mpired.reduce([tmp_path / "r.npy"] * 2, "count", output=tmp_path / "out.npy", overwrite=True)
        found = np.load(tmp_path / "out.npy")
        assert (found.dtype, found.flags.f_contiguous, found.tolist()) == (f"{order}i8", True, [[2] * 4] * 3)
    for order, declared in (("<", {"type": "float"}), (">", {"type": ">f4"}), (">", {"datarep": "external32"})):
        (tmp_path / "r.bin").write_bytes(array.astype(f"{order}f4").tobytes())
        options = {"type": "float", "output": tmp_path / "out.bin", "overwrite": True} | declared
        mpired.reduce([tmp_path / "r.bin"] * 2, "count", **options)
        assert (tmp_path / "out.bin").read_bytes() == np.full(12, 2, f"{order}i8").tobytes(), declared


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
