"""The elements of a window that a call selects: by displacement, by index or by a map; and the order of the work.

Element k of the origin is combined into element k of the selection, in the order of the type map (MPI-4.1, 12.3.4). A
file is changed from front to back: the selection is sorted, and cut into batches that fit into memory. Offsets are in
bytes.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype, Group
from mpired.datatypes.datatype import tail
from mpired.datatypes.typemap import TypeMap, pieces
from mpired.errors import CountError, DatatypeError, DisplacementError, OverlapError, RangeError, UsageError, number
from mpired.formats import Array, InputOptions, open_rank
from mpired.formats.array import whole
from mpired.formats.memory import ArrayRank
from mpired.options import Indices, Options
from mpired.values import parsed_index

Index: TypeAlias = slice | np.ndarray

# Bytes of a batch: large enough to hide the overhead of Python, small enough for the caches.
_BATCH_NBYTES = 1 << 20
# Runs with smaller gaps are read and written together with the gaps.
_GAP_NBYTES = 512
_MIN_PASS = 32  # elements of a pass of a map, and the number of passes that are always allowed
# Memory of a run, and of an entry of a map, as measured.
RUN_NBYTES, ENTRY_NBYTES = 104, 88


class Pass(NamedTuple):
    """Elements of a batch that are combined with elements of the origin in one call of the kernel."""

    # positions in the batch, one for each element of the origin; `None` for all in order; a slice of one element that
    # is combined with many, one after another
    where: np.ndarray | slice | None
    origin: Index  # positions in the origin


class Batch(NamedTuple):
    """Elements of a window that are read, combined and written together."""

    ranges: list[tuple[int, int]]  # of bytes of the window, ascending
    positions: np.ndarray | None  # of each element in the joined ranges, in bytes; `None` without gaps
    passes: Sequence[Pass]  # in order


class WindowSelection:
    """Selected elements of a window, as runs of elements; in the order of the type map, for a map ascending."""

    def __init__(self, starts: np.ndarray, counts: np.ndarray, itemsize: int) -> None:
        is_used = counts > 0
        starts, counts = starts[is_used], counts[is_used]
        begins = np.ones(len(starts), bool)
        begins[1:] = starts[1:] != (starts + counts * itemsize)[:-1]  # adjacent runs are joined
        first = np.flatnonzero(begins)
        self.starts = starts[first]  # of each run, in bytes
        self.counts = np.add.reduceat(counts, first) if len(first) else counts  # elements of each run
        self.itemsize = itemsize
        self.entries = int(counts.sum())  # elements of the origin that are combined
        self.shape: tuple[int, ...] | None = None  # of the elements when they are fetched; `None` without a shape
        self.nbytes = self.entries * itemsize  # to write, approximately
        self.memory_nbytes = len(first) * RUN_NBYTES if len(first) > 1 else 0  # of the runs
        self._bounds: np.ndarray | None = None  # for a map: the entries of each element as bounds in `_index`
        self._index = np.empty(0, np.int64)
        # whether the elements of an origin are read in their order, so that the origin need not fit into memory
        self.in_order = len(first) <= 1 or int(self.counts.min()) * itemsize >= _BATCH_NBYTES

    @classmethod
    def of(cls, typemap: TypeMap, component: Datatype, itemsize: int) -> WindowSelection:
        """Return the components of a type map, in its order; each takes `itemsize` bytes in the file."""
        bounds = pieces(typemap, sys.maxsize)
        assert bounds is not None  # noqa: S101 - no map has as many pieces
        starts, ends = bounds.T
        counts = (ends - starts) // component.size
        if not component.typemap.dense:  # a pair with a gap between its value and its index
            starts, counts = starts[::2], np.ones(len(starts) // 2, np.int64)
        if component.size < itemsize:  # a pair may begin in the padding of the pair before it
            starts, counts = _expand(starts, counts, component.size), np.ones(counts.sum(), np.int64)
        return cls(starts, counts, itemsize)

    @classmethod
    def by_map(cls, indices: np.ndarray, entries: np.ndarray, itemsize: int) -> WindowSelection:
        """Return the elements with these indices; the entries of a repeated index are applied in order."""
        order = np.argsort(indices, kind="stable")
        ascending, first = np.unique(indices[order], return_index=True)
        selection = cls(ascending * itemsize, np.ones(len(ascending), np.int64), itemsize)
        selection._bounds, selection._index = np.append(first, len(entries)), entries[order]
        selection.entries, selection.in_order = len(entries), False
        selection.memory_nbytes = len(entries) * ENTRY_NBYTES
        return selection

    def repeat(self, start: int, count: int, extent: int, context: Context) -> WindowSelection:
        """Return `count` copies of the selection, from byte `start` on and `extent` bytes apart."""
        context.check_memory(BASE_NBYTES + count * len(self.starts) * RUN_NBYTES)
        shifts = start + np.arange(count, dtype=np.int64) * extent
        return WindowSelection((shifts[:, None] + self.starts).ravel(), np.tile(self.counts, count), self.itemsize)

    def positions(self) -> np.ndarray:
        """Return the first byte of each element, in the order of the type map."""
        return _expand(self.starts, self.counts, self.itemsize)

    def check(self, name: str, window_nbytes: int, tail: int = 0) -> None:
        """Raise an error if an element is outside of the window, or elements overlap by more than their `tail`."""
        if not len(self.starts):
            return
        ends = self.starts + self.counts * self.itemsize - tail
        check_range(name, int(self.starts.min()), int(ends.max()), window_nbytes)
        order = np.argsort(self.starts, kind="stable")
        overlap = np.flatnonzero(ends[order][:-1] > self.starts[order][1:])
        if len(overlap):
            offset = int(self.starts[order][overlap[0] + 1])
            reason = f"two elements of the target overlap at byte {offset} of the window (MPI-4.1, 12.3.4)"
            raise OverlapError(name, f"{reason}; `map` applies repeated entries one after another")

    def batches(self) -> Iterator[Batch]:
        """Yield the elements in batches, in ascending order of their positions in the window."""
        first = np.cumsum(self.counts) - self.counts  # the number of the first element of each run
        order = np.argsort(self.starts, kind="stable")
        starts, counts, first = self.starts[order], self.counts[order], first[order]
        max_count = max(1, _BATCH_NBYTES // self.itemsize)
        if len(counts) and counts.max() > max_count:  # cut the runs that are larger than a batch
            ncuts = -(-counts // max_count)
            skipped = _expand(np.zeros_like(ncuts), ncuts, max_count)
            counts = np.minimum(np.repeat(counts, ncuts) - skipped, max_count)
            starts, first = np.repeat(starts, ncuts) + skipped * self.itemsize, np.repeat(first, ncuts) + skipped
        # A batch has neighbouring runs of about its size, with the small gaps between them.
        nbytes, gaps = counts * self.itemsize, np.zeros_like(starts)
        gaps[1:] = starts[1:] - (starts + nbytes)[:-1]
        number = np.cumsum(nbytes + np.where(gaps <= _GAP_NBYTES, gaps, 0)) // _BATCH_NBYTES
        borders = [*(np.flatnonzero(np.diff(number, prepend=-1))).tolist(), len(starts)]
        for group in itertools.starmap(slice, itertools.pairwise(borders)):
            if group.stop - group.start == 1:
                start, count, index = (int(values[group.start]) for values in (starts, counts, first))
                ranges, positions = [(start, start + count * self.itemsize)], None
                elements: Index = slice(index, index + count)
            else:
                ranges, positions = _join_ranges(starts[group], counts[group], self.itemsize)
                elements = _expand(first[group], counts[group], 1)
            passes = [Pass(None, elements)] if self._bounds is None else self._map_passes(self._bounds, elements)
            yield Batch(ranges, positions, passes)

    def _map_passes(self, bounds: np.ndarray, elements: Index) -> list[Pass]:
        """Return a pass with the first entry of each element of a map, a pass with the second entries, and so on."""
        # A few elements with many more entries than the others have passes of their own, one for each element.
        bounds, ends = bounds[:-1][elements], bounds[1:][elements]
        counts = ends - bounds
        deepest = np.sort(counts)[-_MIN_PASS:][0]
        npasses = max(_MIN_PASS, deepest if len(counts) >= _MIN_PASS else 0)
        long = np.flatnonzero(counts > npasses).tolist()
        chains = [Pass(slice(i, i + 1), self._index[bounds[i] + npasses : ends[i]]) for i in long]
        counts = np.minimum(counts, npasses)
        where = np.repeat(np.arange(len(counts)), counts)
        numbers = _expand(np.zeros_like(counts), counts, 1)  # the pass of each entry
        order = np.argsort(numbers, kind="stable")
        stops = np.cumsum(np.bincount(numbers))
        index = self._index[_expand(bounds, counts, 1)]
        entries = (order[start:stop] for start, stop in zip((0, *stops[:-1]), stops, strict=True))
        return [*(Pass(where[chosen], index[chosen]) for chosen in entries), *chains]


def check_range(name: str, start: int, stop: int, window_nbytes: int) -> None:
    """Raise `RangeError` unless the bytes from `start` to `stop` are in the window."""
    if start < 0 or stop > window_nbytes:
        reason = f"the request reaches from byte {start} to {stop}, outside of the window of {window_nbytes} bytes"
        raise RangeError(name, f"{reason}; nothing was changed")


def _expand(starts: np.ndarray, counts: np.ndarray, step: int) -> np.ndarray:
    """Return `count` numbers for each start: the start, and others at distances of `step`."""
    if not len(counts):
        return np.empty(0, np.int64)
    steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers: np.ndarray = np.repeat(starts, counts) + steps * step
    return numbers


def _join_ranges(starts: np.ndarray, counts: np.ndarray, itemsize: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return the ranges that cover ascending runs, and the position of each element in the joined ranges, in bytes."""
    ends = starts + counts * itemsize
    begins = np.ones(len(starts), bool)
    begins[1:] = starts[1:] - ends[:-1] > _GAP_NBYTES
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(starts)) - 1
    lengths = ends[last] - starts[first]
    shift = np.cumsum(lengths) - lengths - starts[first]
    positions = _expand(starts + np.repeat(shift, np.diff(np.append(first, len(starts)))), counts, itemsize)
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True)), positions


