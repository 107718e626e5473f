"""Sums that are rounded once, and sums in wider datatypes, against fractions and `math.fsum`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from statistics_twins import reduced

import mpired
from mpired.errors import OverflowWarning, ResultOverflowError

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


def test_an_exact_mean_has_all_digits_of_integers():
    """Python's integers have as many digits as they need."""
    for large in (2**53 + 1, 2**62 + 1):
        ranks = np.array([[large, 7 - large], [large, large], [-2 * large + 2, 1]], "i8")
        assert reduced(ranks, "mean", exact=True).tolist() == [sum(column) / 3 for column in ranks.T.tolist()]


# Wider datatypes


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


def test_a_mean_keeps_the_sign_of_zero():
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([-0.0])] * 2, "mean", nan="ignore")[0]) == "-0.0"
    assert str(mpired.reduce([np.array([np.nan]), np.array([-0.0])], "mean", nan="ignore")[0]) == "-0.0"
