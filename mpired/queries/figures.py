"""The figures of a file, which `show` prints and draws, and how they are made of numbers in blocks."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.datatypes import beside
from mpired.errors import escaped
from mpired.queries.elements import are_nan, as_integers

Places: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Gives for numbers within a block where they are in the C order of the array."""
_MOST_INDICES = 1 << 20
_MOST_WINNERS = 20


class Histogram(NamedTuple):
    """The numbers in each bin."""

    # one more than bins, which have their lower edge and not the upper one; the last one has both
    edges: tuple[Any, ...]
    counts: tuple[int, ...]


class Part(NamedTuple):
    """Figures of the numbers of a buffer, or of a component of its elements."""

    name: str  # "value", or the name of the component: "index" of pairs, "real" or "imag"
    min: Any  # infinities too; None if there is no number, which NaN, NaT and nulls are not
    min_at: tuple[int, ...] | None  # the first of them in C order
    max: Any
    max_at: tuple[int, ...] | None
    mean: float | None  # exact, rounded once to a double; None without numbers, and of points in time
    nan: int  # or NaT
    infinite: int
    histogram: Histogram | None = None  # of finite numbers
    beyond: int = 0  # how many long doubles are finite and too large for a double; a histogram leaves them out

    def without(self, nulls: int) -> str:
        """Return what the histogram leaves out, in words; "" if nothing."""
        counts = (
            (nulls, "null" if nulls == 1 else "nulls"),
            (self.nan, "NaN"),
            (self.infinite, "infinite"),
            (self.beyond, "beyond a double"),
        )
        texts = [f"{count} {what}" for count, what in counts if count]
        return f"without {' and '.join([', '.join(texts[:-1]), texts[-1]] if texts[1:] else texts)}" if texts else ""


class Indices(NamedTuple):
    """The number of different indices of pairs, and the most frequent ones."""

    distinct: int  # of more than 1,048,576 only this lower bound is known
    exact: bool
    most: tuple[tuple[Any, int], ...]  # up to 20 indices, each with the number of its elements, the most frequent first


@dataclass(frozen=True)
class Figures:
    """Figures of a buffer."""

    name: str
    datatype: str
    dtype: str | None  # NumPy's name of the datatype, if there is one
    count: int
    shape: tuple[int, ...] | None
    unit: str  # that of the metadata of a column, or ""
    nulls: int  # they are among the count
    parts: tuple[Part, ...]  # one for a plain datatype, else one for each component
    indices: Indices | None  # of pairs


class Shown(NamedTuple):
    """The content of a file, in figures."""

    file: str  # its path
    format: str
    buffers: tuple[Figures, ...]

    def __repr__(self) -> str:
        """Say it on one line."""
        texts = []
        for each in self.buffers:
            first = each.parts[0]
            extremes = "" if first.min is None else f" from {first.min} to {first.max}"
            name = f"{escaped(each.name)}: " if each.name else ""
            texts.append(f"{name}{each.count} x {beside(each.datatype, each.dtype)}{extremes}")
        return f"<{self.format} file {self.file!r}: {', '.join(texts)}>"


class Plane(NamedTuple):
    """The numbers of an array of two dimensions, or of some rows and columns of a large one."""

    parts: tuple[np.ndarray, ...]  # the numbers of each component
    steps: tuple[int, int]  # of how many rows and columns one each is there
    axes: tuple[str, str]  # their names
    degrees: tuple[np.ndarray | None, ...]  # the latitudes or longitudes along each of them; None for others
    is_difference: bool  # whether its numbers are differences, drawn with one scale of colours on both sides of 0


class ExactSum:
    """A sum of finite numbers without any rounding, whatever their order: an integer times a power of two."""

    def __init__(self) -> None:
        self._total, self._exponent = 0, 0

    def add(self, values: np.ndarray) -> None:
        """Add the numbers of a block."""
        if values.dtype.kind in "iu":
            self._add(_integer_sum(values), 0)
        elif len(values):
            self._add(*_float_sum(values))

    def _add(self, total: int, exponent: int) -> None:
        if exponent < self._exponent:
            self._total <<= self._exponent - exponent
            self._exponent = exponent
        self._total += total << (exponent - self._exponent)

    def over(self, count: int) -> float:
        """Return the sum divided by a count, rounded once; infinite if a double cannot hold it."""
        try:
            return float(self._total * Fraction(2) ** self._exponent / count)
        except OverflowError:
            return math.inf if self._total > 0 else -math.inf


def _integer_sum(values: np.ndarray) -> int:
    if values.dtype.itemsize < 8:  # noqa: PLR2004 - bytes
        return int(values.sum(dtype=np.int64))
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def _float_sum(values: np.ndarray) -> tuple[int, int]:
    """Return the sum of numbers as an integer and the exponent of the power of two that multiplies it."""
    wide = values if values.dtype.char == "g" else values.astype(np.float64)
    fractions, exponents = np.frexp(wide)
    # The 53 or 64 bits of a fraction as two integers.
    scaled = np.ldexp(fractions, 32)
    upper = np.trunc(scaled)
    lower = np.ldexp(scaled - upper, 32)
    least = int(exponents.min())
    places = exponents - least
    uppers, lowers = (np.bincount(places, weights=each.astype(np.float64)) for each in (upper, lower))
    terms = (
        (int(uppers[place]) << 32) + int(lowers[place]) << int(place)
        for place in np.flatnonzero((uppers != 0) | (lowers != 0))
    )
    return sum(terms), least - 64


class Extreme(NamedTuple):
    """The minimum or the maximum, and its first place in C order."""

    value: Any
    place: int


