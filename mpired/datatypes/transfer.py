"""Elements of a type map in arrays and files: their NumPy form, and copies to adjacent bytes and back.

Packed elements are the entries in the order of the type map, without gaps. All functions work on runs, so that the
number of steps in Python is that of the branches of the type map, not of its entries.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpired.datatypes.typemap import Entry, Run, TypeMap, overlaps, unfolded

BLOCK_BYTES = 1 << 20
"""Maximum of bytes that are copied at a time, and of bytes that are read at once with the gaps between them."""

INTERLEAVED_BYTES = 4 << 20
"""The same maximum for elements that interleave: more elements at a time have longer adjacent bytes."""

MOST_GAPS = 8
"""Maximum ratio of extent to size of a datatype that is not mostly gaps."""

_MAX_GAP = 64 << 10  # bytes; larger gaps are skipped, smaller ones are read along
_MAX_LEAVES = 1 << 10  # in a group
NUMBERS = (1, 2, 4, 8)
"""Sizes in bytes that NumPy copies as integers, which is faster."""
_MAX_ITEMSIZE = 2**31 - 1
_MAX_FIELDS = 1000
_LARGE = 1 << 20  # bytes
_MAX_STRETCHES = 100_000  # visited one by one, to join stretches into fields and to find overlaps


@dataclass(frozen=True, eq=False)
class MemoryForm:
    """The NumPy form of the elements of a type map."""

    typemap: TypeMap

    @cached_property
    def is_spread(self) -> bool:
        """Whether arrays hold the elements packed, not as structures one extent apart."""
        # Such elements overlap the next element, have too many stretches, or are large and mostly gaps.
        typemap = self.typemap
        many = min(typemap.entries, typemap.stretches) > _MAX_FIELDS
        hollow = typemap.extent > max(_LARGE, MOST_GAPS * typemap.size)
        return many or hollow or typemap.true_extent > typemap.extent or typemap.extent > _MAX_ITEMSIZE

    @property
    def origin(self) -> int:
        """The byte of an element with displacement 0, which may be outside the element."""
        typemap = self.typemap
        return 0 if typemap.true_lb >= 0 and typemap.true_ub <= typemap.extent else -typemap.true_lb

    @cached_property
    def obstacle(self) -> str:
        """The reason why an array cannot hold the elements; "" if it can."""
        if not self.typemap.entries:
            return "it has no entries"
        if self.is_spread and self.typemap.size > _MAX_ITEMSIZE:
            return f"its {self.typemap.size} bytes are more than {_MAX_ITEMSIZE}"
        if not self.fields:
            return f"its {self.typemap.entries} entries of several types would be more than {_MAX_FIELDS} fields"
        overlap = overlaps(self.typemap, 1, _MAX_STRETCHES)
        if overlap is None:
            return "it has too many pieces to tell that none overlap"
        return "its entries overlap" if overlap else ""

    @cached_property
    def form(self) -> np.dtype | None:
        """The structure with the fields f0, f1, ..., numbered in the order of the map; None if there is an obstacle."""
        if self.obstacle:
            return None
        # NumPy exports buffers only of structures with fields in ascending order; the names keep the order of the map.
        numbered = sorted(enumerate(self.fields), key=lambda item: item[1].disp)
        names, entries = [f"f{i}" for i, _ in numbered], [entry for _, entry in numbered]
        start, itemsize = (0, self.typemap.size) if self.is_spread else (self.origin, self.typemap.extent)
        formats, offsets = [entry.form for entry in entries], [start + entry.disp for entry in entries]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    @cached_property
    def fields(self) -> tuple[Entry, ...]:
        """The fields of the structure: the entries, joined if there are many; empty if they are still too many."""
        # Entries of one type are joined if they are adjacent, for a spread element when packed.
        if self.typemap.entries <= _MAX_FIELDS:
            entries = self.typemap.walk()
        else:
            entries = self._packed_entries() if self.is_spread else self.typemap.walk(stretches=True)
        fields = tuple(map(_as_field, itertools.islice(entries, _MAX_FIELDS + 1)))
        if len(fields) > _MAX_FIELDS:
            return ()
        if not self.is_spread:
            return fields
        disps = itertools.accumulate((entry.form.itemsize for entry in fields), initial=0)
        return tuple(entry._replace(disp=disp) for entry, disp in zip(fields, disps, strict=False))

    def _packed_entries(self) -> Iterator[Entry]:
        """Yield the packed entries, joined where they have one type; nothing if the map has too many stretches."""
        typemap = self.typemap
        types = {inner.basic.name: inner.basic for inner in typemap.inside(lambda _: False) if inner.basic}
        if len(types) == 1:
            yield _repeated(next(iter(types.values())), typemap.entries)
        elif typemap.stretches <= _MAX_STRETCHES:
            for _, group in itertools.groupby(typemap.walk(stretches=True), key=lambda entry: entry.name):
                entries = list(group)
                yield _repeated(entries[0], sum(math.prod(entry.form.shape) for entry in entries))


def _repeated(entry: Entry, count: int) -> Entry:
    """Return an entry for `count` adjacent entries."""
    return entry._replace(form=np.dtype((entry.form.base, (count,))))


def _as_field(entry: Entry) -> Entry:
    """Return an entry whose form has no fields: for a complex number of two binary16 an array of two numbers."""
    base, shape = entry.form.base, entry.form.shape
    if base.fields is None:
        return entry
    return entry._replace(form=np.dtype((base[0], (*shape, len(base.fields)))))


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
