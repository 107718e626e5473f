"""The pieces of a type map, which are byte ranges without a gap, and overlaps of entries.

All functions work on runs, so that the number of steps in Python is that of the branches of the type map, not of its
entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from mpired.datatypes.typemap.transfer import reach
from mpired.datatypes.typemap.typemap import Run, TypeMap

_MAX_PIECES = 1 << 20


def pieces(typemap: TypeMap, limit: int = _MAX_PIECES) -> np.ndarray | None:
    """Return start and end of each piece in the order of the map; None if there are more than `limit`."""
    if not typemap.size:
        return np.empty((0, 2), np.int64)
    too_many = typemap.folded(_count, lambda inner: inner.dense) > limit
    return None if too_many else typemap.folded(_pieces, lambda inner: inner.dense)


def _count(typemap: TypeMap, counts: Mapping[TypeMap, int]) -> int:
    """Return the number of pieces of a map from those of the maps in it."""
    return 1 if typemap.dense else sum(run.copies * counts[run.of] for run in typemap.runs)


def _pieces(typemap: TypeMap, pieces_inside: Mapping[TypeMap, np.ndarray]) -> np.ndarray:
    """Return the pieces of a map from those of the maps in it."""
    if typemap.dense:
        return np.array([[typemap.true_lb, typemap.true_ub]], np.int64)
    groups = itertools.groupby(typemap.runs, key=lambda run: None if run.of.dense else run.of)
    return np.concatenate([
        _pieces_of_runs(list(runs), None if inner is None else pieces_inside[inner]) for inner, runs in groups
    ])  # fmt: skip


def _pieces_of_runs(runs: list[Run], inner: np.ndarray | None) -> np.ndarray:
    """Return the pieces of runs of one map with the pieces `inner`; None if all of the maps are dense."""
    copies = np.array([run.copies for run in runs], np.int64)
    disps = np.array([_wrap(run.disp) for run in runs], np.int64)
    strides = np.array([_wrap(run.stride) for run in runs], np.int64)
    numbers = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    shifts = np.repeat(disps, copies) + np.repeat(strides, copies) * numbers
    if inner is None:
        bounds = np.array([[(run.of.true_lb, run.of.true_ub)] for run in runs], np.int64)
        inner = np.repeat(bounds, copies, axis=0)
    shifted: np.ndarray = (inner + shifts[:, None, None]).reshape(-1, 2)
    return shifted


def _wrap(number: int) -> int:
    """Return a number modulo 2**64: displacements of entries fit 63 bits, but their terms may not."""
    return (number + 2**63) % 2**64 - 2**63


def overlaps(typemap: TypeMap, count: int, limit: int = _MAX_PIECES) -> bool | None:
    """Return whether entries of `count` elements overlap; None if there are more than `limit` pieces."""
    # No entry of a target may overlap another (MPI-4.1, 5.1.11, 12.3.1).
    if not count or not typemap.size or _have_disjoint_spans(Run(typemap, 0, count, typemap.extent)):
        return False
    if typemap.size > typemap.true_extent:  # more bytes than the range has
        return True
    ranges = pieces(typemap, limit)
    if ranges is None:
        return None
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if (ranges[1:, 0] < ranges[:-1, 1]).any():
        return True
    return count > 1 and _copies_overlap(ranges, count, abs(typemap.extent))


def _have_disjoint_spans(run: Run) -> bool:
    """Return whether the spans of all parts of a run are disjoint; if spans overlap, entries need not."""
    waiting, visited = [run], set()
    while waiting:
        # Runs that differ only by their displacement are visited once.
        run = waiting.pop()._replace(disp=0)
        typemap = run.of
        if run.copies > 1 and abs(run.stride) < typemap.true_extent:
            return False
        if run in visited or typemap.dense:
            continue
        visited.add(run)
        spans = sorted(reach(inner) for inner in typemap.runs)
        if any(low < end for (_, end), (low, _) in itertools.pairwise(spans)):
            return False
        waiting += typemap.runs
    return True


def _copies_overlap(ranges: np.ndarray, count: int, stride: int) -> bool | None:
    """Return whether disjoint byte ranges overlap in `count` copies with a distance of `stride` bytes."""
    # Bytes of two ranges overlap in some copies if they have the same remainder modulo the stride, and if their
    # quotients differ by less than the number of copies.
    if stride == 0 or (ranges[:, 1] - ranges[:, 0] > stride).any():
        return True
    starts, ends = ranges[:, 0], ranges[:, 1]
    border = (starts // stride + 1) * stride
    crossing = ends > border
    starts = np.concatenate([starts, border[crossing]])
    ends = np.concatenate([np.minimum(ends, border), ends[crossing]])
    quotients, lows = np.divmod(starts, stride)
    highs = lows + (ends - starts)
    # Ranges of remainders that are cut at all of their bounds are equal or disjoint.
    bounds = np.unique(np.concatenate([lows, highs]))
    first, last = np.searchsorted(bounds, lows), np.searchsorted(bounds, highs)
    widths = last - first
    if widths.sum() > _MAX_PIECES:
        return None
    cells = np.repeat(first - np.cumsum(widths) + widths, widths) + np.arange(widths.sum())
    quotients = np.repeat(quotients, widths)
    order = np.lexsort([quotients, cells])
    same = np.diff(cells[order]) == 0
    return bool((same & (np.diff(quotients[order]) < count)).any())