class Statistics:
    """The figures of a component so far. NaN and NaT count for nothing else; nulls never come here."""

    def __init__(self) -> None:
        self.count = self.nan = self.infinite = 0
        self.low: Extreme | None = None
        self.high: Extreme | None = None
        self.beyond = 0
        """The number of finite long doubles that are too large for a double."""
        self.drawn: tuple[Any, Any] | None = None
        """The smallest and the largest finite number that a double can hold."""
        self._sum, self._endless = ExactSum(), 0.0  # of finite numbers, and of infinite ones

    def add(self, values: np.ndarray, places: Places) -> None:
        """Add the numbers of a block."""
        if (nans := are_nan(values)) is not None:
            there = np.flatnonzero(~nans)
            self.nan += len(values) - len(there)
            values, all_places = values[there], places

            def places(numbers: np.ndarray) -> np.ndarray:
                return all_places(there[numbers])

        if not len(values):
            return
        values = as_integers(values)
        self.count += len(values)
        self.low = _better(values, places, self.low, values.min(), operator.lt)
        self.high = _better(values, places, self.high, values.max(), operator.gt)
        if values.dtype.kind == "f":
            endless = np.isinf(values)
            self.infinite += int(endless.sum())
            with np.errstate(invalid="ignore"):
                self._endless += float(values[endless].sum())
            values = values[~endless]
        self._sum.add(values)
        if values.dtype.char == "g":
            with np.errstate(over="ignore"):
                fitting = values[np.isfinite(values.astype(np.float64))]
            self.beyond += len(values) - len(fitting)
            values = fitting
        if len(values):
            low, high = self.drawn or (values[0], values[0])
            self.drawn = min(low, values.min()), max(high, values.max())

    @property
    def mean(self) -> float | None:
        """The exact mean rounded once to a double; as the sum of infinities if there are any. None without numbers."""
        if not self.count:
            return None
        return self._endless if self.infinite else self._sum.over(self.count)


def _better(
    values: np.ndarray, places: Places, found: Extreme | None, value: Any, beats: Callable[[Any, Any], bool]
) -> Extreme:
    """Return an extreme and the first place of it, which in Fortran order may be in a later block."""
    if found is not None and beats(found.value, value):
        return found
    place = int(places(np.flatnonzero(values == value)).min())
    return found._replace(place=min(found.place, place)) if found and found.value == value else Extreme(value, place)


class Winners:
    """The frequency of each index of pairs; of too many different indices a lower bound of their number."""

    def __init__(self) -> None:
        self.indices: np.ndarray = np.empty(0)
        self.counts = np.empty(0, np.int64)
        self.exact = True

    def add(self, block: np.ndarray) -> None:
        """Add the indices of a block."""
        if not self.exact:
            return
        found, counts = np.unique(block, return_counts=True)
        merged, places = np.unique(np.concatenate([self.indices.astype(found.dtype), found]), return_inverse=True)
        self.counts = np.bincount(places, np.concatenate([self.counts, counts]), len(merged)).astype(np.int64)
        self.indices = merged
        self.exact = len(merged) <= _MOST_INDICES

    def figures(self) -> Indices:
        """Return the number of indices, and the most frequent ones if all are counted."""
        order = np.argsort(-self.counts, kind="stable")[:_MOST_WINNERS]
        most = zip(self.indices[order].tolist(), self.counts[order].tolist(), strict=True)
        return Indices(len(self.indices), self.exact, tuple(most) if self.exact else ())


class Bins:
    """Counts numbers that come by in blocks."""

    # Bins of integers are of as many whole numbers each, so that none is favoured; those of other numbers are as wide
    # as each other, as NumPy's.

    def __init__(self, low: Any, high: Any, most: int) -> None:
        self._step, self._scale = 0, 1.0
        if low.dtype.kind != "f":
            low, high = int(low), int(high)
            self._step = -(-(high - low + 1) // most)
            bins = -(-(high - low + 1) // self._step)
            self.edges: tuple[Any, ...] = tuple(low + i * self._step for i in range(bins + 1))
        else:
            self._bounds = self._float_edges(float(low), float(high), most)
            self.edges = tuple((self._bounds / self._scale).tolist())
        self._low = low
        self._counts = np.zeros(len(self.edges) - 1, np.int64)

    def _float_edges(self, low: float, high: float, most: int) -> np.ndarray:
        if low == high:
            low, high = low - 0.5, high + 0.5
        if not math.isfinite(2 * (high - low)):  # linspace may go a little beyond
            self._scale = 0.25
        low, high = low * self._scale, high * self._scale
        while True:  # there may be fewer numbers than bins between the two, or only these
            edges = np.linspace(low, high, most + 1)
            if most == 1 or np.all(np.diff(edges) > 0):
                return edges
            most //= 2

    def add(self, values: np.ndarray) -> None:
        """Count the finite numbers of a block."""
        if self._step:
            nans = are_nan(values)
            values = as_integers(values if nans is None else values[~nans])
            # The difference of two integers of 64 bits fits as one without a sign.
            offsets = values.astype(np.uint64) - np.uint64(self._low % 2**64)
            places = (offsets // np.uint64(min(self._step, 2**64 - 1))).astype(np.int64)
        else:
            with np.errstate(over="ignore"):
                doubles = values.astype(np.float64)
            finite = doubles[np.isfinite(doubles)] * self._scale
            places = np.searchsorted(self._bounds, finite, "right") - 1
        self._counts += np.bincount(np.clip(places, 0, len(self._counts) - 1), minlength=len(self._counts))

    @property
    def histogram(self) -> Histogram:
        """The histogram."""
        return Histogram(self.edges, tuple(self._counts.tolist()))
