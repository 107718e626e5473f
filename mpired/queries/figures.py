"""The figures of a file, which `show` prints and draws, and how they are made of numbers in blocks."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group, beside
from mpired.datatypes.times import as_times, dtype_name
from mpired.errors import escaped
from mpired.formats import Array
from mpired.formats.array import blocks
from mpired.formats.textual import component_names
from mpired.queries.elements import are_nan, as_integers, numbers

BLOCK = 1 << 18
"""The most numbers of a block: their sums by parts of 32 bits are exact in a double."""
_BLOCK_NBYTES = 4 << 20
_MOST_INDICES = 1 << 16
_MOST_WINNERS = 20
_LAST_TIME = 2**63 - 1


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
    beyond: int = 0  # how many long doubles are finite and too large for a double; a histogram leaves them out
    histogram: Histogram | None = None  # of finite numbers

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

    distinct: int  # of more than 65,536 only this lower bound is known
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
    steps: tuple[int, ...]  # of how many rows and columns one each is there
    axes: Sequence[str]  # their names
    degrees: Sequence[np.ndarray | None]  # the latitudes or longitudes along each of them, or of each cell; else None
    is_difference: bool  # whether its numbers are differences, drawn with one scale of colours on both sides of 0


def exact_sum(values: np.ndarray) -> Fraction:
    """Return the sum of finite numbers that a double can hold, without any rounding."""
    if values.dtype.kind in "iu":
        wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
        return Fraction((int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum()))
    doubles = values.astype(np.float64)
    # Of numbers with one exponent the fractions, integers of 53 bits, are added in two halves.
    fractions, exponents = np.frexp(doubles)
    whole, least = np.ldexp(fractions, 53).astype(np.int64), int(exponents.min(initial=0))
    halves = (np.bincount(exponents - least, each.astype(np.float64)) for each in (whole >> 32, whole & 0xFFFFFFFF))
    sums = enumerate(zip(*(each.tolist() for each in halves), strict=True))
    total = sum((int(high) << 32) + int(low) << place for place, (high, low) in sums)
    rest = exact_sum((values - doubles).astype(np.float64)) if values.dtype.char == "g" else 0
    return total * Fraction(2) ** (least - 53) + rest


class _Statistics:
    """The figures of a component so far. NaN and NaT count for nothing else; nulls never come here."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.count = self.nan = self._infinite = self._beyond = 0
        self._extremes: list[tuple[Any, int] | None] = [None, None]  # minimum and maximum, and their first places
        self.drawn: tuple[Any, Any] | None = None  # the smallest and the largest finite number that a double can hold
        self._sum, self._endless = Fraction(), 0.0  # of finite doubles, and of the others

    def add(self, block: np.ndarray, start: int, valid: np.ndarray | None) -> None:
        """Add the numbers of a block whose first element is `start`, and of which only those are `valid`."""
        values = _without_nan(block)
        self.nan += len(block) - len(values)
        self.count += len(values)
        if not len(values):
            return
        for which, (value, beats) in enumerate(((values.min(), operator.lt), (values.max(), operator.gt))):
            old = self._extremes[which]
            if old is not None and beats(old[0], value):
                continue
            equal = np.flatnonzero(as_integers(block) == value)
            places = start + (equal if valid is None else valid[equal])
            if self._array.shape is not None and self._array.fortran_order:  # the first may be in a later block
                shape = self._array.shape
                places = np.ravel_multi_index(np.unravel_index(places, shape, order="F"), shape)
            place = int(places.min())
            self._extremes[which] = value, min(old[1], place) if old is not None and old[0] == value else place
        if values.dtype.kind == "f":
            with np.errstate(all="ignore"):
                doubles = values.astype(np.float64)
                fitting = np.isfinite(doubles)
                self._endless += float(doubles[~fitting].sum())
            infinite = int(np.isinf(values).sum())
            self._infinite += infinite
            self._beyond += len(values) - int(fitting.sum()) - infinite
            values = values[fitting]
        if len(values):
            self._sum += exact_sum(values)
            low, high = self.drawn or (values[0], values[0])
            self.drawn = min(low, values.min()), max(high, values.max())

    def part(self, name: str, histogram: Histogram | None) -> Part:
        """Return the figures of the component, which has this name."""
        datatype, mean, ends = self._array.datatype, None, list[tuple[Any, tuple[int, ...] | None]]()
        if self.count and datatype.group is not Group.TIME:  # of numbers beyond a double the mean is like their sum
            mean = self._endless if self._infinite or self._beyond else float(self._sum / self.count)
        for extreme in self._extremes:
            if extreme is None:
                ends.append((None, None))
                continue
            value, place = extreme
            if datatype.group in TIMES:
                value = as_times(np.array([value]), datatype)[0]
            elif value.dtype.kind in "iu" or value.dtype.char == "d":  # others are not exactly a number of Python
                value = value.item()
            ends.append((value, tuple(map(int, np.unravel_index(place, self._array.dimensions)))))
        return Part(name, *ends[0], *ends[1], mean, self.nan, self._infinite, self._beyond, histogram)


