"""The pieces without a gap that a type map is made of, and whether any overlap.

Everything works on runs, so that it costs as many steps of Python as a type has branches, not entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from mpired.datatypes.typemap.transfer import reach
from mpired.datatypes.typemap.typemap import Run, TypeMap

_MAX_PIECES = 1 << 20


def pieces(typemap: TypeMap, most: int = _MAX_PIECES) -> np.ndarray | None:
    """Return the start and the end of each stretch without a gap, in the order of the map; None if over `most`."""
    if not typemap.size:
        return np.empty((0, 2), np.int64)
    too_many = typemap.folded(_count, lambda of: of.dense) > most
    return None if too_many else typemap.folded(_pieces, lambda of: of.dense)


def _count(of: TypeMap, known: Mapping[TypeMap, int]) -> int:
    return 1 if of.dense else sum(run.copies * known[run.of] for run in of.runs)


def _pieces(of: TypeMap, known: Mapping[TypeMap, np.ndarray]) -> np.ndarray:
    """Return the pieces of a map by those of the maps in it."""
    if of.dense:
        return np.array([[of.true_lb, of.true_ub]], np.int64)
    alike = itertools.groupby(of.runs, key=lambda run: None if run.of.dense else run.of)
    return np.concatenate([_placed(list(group), None if inner is None else known[inner]) for inner, group in alike])


def _placed(runs: list[Run], inner: np.ndarray | None) -> np.ndarray:
    """Return the pieces of runs of one map that has those `inner`, or of any that are dense."""
    copies = np.array([run.copies for run in runs], np.int64)
    disps = np.array([_wrapped(run.disp) for run in runs], np.int64)
    strides = np.array([_wrapped(run.stride) for run in runs], np.int64)
    numbers = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    shifts = np.repeat(disps, copies) + np.repeat(strides, copies) * numbers
    if inner is None:
        bounds = np.array([[(run.of.true_lb, run.of.true_ub)] for run in runs], np.int64)
        inner = np.repeat(bounds, copies, axis=0)
    placed: np.ndarray = (inner + shifts[:, None, None]).reshape(-1, 2)
    return placed


def _wrapped(number: int) -> int:
    """Return a number modulo 2**64: bytes of entries fit 63 bits, the terms of their sums need not."""
    return (number + 2**63) % 2**64 - 2**63


def overlaps(typemap: TypeMap, count: int, most: int = _MAX_PIECES) -> bool | None:
    """Return whether any byte is in two entries of `count` elements, one extent apart; None if it is too much work."""
    # Too much are more than `most` pieces. No entry of a target may overlap another (MPI-4.1, 5.1.11,
    # 12.3.1).
    if not count or not typemap.size or _plainly_apart(Run(typemap, 0, count, typemap.extent)):
        return False
    if typemap.size > typemap.true_extent:  # more bytes than places for them
        return True
    found = pieces(typemap, most)
    if found is None:
        return None
    found = found[np.argsort(found[:, 0], kind="stable")]
    if (found[1:, 0] < found[:-1, 1]).any():
        return True
    return count > 1 and _copies_overlap(found, count, abs(typemap.extent))


def _plainly_apart(run: Run) -> bool:
    """Return whether no two parts of a run come near each other; if they do, they may still be apart."""
    waiting, seen = [run], set()
    while waiting:
        # Where a run is makes no difference to its parts, so that those that are the same are looked at once.
        run = waiting.pop()._replace(disp=0)
        of = run.of
        if run.copies > 1 and abs(run.stride) < of.true_extent:
            return False
        if run in seen or of.dense:
            continue
        seen.add(run)
        hulls = sorted(reach(inner) for inner in of.runs)
        if any(low < end for (_, end), (low, _) in itertools.pairwise(hulls)):
            return False
        waiting += of.runs
    return True


def _copies_overlap(found: np.ndarray, count: int, stride: int) -> bool | None:
    """Return whether pieces that are apart meet those of another copy, out of `count` with a distance of `stride`."""
    # Two pieces can meet only where they have the same remainder by the stride, and do if their quotients differ by
    # less than the number of copies.
    if stride == 0 or (found[:, 1] - found[:, 0] > stride).any():
        return True
    starts, ends = found[:, 0], found[:, 1]
    border = (starts // stride + 1) * stride
    crossing = ends > border
    starts = np.concatenate([starts, border[crossing]])
    ends = np.concatenate([np.minimum(ends, border), ends[crossing]])
    quotients, lows = np.divmod(starts, stride)
    highs = lows + (ends - starts)
    # Cut at every remainder where a piece starts or ends, remainders are the same or apart.
    marks = np.unique(np.concatenate([lows, highs]))
    first, last = np.searchsorted(marks, lows), np.searchsorted(marks, highs)
    widths = last - first
    if widths.sum() > _MAX_PIECES:
        return None
    cells = np.repeat(first - np.cumsum(widths) + widths, widths) + np.arange(widths.sum())
    quotients = np.repeat(quotients, widths)
    order = np.lexsort([quotients, cells])
    same = np.diff(cells[order]) == 0
    return bool((same & (np.diff(quotients[order]) < count)).any())
