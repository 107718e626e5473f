"""Sums that are rounded once: the exact sum of the ranks, to the nearest number, whatever their order.

Of each element a few numbers are kept whose exact sum is that of the ranks. A number is added to the first of them,
the error of that to the second, and so on: these errors are numbers themselves (Knuth, The Art of Computer
Programming, volume 2, 4.2.2, theorem B). A sum that four numbers cannot hold, because it spans more than about 200
binary digits or comes near overflow, is made in Python's integers from the ranks' elements, which are read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fractions import Fraction

PARTS = 4
# Sums of numbers up to this, and of up to 2**60 of them, do not overflow.
_LARGEST = 2.0**900


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
    """Return the forms of the planes for sums in a form."""
    # The sum of elements that are not finite; whether the parts do not hold the exact sum; and the parts.
    return [form, np.dtype((np.bool_, form.shape)), *[form] * PARTS]


def add(planes: list[np.ndarray], numbers: np.ndarray) -> None:
    """Add a number to each sum."""
    special, hard, *_ = planes
    if not (numbers.max(initial=0) <= _LARGEST and numbers.min(initial=0) >= -_LARGEST):  # or there is a NaN
        usual = np.abs(numbers) <= _LARGEST
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
    """Return the sums of terms, rounded once to a form; a sum of zero is +0."""
    # Where the parts do not hold an exact sum it is made of the terms.
    special, hard, *parts = planes
    if any(part.any() for part in parts[2:]):
        for _ in range(PARTS - 1):
            parts = _swept(parts)
        total, (first, second) = parts[0], _remainders(parts[1:])
        hard = hard | (total + first != total) | (first + second != first)
    else:
        total, first = two_sum(parts[0], parts[1])
        second = parts[2]
    total = _odd(total, first) if form.itemsize < total.itemsize else _nearest(total, first, second)
    finite = special == 0
    hard &= finite
    if hard.any():
        total[hard] = [_to_float(each, odd=form.itemsize < total.itemsize) for each in _exactly(terms, hard)]
    return np.where(finite, total + 0.0, special).astype(form)


def _exactly(terms: Iterable[np.ndarray], chosen: np.ndarray) -> Sequence[Fraction]:
    """Return the exact sums of the terms of some elements."""
    from fractions import Fraction  # noqa: PLC0415 - it takes time to load, and few sums need it

    totals = [Fraction(0)] * int(np.count_nonzero(chosen))
    for term in terms:
        totals = [total + Fraction(number) for total, number in zip(totals, term[chosen].tolist(), strict=True)]
    return totals


def _swept(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return parts with the same sum, the first of them nearer to it."""
    swept = []
    running = parts[-1]
    for part in reversed(parts[:-1]):
        running, error = two_sum(part, running)
        swept.append(error)
    return [running, *reversed(swept)]


def _remainders(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first number of each element that is not 0, and the next one."""
    first, second = (np.zeros_like(parts[0]) for _ in range(2))
    for part in parts:
        second = np.where((first != 0) & (second == 0), part, second)
        first = np.where(first == 0, part, first)
    return first, second


def _nearest(total: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the nearest number to a sum: where `first` is half a unit in the last place, `second` decides."""
    twice = first * 2
    other = total + twice
    return np.where((first * np.sign(second) > 0) & (other - total == twice), other, total)


def _odd(total: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Return sums rounded to odd, which are rounded once more, to a narrower form, as if it were the first time."""
    even = (total.view(np.int64) & 1) == 0
    return np.where((rest != 0) & even, np.nextafter(total, np.copysign(np.inf, rest)), total)


def _to_float(number: Fraction, *, odd: bool) -> float:
    """Return the nearest float, or the one rounded to odd; beyond all floats infinity."""
    try:
        nearest = number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    rest = number - type(number)(nearest)
    if not odd or not rest:
        return nearest
    return float(_odd(np.array([nearest]), np.array([1.0 if rest > 0 else -1.0]))[0])
