"""Sums that are rounded once: the nearest number to the exact sum of the ranks, in any order.

An exact sum is represented by four numbers, its parts. A new number is added to the first part, the rounding error of
this addition to the second part, and so on: the errors are floating-point numbers (Knuth, The Art of Computer
Programming, volume 2, 4.2.2, theorem B). If four parts are too few, because the sum has more than about 200 binary
digits or is near overflow, the sum is computed with Python integers from the elements, which are read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fractions import Fraction

PARTS = 4
# Sums of 2**60 numbers up to this magnitude do not overflow.
_MAX_MAGNITUDE = 2.0**900


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sums and their errors, exactly."""
    total = a + b
    part = total - a
    error = total - part
    np.subtract(a, error, out=error)
    np.subtract(b, part, out=part)
    error += part
    return total, error


def forms(form: np.dtype) -> list[np.dtype]:
    """Return the forms of the planes of exact sums: sums of non-finite numbers, the mask of hard sums, and parts."""
    # A hard sum is not represented by its parts.
    return [form, np.dtype((np.bool_, form.shape)), *[form] * PARTS]


def add(planes: list[np.ndarray], numbers: np.ndarray) -> None:
    """Add a number to each sum."""
    special, hard, *_ = planes
    if not (
        numbers.max(initial=0) <= _MAX_MAGNITUDE and numbers.min(initial=0) >= -_MAX_MAGNITUDE
    ):  # true for NaN, too
        usual = np.abs(numbers) <= _MAX_MAGNITUDE
        finite = np.isfinite(numbers)
        special += np.where(finite, 0, numbers)
        hard |= finite & ~usual
        numbers = np.where(usual, numbers, 0)
    for i in range(len(planes) - PARTS, len(planes)):
        planes[i], numbers = two_sum(planes[i], numbers)
        if not numbers.any():
            return
    hard |= numbers != 0


def rounded(planes: Sequence[np.ndarray], form: np.dtype, terms: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sums, rounded once to a form; hard sums are computed from the terms. A sum of zero is +0."""
    special, hard, *parts = planes
    if any(part.any() for part in parts[2:]):
        for _ in range(PARTS - 1):
            parts = _renormalise(parts)
        total, (first, second) = parts[0], _remainders(parts[1:])
        hard = hard | (total + first != total) | (first + second != first)
    else:
        total, first = two_sum(parts[0], parts[1])
        second = parts[2]
    total = _odd(total, first) if form.itemsize < total.itemsize else _nearest(total, first, second)
    finite = special == 0
    hard &= finite
    if hard.any():
        is_narrower = form.itemsize < total.itemsize
        total[hard] = [_to_float(number, odd=is_narrower) for number in _fractions(terms, hard)]
    return np.where(finite, total + 0.0, special).astype(form)


def _fractions(terms: Iterable[np.ndarray], mask: np.ndarray) -> Sequence[Fraction]:
    """Return the exact sums of the masked elements of the terms."""
    from fractions import Fraction  # noqa: PLC0415 - it takes time to load, and few sums need it

    totals = [Fraction(0)] * int(np.count_nonzero(mask))
    for term in terms:
        totals = [total + Fraction(number) for total, number in zip(totals, term[mask].tolist(), strict=True)]
    return totals


def _renormalise(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return parts with the same sum, and with a first part that is nearer to the sum."""
    errors = []
    running = parts[-1]
    for part in reversed(parts[:-1]):
        running, error = two_sum(part, running)
        errors.append(error)
    return [running, *reversed(errors)]


def _remainders(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second part of each element that are not 0."""
    first, second = (np.zeros_like(parts[0]) for _ in range(2))
    for part in parts:
        second = np.where((first != 0) & (second == 0), part, second)
        first = np.where(first == 0, part, first)
    return first, second


def _nearest(total: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the nearest number to a sum of three parts, of which `first` may be half a unit in the last place."""
    twice = first * 2
    other = total + twice
    return np.where((first * np.sign(second) > 0) & (other - total == twice), other, total)


def _odd(total: np.ndarray, remainder: np.ndarray) -> np.ndarray:
    """Return sums rounded to odd, so that another rounding to a narrower form gives the nearest number."""
    even = (total.view(np.int64) & 1) == 0
    return np.where((remainder != 0) & even, np.nextafter(total, np.copysign(np.inf, remainder)), total)


def _to_float(number: Fraction, *, odd: bool) -> float:
    """Return the nearest float, or with `odd` the float rounded to odd; infinity beyond the range of floats."""
    try:
        nearest = number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    remainder = number - type(number)(nearest)
    if not odd or not remainder:
        return nearest
    return float(_odd(np.array([nearest]), np.array([1.0 if remainder > 0 else -1.0]))[0])