_MAX_OFFSET = 2**62  # bytes; no file is that large, and the sum of two such offsets fits into 64 bits


class OriginShape(NamedTuple):
    """The count and shape of one array of an origin."""

    name: str  # of the origin, in messages
    entries: int | None  # `None` if no origin is read
    shape: tuple[int, ...] | None = None  # of the array in the file
    whole: bool = False  # whether all elements of the array are combined, so that `shape` is their shape


NO_ORIGIN = OriginShape("target", None)


class Placement(NamedTuple):
    """The options that select elements of the target."""

    disp: int | None  # displacement, in units of `unit` bytes (MPI-4.1, 12.3.1)
    unit: int | None  # bytes; `None` for the size of an element
    number: int | None  # elements of the target; `None` for the count of the origin
    typemap: TypeMap | None  # of an element of a derived datatype; `None` for a run of elements
    box: str | None  # the index of a box, such as `3,0:5`
    indices: np.ndarray | None  # of a map: for each element of the origin the index of an element of the window
    rank: int | None  # of the window, if there are several windows
    has_displacement: bool  # whether one of the first four fields is given
    context: Context

    @classmethod
    def of(cls, options: Options, nwindows: int, context: Context, target: Datatype | None = None) -> Placement:
        """Return the placement of these options, which must not contradict each other; `target` is a derived type."""
        names = ("target_disp", "disp_unit", "target_count", "target_rank")
        disp, unit, number, rank = (options[name] for name in names)
        indices = None if options["map"] is None else _read_map(options["map"], context)
        if disp is None and options["target_type"] is not None:
            disp = 0
        typemap = None if target is None else target.typemap
        box = options["at"]
        has_displacement = (disp, unit, number, typemap) != (None,) * 4
        if has_displacement + (box is not None) + (indices is not None) > 1:
            reason = "say in different ways where elements go; choose one"
            raise UsageError("`at`, `map` and the target's options", reason)
        if disp is not None and disp < 0:
            raise DisplacementError(f"`target_disp={disp}`", "is negative (MPI-4.1, 12.3.1); give 0 or more")
        if unit is not None and unit < 1:
            raise UsageError(f"`disp_unit={unit}`", "is not a number of bytes above 0")
        if number is not None and number < 0:
            raise CountError(f"`target_count={number}`", "is negative; give 0 or more")
        if rank is not None and not 0 <= rank < nwindows:
            raise UsageError(f"`target_rank={rank}`", f"is not a rank; there are {nwindows} windows")
        if nwindows > 1 and rank is None and indices is None:
            raise UsageError("`windows`", "is given several times; choose one with `target_rank`, or use `map`")
        return cls(disp, unit, number, typemap, box, indices, rank, has_displacement, context)

    def select(self, windows: Sequence[Array], origin: OriginShape) -> list[WindowSelection | None]:
        """Return the checked selection of each window, None for a window that the call does not use."""
        first = self.rank or 0
        if self.indices is not None:
            selections = self._select_by_map(windows if self.rank is None else [windows[first]], self.indices, origin)
        else:
            window, shape = windows[first], windows[first].shape
            if self.box is None and not self.has_displacement:
                count = 0  # an empty origin changes nothing (MPI-4.1, 12.3.4)
                if origin.entries != 0:
                    _check_whole(window, origin)
                    count = window.count
                selection = WindowSelection(np.array([0]), np.array([count]), window.stored.itemsize)
            else:
                if self.box is None:
                    selection = self._select_by_displacement(window, origin)
                else:
                    shape, selection = _select_box(window, self.box, origin, self.context)
                _check_counts(origin, selection.entries)
                selection.check(window.source.name, window.nbytes, tail(window.stored))
            if self.box is None and shape is not None and selection.entries != window.count:
                shape = (selection.entries,)
            selection.shape, selections = shape, [selection]
        return [*[None] * first, *selections, *[None] * (len(windows) - first - len(selections))]

    def _select_by_displacement(self, window: Array, origin: OriginShape) -> WindowSelection:
        """Return the elements of a displacement, a count and a datatype."""
        itemsize = window.stored.itemsize
        start = (self.disp or 0) * (self.unit or itemsize)
        count = 0 if self.number is None and origin.entries == 0 else self.number
        max_count = count if count is not None else origin.entries or 0
        extent = itemsize if self.typemap is None else abs(self.typemap.extent) + self.typemap.true_extent
        if (end := start + max_count * extent) >= _MAX_OFFSET:
            raise RangeError(window.source.name, f"the request reaches to byte {end}, outside of any window")
        if self.typemap is None or count == 0:
            if count is None:
                available = max(window.nbytes - start + tail(window.stored), 0) // itemsize
                count = available if origin.entries is None else origin.entries
            return WindowSelection(np.array([start]), np.array([count]), itemsize)
        check_layout(window, "`target_type`")
        name, elements = window.source.name, self.typemap.elements(count or 1, start)
        # Checked before the positions of all elements are in memory: there may be any number.
        if elements.of.size:
            check_range(name, *elements.reach, window.nbytes)
            if elements.copies * elements.of.size > window.nbytes:
                reason = f"`target_type` has more bytes than the window, {window.nbytes}, so that its elements overlap"
                raise OverlapError(name, f"{reason} (MPI-4.1, 12.3.4); nothing was changed")
        element = WindowSelection.of(self.typemap, window.datatype, itemsize)
        if count is None:
            count = 1 if origin.entries is None else origin.entries // max(element.entries, 1)
        _check_counts(origin, element.entries * count)
        return element.repeat(start, count, self.typemap.extent, self.context)

    def _select_by_map(
        self, windows: Sequence[Array], indices: np.ndarray, origin: OriginShape
    ) -> list[WindowSelection | None]:
        """Return the elements of a map, whose indices count through all windows as through one array."""
        _check_counts(origin, len(indices), "the map")
        borders = [0, *itertools.accumulate(window.count for window in windows)]
        outside = np.flatnonzero((indices < 0) | (indices >= borders[-1]))
        if len(outside):
            reason = f"entry {outside[0]} is {indices[outside[0]]}, which is not an element"
            raise RangeError("`map`", f"{reason}; there are {borders[-1]}, from 0 on")
        selections: list[WindowSelection | None] = []
        for window, (start, stop) in zip(windows, itertools.pairwise(borders), strict=True):
            entries = np.flatnonzero((indices >= start) & (indices < stop))
            selection = WindowSelection.by_map(indices[entries] - start, entries, window.stored.itemsize)
            is_whole = window.shape is None or len(entries) == window.count
            selection.shape = window.shape if is_whole else (len(entries),)
            selections.append(selection if len(entries) else None)
        return selections


