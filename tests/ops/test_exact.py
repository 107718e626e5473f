"""Sums that are rounded once, and sums in wider datatypes, against fractions and `math.fsum`."""

from __future__ import annotations

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from statistics_twins import by_element, ranks_of, reduced

import mpired
from mpired.errors import OverflowWarning, ResultOverflowError, UsageError

# Exact sums

SCALES = st.integers(-1070, 1023)


@st.composite
def numbers(draw):
    """Return numbers over 600 decades, with some that cancel, subnormal ones and infinities."""
    parts = draw(st.lists(st.tuples(st.floats(-1, 1), SCALES), min_size=1, max_size=9))
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


@given(ranks_of(["f2", "f4"], usual=True, most=9))
@settings(max_examples=40, deadline=None)
def test_narrow_numbers_are_rounded_once(ranks):
    def nearest(column):
        """Return the nearest number of the form by exact distances."""
        total = sum(map(Fraction, column))
        with np.errstate(all="ignore"):
            near = np.array(float(total)).astype(ranks.dtype)
            around = [near, np.nextafter(near, near.dtype.type(-np.inf)), np.nextafter(near, near.dtype.type(np.inf))]
        finite = [each for each in around if np.isfinite(each)]
        if not np.isfinite(near):
            limit = Fraction(float(np.finfo(ranks.dtype).max))
            half = limit - Fraction(float(np.nextafter(np.finfo(ranks.dtype).max, ranks.dtype.type(0))))
            if abs(total) >= limit + half / 2:
                return float(near)
        best = min(abs(Fraction(float(each)) - total) for each in finite)
        ties = [each for each in finite if abs(Fraction(float(each)) - total) == best]
        even = [each for each in ties if each.view(f"u{each.itemsize}") % 2 == 0]
        return float((even if len(ties) > 1 else ties)[0])

    expected = by_element(ranks, nearest, ranks.dtype) + ranks.dtype.type(0)
    assert reduced(ranks, "sum", exact=True).tolist() == expected.tolist()


def test_infinities_and_nans_go_through_an_exact_sum():
    inf, nan = math.inf, math.nan
    ranks = np.array([[inf, inf, 1, nan], [1, -inf, -inf, 1e300], [1e300, 0, 1, inf]])
    assert repr(reduced(ranks, "sum", exact=True).tolist()) == repr([inf, nan, -inf, nan])
    assert reduced(ranks, "sum", exact=True, nan="ignore").tolist()[3] == inf


@given(ranks_of(["f8", "i8", "u8"], usual=True))
@settings(max_examples=40, deadline=None)
def test_an_exact_mean_is_the_exact_sum_by_the_number(ranks):
    ranks = ranks if ranks.dtype.kind != "f" else np.clip(ranks, -1e300, 1e300)
    expected = by_element(ranks, lambda column: float(sum(map(Fraction, column))) / len(column), "f8")
    assert reduced(ranks, "mean", exact=True).tolist() == expected.tolist()


def test_an_exact_mean_has_all_digits_of_integers():
    """Python's integers have as many digits as they need."""
    for large in (2**53 + 1, 2**62 + 1):
        ranks = np.array([[large, 7 - large], [large, large], [-2 * large + 2, 1]], "i8")
        assert reduced(ranks, "mean", exact=True).tolist() == [sum(column) / 3 for column in ranks.T.tolist()]


def test_an_exact_variance_is_of_any_order():
    ranks = np.random.default_rng(7).normal(1e6, 1, (12, 40))
    found = reduced(ranks, "var", exact=True, ddof=1)
    assert found.tolist() == reduced(ranks[::-1], "var", exact=True, ddof=1).tolist()
    np.testing.assert_allclose(found, [statistics.variance(column.tolist()) for column in ranks.T], rtol=1e-9)
    assert reduced(ranks, "std", exact=True, ddof=1).tolist() == np.sqrt(found).tolist()


# Wider datatypes


def test_integers_are_counted_in_a_wider_type():
    masks = np.ones((300, 3), "i1")
    with pytest.warns(OverflowWarning, match="rank 299"):
        assert mpired.reduce(list(masks), "sum", accumulate_in="int64_t").tolist() == [44] * 3
    found = reduced(masks, "sum", accumulate_in="int64_t", result_type="int64_t")
    assert (found.dtype, found.tolist()) == ("i8", [300] * 3)
    with pytest.raises(ResultOverflowError, match="rank 299"):
        mpired.reduce(list(masks), "sum", accumulate_in="int64_t", overflow="error")


def test_a_result_is_converted_to_any_type():
    """Of what is computed in the datatype of the elements."""
    forms = {"int16_t": "i2", "int64_t": "i8", "float": "f4", "double": "f8"}
    for code, (result, form) in itertools.product(("i1", "i4", "f4", "f8"), forms.items()):
        ranks = np.array([[1, 2, -3, 4], [10, 20, 3, 4]], code)
        expected = {"sum": ranks[0] + ranks[1], "prod": ranks[0] * ranks[1], "range": np.ptp(ranks, 0)}
        for op, numbers in (expected | {"absmax": abs(ranks).max(0)}).items():
            if code[0] == "f" and "int" in result:
                with pytest.raises(UsageError, match="would round"):
                    mpired.reduce(list(ranks), op, result_type=result)
                continue
            found = mpired.reduce(list(ranks), op, result_type=result)
            assert (found.dtype, found.tolist()) == (form, numbers.tolist()), (code, op)


def test_exact_sums_that_overflow():
    for op, numbers in ("sum", [1e308, 1e308]), ("mean", [1e308, 1e308]), ("std", [1e200, -1e200]):
        ranks = [np.array([number, 1]) for number in numbers]
        with pytest.raises(ResultOverflowError, match="element 0 with rank 1"):
            mpired.reduce(ranks, op, exact=True, overflow="error")
        ranks[0][0] = np.inf
        mpired.reduce(ranks, op, exact=True, overflow="error")


def test_a_mean_keeps_the_sign_of_zero():
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean", nan="ignore")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([np.nan]), np.array([-0.0])], "mean", nan="ignore")[0]) == "-0.0"


def test_floats_are_converted_once():
    for code, (op, combine) in itertools.product(("f2", "f4"), (("sum", np.add), ("prod", np.multiply))):
        ranks = np.random.default_rng(1).uniform(0.5, 1.5, (50, 20)).astype(code)
        wide = combine.accumulate(ranks.astype("f8"))[-1].astype(code).tolist()
        assert reduced(ranks, op, accumulate_in="double").tolist() == wide, (op, code)
        assert reduced(ranks, op).tolist() != wide, (op, code)
