"""Copies of elements from the places of a type map to adjacent bytes, and back: gather and scatter; their pictures.

Packed elements are the entries in the order of the type map, without gaps. All functions work on runs, so that the
number of steps in Python is that of the branches of the type map, not of its entries.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpired.datatypes.typemap import Run, TypeMap, pieces, unfolded

BLOCK_BYTES = 1 << 20
"""Maximum of bytes that are copied at a time, and of bytes that are read at once with the gaps between them."""

INTERLEAVED_BYTES = 4 << 20
"""The same maximum for elements that interleave: more elements at a time have longer adjacent bytes."""

_MAX_GAP = 64 << 10  # bytes; larger gaps are skipped, smaller ones are read along
_MAX_LEAVES = 1 << 10  # in a group
NUMBERS = (1, 2, 4, 8)
"""Sizes in bytes that NumPy copies as integers, which is faster."""


class _Copies(NamedTuple):
    """Copies of a stretch: their number, and their distances in bytes in the type map and packed."""

    number: int
    stride: int
    packed_stride: int


class _Leaf(NamedTuple):
    """A stretch without a gap, and its copies along several dimensions."""

    disp: int  # the first byte of the first stretch, in the type map
    packed_disp: int  # the same in the packed elements
    nbytes: int  # the length of a stretch
    dims: tuple[_Copies, ...]

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte of all stretches, and the end of the last."""
        spans = [(dim.number - 1) * dim.stride for dim in self.dims]
        low = self.disp + sum(span for span in spans if span < 0)
        return low, self.disp + sum(span for span in spans if span > 0) + self.nbytes

    @property
    def size(self) -> int:
        """The bytes of all stretches."""
        return self.nbytes * math.prod(dim.number for dim in self.dims)


class FileWindow(NamedTuple):
    """Byte ranges of a file that are copied together, with the gaps in them."""

    starts: range  # the first byte of each range
    nbytes: int  # the length of each range
    size: int  # bytes of all entries in the ranges
    leaves: Iterable[_Leaf]  # the entries, at their displacements in the joined ranges; an iterator is used up

    @property
    def has_no_gaps(self) -> bool:
        """Whether the ranges have no gaps, if no two entries overlap."""
        return self.size == len(self.starts) * self.nbytes

    def gather(self, joined: np.ndarray, packed: np.ndarray) -> None:
        """Copy the entries from the joined byte ranges to the packed elements."""
        for leaf in self.leaves:
            in_ranges, in_packed = _views(leaf, joined, packed)
            in_packed[...] = in_ranges

    def scatter(self, joined: np.ndarray, packed: np.ndarray) -> None:
        """Copy the entries from the packed elements to the joined byte ranges; other bytes of these stay."""
        for leaf in self.leaves:
            in_ranges, in_packed = _views(leaf, joined, packed)
            in_ranges[...] = in_packed


