"""Which elements of a window a request means: by displacement, by index, or by a map."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpired.context import BASE_NBYTES, NO_LIMITS, Context
from mpired.datatypes.datatype import tail
from mpired.datatypes.typemap import transfer
from mpired.datatypes.typemap.typemap import Run, TypeMap
from mpired.errors import CountError, DisplacementError, OverlapError, RangeError, UsageError
from mpired.formats import Array
from mpired.windows.apply import Share
from mpired.windows.runs import Map, Runs, check_range, held_of_runs

_FARTHEST = 2**62  # bytes; no file is that large, and sums of two such offsets still fit 64 bits
_SLICE = re.compile(
    r"\s*(?:(?P<at>-?\d+)|(?P<start>-?\d*)\s*:\s*(?P<stop>-?\d*)\s*(?::\s*(?P<step>\d+)\s*)?)\s*", re.ASCII
)


@dataclass(frozen=True)
class Given:
    """What the origins have: how many elements, and a shape if all have one."""

    name: str  # what messages call the first of them
    count: int | None  # elements of each; None if that does not matter, because nothing is read of them
    shape: tuple[int, ...] | None = None  # as the files say
    whole: bool = True  # whether all elements of the file are meant, so that its shape is theirs


@dataclass(frozen=True)
class Placement:
    """Where the elements of the origin go."""

    disp: int | None = None  # the displacement, in units of `unit` bytes (MPI-4.1, 12.3.1); None if none was said
    unit: int | None = None  # bytes; None for an element
    count: int | None = None  # elements of the target; None for as many as the origin has
    # where the components of an element of a derived datatype lie; None for a run of elements
    typemap: TypeMap | None = None
    box: str | None = None  # the index of a box, as `3,0:5`
    indices: np.ndarray | None = None  # for each element of the origin the index of one of the window
    rank: int | None = None  # the window that is meant, of several
    context: Context = NO_LIMITS  # the settings of the call

    @property
    def numbered(self) -> bool:
        """Whether it is said by numbers where elements go."""
        return (self.disp, self.unit, self.count, self.typemap) != (None,) * 4

    @property
    def by_shape(self) -> bool:
        """Whether a whole origin has the shape of what is meant, so that elements of the same index are combined."""
        return self.indices is None and not self.numbered

    def check(self, nwindows: int) -> None:
        """Raise `UsageError` if the words contradict each other, whatever the files hold."""
        if sum([self.numbered, self.box is not None, self.indices is not None]) > 1:
            reason = "say in different ways where elements go; choose one"
            raise UsageError("`at`, `map` and the target's options", reason)
        if self.disp is not None and self.disp < 0:
            raise DisplacementError(f"`target_disp={self.disp}`", "is negative (MPI-4.1, 12.3.1); give 0 or more")
        if self.unit is not None and self.unit < 1:
            raise UsageError(f"`disp_unit={self.unit}`", "is not a number of bytes above 0")
        if self.count is not None and self.count < 0:
            raise CountError(f"`target_count={self.count}`", "is negative; give 0 or more")
        if self.rank is not None and not 0 <= self.rank < nwindows:
            raise UsageError(f"`target_rank={self.rank}`", f"is not a rank; there are {nwindows} windows")
        if nwindows > 1 and self.rank is None and self.indices is None:
            raise UsageError("`windows`", "is given several times; choose one with `target_rank`, or use `map`")

    def shares(self, windows: Sequence[Array], given: Given) -> list[Share | None]:
        """Return for each window the elements that are meant, checked."""
        if self.indices is not None and self.rank is None:
            return self._mapped(windows, self.indices, given)
        rank = self.rank or 0
        window = windows[rank]
        if self.indices is not None:
            share = self._mapped([window], self.indices, given)[0]
        else:
            shape, runs = (
                (None, self._runs(window, given)) if self.box is None else _box(window, self.box, given, self.context)
            )
            _check_counts(given, runs.entries)
            share = Share(window, runs, shape)
        if share is not None:
            share.access.check(share.window.source.name, share.window.nbytes, tail(share.window.stored))
        return [share if i == rank else None for i in range(len(windows))]

    def _runs(self, window: Array, given: Given) -> Runs:
        itemsize = window.stored.itemsize
        if not self.numbered:
            _check_whole(window, given)
        start = (self.disp or 0) * (self.unit or itemsize)
        rest = max(window.nbytes - start + tail(window.stored), 0) // itemsize
        count = 0 if self.count is None and given.count == 0 else self.count
        wanted = count if count is not None else given.count or 0
        each = itemsize if self.typemap is None else abs(self.typemap.extent) + self.typemap.true_extent
        reach = start + wanted * each
        if reach >= _FARTHEST:
            raise RangeError(window.source.name, f"the request reaches to byte {reach}, outside of any window")
        if self.typemap is None or count == 0:
            wanted = rest if given.count is None else given.count
            return Runs.plain(start, wanted if count is None else count, itemsize)
        check_layout(window, "`target_type`")
        _check_reach(window, Run(self.typemap, start, count or 1, self.typemap.extent))
        element = Runs.of(self.typemap, itemsize)
        if count is None:
            count = 1 if given.count is None else given.count // max(element.entries, 1)
        _check_counts(given, element.entries * count)  # before they are all laid out
        return element.repeated(count, self.typemap.extent, self.context).moved(start)

    def _mapped(self, windows: Sequence[Array], indices: np.ndarray, given: Given) -> list[Share | None]:
        """Count the entries through all windows in order, as the ranks of one array."""
        _check_counts(given, len(indices), "the map")
        borders = [0, *itertools.accumulate(window.count for window in windows)]
        wrong = np.flatnonzero((indices < 0) | (indices >= borders[-1]))
        if len(wrong):
            reason = f"entry {wrong[0]} is {indices[wrong[0]]}, which is not an element"
            raise RangeError("`map`", f"{reason}; there are {borders[-1]}, from 0 on")
        shares: list[Share | None] = []
        for window, (start, stop) in zip(windows, itertools.pairwise(borders), strict=True):
            index = np.flatnonzero((indices >= start) & (indices < stop))
            access = Map(indices[index] - start, index, window.stored.itemsize)
            shares.append(Share(window, access) if len(index) else None)
        return shares


def _check_reach(window: Array, elements: Run) -> None:
    """Check elements of a derived datatype before they are laid out, of which there may be any number."""
    if not elements.of.size or not elements.copies:
        return
    name, nbytes = window.source.name, window.nbytes
    check_range(name, *transfer.reach(elements), nbytes)
    if elements.copies * elements.of.size > nbytes:
        reason = f"`target_type` has more bytes than the window, {nbytes}, so that its elements overlap"
        raise OverlapError(name, f"{reason} (MPI-4.1, 12.3.4); nothing was changed")


def _check_counts(given: Given, count: int, what: str = "the target") -> None:
    if given.count not in (None, count):
        reason = f"has {given.count} elements for {count} of {what}; both sides need as many (MPI-4.1, 12.3.4)"
        raise CountError(given.name, reason)


def check_layout(buffer: Array, option: str) -> None:
    """Raise `UsageError` if elements lie closer in a file than in memory, so that no type map is of them."""
    if buffer.stored.itemsize != buffer.datatype.extent:
        reason = f"needs elements as in memory, and {buffer.source.name} has them packed; use raw, or an aligned dtype"
        raise UsageError(option, reason)


def _check_whole(window: Array, given: Given) -> None:
    """Without a word of where, the origin is the whole window: anything else may well be a mistake."""
    if given.count == 0:  # nothing to combine (MPI-4.1, 12.3.4)
        return
    if window.shape is None:
        over = (window.source.nbytes - window.offset) % window.stored.itemsize
        if 0 < over < window.datatype.true_extent:
            reason = f"{over} bytes follow the last whole {window.datatype.label}; say where with `target_disp`"
            raise CountError(window.source.name, reason)
    if given.count not in (None, window.count):
        reason = f"has {given.count} elements, but the target has {window.count}; say where with `target_disp` or `at`"
        raise CountError(given.name, reason)
    if given.whole and None not in (given.shape, window.shape) and given.shape != window.shape:
        reason = f"has shape {given.shape}, but the target has {window.shape}; say where with `target_disp`"
        raise CountError(given.name, reason)


def _box(window: Array, text: str, given: Given, context: Context) -> tuple[tuple[int, ...], Runs]:
    """Return the shape and the elements of a box of an array, in the order of the array."""
    shape = window.shape
    if shape is None:
        raise UsageError("`at`", f"needs an array with a shape, and {window.source.name} is raw; use `target_disp`")
    # For each axis the indices that the box takes, and whether it is a single one.
    parts = text.split(",")
    if len(parts) > len(shape):
        raise UsageError(f"`at={text!r}`", f"has {len(parts)} indices, but the target has shape {shape}")
    parts += [":"] * (len(shape) - len(parts))
    lists = [_along(text, part, axis, dim) for axis, (part, dim) in enumerate(zip(parts, shape, strict=True))]
    kept = tuple(len(each) for each, single in lists if not single)
    without_ones = [tuple(n for n in shape if n != 1) for shape in (kept, given.shape or ())]
    if given.whole and given.shape is not None and without_ones[0] != without_ones[1]:
        raise CountError(given.name, f"has shape {given.shape}, but the box {text} has {kept}")
    context.check_memory(BASE_NBYTES + held_of_runs(math.prod(len(each) for each, _ in lists)))
    positions = np.zeros((), np.int64)
    # The last index runs fastest, in Fortran order the first.
    for axis in range(len(shape))[::-1] if window.fortran_order else range(len(shape)):
        stride = math.prod(shape[:axis] if window.fortran_order else shape[axis + 1 :])
        positions = positions[..., None] + lists[axis][0] * stride
    starts = positions.ravel() * window.stored.itemsize
    return kept, Runs(starts, np.ones(len(starts), np.int64), window.stored.itemsize)


def _along(text: str, part: str, axis: int, dim: int) -> tuple[np.ndarray, bool]:
    match = _SLICE.fullmatch(part)
    if match is None or match["step"] == "0":
        raise UsageError(f"`at={text!r}`", f"{part!r} is not an index; write a number, START:STOP or START:STOP:STEP")
    if match["at"] is not None:
        at = int(match["at"])
        if not -dim <= at < dim:
            raise RangeError(f"`at={text!r}`", f"index {at} is out of bounds for axis {axis} with {dim} elements")
        return np.array([at % dim], np.int64), True
    bounds = [int(match[name]) if match[name] else None for name in ("start", "stop", "step")]
    if any(bound is not None and not -dim <= bound <= dim for bound in bounds[:2]):
        raise RangeError(f"`at={text!r}`", f"{part.strip()} is out of bounds for axis {axis} with {dim} elements")
    return np.arange(*slice(*bounds).indices(dim), dtype=np.int64), False
