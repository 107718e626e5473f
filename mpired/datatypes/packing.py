"""The pieces without a gap that a type map is made of, and whether any overlap.

Everything works on runs, so that it costs as many steps of Python as a type has branches, not entries.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from mpired.datatypes.moving import reach
from mpired.datatypes.typemap import Run, TypeMap

_MAX_PIECES = 1 << 20


def pieces(typemap: TypeMap, most: int = _MAX_PIECES) -> np.ndarray | None:
    """Return the start and the end of each stretch without a gap, in the order of the map; None if over `most`.

    A map that is in another many times is looked at once. They are too many too if the maps on the way have many.

    Returns
    -------
    array of int64, shape (n, 2), or None
        Displacements in bytes.
    """
    counts: dict[TypeMap, int] = {}
    if _count_pieces(typemap, counts) > most or sum(counts.values()) > 4 * most:
        return None
    return _pieces(typemap, {})


def _count_pieces(typemap: TypeMap, known: dict[TypeMap, int]) -> int:
    if typemap not in known:
        inner = (run.copies * _count_pieces(run.of, known) for run in typemap.runs)
        known[typemap] = 1 if typemap.dense else sum(inner)
    return known[typemap]


def _pieces(typemap: TypeMap, known: dict[TypeMap, np.ndarray]) -> np.ndarray:
    if typemap in known:
        return known[typemap]
    if typemap.dense:
        found = np.array([[typemap.true_lb, typemap.true_ub]][: typemap.size], np.int64).reshape(-1, 2)
    else:
        alike = itertools.groupby(typemap.runs, key=lambda run: run.of)
        found = np.concatenate(
            [(_pieces(of, known) + _shifts(list(runs))[:, None, None]).reshape(-1, 2) for of, runs in alike]
        )
    return known.setdefault(typemap, found)


def _shifts(runs: list[Run]) -> np.ndarray:
    """Return the displacement of each copy of some runs, in order."""
    copies = np.array([run.copies for run in runs], np.int64)
    disps = np.array([_wrapped(run.disp) for run in runs], np.int64)
    strides = np.array([_wrapped(run.stride) for run in runs], np.int64)
    numbers = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    shifts: np.ndarray = np.repeat(disps, copies) + np.repeat(strides, copies) * numbers
    return shifts


def _wrapped(number: int) -> int:
    """Return a number modulo 2**64: bytes of entries fit 63 bits, what they are computed from need not."""
    return (number + 2**63) % 2**64 - 2**63


def overlaps(typemap: TypeMap, count: int, most: int = _MAX_PIECES) -> bool | None:
    """Tell whether any byte is in two entries of `count` elements, one extent apart; None if that is too much work.

    More than `most` pieces are.

    No entry of what is written to may overlap another (MPI-4.1, 5.1.11, 12.3.1).
    """
    if not count or not typemap.size or _plainly_apart(Run(typemap, 0, count, typemap.extent)):
        return False
    apart = count == 1 or abs(typemap.extent) >= typemap.true_extent
    if apart and _combed(typemap, most):
        return False
    found = pieces(typemap, most)
    return None if found is None else _meet(found, count, abs(typemap.extent))


def _combed(typemap: TypeMap, most: int) -> bool:
    """Tell whether the runs of a map are apart because they go in equal steps, like the teeth of combs."""
    strides = {abs(run.stride) for run in typemap.runs if run.copies > 1}
    if len(strides) != 1:
        return False
    # One copy of each run, as a map; its bounds are of no interest here.
    found = pieces(replace(typemap, runs=tuple(Run(run.of, run.reach[0]) for run in typemap.runs)), most)
    copies = max(run.copies for run in typemap.runs)
    return found is not None and _meet(found, copies, strides.pop()) is False


def _meet(found: np.ndarray, count: int, stride: int) -> bool | None:
    """Tell whether any two pieces meet, of one copy or of two, out of `count` with a distance of `stride`."""
    found = found[np.argsort(found[:, 0], kind="stable")]
    if (found[1:, 0] < found[:-1, 1]).any():
        return True
    return count > 1 and _copies_overlap(found, count, stride)


def _plainly_apart(run: Run) -> bool:
    """Tell whether no two parts of a run come near each other; if they do, they may still be apart."""
    of = run.of
    if run.copies > 1 and abs(run.stride) < of.true_extent:
        return False
    if of.dense:
        return True
    hulls = sorted(reach(inner) for inner in of.runs)
    if any(low < end for (_, end), (low, _) in itertools.pairwise(hulls)):
        return False
    # Where a run is makes no difference to its parts, so that those that are the same are looked at once.
    return all(map(_plainly_apart, {inner._replace(disp=0) for inner in of.runs}))


def _copies_overlap(found: np.ndarray, count: int, stride: int) -> bool | None:
    """Tell whether pieces that are apart meet those of another copy, out of `count` with a distance of `stride`.

    Two pieces can meet only where they have the same remainder by the stride, and do if their quotients
    differ by less than the number of copies.
    """
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
