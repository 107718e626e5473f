"""Cells of results: units, and the times and `cell_methods` where ranks are different times (CF, 3.1 and 7.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired import log
from mpired.datatypes import Datatype, Group
from mpired.datatypes.pairs import FIELDS, VALID
from mpired.errors import InputWarning
from mpired.formats import conventions
from mpired.formats.array import Array, stored_array
from mpired.formats.arrays import ArrayHeader, KeptArrays
from mpired.formats.derived import DerivedReader
from mpired.formats.rank import Cells, RankFile
from mpired.ops import Op

_SECONDS = {
    "day": 86400, "d": 86400, "hour": 3600, "hr": 3600, "h": 3600, "minute": 60, "min": 60, "second": 1, "sec": 1,
    "": 1,
}  # fmt: skip
_SAME_CALENDARS = {"": "standard", "gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # one since the day when the second began
_BEGIN = np.datetime64("1582-10-15")


RankTime: TypeAlias = tuple[ArrayHeader, tuple[np.ndarray, ...]]
"""The coordinate of time of a rank: its header, its values, and then those of its bounds if it has some."""


def times(kept: Sequence[object], models: Sequence[object]) -> tuple[RankTime, ...]:
    """Return the time of each rank; () unless those of ranks and models of results differ, and the user ignores it."""
    ranks = [each for each in kept if isinstance(each, KeptArrays)]
    if not ranks or not ranks[0].ignored or len(ranks) < len(kept):
        return ()
    name = next((each.name for each in ranks[0].carried if each.name in ranks[0].ignored and _is_time(each)), "")
    all_kept = [*ranks, *(each for each in models if isinstance(each, KeptArrays))]
    headers = [next((array for array in each.carried if array.name == name), None) for each in all_kept]
    if len({header and header.digest for header in headers}) == 1:
        return ()
    headers = headers[: len(ranks)]
    read = [(header, each.values(header)) for header, each in zip(headers, ranks, strict=True) if header is not None]
    return tuple(read) if len(read) == len(ranks) else ()


def _is_time(array: ArrayHeader) -> bool:
    """Return whether a coordinate is the time of measured values."""
    # A coordinate of its own dimension, or without any, which CF calls scalar.
    attributes, is_axis = array.attributes, not array.dims or array.name.rpartition("/")[2] in array.dims
    if array.dtype is None or array.packing is not None or " since " not in attributes.get("units", ""):
        return False
    return "time" in attributes.get("standard_name", "time" * is_axis).split() or attributes.get("axis") == "T"


class ResultArray(NamedTuple):
    """An array of a result."""

    buffer: int  # the number of the buffer
    number: int  # that of its op
    op: Op
    field: str  # the field of the results of the op, or the counts of valid elements; "" for whole elements
    rank: Array  # what the op takes of the first rank
    name: str
    datatype: Datatype  # of its elements

    @property
    def own_name(self) -> str:
        """Its name in the file which the result is modelled on."""
        return stored_array(self.rank).name


def cells(file: RankFile, ranks: Sequence[RankTime], results: Sequence[ResultArray], nranks: int) -> Cells:
    """Return the cells of a result of `nranks` ranks with these times, which is modelled on a file."""
    combined, like = {array.name: array for array in file.headers}, file.kept
    results = [each for each in results if each.own_name in combined]
    kept, new = like.names if like else [], dict[str, dict[str, str]]()
    for each in results:
        array = combined[each.own_name]
        new[each.name] = _of_units(array, each, nranks) | _of_names(array, each, results, kept)
    attributes = {name: changes for name, changes in new.items() if changes}
    if not isinstance(like, KeptArrays) or not ranks:
        return Cells({}, attributes)
    first = ranks[0][0]
    own = next((each for each in like.carried if each.name == first.name), first)
    ranks = _with_times_of(results, ranks)
    digests = {header.digest for header, _ in ranks}
    if digests == {own.digest}:
        return Cells({}, attributes)
    ranks = ranks if len(digests) > 1 else ranks[:1]
    moved = [_moved(each, own.attributes) for each in ranks]
    if len({tuple(each.shape for each in values) for values in moved}) > 1 or not moved[0]:
        is_bounded = {len(each) > 1 for each in moved if each}
        what = "lengths, units or calendars in the ranks of which no mean can be made"
        what = f"{own.name!r} has {'bounds in some of the ranks only' if is_bounded == {True, False} else what}"
        log.warn(InputWarning(f"{what}; the result has the times of its model, and no method in `cell_methods`"))
        return Cells({}, attributes)
    all_times, *all_bounds = (np.stack(each) for each in zip(*moved, strict=True))
    # Several steps are not adjacent in the ranks: bounds around all of them would be those of other steps too. Those of
    # a climatology are around the same step of several years (CF, 7.4).
    is_one = own.count == 1 or len(moved) == 1 or "climatology" in own.attributes
    values = {own.name: all_times.mean(axis=0)} if is_one else {}
    for bounds in all_bounds if is_one else ():
        values[like.bounds_of(own)] = np.stack([bounds[..., 0].min(axis=0), bounds[..., -1].max(axis=0)], axis=-1)
    last = own.name.rpartition("/")[2]
    places = {name: [*array.dims, *array.attributes.get("coordinates", "").split()] for name, array in combined.items()}
    doubts: list[str] = []
    for each in (each for each in results if len(digests) > 1 and last in places[each.own_name]):
        if each.op.method and not each.field:
            before = combined[each.own_name].attributes.get(conventions.METHODS, "")
            method = f"{last}: {each.op.method}"
            is_there = re.search(rf"(?<!\S){re.escape(method)}( (over|within) \w+)?$", before)
            over = re.findall(r" over \w+$", before) if "climatology" in own.attributes else []
            after = before if is_there else f"{before} {''.join([method, *over])}".lstrip()
            attributes[each.name] = {**new[each.name], conventions.METHODS: after}
        elif each.field != VALID:
            doubts += _doubts(own.name, each, is_changed=bool(values))
    if doubts:
        log.warn(InputWarning(doubts[0]))
    form: np.dtype = np.dtype("f8") if own.dtype is None else own.dtype
    rounded = {name: (np.rint(each) if form.kind in "iu" else each).astype(form) for name, each in values.items()}
    return Cells(rounded, attributes)


def _with_times_of(results: Sequence[ResultArray], ranks: Sequence[RankTime]) -> Sequence[RankTime]:
    """Return the ranks whose times results in one file have: one for only `first` or only `last`, all for others."""
    wanted = {*map(_one_rank, results)}
    if wanted == {"FIRST"}:
        return ranks[:1]
    return ranks[-1:] if wanted == {"LAST"} else ranks


def _one_rank(result: ResultArray) -> str:
    """Return which rank a result is of, "FIRST" or "LAST"; "" if it is of all."""
    is_one = result.op.name in {"FIRST", "LAST"} and not result.op.user and result.field != VALID
    return result.op.name if is_one else ""


def _doubts(time: str, result: ResultArray, *, is_changed: bool) -> list[str]:
    """Return why the times of a file are not those of a result without a method; [] if they are."""
    if which := _one_rank(result):
        what = f"{time!r} is not the time of {result.name!r}, which is of one rank"
        hint = "put {op} into the name of `output`, for a file of each op"
        return [f"{what}; {hint}"] if is_changed or which == "LAST" else []
    what = f"{time!r} has the times of one rank, and {result.name!r} is of all ranks"
    return [] if is_changed else [f"{what}; `cell_methods` do not say so, because CF has no method for {result.op}"]


def gives_truths(op: Op) -> bool:
    """Return whether results of truth values are truth values."""
    return Group.LOGICAL in op.groups and not op.user


def _of_units(array: ArrayHeader, result: ResultArray, nranks: int) -> dict[str, str]:
    """Return the attributes that a result has in the place of those of its model, as its units and range are others."""
    power, old = 0 if result.field == VALID else result.op.power, array.attributes
    is_same = power == 1 and (gives_truths(result.op) or old.get(conventions.DTYPE) != "bool")
    new = {} if is_same or conventions.DTYPE not in old else {conventions.DTYPE: ""}
    if conventions.ACTUAL in old and result.op.name != "FIRST":
        new[conventions.ACTUAL] = ""
    if result.field not in {"", VALID}:
        return new
    is_limited = array.missing is not None and (array.missing.low, array.missing.high) != (None, None)
    if is_limited and (power == 0 or not result.op.is_within):
        new |= dict.fromkeys(conventions.LIMITS, "")
    if power == 1 or "units" not in old:
        return new
    if unit := conventions.powered(old["units"], nranks if power is None else power):
        new["units"] = unit
    if power == 0:  # of a number of ranks these are not true
        counted = {"standard_name": "number_of_observations", conventions.METHODS: ""}
        new |= {name: text for name, text in counted.items() if name in old}
    return new


def _of_names(
    array: ArrayHeader, result: ResultArray, results: Sequence[ResultArray], kept: Sequence[str]
) -> dict[str, str]:
    """Return `ancillary_variables` of a result with the new names of arrays, without those that are not in its file."""
    old, group = array.attributes.get(conventions.ANCILLARY, "").split(), "".join(array.name.rpartition("/")[:2])
    if not old or result.field == FIELDS[1]:
        return {}
    names = {name: name for name in kept}
    names |= {each.own_name: each.name for each in results if (each.op, each.field) == (result.op, result.field)}
    found = [(word, names.get(group + word) or names.get(word.lstrip("/"))) for word in old]
    new = ["".join(word.rpartition("/")[:2]) + name.rpartition("/")[2] for word, name in found if name]
    return {} if new == old else {conventions.ANCILLARY: " ".join(new)}


def _moved(rank: RankTime, wanted: Mapping[str, str]) -> tuple[np.ndarray, ...]:
    """Return times, and their bounds, in the units that attributes name; () if they have none there."""
    change = TimeChange.between(rank[0].attributes, wanted)
    return () if change is None else tuple(map(change.moved, rank[1]))


class TimeChange(NamedTuple):
    """The change of times from one unit to another; the reader of times in the other unit."""

    seconds: int = 1  # of the unit
    begin: int = 0  # the seconds from the time when the other unit begins
    other: int = 1  # the seconds of the other unit

    @classmethod
    def between(cls, own: Mapping[str, str], wanted: Mapping[str, str]) -> TimeChange | None:
        """Return the change from the `units` and `calendar` of some attributes to those `wanted`, or None."""
        names = [each.get("calendar", "").lower() for each in (own, wanted)]
        calendars = {_SAME_CALENDARS.get(name, name) for name in names}
        if len(calendars) == 1 and own.get("units") == wanted.get("units"):
            return cls()
        parts = [each.get("units", "").partition(" since ") for each in (own, wanted)]
        seconds = [_SECONDS.get(unit.strip().lower().removesuffix("s")) for unit, _, _ in parts]
        try:
            one, other = (_date(begin) for _, _, begin in parts)
        except ValueError:
            return None
        # A calendar that NumPy has; no date is not later than any. From one date to the same one any calendar leads.
        is_known = calendars <= {*_CALENDARS} and one >= _BEGIN and other >= _BEGIN
        if None in seconds or not (is_known or (len(calendars) == 1 and one == other)):
            return None
        return cls(seconds[0] or 1, int((one - other).astype(np.int64)), seconds[1] or 1)

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Return times in the other unit."""
        wide = times.astype(np.longdouble)
        return wide if self == TimeChange() else (wide * self.seconds + self.begin) / self.other

    def __call__(self, array: Array) -> DerivedReader:
        """Open an array of times in the other unit."""
        return DerivedReader(array, self._fill)

    def _fill(self, block: np.ndarray, values: np.ndarray, _: int) -> None:
        with np.errstate(all="ignore"):  # missing ones may be anything
            block[...] = self.moved(values)


def units_of(file: RankFile) -> dict[str, dict[str, str]]:
    """Return the `units` and `calendar` of each array of a file, by its name; bounds have those of their coordinate."""
    keys = ("units", "calendar")
    found = {each.name: {key: each.attributes[key] for key in keys if key in each.attributes} for each in file.headers}
    for each in file.headers:
        if each.bounds and each.bounds in found:
            found[each.bounds] = found[each.name] | found[each.bounds]
    return found


def _date(text: str) -> np.datetime64:
    """Return the date with which a unit begins, which CF writes with or without zeros, such as 2000-1-1."""
    plain = re.sub(r"\s*(UTC|Z|[+-]0?0:?00)$", "", text.strip())
    return np.datetime64(re.sub(r"(?<!\d)(\d)(?!\d)", r"0\1", plain), "s")
