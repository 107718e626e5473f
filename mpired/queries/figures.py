"""The figures of a file that `show` prints and draws: extremes, means, histograms; computed block by block."""

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
from mpired.datatypes.dtypes import as_times, dtype_name
from mpired.errors import escaped
from mpired.formats import Array
from mpired.formats.array import blocks
from mpired.formats.textual import component_names
from mpired.queries.elements import are_nan, as_integers, numbers

BLOCK = 1 << 18
"""The most numbers of a block: the sums of their halves of 32 bits are exact in a double."""
_BLOCK_NBYTES = 4 << 20
_MOST_INDICES = 1 << 16
_MAX_FREQUENT = 20
_LAST_TIME = 2**63 - 1


class Histogram(NamedTuple):
    """A histogram of equal bins."""

    edges: tuple[Any, ...]  # one more than bins; a bin includes its lower edge, the last bin both
    counts: tuple[int, ...]


class ComponentFigures(NamedTuple):
    """Figures of a component of the elements of a buffer; NaN, NaT and nulls are not among the numbers."""

    name: str  # of the component: "value", "index" of pairs, "real" or "imag"
    min: Any  # perhaps an infinity; `None` without numbers
    min_at: tuple[int, ...] | None  # the index of the first minimum in C order
    max: Any
    max_at: tuple[int, ...] | None
    mean: float | None  # exact, rounded once to a double; `None` without numbers, and for points in time
    nan: int  # the number of NaN or NaT
    infinite: int  # the number of infinities
    beyond: int = 0  # the number of finite long doubles that are too large for a double; no histogram has them
    histogram: Histogram | None = None  # of finite numbers

    def without(self, nulls: int) -> str:
        """Return a description of the elements that the histogram lacks, "" if it has all."""
        counts = (
            (nulls, "null" if nulls == 1 else "nulls"),
            (self.nan, "NaN"),
            (self.infinite, "infinite"),
            (self.beyond, "beyond a double"),
        )
        phrases = [f"{count} {noun}" for count, noun in counts if count]
        if not phrases:
            return ""
        *others, last = phrases
        return f"without {', '.join(others)} and {last}" if others else f"without {last}"


class Indices(NamedTuple):
    """The number of different indices of pairs, and the most frequent ones."""

    distinct: int  # a lower bound above 65,536
    exact: bool  # whether `distinct` is exact
    most: tuple[tuple[Any, int], ...]  # at most 20 indices with the number of their elements, the most frequent first


@dataclass(frozen=True)
class Figures:
    """Figures of a buffer."""

    name: str
    datatype: str
    dtype: str | None  # NumPy's name of the datatype; `None` if it has none
    count: int  # elements, with nulls
    shape: tuple[int, ...] | None
    unit: str  # from the metadata of a column; "" without a unit
    nulls: int
    parts: tuple[ComponentFigures, ...]  # one for each component of an element
    indices: Indices | None  # of pairs


class Shown(NamedTuple):
    """The figures of a file."""

    file: str  # the path
    format: str
    buffers: tuple[Figures, ...]

    def __repr__(self) -> str:
        """Return the extremes of each buffer on one line."""
        phrases = []
        for figures in self.buffers:
            first = figures.parts[0]
            extremes = "" if first.min is None else f" from {first.min} to {first.max}"
            name = f"{escaped(figures.name)}: " if figures.name else ""
            phrases.append(f"{name}{figures.count} x {beside(figures.datatype, figures.dtype)}{extremes}")
        return f"<{self.format} file {self.file!r}: {', '.join(phrases)}>"


class Plane(NamedTuple):
    """An array with two dimensions for a picture; a large array is thinned out."""

    parts: tuple[np.ndarray, ...]  # the numbers of each component
    steps: tuple[int, ...]  # distances of the rows and columns in the array: 1 if all are there
    axes: Sequence[str]  # names of the axes
    degrees: Sequence[np.ndarray | None]  # latitudes or longitudes along each axis, or of each cell; `None` without
    is_difference: bool  # whether the numbers are differences, drawn with one scale of colours on both sides of 0


