"""Moving the bytes of elements between where a type map says and one after another, in the order of the map.

Everything works on runs, so that it costs as many steps of Python as a type has branches, not entries.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpired.datatypes.typemap.typemap import Run, unfolded

BLOCK_BYTES = 1 << 20
"""The most bytes that are moved at a time, and the most that are read with the gaps in one piece."""

INTERLEAVED_BYTES = 4 << 20
"""The same of elements that interleave: the more of them at a time, the longer the adjacent bytes."""

MOST_GAPS = 8
"""The largest ratio of span to bytes of entries of a type that is not mostly gaps."""

_FAR = 64 << 10  # bytes between two copies that are not worth being read along
_MAX_TOGETHER = 1 << 10  # leaves that are looked at at a time
NUMBERS = (1, 2, 4, 8)
"""Bytes that NumPy copies as numbers, which is faster."""


class _Copies(NamedTuple):
    """Copies of one stretch: their number, and their distance in bytes in the map and packed."""

    number: int
    stride: int
    packed_stride: int


class _Leaf(NamedTuple):
    """Stretches of `nbytes` without a gap, the first at `disp` and, packed, at `at`; the rest along each of `dims`."""

    disp: int
    at: int
    nbytes: int
    dims: tuple[_Copies, ...]

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte of any stretch, and the end of the last."""
        spans = [(dim.number - 1) * dim.stride for dim in self.dims]
        low = self.disp + sum(span for span in spans if span < 0)
        return low, self.disp + sum(span for span in spans if span > 0) + self.nbytes

    @property
    def size(self) -> int:
        """The bytes of all stretches."""
        return self.nbytes * math.prod(dim.number for dim in self.dims)


class FileWindow(NamedTuple):
    """Stretches of a file that are moved together, each of `nbytes`, gaps included."""

    starts: range  # where each begins
    nbytes: int  # their length
    size: int  # the bytes of all entries in them
    # these entries, where they are when the stretches are put one after another; to be taken once
    leaves: Iterable[_Leaf]

    @property
    def full(self) -> bool:
        """Whether they have no gaps, provided that no byte is in two entries."""
        return self.size == len(self.starts) * self.nbytes

    def gather(self, room: np.ndarray, packed: np.ndarray) -> None:
        """Copy the entries out of the stretches, one after another in `room`, to where they belong in `packed`."""
        for leaf in self.leaves:
            spread, dense = _views(leaf, room, packed)
            dense[...] = spread

    def scatter(self, room: np.ndarray, packed: np.ndarray) -> None:
        """Copy the entries from `packed` to where they belong in the stretches; the other bytes of `room` stay."""
        for leaf in self.leaves:
            spread, dense = _views(leaf, room, packed)
            spread[...] = dense


