"""The elements of a window that a request selects, by displacement, by index or by a map, and the order of the work.

The k-th element of the origin goes to the k-th of the target, in the order of the type map (MPI-4.1, 12.3.4). A file is
changed from front to back, so the elements are sorted, and cut into batches that fit into memory. Offsets are bytes.
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
from mpired.datatypes.typemap import transfer
from mpired.datatypes.typemap.pieces import pieces
from mpired.datatypes.typemap.typemap import Run, TypeMap
from mpired.errors import CountError, DatatypeError, DisplacementError, OverlapError, RangeError, UsageError
from mpired.formats import Array, InputOptions, open_rank
from mpired.formats.array import whole
from mpired.formats.memory import ArrayRank
from mpired.options import Indices, Options
from mpired.values import parsed_index

Index: TypeAlias = slice | np.ndarray

# Bytes of a batch: large enough that the work of Python does not show, small enough for the caches.
_BATCH_NBYTES = 1 << 20
# Neighbours closer than this are read and written together with what lies between.
_GAP_NBYTES = 512
_FEW = 32  # elements that are enough for a round, and rounds that there may be at least
# Memory of each run, and of each entry of a map, as measured.
RUN_NBYTES, ENTRY_NBYTES = 104, 88


class Round(NamedTuple):
    """Elements of a batch that are combined together."""

    # which elements of the batch, by position, each combined with one element of the origin; `None` for all in order,
    # and a slice of one element that is combined with many, one after another
    where: np.ndarray | slice | None
    origin: Index  # which elements of the origin


class Batch(NamedTuple):
    """Elements that are read, combined and written together."""

    ranges: list[tuple[int, int]]  # the bytes of the window that are read and written, from and to, ascending
    # the byte position of each element in the joined ranges; `None` if they follow one another without gaps
    at: np.ndarray | None
    rounds: Sequence[Round]  # in order


class Runs:
    """Runs of elements, in the order of the type map or, of a map, of their places."""

    def __init__(self, starts: np.ndarray, counts: np.ndarray, itemsize: int) -> None:
        used = counts > 0
        starts, counts = starts[used], counts[used]
        new = np.ones(len(starts), bool)
        new[1:] = starts[1:] != (starts + counts * itemsize)[:-1]  # others follow a run without a gap
        first = np.flatnonzero(new)
        self.starts = starts[first]  # the first byte of each run
        self.counts = np.add.reduceat(counts, first) if len(first) else counts  # its elements
        self.itemsize = itemsize
        self.entries = int(counts.sum())
        self.shape: tuple[int, ...] | None = None  # of the elements when they are fetched; `None` without one
        self.nbytes = self.entries * itemsize  # that will be written, about
        self.held = len(first) * RUN_NBYTES if len(first) > 1 else 0  # bytes of memory of the places, about
        # whether the elements of an origin are needed in their order, so that it need not be in memory
        self._bounds: np.ndarray | None = None  # of a map: where the entries of each element begin and end in `_index`
        self._index = np.empty(0, np.int64)
        self.in_order = len(first) <= 1 or int(self.counts.min()) * itemsize >= _BATCH_NBYTES

    @classmethod
    def of(cls, typemap: TypeMap, component: Datatype, itemsize: int) -> Runs:
        """Return the elements of a type map, in its order: one for each component, which has `itemsize` bytes."""
        stretches = pieces(typemap, sys.maxsize)
        assert stretches is not None  # noqa: S101 - any number of them
        starts, ends = stretches.T
        counts = (ends - starts) // component.size
        if not component.typemap.dense:  # a pair with a gap between its value and its index
            starts, counts = starts[::2], np.ones(len(starts) // 2, np.int64)
        if component.size < itemsize:  # pairs may begin in the padding of those before
            starts, counts = _expanded(starts, counts, component.size), np.ones(counts.sum(), np.int64)
        return cls(starts, counts, itemsize)

    @classmethod
    def mapped(cls, indices: np.ndarray, entries: np.ndarray, itemsize: int) -> Runs:
        """Return elements by index; one may come again, and then all its entries are applied in order."""
        order = np.argsort(indices, kind="stable")
        ascending, first = np.unique(indices[order], return_index=True)
        runs = cls(ascending * itemsize, np.ones(len(ascending), np.int64), itemsize)
        runs._bounds, runs._index = np.append(first, len(entries)), entries[order]
        runs.entries, runs.held, runs.in_order = len(entries), len(entries) * ENTRY_NBYTES, False
        return runs

    def repeated(self, start: int, count: int, extent: int, context: Context) -> Runs:
        """Return `count` copies from the byte `start` on, each `extent` bytes after the one before."""
        context.check_memory(BASE_NBYTES + count * len(self.starts) * RUN_NBYTES)
        shifts = start + np.arange(count, dtype=np.int64) * extent
        return Runs((shifts[:, None] + self.starts).ravel(), np.tile(self.counts, count), self.itemsize)

    def positions(self) -> np.ndarray:
        """Return the first byte of each element, in the order of the type map."""
        return _expanded(self.starts, self.counts, self.itemsize)

    def check(self, name: str, window_nbytes: int, tail: int = 0) -> None:
        """Raise an error unless all elements are in the window, and none overlap, except the `tail` of each."""
        if not len(self.starts):
            return
        ends = self.starts + self.counts * self.itemsize - tail
        check_range(name, int(self.starts.min()), int(ends.max()), window_nbytes)
        order = np.argsort(self.starts, kind="stable")
        overlap = np.flatnonzero(ends[order][:-1] > self.starts[order][1:])
        if len(overlap):
            where = int(self.starts[order][overlap[0] + 1])
            reason = f"two elements of the target overlap at byte {where} of the window (MPI-4.1, 12.3.4)"
            raise OverlapError(name, f"{reason}; `map` applies repeated entries one after another")

    def batches(self) -> Iterator[Batch]:
        """Yield all elements, ascending by their place in the window."""
        first = np.cumsum(self.counts) - self.counts
        order = np.argsort(self.starts, kind="stable")
        starts, counts, first = self.starts[order], self.counts[order], first[order]
        most = max(1, _BATCH_NBYTES // self.itemsize)
        if len(counts) and counts.max() > most:  # runs that are larger than a batch are cut
            ncuts = -(-counts // most)
            within = _expanded(np.zeros_like(ncuts), ncuts, most)
            counts = np.minimum(np.repeat(counts, ncuts) - within, most)
            starts, first = np.repeat(starts, ncuts) + within * self.itemsize, np.repeat(first, ncuts) + within
        # Neighbouring runs that together are about a batch, with the small gaps between them, are one.
        nbytes, gaps = counts * self.itemsize, np.zeros_like(starts)
        gaps[1:] = starts[1:] - (starts + nbytes)[:-1]
        number = np.cumsum(nbytes + np.where(gaps <= _GAP_NBYTES, gaps, 0)) // _BATCH_NBYTES
        borders = [*(np.flatnonzero(np.diff(number, prepend=-1))).tolist(), len(starts)]
        for group in itertools.starmap(slice, itertools.pairwise(borders)):
            if group.stop - group.start == 1:
                start, count, index = (int(each[group.start]) for each in (starts, counts, first))
                ranges, at = [(start, start + count * self.itemsize)], None
                own: Index = slice(index, index + count)
            else:
                ranges, at = _laid_out(starts[group], counts[group], self.itemsize)
                own = _expanded(first[group], counts[group], 1)
            yield Batch(ranges, at, [Round(None, own)] if self._bounds is None else self._rounds(self._bounds, own))

    def _rounds(self, bounds: np.ndarray, elements: Index) -> list[Round]:
        """Return the first entries of neighbouring elements of a map, then the second ones, and so on."""
        # Few elements may have many more entries than the others: the rest of theirs is a round for each element.
        bounds, ends = bounds[:-1][elements], bounds[1:][elements]
        counts = ends - bounds
        deepest = np.sort(counts)[-_FEW:][0]
        nrounds = max(_FEW, deepest if len(counts) >= _FEW else 0)
        long = np.flatnonzero(counts > nrounds).tolist()
        chains = [Round(slice(i, i + 1), self._index[bounds[i] + nrounds : ends[i]]) for i in long]
        counts = np.minimum(counts, nrounds)
        where = np.repeat(np.arange(len(counts)), counts)
        turn = _expanded(np.zeros_like(counts), counts, 1)
        order = np.argsort(turn, kind="stable")
        stops = np.cumsum(np.bincount(turn))
        index = self._index[_expanded(bounds, counts, 1)]
        turns = (order[start:stop] for start, stop in zip((0, *stops[:-1]), stops, strict=True))
        return [*(Round(where[each], index[each]) for each in turns), *chains]


def check_range(name: str, start: int, stop: int, window_nbytes: int) -> None:
    """Raise `RangeError` unless the bytes from `start` to `stop` are in the window."""
    if start < 0 or stop > window_nbytes:
        reason = f"the request reaches from byte {start} to {stop}, outside of the window of {window_nbytes} bytes"
        raise RangeError(name, f"{reason}; nothing was changed")


def _expanded(starts: np.ndarray, counts: np.ndarray, step: int) -> np.ndarray:
    """Return for each start a `count` of numbers that begin with it and are `step` apart."""
    if not len(counts):
        return np.empty(0, np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers: np.ndarray = np.repeat(starts, counts) + within * step
    return numbers


def _laid_out(starts: np.ndarray, counts: np.ndarray, itemsize: int) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Return the ranges that cover some ascending runs, and where each element is in the joined ranges."""
    ends = starts + counts * itemsize
    new = np.ones(len(starts), bool)
    new[1:] = starts[1:] - ends[:-1] > _GAP_NBYTES
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(starts)) - 1
    lengths = ends[last] - starts[first]
    shift = np.cumsum(lengths) - lengths - starts[first]
    at = _expanded(starts + np.repeat(shift, np.diff(np.append(first, len(starts)))), counts, itemsize)
    return list(zip(starts[first].tolist(), ends[last].tolist(), strict=True)), at