def exact_sum(values: np.ndarray) -> Fraction:
    """Return the exact sum of finite numbers within the range of a double."""
    if values.dtype.kind in "iu":
        wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
        return Fraction((int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum()))
    doubles = values.astype(np.float64)
    # The significands, integers of 53 bits, of all numbers with one exponent are added in two halves.
    significands, exponents = np.frexp(doubles)
    whole, lowest = np.ldexp(significands, 53).astype(np.int64), int(exponents.min(initial=0))
    halves = (np.bincount(exponents - lowest, half.astype(np.float64)) for half in (whole >> 32, whole & 0xFFFFFFFF))
    sums = enumerate(zip(*(half.tolist() for half in halves), strict=True))
    total = sum((int(high) << 32) + int(low) << exponent for exponent, (high, low) in sums)
    remainder = exact_sum((values - doubles).astype(np.float64)) if values.dtype.char == "g" else 0
    return total * Fraction(2) ** (lowest - 53) + remainder


class _Statistics:
    """Running figures of a component. NaN and NaT are only counted; callers omit nulls."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.count = self.nan = self._infinite = self._beyond = 0
        self._extremes: list[tuple[Any, int] | None] = [None, None]  # minimum and maximum, and their first positions
        self.bounds: tuple[Any, Any] | None = None  # of a histogram: the extremes of finite numbers within a double
        self._sum, self._infinite_sum = Fraction(), 0.0  # of finite doubles, and of other numbers

    def add(self, block: np.ndarray, start: int, valid: np.ndarray | None) -> None:
        """Add the numbers of a block from element `start` on; `valid` are the positions in it that are not null."""
        values = _without_nan(block)
        self.nan += len(block) - len(values)
        self.count += len(values)
        if not len(values):
            return
        for index, (value, is_beyond) in enumerate(((values.min(), operator.lt), (values.max(), operator.gt))):
            old = self._extremes[index]
            if old is not None and is_beyond(old[0], value):
                continue
            equal = np.flatnonzero(as_integers(block) == value)
            positions = start + (equal if valid is None else valid[equal])
            if self._array.shape is not None and self._array.fortran_order:  # the first may be in a later block
                shape = self._array.shape
                positions = np.ravel_multi_index(np.unravel_index(positions, shape, order="F"), shape)
            first = int(positions.min())
            self._extremes[index] = value, min(old[1], first) if old is not None and old[0] == value else first
        if values.dtype.kind == "f":
            with np.errstate(all="ignore"):
                doubles = values.astype(np.float64)
                is_finite = np.isfinite(doubles)
                self._infinite_sum += float(doubles[~is_finite].sum())
            infinite = int(np.isinf(values).sum())
            self._infinite += infinite
            self._beyond += len(values) - int(is_finite.sum()) - infinite
            values = values[is_finite]
        if len(values):
            self._sum += exact_sum(values)
            low, high = self.bounds or (values[0], values[0])
            self.bounds = min(low, values.min()), max(high, values.max())

    def figures(self, name: str, histogram: Histogram | None) -> ComponentFigures:
        """Return the figures of the component `name`."""
        datatype, mean, extremes = self._array.datatype, None, list[tuple[Any, tuple[int, ...] | None]]()
        if self.count and datatype.group is not Group.TIME:
            mean = self._infinite_sum if self._infinite or self._beyond else float(self._sum / self.count)
        for extreme in self._extremes:
            if extreme is None:
                extremes.append((None, None))
                continue
            value, position = extreme
            if datatype.group in TIMES:
                value = as_times(np.array([value]), datatype)[0]
            elif value.dtype.kind in "iu" or value.dtype.char == "d":  # numbers that Python has exactly
                value = value.item()
            extremes.append((value, tuple(map(int, np.unravel_index(position, self._array.dimensions)))))
        low, high = extremes
        return ComponentFigures(name, *low, *high, mean, self.nan, self._infinite, self._beyond, histogram)


def _without_nan(values: np.ndarray) -> np.ndarray:
    """Return the numbers that are not NaN or NaT, times as integers."""
    nans = are_nan(values)
    return as_integers(values if nans is None else values[~nans])


class Bins:
    """Bins of a histogram, filled block by block."""

    # Each bin of integers has the same number of integers. Bins of other numbers have the same width, as in NumPy.

    def __init__(self, low: Any, high: Any, max_bins: int) -> None:
        self.edges: tuple[Any, ...]
        if low.dtype.kind == "f":
            self.edges = tuple(_float_edges(float(low), float(high), max_bins).tolist())
        else:
            step = -(-(int(high) - int(low) + 1) // max_bins)
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
        """Return the histogram; with a datatype of times the edges are NumPy's times."""
        edges = self.edges
        if datatype is not None and datatype.group is Group.TIME:  # the last edge may be out of range
            edges = tuple(as_times(np.array([min(edge, _LAST_TIME) for edge in edges], np.int64), datatype))
        return Histogram(edges, tuple(self._counts.tolist()))


