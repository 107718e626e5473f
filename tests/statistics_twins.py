"""Statistics and rules of values, written with Python's floats one number after another, and ranks to try them on."""

from __future__ import annotations

import math
import warnings

import numpy as np
from hypothesis import strategies as st

import mpired
from mpired.errors import OverflowWarning

FLOATS = ["f2", "f4", "f8"]
INTEGERS = [f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)]
BITING = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 5e-324, 1e-7, 65504.0, 3e38, 1.7e308, -1.7e308]


def reduced(ranks, op, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverflowWarning)
        return mpired.reduce(list(ranks), op, **options)


@st.composite
def ranks_of(draw, codes, *, usual=False, most=7):
    """Return a few ranks of a few elements: values that bite, or usual ones."""
    code = draw(st.sampled_from(codes))
    shape = draw(st.integers(1, most)), draw(st.integers(1, 5))
    if code[0] == "f":
        width = 8 * int(code[1])
        values = st.floats(width=width, allow_nan=not usual, allow_infinity=not usual)
        if not usual:
            values |= st.sampled_from(BITING)
    else:
        limits = np.iinfo(code)
        values = st.integers(int(limits.min), int(limits.max)) | st.sampled_from([int(limits.min), int(limits.max), 0])
    rows = draw(st.lists(st.lists(values, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]))
    with np.errstate(all="ignore"):
        return np.array(rows).astype(code)


def same(found, expected):
    """Compare bits, but those of NaNs."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    one, other = (np.where(np.isnan(each), 0, each) for each in (found, expected))
    assert (np.isnan(found) == np.isnan(expected)).all(), (found, expected)
    assert one.tobytes() == other.tobytes(), (found, expected)


def by_element(ranks, twin, code):
    """Return what a function of the numbers of each element gives, in a form."""
    with np.errstate(all="ignore"):
        return np.array([twin([each.item() for each in column]) for column in ranks.T], object).astype(code)


def number_of(ranks):
    return ranks.dtype if ranks.dtype.kind == "f" else np.dtype("f8")


# The scalar twins: Python's floats are doubles, and each step is written out


def divided(a, b):
    return math.nan if b == 0 else a / b


def mean_of(numbers):
    total, *others = map(float, numbers or [0])
    for number in others:
        total += number
    return divided(total, len(numbers))


def variance_of(numbers, ddof=0):
    mean = squares = 0.0
    for n, number in enumerate(map(float, numbers), 1):
        change = number - mean
        mean += change / n
        squares += change * (number - mean)
    return squares / (len(numbers) - ddof) if len(numbers) > ddof else math.nan


def root(number):
    return math.sqrt(number) if number >= 0 else math.nan


def rms_of(numbers):
    total = 0.0
    for number in map(float, numbers):
        total += number * number
    return root(divided(total, len(numbers)))


def quantile_of(numbers, q):
    if any(map(math.isnan, numbers)) or not numbers:
        return math.nan
    numbers = sorted(map(float, numbers))
    position = (len(numbers) - 1) * q
    below = math.floor(position)
    low, high, at = numbers[below], numbers[min(below + 1, len(numbers) - 1)], position - below
    if at == 0 or low == high:
        return low
    if math.isinf(high - low):
        return low * (1 - at) + high * at
    return low + (high - low) * at if at < 0.5 else high - (high - low) * (1 - at)


def extreme_of(choose):
    def twin(numbers):
        return math.nan if any(map(math.isnan, numbers)) or not numbers else choose(numbers)

    return twin


TWINS = {
    "mean": mean_of,
    "var": variance_of,
    "std": lambda numbers: root(variance_of(numbers)),
    "rms": rms_of,
    "median": lambda numbers: quantile_of(numbers, 0.5),
    "quantile:0.9": lambda numbers: quantile_of(numbers, 0.9),
}
CHOOSING = {
    "absmax": extreme_of(lambda numbers: max(map(abs, numbers))),
    "absmin": extreme_of(lambda numbers: min(map(abs, numbers))),
    "range": extreme_of(lambda numbers: divided_range(max(numbers), min(numbers))),
}


def divided_range(high, low):
    return math.nan if high == low and math.isinf(high) else high - low + 0
