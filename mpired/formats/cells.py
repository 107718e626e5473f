"""Cells of results: the times that they are of, and their `cell_methods`, where ranks are different times (CF, 7.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from mpired import cautions
from mpired.formats.arrays import ArrayHeader, KeptArrays
from mpired.formats.rank import Cells
from mpired.ops import Op

_SECONDS = {"day": 86400, "d": 86400, "hour": 3600, "h": 3600, "minute": 60, "min": 60, "second": 1, "": 1}
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # one since the day when the second began
_BEGIN = np.datetime64("1582-10-15")


RankTime: TypeAlias = tuple[ArrayHeader, tuple[np.ndarray, ...]]
"""The coordinate of time of a rank: its header, its values, and then those of its bounds if it has some."""


def times(kept: Sequence[object], ops: Sequence[Op]) -> tuple[RankTime, ...]:
    """Return the time of each rank; () unless they differ, the user ignores that, and an op is a method of cells."""
    ranks = [each for each in kept if isinstance(each, KeptArrays)]
    if not ranks or not ranks[0].ignored or len(ranks) < len(kept) or not any(op.method for op in ops):
        return ()
    name = next((each.name for each in ranks[0].carried if each.name in ranks[0].ignored and _is_time(each)), "")
    headers = [next((array for array in each.carried if array.name == name), None) for each in ranks]
    if len({header and header.digest for header in headers}) == 1:
        return ()
    read = [(header, each.values(header)) for header, each in zip(headers, ranks, strict=True) if header is not None]
    return tuple(read) if len(read) == len(ranks) else ()


def _is_time(array: ArrayHeader) -> bool:
    """Return whether a coordinate is the time of measured values."""
    # A coordinate of its own dimension, or without any, which CF calls scalar.
    attributes, is_axis = array.attributes, not array.dims or array.name.rpartition("/")[2] in array.dims
    if array.dtype is None or array.packing is not None or " since " not in attributes.get("units", ""):
        return False
    return "time" in attributes.get("standard_name", "time" * is_axis).split() or attributes.get("axis") == "T"


def cells(like: object, ranks: Sequence[RankTime], results: Sequence[tuple[str, str, Op]]) -> Cells:
    """Return the cells of a result of ranks with these times, which is modelled on the file of `like`."""
    # Each array of the result has its name, its name in that file, and its op.
    if len({header.digest for header, _ in ranks}) < 2 or not isinstance(like, KeptArrays):  # noqa: PLR2004 - differ
        return Cells()
    first = ranks[0][0]
    own = next((each for each in like.carried if each.name == first.name), first)
    moved = [_moved(each, own.attributes) for each in ranks]
    if len({tuple(each.shape for each in values) for values in moved}) > 1 or not moved[0]:
        cautions.tell(cautions.times(own.name))
        return Cells()
    all_times, *all_bounds = (np.stack(each) for each in zip(*moved, strict=True))
    values = {own.name: all_times.mean(axis=0)} if own.count == 1 else {}
    for bounds in all_bounds:
        values[like.bounds_of(own)] = np.stack([bounds[..., 0].min(axis=0), bounds[..., -1].max(axis=0)], axis=-1)
    is_whole, last, methods = own.dtype is not None and own.dtype.kind in "iu", own.name.rpartition("/")[2], {}
    combined = {array.name: array for array in like.combined}
    for name, array, op in ((name, combined[own_name], op) for name, own_name, op in results if op.method):
        if last in array.dims or last in array.attributes.get("coordinates", "").split():
            before, method = array.attributes.get("cell_methods", ""), f"{last}: {op.method}"
            methods[name] = before if before.endswith(method) else f"{before} {method}".lstrip()
    rounded = {name: (np.rint(each) if is_whole else each).astype(own.dtype) for name, each in values.items()}
    return Cells(rounded, methods)


def _moved(rank: RankTime, wanted: Mapping[str, str]) -> tuple[np.ndarray, ...]:
    """Return times, and their bounds, in the units that attributes name; () if they have none there."""
    own, wide = rank[0].attributes, tuple(each.astype(np.longdouble) for each in rank[1])
    if all(own.get(name) == wanted.get(name) for name in ("units", "calendar")):
        return wide
    scales = []  # the seconds of a unit, and where it begins
    for attributes in (own, wanted):
        unit, _, begin = attributes.get("units", "").partition(" since ")
        seconds = _SECONDS.get(unit.removesuffix("s"))
        try:
            when = np.datetime64(begin.removesuffix(" UTC"), "s")
        except ValueError:
            return ()
        # A calendar that NumPy has; no date is not later than any.
        if seconds is None or attributes.get("calendar", _CALENDARS[0]) not in _CALENDARS or not when >= _BEGIN:
            return ()
        scales.append((seconds, int(when.astype(np.int64))))
    (unit_nseconds, zero), (other, since) = scales
    return tuple((each * unit_nseconds + (zero - since)) / other for each in wide)