def _without_nan(values: np.ndarray) -> np.ndarray:
    """Return the numbers that are not NaN or NaT, times as integers."""
    nans = are_nan(values)
    return as_integers(values if nans is None else values[~nans])


class Bins:
    """Counts numbers that come by in blocks."""

    # Bins of integers are of as many whole numbers each, so that none is favoured; those of other numbers are as wide
    # as each other, as NumPy's.

    def __init__(self, low: Any, high: Any, most: int) -> None:
        self.edges: tuple[Any, ...]
        if low.dtype.kind == "f":
            self.edges = tuple(_float_edges(float(low), float(high), most).tolist())
        else:
            step = -(-(int(high) - int(low) + 1) // most)
            self.edges = tuple(range(int(low), int(high) + step + 1, step))
        self._inner = np.array(self.edges[1:-1], np.float64 if low.dtype.kind == "f" else low.dtype)
        self._counts = np.zeros(len(self.edges) - 1, np.int64)

    def add(self, block: np.ndarray) -> None:
        """Count the finite numbers of a block."""
        numbers = _without_nan(block)
        if numbers.dtype.kind == "f":
            with np.errstate(over="ignore"):
                numbers = numbers.astype(np.float64)
            numbers = numbers[np.isfinite(numbers)]
        self._counts += np.bincount(np.searchsorted(self._inner, numbers, "right"), minlength=len(self._counts))

    def histogram(self, datatype: Datatype | None = None) -> Histogram:
        """Return the histogram, of which points in time have such edges."""
        edges = self.edges
        if datatype is not None and datatype.group is Group.TIME:  # the last one may be beyond
            edges = tuple(as_times(np.array([min(edge, _LAST_TIME) for edge in edges], np.int64), datatype))
        return Histogram(edges, tuple(self._counts.tolist()))


def _float_edges(low: float, high: float, most: int) -> np.ndarray:
    """Return the edges of bins of one width: fewer if there are not as many numbers between the two."""
    if low == high:
        low, high = low - 0.5, high + 0.5
    scale = 1 if math.isfinite(2 * (high - low)) else 4
    while True:  # or these are the only numbers
        edges = np.linspace(low / scale, high / scale, most + 1) * scale
        if most == 1 or np.all(np.diff(edges) > 0):
            return edges
        most //= 2


def measure(array: Array, bins: int | None, done: list[Figures]) -> Iterator[int]:
    """Read all elements, and again for histograms, yield bytes as they are read, and add the figures to `done`."""
    datatype, names = array.datatype, component_names(array.datatype)
    components, indices = [_Statistics(array) for _ in names], Counter[Any]()
    for start, nbytes, valid, parts in _blocks(array):
        for component, values in zip(components, parts, strict=True):
            component.add(values, start, valid)
        if datatype.group is Group.PAIR and len(indices) <= _MOST_INDICES:
            found, counts = np.unique(parts[1], return_counts=True)
            indices.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        yield nbytes
    counters = [Bins(*each.drawn, bins) if bins and each.drawn else None for each in components]
    for _, nbytes, _, parts in _blocks(array) if bins else ():
        for counter, values in zip(counters, parts, strict=True):
            if counter:
                counter.add(values)
        yield nbytes
    nulls = array.count - components[0].count - components[0].nan
    histograms = (None if counter is None else counter.histogram(datatype) for counter in counters)
    figures = tuple(map(_Statistics.part, components, names, histograms))
    texts, pairs = (array.name, str(datatype), dtype_name(datatype)), None
    if datatype.group is Group.PAIR:
        is_exact = len(indices) <= _MOST_INDICES
        by_count = sorted(indices.items(), key=lambda each: (-each[1], each[0])) if is_exact else []
        pairs = Indices(len(indices), is_exact, tuple(by_count[:_MOST_WINNERS]))
    done.append(Figures(*texts, array.count, array.shape, array.unit, nulls, figures, pairs))


def _blocks(array: Array) -> Iterator[tuple[int, int, np.ndarray | None, list[np.ndarray]]]:
    """Yield blocks: the first position, the bytes, which elements are not null, and the numbers of each component."""
    count = max(1, min(BLOCK, _BLOCK_NBYTES // array.datatype.itemsize))
    for start, (block, mask) in zip(itertools.count(0, count), blocks(array, count)):
        valid = None if mask is None else np.flatnonzero(mask)
        parts = numbers(block, array.datatype)
        yield start, block.nbytes, valid, parts if valid is None else [part[valid] for part in parts]