_FARTHEST = 2**62  # bytes; no file is that large, and sums of two such offsets still fit 64 bits


class OriginShape(NamedTuple):
    """Elements that an origin has, of one array."""

    name: str  # of the origin, in messages
    entries: int | None  # `None` if it does not matter, because nothing is read of the origin
    shape: tuple[int, ...] | None = None  # that the file declares
    whole: bool = False  # whether all elements of the file are combined, so that its shape is theirs


NO_ORIGIN = OriginShape("target", None)


class Placement(NamedTuple):
    """The options that say where the elements of the origin go."""

    disp: int | None  # the displacement, in units of `unit` bytes (MPI-4.1, 12.3.1)
    unit: int | None  # bytes; `None` for an element
    number: int | None  # elements of the target; `None` for as many as the origin has
    # the places of the components of an element of a derived datatype; `None` for a run of elements
    typemap: TypeMap | None
    box: str | None  # the index of a box, such as `3,0:5`
    indices: np.ndarray | None  # for each element of the origin the index of an element of the window
    rank: int | None  # the window, of several
    is_numbered: bool  # whether numbers say where elements go
    context: Context

    @classmethod
    def of(cls, options: Options, nwindows: int, context: Context, target: Datatype | None = None) -> Placement:
        """Return what the options say, which must not contradict each other; a `target` datatype is derived."""
        disp, unit, number, rank = (
            options[each] for each in ("target_disp", "disp_unit", "target_count", "target_rank")
        )
        indices = None if options["map"] is None else _read_map(options["map"], context)
        if disp is None and options["target_type"] is not None:
            disp = 0
        typemap = None if target is None else target.typemap
        box = options["at"]
        is_numbered = (disp, unit, number, typemap) != (None,) * 4
        if is_numbered + (box is not None) + (indices is not None) > 1:
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
        return cls(disp, unit, number, typemap, box, indices, rank, is_numbered, context)

    def runs(self, windows: Sequence[Array], origin: OriginShape) -> list[Runs | None]:
        """Return for each window the elements that something is combined into, checked."""
        first = self.rank or 0
        if self.indices is not None:
            found = self._mapped(windows if self.rank is None else [windows[first]], self.indices, origin)
        else:
            window, shape = windows[first], windows[first].shape
            if self.box is None and not self.is_numbered:
                count = 0  # of an origin with nothing to combine (MPI-4.1, 12.3.4)
                if origin.entries != 0:
                    _check_whole(window, origin)
                    count = window.count
                runs = Runs(np.array([0]), np.array([count]), window.stored.itemsize)
            else:
                if self.box is None:
                    runs = self._numbered(window, origin)
                else:
                    shape, runs = _box(window, self.box, origin, self.context)
                _check_counts(origin, runs.entries)
                runs.check(window.source.name, window.nbytes, tail(window.stored))
            if self.box is None and shape is not None and runs.entries != window.count:
                shape = (runs.entries,)
            runs.shape, found = shape, [runs]
        return [*[None] * first, *found, *[None] * (len(windows) - first - len(found))]

    def _numbered(self, window: Array, origin: OriginShape) -> Runs:
        """Return the elements that numbers select."""
        itemsize = window.stored.itemsize
        start = (self.disp or 0) * (self.unit or itemsize)
        count = 0 if self.number is None and origin.entries == 0 else self.number
        most = count if count is not None else origin.entries or 0
        each = itemsize if self.typemap is None else abs(self.typemap.extent) + self.typemap.true_extent
        if (reach := start + most * each) >= _FARTHEST:
            raise RangeError(window.source.name, f"the request reaches to byte {reach}, outside of any window")
        if self.typemap is None or count == 0:
            if count is None:
                rest = max(window.nbytes - start + tail(window.stored), 0) // itemsize
                count = rest if origin.entries is None else origin.entries
            return Runs(np.array([start]), np.array([count]), itemsize)
        check_layout(window, "`target_type`")
        name, elements = window.source.name, Run(self.typemap, start, count or 1, self.typemap.extent)
        if elements.of.size and elements.copies:  # before they are laid out: there may be any number of them
            check_range(name, *transfer.reach(elements), window.nbytes)
            if elements.copies * elements.of.size > window.nbytes:
                reason = f"`target_type` has more bytes than the window, {window.nbytes}, so that its elements overlap"
                raise OverlapError(name, f"{reason} (MPI-4.1, 12.3.4); nothing was changed")
        element = Runs.of(self.typemap, window.datatype, itemsize)
        if count is None:
            count = 1 if origin.entries is None else origin.entries // max(element.entries, 1)
        _check_counts(origin, element.entries * count)  # before they are all laid out
        return element.repeated(start, count, self.typemap.extent, self.context)

    def _mapped(self, windows: Sequence[Array], indices: np.ndarray, origin: OriginShape) -> list[Runs | None]:
        """Count the entries through all windows in order, as the ranks of one array."""
        _check_counts(origin, len(indices), "the map")
        borders = [0, *itertools.accumulate(window.count for window in windows)]
        wrong = np.flatnonzero((indices < 0) | (indices >= borders[-1]))
        if len(wrong):
            reason = f"entry {wrong[0]} is {indices[wrong[0]]}, which is not an element"
            raise RangeError("`map`", f"{reason}; there are {borders[-1]}, from 0 on")
        found: list[Runs | None] = []
        for window, (start, stop) in zip(windows, itertools.pairwise(borders), strict=True):
            index = np.flatnonzero((indices >= start) & (indices < stop))
            runs = Runs.mapped(indices[index] - start, index, window.stored.itemsize)
            runs.shape = window.shape if window.shape is None or len(index) == window.count else (len(index),)
            found.append(runs if len(index) else None)
        return found