def _views(leaf: _Leaf, room: np.ndarray, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.dtype(f"{'u' if leaf.nbytes in NUMBERS else 'V'}{leaf.nbytes}")
    shape, strides, packed_strides = zip(*leaf.dims, strict=True) if leaf.dims else ((), (), ())
    # The constructor checks that every element is in the buffer.
    spread: np.ndarray = np.ndarray(shape, dtype, room.data, leaf.disp, strides)
    dense: np.ndarray = np.ndarray(shape, dtype, packed.data, leaf.at, packed_strides)
    return spread, dense


def reach(run: Run) -> tuple[int, int]:
    """Return the first byte of any entry of a run, and the end of the last."""
    low, high = run.reach
    return low + run.of.true_lb, high + run.of.true_ub


def is_dense(run: Run) -> bool:
    """Return whether the bytes of a run are adjacent in the order of the map."""
    return run.of.dense and (run.copies == 1 or run.stride == run.of.size)


def _interleaves(run: Run) -> bool:
    return run.copies > 1 and abs(run.stride) < run.of.true_extent


def cut(run: Run) -> Iterator[Run]:
    """Cut a run into smaller ones, in the order of the map, which are packed no larger than a block."""
    return unfolded(run, _smaller)


def _smaller(run: Run) -> Iterator[Run] | None:
    """Return the parts of a run that is larger than a block, None if it is not."""
    of, most = run.of, INTERLEAVED_BYTES if _interleaves(run) else BLOCK_BYTES
    if not of.size or not run.copies:
        return iter(())
    if run.copies * of.size <= most or (run.copies == 1 and of.basic):
        return None
    if run.copies == 1:
        return run.parts()
    step, disp, stride = max(1, most // of.size), run.disp, run.stride
    firsts = range(0, run.copies, step)
    return (Run(of, disp + first * stride, min(step, run.copies - first), stride) for first in firsts)


def windows(run: Run) -> Iterator[FileWindow]:
    """Yield the windows of a file that move a run, each packed no larger than a block."""
    # Copies that follow one another are taken together with the gaps, and copies that are far apart one by one. Where
    # elements interleave it is the other way round: adjacent bytes belong to many of them.
    if run.copies > 1 and run.of.true_extent <= BLOCK_BYTES and not _interleaves(run):
        one = run._replace(copies=1)
        part = _LeafPart(*reach(one), run.of.size, functools.partial(_leaves, one))
        yield from _along(part, _Copies(run.copies, run.stride, run.of.size))
        return
    for leaves in _neighbours(_leaves(run)):
        if len(leaves) > 1:
            yield _LeafPart.of(leaves).window()
        else:
            yield from _across(leaves[0])


def whole(run: Run) -> FileWindow:
    """Return all of a run as one window, however wide."""
    return _LeafPart(*reach(run), run.copies * run.of.size, functools.partial(_leaves, run)).window()


class _LeafPart(NamedTuple):
    """Leaves that are moved together: their first byte and their end, the bytes of all, and how to get them."""

    low: int
    high: int
    size: int
    leaves: Callable[[], Iterable[_Leaf]]

    @classmethod
    def of(cls, leaves: Sequence[_Leaf]) -> _LeafPart:
        lows, highs = zip(*(leaf.reach for leaf in leaves), strict=True)
        return cls(min(lows), max(highs), sum(leaf.size for leaf in leaves), lambda: leaves)

    @property
    def nbytes(self) -> int:
        return self.high - self.low

    def window(self) -> FileWindow:
        """Return the window of all of it."""
        return FileWindow(range(self.low, self.low + 1), self.nbytes, self.size, self.placed(-self.low))

    def placed(self, disp: int, at: int = 0, *copies: _Copies) -> Iterator[_Leaf]:
        """Yield the leaves elsewhere, and as many as these copies of them."""
        for leaf in self.leaves():
            yield leaf._replace(disp=leaf.disp + disp, at=leaf.at + at, dims=copies + leaf.dims)


def _along(part: _LeafPart, copies: _Copies) -> Iterator[FileWindow]:
    """Yield windows of copies of a part: near ones with the bytes between, far ones as stretches of their own."""
    apart, nbytes = abs(copies.stride), part.nbytes
    near = apart - nbytes <= _FAR
    step = max(1, (BLOCK_BYTES - nbytes) // apart + 1 if near and apart else BLOCK_BYTES // nbytes)
    for first in range(0, copies.number, step):
        number = min(step, copies.number - first)
        start, at = part.low + first * copies.stride, first * copies.packed_stride
        if near:
            start += min(0, (number - 1) * copies.stride)
            starts, length, stride = range(start, start + 1), (number - 1) * apart + nbytes, copies.stride
        else:
            starts, length, stride = range(start, start + number * copies.stride, copies.stride), nbytes, nbytes
        disp = -part.low if stride >= 0 else -part.low - (number - 1) * stride
        inside = part.placed(disp, at, _Copies(number, stride, copies.packed_stride))
        yield FileWindow(starts, length, number * part.size, inside)


def _across(leaf: _Leaf) -> Iterator[FileWindow]:
    """Yield windows of one leaf, which is cut at its widest strides if it is too wide for one."""
    part = _LeafPart.of([leaf])
    if part.nbytes <= BLOCK_BYTES or not leaf.dims:
        yield part.window()
        return
    widest = max(leaf.dims, key=lambda dim: abs(dim.stride))
    inner = leaf._replace(dims=tuple(dim for dim in leaf.dims if dim is not widest))
    if (one := _LeafPart.of([inner])).nbytes <= BLOCK_BYTES:
        yield from _along(one, widest)
        return
    for i in range(widest.number):
        yield from _across(inner._replace(disp=leaf.disp + i * widest.stride, at=leaf.at + i * widest.packed_stride))


def _neighbours(leaves: Iterable[_Leaf]) -> Iterator[list[_Leaf]]:
    """Yield leaves that follow one another together, as long as they fit into a block and none is far."""
    together: list[_Leaf] = []
    low = high = 0
    for leaf in leaves:
        first, end = leaf.reach
        lowest, highest = (min(low, first), max(high, end)) if together else (first, end)
        far = max(first - high, low - end) > _FAR or highest - lowest > BLOCK_BYTES
        if together and (far or len(together) >= _MAX_TOGETHER):
            yield together
            together, lowest, highest = [], first, end
        together.append(leaf)
        low, high = lowest, highest
    if together:
        yield together


def _leaves(run: Run) -> Iterator[_Leaf]:
    """Yield the stretches without a gap that a run is made of, alike ones together."""
    # Every dimension is two copies or more: those of a block are far from as many as NumPy can have.
    todo: list[tuple[Run, int, int, tuple[_Copies, ...]]] = [(run, run.disp, 0, ())]
    while todo:
        run, disp, at, dims = todo.pop()
        of = run.of
        if run.copies > 1:
            dims = (*dims, _Copies(run.copies, run.stride, of.size))
        if of.dense:
            yield _Leaf(disp + of.true_lb, at, of.size, dims)
            continue
        ends = itertools.accumulate((inner.copies * inner.of.size for inner in of.runs), initial=at)
        todo += reversed([(inner, disp + inner.disp, start, dims) for inner, start in zip(of.runs, ends, strict=False)])