def _read_map(indices: Indices, context: Context) -> np.ndarray:
    """Return the indices in a file or an array of integers."""
    name = os.fspath(indices) if isinstance(indices, str | os.PathLike) else "map"
    values = indices if isinstance(indices, np.ma.MaskedArray) else np.asarray(indices)
    rank = name if isinstance(indices, str | os.PathLike) else ArrayRank(name, values.ravel())
    try:
        array = open_rank(rank, InputOptions(context=context, nullable=True)).only_buffer()
    except UsageError as error:
        reason = f"{name} {error.reason.partition(';')[0]}; a map is npy, or parquet or arrow with one column"
        raise UsageError("`map`", reason) from None
    context.check_memory(BASE_NBYTES + array.count * ENTRY_NBYTES)
    indices = whole(array, context)
    if nmissing := int(np.ma.getmaskarray(indices).sum()):
        reason = f"has {number(nmissing, 'missing element')}, and a map has an index for each element of the origin"
        raise DatatypeError(name, reason)
    indices = np.ma.getdata(indices)
    if (indices.dtype.kind not in "iu" or array.datatype.group is Group.LOGICAL) and indices.size:
        raise DatatypeError(name, f"holds elements of {array.datatype.label}, and a map is of integers")
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)


def _check_counts(origin: OriginShape, count: int, side: str = "the target") -> None:
    """Raise `CountError` unless the origin has `count` elements."""
    if origin.entries not in (None, count):
        reason = f"has {origin.entries} elements for {count} of {side}; both sides need as many (MPI-4.1, 12.3.4)"
        raise CountError(origin.name, reason)