def _views(leaf: _Leaf, joined: np.ndarray, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of a leaf in both arrays, as views with the dimensions of the leaf."""
    dtype = np.dtype(f"{'u' if leaf.nbytes in NUMBERS else 'V'}{leaf.nbytes}")
    shape, strides, packed_strides = zip(*leaf.dims, strict=True) if leaf.dims else ((), (), ())
    # The constructor checks that every element is in the array.
    in_ranges: np.ndarray = np.ndarray(shape, dtype, joined.data, leaf.disp, strides)
    in_packed: np.ndarray = np.ndarray(shape, dtype, packed.data, leaf.packed_disp, packed_strides)
    return in_ranges, in_packed


def is_dense(run: Run) -> bool:
    """Return whether the bytes of a run are adjacent in the order of the map."""
    return run.of.dense and (run.copies == 1 or run.stride == run.of.size)


def _interleaves(run: Run) -> bool:
    return run.copies > 1 and abs(run.stride) < run.of.true_extent


def cut(run: Run) -> Iterator[Run]:
    """Cut a run into runs in the order of the type map; each of them packed is at most a block."""
    return unfolded(run, _smaller_runs)


def _smaller_runs(run: Run) -> Iterator[Run] | None:
    """Return the parts of a run that is larger than a block; None if it is not larger."""
    typemap, limit = run.of, INTERLEAVED_BYTES if _interleaves(run) else BLOCK_BYTES
    if not typemap.size or not run.copies:
        return iter(())
    if run.copies * typemap.size <= limit or (run.copies == 1 and typemap.basic):
        return None
    if run.copies == 1:
        return run.parts()
    step, disp, stride = max(1, limit // typemap.size), run.disp, run.stride
    firsts = range(0, run.copies, step)
    return (Run(typemap, disp + first * stride, min(step, run.copies - first), stride) for first in firsts)


def windows(run: Run) -> Iterator[FileWindow]:
    """Yield the windows of a file that contain a run; each of them packed is at most a block."""
    # A window has whole copies, unless copies interleave: then adjacent bytes belong to many copies.
    if run.copies > 1 and run.of.true_extent <= BLOCK_BYTES and not _interleaves(run):
        first = run._replace(copies=1)
        group = _LeafGroup(*first.reach, run.of.size, functools.partial(_leaves, first))
        yield from _windows_of_copies(group, _Copies(run.copies, run.stride, run.of.size))
        return
    for leaves in _near_leaves(_leaves(run)):
        if len(leaves) > 1:
            yield _LeafGroup.from_leaves(leaves).window()
        else:
            yield from _windows_of_leaf(leaves[0])


def whole_window(run: Run) -> FileWindow:
    """Return the window with all bytes of a run."""
    return _LeafGroup(*run.reach, run.copies * run.of.size, functools.partial(_leaves, run)).window()


class _LeafGroup(NamedTuple):
    """Leaves that are copied together."""

    low: int  # the first byte of all leaves
    high: int  # the end of the last
    size: int  # bytes of all leaves
    leaves: Callable[[], Iterable[_Leaf]]  # returns the leaves

    @classmethod
    def from_leaves(cls, leaves: Sequence[_Leaf]) -> _LeafGroup:
        lows, highs = zip(*(leaf.reach for leaf in leaves), strict=True)
        return cls(min(lows), max(highs), sum(leaf.size for leaf in leaves), lambda: leaves)

    @property
    def nbytes(self) -> int:
        return self.high - self.low

    def window(self) -> FileWindow:
        """Return the window with all leaves."""
        return FileWindow(range(self.low, self.low + 1), self.nbytes, self.size, self.shift(-self.low))

    def shift(self, disp: int, packed_disp: int = 0, *copies: _Copies) -> Iterator[_Leaf]:
        """Yield the leaves, moved by some bytes, with further dimensions of copies."""
        for leaf in self.leaves():
            disps = leaf.disp + disp, leaf.packed_disp + packed_disp
            yield _Leaf(*disps, leaf.nbytes, copies + leaf.dims)


def _windows_of_copies(group: _LeafGroup, copies: _Copies) -> Iterator[FileWindow]:
    """Yield windows with copies of a group: near copies share a byte range, distant copies do not."""
    distance, nbytes = abs(copies.stride), group.nbytes
    is_near = distance - nbytes <= _MAX_GAP
    step = max(1, (BLOCK_BYTES - nbytes) // distance + 1 if is_near and distance else BLOCK_BYTES // nbytes)
    for first in range(0, copies.number, step):
        number = min(step, copies.number - first)
        start, packed_start = group.low + first * copies.stride, first * copies.packed_stride
        if is_near:
            start += min(0, (number - 1) * copies.stride)
            starts, length, stride = range(start, start + 1), (number - 1) * distance + nbytes, copies.stride
        else:
            starts, length, stride = range(start, start + number * copies.stride, copies.stride), nbytes, nbytes
        disp = -group.low if stride >= 0 else -group.low - (number - 1) * stride
        leaves = group.shift(disp, packed_start, _Copies(number, stride, copies.packed_stride))
        yield FileWindow(starts, length, number * group.size, leaves)


def _windows_of_leaf(leaf: _Leaf) -> Iterator[FileWindow]:
    """Yield windows with the stretches of a leaf, which is cut along its widest dimension if it exceeds a block."""
    group = _LeafGroup.from_leaves([leaf])
    if group.nbytes <= BLOCK_BYTES or not leaf.dims:
        yield group.window()
        return
    widest = max(leaf.dims, key=lambda dim: abs(dim.stride))
    inner = leaf._replace(dims=tuple(dim for dim in leaf.dims if dim is not widest))
    if (inner_group := _LeafGroup.from_leaves([inner])).nbytes <= BLOCK_BYTES:
        yield from _windows_of_copies(inner_group, widest)
        return
    for i in range(widest.number):
        disps = leaf.disp + i * widest.stride, leaf.packed_disp + i * widest.packed_stride
        yield from _windows_of_leaf(_Leaf(*disps, leaf.nbytes, inner.dims))


def _near_leaves(leaves: Iterable[_Leaf]) -> Iterator[list[_Leaf]]:
    """Yield groups of consecutive leaves without large gaps; the leaves of a group fit into a block."""
    group: list[_Leaf] = []
    low = high = 0
    for leaf in leaves:
        first, end = leaf.reach
        lowest, highest = (min(low, first), max(high, end)) if group else (first, end)
        is_far = max(first - high, low - end) > _MAX_GAP or highest - lowest > BLOCK_BYTES
        if group and (is_far or len(group) >= _MAX_LEAVES):
            yield group
            group, lowest, highest = [], first, end
        group.append(leaf)
        low, high = lowest, highest
    if group:
        yield group


def _leaves(run: Run) -> Iterator[_Leaf]:
    """Yield the stretches of a run in the order of the type map; copies are one leaf."""
    # The number of dimensions is small, because each has two copies or more.
    waiting: list[tuple[Run, int, int, tuple[_Copies, ...]]] = [(run, run.disp, 0, ())]
    while waiting:
        run, disp, packed_disp, dims = waiting.pop()
        typemap = run.of
        if run.copies > 1:
            dims = (*dims, _Copies(run.copies, run.stride, typemap.size))
        if typemap.dense:
            yield _Leaf(disp + typemap.true_lb, packed_disp, typemap.size, dims)
            continue
        sizes = (inner.copies * inner.of.size for inner in typemap.runs)
        starts = itertools.accumulate(sizes, initial=packed_disp)
        parts = [(inner, disp + inner.disp, start, dims) for inner, start in zip(typemap.runs, starts, strict=False)]
        waiting += reversed(parts)


_COLUMNS = 64  # of a picture
_MAX_ENTRIES = 8 * _COLUMNS  # drawn with their numbers
_MAX_DRAWN = 1 << 17  # pieces
_GLYPHS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NONE, _SOME, _ALL = ".+#"


class Picture(NamedTuple):
    """A picture of the bytes from `start` to `stop`, with a character for `nbytes` bytes."""

    text: str
    start: int
    stop: int
    nbytes: int


def draw(typemap: TypeMap) -> Picture | None:
    """Draw an element with bars for its bounds; return None if it has no bytes, or too many pieces."""
    # If a character is a byte, it is the number of the entry with this byte, or `.` for a gap. If a character is
    # several bytes, or there are many entries, `#` means that all bytes are in entries, `+` some, `.` none.
    start = min(typemap.lb, typemap.ub, typemap.true_lb)
    stop = max(typemap.lb, typemap.ub, typemap.true_ub)
    width = -(-(stop - start) // _COLUMNS)
    if not width:
        return None
    if width == 1 and typemap.entries <= _MAX_ENTRIES:
        cells = [_NONE] * (stop - start)
        for number, entry in enumerate(typemap.walk()):
            index = entry.disp - start
            cells[index : index + entry.form.itemsize] = _GLYPHS[number % len(_GLYPHS)] * entry.form.itemsize
    else:
        ranges = pieces(typemap, _MAX_DRAWN)
        if ranges is None:
            return None
        cells = _cells(*_merge(ranges), range(start, stop, width))
    text = "".join(cells)
    for bound in sorted({typemap.lb, typemap.ub}, reverse=True):
        index = -(-(bound - start) // width)
        text = f"{text[:index]}|{text[index:]}"
    return Picture(text, start, stop, width)


def _cells(starts: np.ndarray, ends: np.ndarray, lows: range) -> list[str]:
    """Return the characters of the cells that begin at `lows`: whether all, some or no bytes are in a piece."""
    cells = []
    for low in lows:
        high = min(low + lows.step, lows.stop)
        first = int(np.searchsorted(ends, low, side="right"))  # the first piece that ends in the cell or after it
        if first == len(starts) or starts[first] >= high:
            cells.append(_NONE)
        else:
            cells.append(_ALL if starts[first] <= low and ends[first] >= high else _SOME)
    return cells


def _merge(ranges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of byte ranges in ascending order; ranges that touch or overlap are merged."""
    if not len(ranges):
        return ranges[:, 0], ranges[:, 1]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    last = np.flatnonzero(ranges[1:, 0] > ends[:-1])  # the ranges before a gap
    return ranges[np.r_[0, last + 1], 0], ends[np.r_[last, len(ranges) - 1]]
