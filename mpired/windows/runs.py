"""The places of elements in a window: runs of elements, and the order in which they are visited.

The k-th element of the origin goes to the k-th of the target, in the order of the type map
(MPI-4.1, 12.3.4). A file is changed from front to back, so the elements are sorted here, and cut into
batches that fit into memory. Offsets are bytes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype
from mpired.datatypes.typemap.pieces import pieces
from mpired.datatypes.typemap.typemap import TypeMap
from mpired.errors import OverlapError, RangeError

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
