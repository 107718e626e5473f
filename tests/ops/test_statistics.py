"""Statistics, exact sums and rules of values, against Python's floats, fractions and `statistics`, and NumPy."""

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mpired
from mpired.collectives import plan as planning
from mpired.context import BASE_NBYTES
from mpired.errors import OpError, OverflowWarning, ResultOverflowError, UnknownOpError, UsageError


def reduced(ranks, op, **options):
    return mpired.reduce(list(ranks), op, **options)


def variance_of(numbers, ddof):
    """Return the variance by Welford's steps, in Python's floats."""
    mean = squares = 0.0
    for n, number in enumerate(map(float, numbers), 1):
        change = number - mean
        mean += change / n
        squares += change * (number - mean)
    return squares / (len(numbers) - ddof) if len(numbers) > ddof else math.nan


def test_degrees_of_freedom():
    draw = np.random.default_rng(1)
    for code, ddof, nranks in itertools.product(("f8", "i4"), range(4), (1, 2, 3, 7)):
        ranks = (draw.normal(size=(nranks, 50)) * 1e6).astype(code)
        expected = [variance_of(column, ddof) for column in ranks.T.tolist()]
        np.testing.assert_array_equal(reduced(ranks, "var", ddof=ddof), expected, f"{code} {ddof} {nranks}")


def test_they_are_those_of_the_library():
    """Within rounding, those of Python's statistics and of NumPy; of integers as of doubles."""
    for code, rtol in {"f8": 1e-14, "f4": 1e-6, "f2": 2e-3, "i4": 1e-14, "u1": 1e-14}.items():
        ranks = np.random.default_rng(5).normal(100, 20, (9, 50)).astype(code)
        wide = ranks.astype("f8")
        columns = wide.T.tolist()
        twins = {"mean": "fmean", "var": "pvariance", "std": "pstdev", "median": "median"}
        expected = {op: [getattr(statistics, name)(column) for column in columns] for op, name in twins.items()}
        expected |= {"absmax": abs(wide).max(0), "absmin": abs(wide).min(0), "range": np.ptp(wide, axis=0)}
        expected |= {f"quantile:{q}": np.quantile(wide, q, axis=0) for q in (0, 0.25, 0.9, 1)}
        expected |= {"rms": np.sqrt((wide**2).mean(0))}
        for op, known in expected.items():
            np.testing.assert_allclose(reduced(ranks, op), known, rtol, err_msg=f"{op} {code}")
        sample = [statistics.stdev(column) for column in columns]
        np.testing.assert_allclose(reduced(ranks, "std", ddof=1), sample, rtol, err_msg=code)


def test_complex_numbers():
    for code in "c8", "c16":
        ranks = np.random.default_rng(5).normal(size=(4, 10, 2)).view("c16")[..., 0].astype(code)
        wide, real = ranks.astype("c16"), ranks.real.dtype
        rms = np.sqrt((abs(wide) ** 2).mean(0))
        rows = ("mean", code, wide.mean(0)), ("var", real, wide.var(0)), ("std", real, wide.std(0)), ("rms", real, rms)
        for op, form, known in rows:
            assert reduced(ranks, op).dtype == form, op
            np.testing.assert_allclose(reduced(ranks, op), known, rtol=1e-6)


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


def test_integers_that_overflow():
    for op, ranks in ("range", [[100], [-100]]), ("absmax", [[0], [-128], [-128]]):
        with pytest.raises(ResultOverflowError, match="element 0 with rank 1"):
            mpired.reduce(list(np.array(ranks, "i1")), op, overflow="error")


def test_a_mean_keeps_the_sign_of_zero():
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean", nan="ignore")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([np.nan]), np.array([-0.0])], "mean", nan="ignore")[0]) == "-0.0"


def test_a_median_needs_memory_for_all_ranks(tmp_path):
    np.save(tmp_path / "r.npy", np.zeros(1))
    paths, allowed = [tmp_path / "r.npy"] * 400, BASE_NBYTES + (24 << 10)
    assert mpired.reduce(paths, "sum", max_memory=allowed).tolist() == [0]
    with pytest.raises(UsageError, match=r"too little, one process needs \d+M"):
        mpired.reduce(paths, "median", max_memory=allowed)


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
        assert reduced(paths, op, jobs=1, **options).tobytes() == each.tobytes(), op
        if number % 2 == 0:
            assert reduced(paths, op, jobs=3, **options).tobytes() == each.tobytes(), op