def _read_map(indices: Indices, context: Context) -> np.ndarray:
    """Return the indices that a file, or an array, of integers holds."""
    name = os.fspath(indices) if isinstance(indices, str | os.PathLike) else "map"
    word = name if isinstance(indices, str | os.PathLike) else ArrayRank(name, np.asarray(indices).ravel())
    try:
        array = open_rank(word, InputOptions(context=context)).only_buffer()
    except UsageError as error:
        reason = f"{name} {error.reason.partition(';')[0]}; a map is npy, or parquet or arrow with one column"
        raise UsageError("`map`", reason) from None
    context.check_memory(BASE_NBYTES + array.count * ENTRY_NBYTES)
    indices = whole(array, context)
    if (indices.dtype.kind not in "iu" or array.datatype.group is Group.LOGICAL) and indices.size:
        raise DatatypeError(name, f"holds elements of {array.datatype.label}, and a map is of integers")
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)


def _check_counts(origin: OriginShape, count: int, what: str = "the target") -> None:
    if origin.entries not in (None, count):
        reason = f"has {origin.entries} elements for {count} of {what}; both sides need as many (MPI-4.1, 12.3.4)"
        raise CountError(origin.name, reason)


def _check_whole(window: Array, origin: OriginShape) -> None:
    """Without a word of where, the origin is the whole window: anything else may well be a mistake."""
    if window.shape is None:
        over = (window.source.nbytes - window.offset) % window.stored.itemsize
        if 0 < over < window.datatype.true_extent:
            reason = f"{over} bytes follow the last whole {window.datatype.label}; say where with `target_disp`"
            raise CountError(window.source.name, reason)
    if origin.entries not in (None, window.count):
        reason = (
            f"has {origin.entries} elements, but the target has {window.count}; say where with `target_disp` or `at`"
        )
        raise CountError(origin.name, reason)
    if origin.whole and None not in (origin.shape, window.shape) and origin.shape != window.shape:
        reason = f"has shape {origin.shape}, but the target has {window.shape}; say where with `target_disp`"
        raise CountError(origin.name, reason)


