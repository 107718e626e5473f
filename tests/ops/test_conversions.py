"""Conversions into the datatype that is computed in and out of it, against Python's integers and fractions."""

import itertools
import random
import warnings
from fractions import Fraction

import numpy as np
import pytest

import mpired
from mpired.errors import OverflowWarning, UsageError

INTEGERS = {
    f"{kind}{size}": f"{word}{8 * size}_t" for kind, word in (("i", "int"), ("u", "uint")) for size in (1, 2, 4, 8)
}
# The datatypes that can be computed in, with the digits of their numbers if they round.
WITHIN = {None: 0, "int64_t": 0, "uint64_t": 0, "double": 53, "longdouble": 64}
OPS = ("sum", "prod", "range", "absmax", "absmin")


def limits_of(code):
    bits, signed = 8 * int(code[1]), code[0] == "i"
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def held(number, code):
    """Return an integer as a datatype holds it, and whether it is another one then."""
    low, high = limits_of(code)
    wrapped = (int(number) - low) % (high - low + 1) + low
    return wrapped, wrapped != number


def rounded(number, digits):
    """Return the nearest number of so many binary digits, of two the even one."""
    number = Fraction(number)
    unit = Fraction(2) ** max(0, int(abs(number)).bit_length() - digits)
    return round(number / unit) * unit


class Computed:
    """What is computed of one element, where integers have no limit: the result, and the ranks where it overflows."""

    def __init__(self, code, within, result):
        self.element, self.digits = code, WITHIN[within]
        self.within = {"int64_t": "i8", "uint64_t": "u8"}.get(within, code)
        self.result = result

    def kept(self, number):
        """Return a number as it is computed with, and whether it is another one then."""
        return (rounded(number, self.digits), False) if self.digits else held(number, self.within)

    def steps(self, op, column):
        """Yield the numbers after each rank, and whether it overflowed there."""
        taken = [self.kept(number) for number in column]
        if op.startswith("abs"):
            magnitudes = [self.kept(abs(number)) for number, _ in taken]
            choose = max if op == "absmax" else min
            for rank, ((_, lost), (_, wrapped)) in enumerate(zip(taken, magnitudes, strict=True)):
                yield choose(number for number, _ in magnitudes[: rank + 1]), lost or wrapped
            return
        if op == "range":
            numbers = [number for number, _ in taken]
            for rank, (_, lost) in enumerate(taken):
                yield self.kept(max(numbers[: rank + 1]) - min(numbers[: rank + 1])), lost
            return
        running, lost = taken[0]
        yield running, lost
        for number, lost in taken[1:]:
            running, wrapped = self.kept(running + number if op == "sum" else running * number)
            yield running, lost or wrapped

    def __call__(self, op, column):
        """Return the result, and the ranks where it overflows, once for the elements and once for the result."""
        numbers, lost = zip(*self.steps(op, column), strict=True)
        number, wrapped = numbers[-1] if op == "range" else (numbers[-1], False)
        result, beyond = held(number, self.result)
        ranks = [rank for rank, each in enumerate(lost) if each]
        return result, ranks + [len(column) - 1] * (wrapped or beyond)


def drawn(code, nranks, count):
    """Draw integers of which many are near a limit of some datatype."""
    low, high = limits_of(code)
    near = {limit + step for each in INTEGERS for limit in limits_of(each) for step in (-1, 0, 1)} | {3, -3}
    draw = random.Random(code)
    return [draw.choices(sorted(each for each in near if low <= each <= high), k=count) for _ in range(nranks)]


def found_of(arrays, op, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverflowWarning)
        result = mpired.reduce(arrays, op, **options)
    return result.tolist(), [each.message.details for each in caught]


def difference(code, result, op, within):
    """Return how results, or what is told of them, differ from Python's integers; None if they do not."""
    ranks = drawn(code, 3, 40)
    options = {"accumulate_in": within, "result_type": INTEGERS[result]}
    results, details = found_of([np.array(rank, code) for rank in ranks], op, **options)
    columns = [Computed(code, within, result)(op, column) for column in zip(*ranks, strict=True)]
    places = [(element, rank) for element, (_, overflowed) in enumerate(columns) for rank in overflowed]
    told = [(each["count"], each["element"], each["rank"]) for each in details]
    if told != [(len(places), *place) for place in sorted(places)[:1]]:
        return f"{code} {op} in {within} as {result}: told {told}, expected {len(places)} from {sorted(places)[:1]} on"
    wrong = [
        (column, found, expected)
        for column, found, (expected, _) in zip(zip(*ranks, strict=True), results, columns, strict=True)
        if found != expected
    ]
    return f"{code} {op} in {within} as {result}: {wrong[:2]}" if wrong else None


@pytest.mark.parametrize("op", OPS)
def test_every_pair_of_integers_is_checked_against_the_bounds(op, long):
    """Results are those of integers without a limit, or it is told how often and where first they are not."""
    cases = [*itertools.product(INTEGERS, INTEGERS, WITHIN)][:: 1 if long else 7]
    differences = [difference(code, result, op, within) for code, result, within in cases]
    assert [each for each in differences if each] == []


def test_numbers_beyond_the_bounds_wrap_wherever_they_lie():
    """C does not say what floating-point numbers beyond the bounds of an integer give."""
    factors = [(-(2**31), 2**31, 2**8), (2**31, 2**31, 2**2), (2**31, 2**31, 2**10 + 1), (-1, 1, 1), (3, 5, 7)]
    for result, column, count in itertools.product(("i1", "i4", "u4", "i8", "u8"), factors, (1, 7, 33)):
        ranks = [np.full(count, number, "i8") for number in column]
        expected, lost = held(column[0] * column[1] * column[2], result)
        found, details = found_of(ranks, "prod", accumulate_in="double", result_type=INTEGERS[result])
        assert (set(found), [each["count"] for each in details]) == ({expected}, [count] * lost), (result, column)


def test_infinity_wraps_to_zero():
    found, details = found_of([np.full(9, 2**62)] * 20, "prod", accumulate_in="double", result_type="uint8_t")
    assert (found, [each["rank"] for each in details]) == ([0] * 9, [16])  # 2**1054 is the first beyond double


def test_what_stands_for_a_missing_result_fits_the_result():
    with pytest.raises(UsageError, match="300 is not a value of MPI_UINT8_T"):
        mpired.reduce([np.array([300, 1])] * 2, "sum", missing=300, result_type="uint8_t")
    assert mpired.reduce([np.array([300, 1])] * 2, "sum", missing=300, result_type="uint16_t").tolist() == [300, 2]