@st.composite
def numbers(draw):
    """Return numbers over 600 decades, with some that cancel, subnormal ones and infinities."""
    parts = draw(st.lists(st.tuples(st.floats(-1, 1), st.integers(-1070, 1023)), min_size=1, max_size=9))
    found = [math.ldexp(number, scale) for number, scale in parts]
    found += [-each for each in found[: draw(st.integers(0, len(found)))]]
    found += draw(st.lists(st.sampled_from([5e-324, -5e-324, 1.7e308, -1.7e308, 2.0**53, 1.0, 2.0**-54]), max_size=4))
    return draw(st.permutations(found))


def fsum(column):
    """Return the sum, rounded once; also where what `math.fsum` adds first overflows."""
    try:
        return math.fsum(column)
    except OverflowError:
        total = sum(map(Fraction, column))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


@given(numbers())
@settings(max_examples=100, deadline=None)
@example([1.0, 2.0**-53, 2.0**-106])
@example([1.0, 2.0**-53, -(2.0**-106)])
@example([2.0**53, 1.0, 2.0**-1000])
@example([1.7e308, 1.7e308, -1.7e308])
def test_an_exact_sum_is_rounded_once(column):
    ranks = np.array(column)[:, np.newaxis]
    assert reduced(ranks, "sum", exact=True).tolist() == [fsum(column)]
    assert reduced(ranks[::-1], "sum", exact=True).tolist() == [fsum(column)]


def test_an_exact_mean_has_all_digits_of_integers():
    """Python's integers have as many digits as they need."""
    for large in (2**53 + 1, 2**62 + 1):
        ranks = np.array([[large, 7 - large], [large, large], [-2 * large + 2, 1]], "i8")
        assert reduced(ranks, "mean", exact=True).tolist() == [sum(column) / 3 for column in ranks.T.tolist()]


def test_narrow_numbers_are_rounded_once():
    """A double has all digits of sums of a few numbers of like magnitude."""
    for code in ("f2", "f4"):
        ranks = np.random.default_rng(3).uniform(0.5, 100, (20, 200)).astype(code)
        expected = np.array([math.fsum(column) for column in ranks.T.tolist()]).astype(code)
        assert reduced(ranks, "sum", exact=True).tolist() == expected.tolist()
        assert reduced(ranks, "sum").tolist() != expected.tolist()


def test_integers_are_counted_in_a_wider_type():
    masks = np.ones((300, 3), "i1")
    with pytest.warns(OverflowWarning, match="rank 299"):
        assert mpired.reduce(list(masks), "sum", accumulate_in="int64_t").tolist() == [44] * 3
    found = reduced(masks, "sum", accumulate_in="int64_t", result_type="int64_t")
    assert (found.dtype, found.tolist()) == ("i8", [300] * 3)
    with pytest.raises(ResultOverflowError, match="rank 299"):
        mpired.reduce(list(masks), "sum", accumulate_in="int64_t", overflow="error")


def test_exact_sums_that_overflow():
    for op, numbers in ("sum", [1e308, 1e308]), ("mean", [1e308, 1e308]), ("std", [1e200, -1e200]):
        ranks = [np.array([number, 1]) for number in numbers]
        with pytest.raises(ResultOverflowError, match="element 0 with rank 1"):
            mpired.reduce(ranks, op, exact=True, overflow="error")
        ranks[0][0] = np.inf
        mpired.reduce(ranks, op, exact=True, overflow="error")


SENSELESS = [
    ("first", {"result_type": "double"}, UsageError, "the op is first"),
    ("mean", {"weights": [1]}, UsageError, "has 1 value for 2 ranks"),
    ("mean", {"weights": [1, 2], "exact": True}, UsageError, "weighted"),
    ("mean", {"weights": "1,2"}, UsageError, "is one text"),
    ("mean", {"weights": [1, -1]}, UsageError, "add up to 0"),
    ("mean", {"weights": [1e308, 1e308]}, UsageError, "add up to more than a double holds"),
    ("mean", {"weights": []}, UsageError, "has no number"),
    ("mean", {"result_type": "int"}, UsageError, "would round"),
    ("median:0.5", {}, UnknownOpError, "median takes nothing"),
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
    ("quantile:0.\u0665", {}, UnknownOpError, "between 0 and 1"),
    ("sum", {"exact": True}, OpError, "leave `exact` out"),
]


def test_rules_that_make_no_sense():
    for op, options, error, reason in SENSELESS:
        ranks = np.zeros((2, 3), "i4" if error is OpError else "f8")
        with pytest.raises(error, match=reason):
            mpired.reduce(list(ranks), op, **options)