def _box(window: Array, text: str, origin: OriginShape, context: Context) -> tuple[tuple[int, ...], Runs]:
    """Return the shape and the elements of a box of an array, in the order of the array."""
    shape = window.shape
    if shape is None:
        raise UsageError("`at`", f"needs an array with a shape, and {window.source.name} is raw; use `target_disp`")
    parts = parsed_index("at", text, shape)
    lists = []  # of the indices along each axis
    for axis, (part, dim) in enumerate(zip(parts, shape, strict=True)):
        chosen = part if isinstance(part, slice) else slice(part, part + 1)
        if (chosen.step or 1) < 0:
            raise UsageError(f"`at={text!r}`", "goes backwards; a step is positive here")
        if any(not -dim <= bound <= dim for bound in (chosen.start, chosen.stop) if bound is not None):
            raise RangeError(f"`at={text!r}`", f"is out of bounds for axis {axis} with {dim} elements")
        lists.append(np.arange(*chosen.indices(dim), dtype=np.int64))
    kept = tuple(len(each) for each, part in zip(lists, parts, strict=True) if isinstance(part, slice))
    without_ones = [tuple(n for n in shape if n != 1) for shape in (kept, origin.shape or ())]
    if origin.whole and origin.shape is not None and without_ones[0] != without_ones[1]:
        raise CountError(origin.name, f"has shape {origin.shape}, but the box {text} has {kept}")
    context.check_memory(BASE_NBYTES + math.prod(map(len, lists)) * RUN_NBYTES)
    # The last index runs fastest, in Fortran order the first.
    order: Literal["C", "F"] = "F" if window.fortran_order else "C"
    positions = np.ravel_multi_index(np.ix_(*lists), shape, order=order)
    starts = positions.ravel(order) * window.stored.itemsize
    return kept, Runs(starts, np.ones(len(starts), np.int64), window.stored.itemsize)


def check_layout(array: Array, option: str) -> None:
    """Raise `UsageError` if elements are closer in a file than in memory, so that no type map describes them."""
    if array.stored.itemsize != array.datatype.extent:
        reason = f"needs elements as in memory, and {array.source.name} has them packed; use raw, or an aligned dtype"
        raise UsageError(option, reason)