def _check_whole(window: Array, origin: OriginShape) -> None:
    """Raise `CountError` unless the origin has the count and shape of the window: no option selects elements."""
    if window.shape is None:
        excess = (window.source.nbytes - window.offset) % window.stored.itemsize
        if 0 < excess < window.datatype.true_extent:
            reason = f"{excess} bytes follow the last whole {window.datatype.label}; say where with `target_disp`"
            raise CountError(window.source.name, reason)
    if origin.entries not in (None, window.count):
        reason = (
            f"has {origin.entries} elements, but the target has {window.count}; say where with `target_disp` or `at`"
        )
        raise CountError(origin.name, reason)
    if origin.whole and None not in (origin.shape, window.shape) and origin.shape != window.shape:
        reason = f"has shape {origin.shape}, but the target has {window.shape}; say where with `target_disp`"
        raise CountError(origin.name, reason)


def _select_box(
    window: Array, text: str, origin: OriginShape, context: Context
) -> tuple[tuple[int, ...], WindowSelection]:
    """Return the shape and the elements of a box of an array, in the order of the array."""
    shape = window.shape
    if shape is None:
        raise UsageError("`at`", f"needs an array with a shape, and {window.source.name} is raw; use `target_disp`")
    parts = parsed_index("at", text, shape)
    indices = []  # along each axis
    for axis, (part, dim) in enumerate(zip(parts, shape, strict=True)):
        chosen = part if isinstance(part, slice) else slice(part, part + 1)
        if (chosen.step or 1) < 0:
            raise UsageError(f"`at={text!r}`", "goes backwards; a step is positive here")
        if any(not -dim <= bound <= dim for bound in (chosen.start, chosen.stop) if bound is not None):
            raise RangeError(f"`at={text!r}`", f"is out of bounds for axis {axis} with {dim} elements")
        indices.append(np.arange(*chosen.indices(dim), dtype=np.int64))
    box_shape = tuple(len(along) for along, part in zip(indices, parts, strict=True) if isinstance(part, slice))
    without_ones = [tuple(n for n in shape if n != 1) for shape in (box_shape, origin.shape or ())]
    if origin.whole and origin.shape is not None and without_ones[0] != without_ones[1]:
        raise CountError(origin.name, f"has shape {origin.shape}, but the box {text} has {box_shape}")
    context.check_memory(BASE_NBYTES + math.prod(map(len, indices)) * RUN_NBYTES)
    order: Literal["C", "F"] = "F" if window.fortran_order else "C"
    positions = np.ravel_multi_index(np.ix_(*indices), shape, order=order)
    starts = positions.ravel(order) * window.stored.itemsize
    return box_shape, WindowSelection(starts, np.ones(len(starts), np.int64), window.stored.itemsize)


def check_layout(array: Array, option: str) -> None:
    """Raise `UsageError` if elements are packed in the file, because a type map describes elements in memory."""
    if array.stored.itemsize != array.datatype.extent:
        reason = f"needs elements as in memory, and {array.source.name} has them packed; use raw, or an aligned dtype"
        raise UsageError(option, reason)
