"""The pieces without a gap that a type map is made of, and whether any overlap.

Everything works on runs, so that it costs as many steps of Python as a type has branches, not entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mpired.datatypes.typemap.transfer import reach
from mpired.datatypes.typemap.typemap import Run, TypeMap, unfolded

_MAX_PIECES = 1 << 20


def pieces(typemap: TypeMap, most: int = _MAX_PIECES) -> np.ndarray | None:
    """Return the start and the end of each stretch without a gap, in the order of the map; None if over `most`.

    A map that is in another many times is looked at once. They are too many too if the maps on the way have many.

    Returns
    -------
    array of int64, shape (n, 2), or None
        Displacements in bytes.
    """
    if not typemap.size:
        return np.empty((0, 2), np.int64)
    inside = typemap.inside(lambda of: of.dense)
    counts: dict[TypeMap, int] = {}
    times: dict[TypeMap, int] = dict.fromkeys(inside, 0)
    for of in inside:
        counts[of] = 1 if of.dense else sum(run.copies * counts[run.of] for run in of.runs)
        for run in () if of.dense else of.runs:
            times[run.of] += run.copies
    often = [of for of in inside if times[of] > 1 and not of.dense]
    if counts[typemap] > most or sum(counts[of] for of in often) > 4 * most:
        return None
    known: dict[TypeMap, np.ndarray] = {}
    for of in often:
        known[of] = _pieces(of, known)
    return _pieces(typemap, known)


def _pieces(typemap: TypeMap, known: Mapping[TypeMap, np.ndarray]) -> np.ndarray:
    """Return the pieces of a map with those of the maps that are in it several times; the others are taken apart."""
    runs = unfolded(Run(typemap), lambda run: None if run.of.dense or run.of in known else run.parts())
    alike = itertools.groupby(runs, key=lambda run: None if run.of.dense else run.of)
    placed = [_placed(list(group), None if of is None else known[of]) for of, group in alike]
    found: np.ndarray = np.concatenate(placed)
    return found


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
    meet = None if found is None else _meet(found, count, abs(typemap.extent))
    apart = count == 1 or abs(typemap.extent) >= typemap.true_extent
    return False if meet is None and apart and _combed(typemap, most) else meet


def _combed(typemap: TypeMap, most: int) -> bool:
    """Return whether the runs of a map are apart because they go in equal steps, like the teeth of combs."""
    strides = {abs(run.stride) for run in typemap.runs if run.copies > 1}
    if len(strides) != 1:
        return False
    # One copy of each run, as a map; its bounds are of no interest here.
    found = pieces(replace(typemap, runs=tuple(Run(run.of, run.reach[0]) for run in typemap.runs)), most)
    copies = max(run.copies for run in typemap.runs)
    return found is not None and _meet(found, copies, strides.pop()) is False


def _meet(found: np.ndarray, count: int, stride: int) -> bool | None:
    """Return whether any two pieces meet, of one copy or of two, out of `count` with a distance of `stride`."""
    found = found[np.argsort(found[:, 0], kind="stable")]
    if (found[1:, 0] < found[:-1, 1]).any():
        return True
    return count > 1 and _copies_overlap(found, count, stride)


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