def _float_edges(low: float, high: float, nbins: int) -> np.ndarray:
    """Return the edges of at most `nbins` bins of equal width, with different numbers as edges."""
    if low == high:
        low, high = low - 0.5, high + 0.5
    scale = 1 if math.isfinite(2 * (high - low)) else 4
    while True:
        edges = np.linspace(low / scale, high / scale, nbins + 1) * scale
        if nbins == 1 or np.all(np.diff(edges) > 0):
            return edges
        nbins //= 2


def measure(array: Array, bins: int | None, done: list[Figures]) -> Iterator[int]:
    """Append the figures of an array to `done`, and yield the bytes that are read, twice with a histogram."""
    datatype, names = array.datatype, component_names(array.datatype)
    components, indices = [_Statistics(array) for _ in names], Counter[Any]()
    for start, nbytes, valid, parts in _blocks(array):
        for component, values in zip(components, parts, strict=True):
            component.add(values, start, valid)
        if datatype.group is Group.PAIR and len(indices) <= _MOST_INDICES:
            distinct, counts = np.unique(parts[1], return_counts=True)
            indices.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        yield nbytes
    all_bins = [Bins(*part.bounds, bins) if bins and part.bounds else None for part in components]
    for _, nbytes, _, parts in _blocks(array) if bins else ():
        for part_bins, values in zip(all_bins, parts, strict=True):
            if part_bins:
                part_bins.add(values)
        yield nbytes
    nulls = array.count - components[0].count - components[0].nan
    histograms = (None if part_bins is None else part_bins.histogram(datatype) for part_bins in all_bins)
    figures = tuple(map(_Statistics.figures, components, names, histograms))
    labels, pair_indices = (array.name, str(datatype), dtype_name(datatype)), None
    if datatype.group is Group.PAIR:
        is_exact = len(indices) <= _MOST_INDICES
        by_count = sorted(indices.items(), key=lambda item: (-item[1], item[0])) if is_exact else []
        pair_indices = Indices(len(indices), is_exact, tuple(by_count[:_MAX_FREQUENT]))
    done.append(Figures(*labels, array.count, array.shape, array.unit, nulls, figures, pair_indices))


def _blocks(array: Array) -> Iterator[tuple[int, int, np.ndarray | None, list[np.ndarray]]]:
    """Yield blocks: start, bytes, positions of elements that are not null or None, and numbers of each component."""
    count = max(1, min(BLOCK, _BLOCK_NBYTES // array.datatype.itemsize))
    for start, (block, mask) in zip(itertools.count(0, count), blocks(array, count)):
        valid = None if mask is None else np.flatnonzero(mask)
        parts = numbers(block, array.datatype)
        yield start, block.nbytes, valid, parts if valid is None else [part[valid] for part in parts]
