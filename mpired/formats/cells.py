"""Changes of CF metadata between a model and its result: units, times, bounds and `cell_methods`.

Ranks may be different times, such as days. A mean of such ranks has the mean time, bounds around all times, and the
method `time: mean` (CF, 3.1 and 7.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired import log
from mpired.datatypes import Datatype, Group
from mpired.datatypes.predefined import FIELDS, VALID
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
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")  # which are equal since the reform
_REFORM = np.datetime64("1582-10-15")


RankTime: TypeAlias = tuple[ArrayHeader, tuple[np.ndarray, ...]]
"""The time coordinate of a rank: its header, its values, and the values of its bounds if it has bounds."""


def times(kept: Sequence[object], models: Sequence[object]) -> tuple[RankTime, ...]:
    """Return the times of ranks if the user ignores that they differ, in ranks or models of results; else ()."""
    ranks = [arrays for arrays in kept if isinstance(arrays, KeptArrays)]
    if not ranks or not ranks[0].ignored or len(ranks) < len(kept):
        return ()
    name = next((array.name for array in ranks[0].headers if array.name in ranks[0].ignored and _is_time(array)), "")
    all_kept = [*ranks, *(arrays for arrays in models if isinstance(arrays, KeptArrays))]
    headers = [next((array for array in arrays.headers if array.name == name), None) for arrays in all_kept]
    if len({header and header.digest for header in headers}) == 1:
        return ()
    rank_times = [(header, rank.values(header)) for header, rank in zip(headers, ranks, strict=False) if header]
    return tuple(rank_times) if len(rank_times) == len(ranks) else ()


def _is_time(array: ArrayHeader) -> bool:
    """Return whether a coordinate is the time of measured values."""
    # The coordinate of its own dimension, or a coordinate without dimensions, which CF calls scalar.
    attributes, is_axis = array.attributes, not array.dims or array.name.rpartition("/")[2] in array.dims
    if array.dtype is None or array.packing is not None or " since " not in attributes.get("units", ""):
        return False
    return "time" in attributes.get("standard_name", "time" * is_axis).split() or attributes.get("axis") == "T"


class ResultArray(NamedTuple):
    """An array of a result."""

    buffer: int  # the number of the buffer
    number: int  # the number of the op
    op: Op
    field: str  # a field of the results of the op, or `VALID` for counts of valid elements; "" for whole elements
    rank: Array  # the array of the first rank that the op takes
    name: str
    datatype: Datatype  # of its elements

    @property
    def own_name(self) -> str:
        """The name of the array in the model of the result."""
        return stored_array(self.rank).name


def cells(file: RankFile, ranks: Sequence[RankTime], results: Sequence[ResultArray], nranks: int) -> Cells:
    """Return the changes of a result of `nranks` ranks against its model `file`; `ranks` are their times, or ()."""
    headers, kept = {array.name: array for array in file.headers}, file.kept
    results = [result for result in results if result.own_name in headers]
    names, attributes = kept.names if kept else [], dict[str, dict[str, str]]()
    for result in results:
        array = headers[result.own_name]
        if changes := _unit_changes(array, result, nranks) | _ancillary_changes(array, result, results, names):
            attributes[result.name] = changes
    if not isinstance(kept, KeptArrays) or not ranks:
        return Cells({}, attributes)
    name = ranks[0][0].name
    time = next((array for array in kept.headers if array.name == name), ranks[0][0])
    single = {*map(_single_rank, results)}
    ranks = ranks[:1] if single == {"FIRST"} else ranks[-1:] if single == {"LAST"} else ranks
    digests = {header.digest for header, _ in ranks}
    values = None if digests == {time.digest} else _mean_times(kept, time, ranks if len(digests) > 1 else ranks[:1])
    if values is None:
        return Cells({}, attributes)
    if len(digests) > 1:
        pairs = ((headers[result.own_name], result) for result in results)
        _add_methods(attributes, time, pairs, has_mean=bool(values))
    return Cells(values, attributes)


def _mean_times(kept: KeptArrays, time: ArrayHeader, ranks: Sequence[RankTime]) -> dict[str, np.ndarray] | None:
    """Return the mean of times in the units of `time`, and bounds around all; {} for several steps, None if refused."""
    converted = []
    for header, arrays in ranks:
        change = TimeChange.between(header.attributes, time.attributes)
        converted.append(() if change is None else tuple(map(change.convert, arrays)))
    if len({tuple(array.shape for array in arrays) for arrays in converted}) > 1 or not converted[0]:
        reason = "lengths, units or calendars in the ranks of which no mean can be made"
        if {len(arrays) > 1 for arrays in converted if arrays} == {True, False}:
            reason = "bounds in some of the ranks only"
        reason = f"{time.name!r} has {reason}; the result has the times of its model"
        log.warn(InputWarning(f"{reason}, and no method in `cell_methods`"))
        return None
    # Bounds of a step around all ranks would include other steps, except those of a climatology, which are around the
    # same step of several years (CF, 7.4).
    if time.count != 1 and len(converted) > 1 and "climatology" not in time.attributes:
        return {}
    all_times, *all_bounds = (np.stack(arrays) for arrays in zip(*converted, strict=True))
    values = {time.name: all_times.mean(axis=0)}
    for bounds in all_bounds:
        limits = bounds[..., 0].min(axis=0), bounds[..., -1].max(axis=0)
        values[kept.bounds_of(time)] = np.stack(limits, axis=-1)
    form: np.dtype = np.dtype("f8") if time.dtype is None else time.dtype
    return {name: (np.rint(array) if form.kind in "iu" else array).astype(form) for name, array in values.items()}


def _add_methods(
    changes: dict[str, dict[str, str]],
    time: ArrayHeader,
    results: Iterable[tuple[ArrayHeader, ResultArray]],
    *,
    has_mean: bool,
) -> None:
    """Add `cell_methods` for the time to results with a time, or warn if CF has no method for a result."""
    last, warnings = time.name.rpartition("/")[2], []
    for array, result in results:
        if last not in [*array.dims, *array.attributes.get("coordinates", "").split()]:
            continue
        if result.op.method and result.field in {"", FIELDS[0]}:
            methods, method = array.attributes.get(conventions.METHODS, ""), f"{last}: {result.op.method}"
            if not re.search(rf"(?<!\S){re.escape(method)}( (over|within) \w+)?$", methods):
                over = re.findall(r" over \w+$", methods) if "climatology" in time.attributes else []
                methods = f"{methods} {''.join([method, *over])}".lstrip()
            changes[result.name] = {**changes.get(result.name, {}), conventions.METHODS: methods}
        elif (single := _single_rank(result)) and (has_mean or single == "LAST"):
            reason = f"{time.name!r} is not the time of {result.name!r}, which is of one rank"
            warnings.append(f"{reason}; put {{op}} into the name of `output`, for a file of each op")
        elif result.field not in {VALID, FIELDS[1]} and not single and not has_mean:
            reason = f"{time.name!r} has the times of one rank, and {result.name!r} is of all ranks"
            warnings.append(f"{reason}; `cell_methods` do not say so, because CF has no method for {result.op}")
    for warning in warnings[:1]:
        log.warn(InputWarning(warning))


def _single_rank(result: ResultArray) -> str:
    """Return "FIRST" or "LAST" if a result is of that rank alone, else ""."""
    is_single = result.op.name in {"FIRST", "LAST"} and not result.op.user and result.field != VALID
    return result.op.name if is_single else ""


def gives_truths(op: Op) -> bool:
    """Return whether results of truth values are truth values."""
    return Group.LOGICAL in op.groups and not op.user


def _unit_changes(array: ArrayHeader, result: ResultArray, nranks: int) -> dict[str, str]:
    """Return changed attributes of a result with another unit, range or type than its model; "" for a dropped one."""
    power, old = 0 if result.field == VALID else result.op.power, array.attributes
    is_same = power == 1 and (gives_truths(result.op) or old.get(conventions.DTYPE) != "bool")
    changes = {} if is_same or conventions.DTYPE not in old else {conventions.DTYPE: ""}
    if conventions.ACTUAL_RANGE in old and result.op.name != "FIRST":
        changes[conventions.ACTUAL_RANGE] = ""
    if result.field not in {"", VALID}:
        return changes
    has_limits = array.missing is not None and (array.missing.low, array.missing.high) != (None, None)
    if has_limits and (power == 0 or not result.op.is_within):
        changes |= dict.fromkeys(conventions.LIMITS, "")
    if power == 1 or "units" not in old:
        return changes
    if unit := conventions.unit_power(old["units"], nranks if power is None else power):
        changes["units"] = unit
    if power == 0:  # the result is a number of ranks
        counts = {"standard_name": "number_of_observations", conventions.METHODS: ""}
        changes |= {name: text for name, text in counts.items() if name in old}
    return changes


def _ancillary_changes(
    array: ArrayHeader, result: ResultArray, results: Sequence[ResultArray], kept: Sequence[str]
) -> dict[str, str]:
    """Return `ancillary_variables` of a result if it changes: with names in the result, without arrays it lacks."""
    old, group = array.attributes.get(conventions.ANCILLARY, "").split(), "".join(array.name.rpartition("/")[:2])
    if not old or result.field == FIELDS[1]:
        return {}
    names = {name: name for name in kept}
    names |= {same.own_name: same.name for same in results if (same.op, same.field) == (result.op, result.field)}
    renamed = [(word, names.get(group + word) or names.get(word.lstrip("/"))) for word in old]
    new = ["".join(word.rpartition("/")[:2]) + name.rpartition("/")[2] for word, name in renamed if name]
    return {} if new == old else {conventions.ANCILLARY: " ".join(new)}


class TimeChange(NamedTuple):
    """The conversion of times to another unit, and the reader of an array of such times."""

    seconds: int = 1  # in the old unit
    shift: int = 0  # seconds from the begin of the new unit to the begin of the old unit
    new_seconds: int = 1  # in the new unit

    @classmethod
    def between(cls, old: Mapping[str, str], new: Mapping[str, str]) -> TimeChange | None:
        """Return the conversion between the `units` and `calendar` of two sets of attributes, or None without one."""
        names = [attributes.get("calendar", "").lower() for attributes in (old, new)]
        calendars = {_SAME_CALENDARS.get(name, name) for name in names}
        if len(calendars) == 1 and old.get("units") == new.get("units"):
            return cls()
        parts = [attributes.get("units", "").partition(" since ") for attributes in (old, new)]
        seconds = [_SECONDS.get(unit.strip().lower().removesuffix("s")) for unit, _, _ in parts]
        try:
            old_begin, new_begin = (_date(begin) for _, _, begin in parts)
        except ValueError:
            return None
        # NumPy has this calendar; NaT is not after the reform. Between equal dates the calendar has no effect.
        is_known = calendars <= {*_CALENDARS} and old_begin >= _REFORM and new_begin >= _REFORM
        if None in seconds or not (is_known or (len(calendars) == 1 and old_begin == new_begin)):
            return None
        return cls(seconds[0] or 1, int((old_begin - new_begin).astype(np.int64)), seconds[1] or 1)

    def convert(self, times: np.ndarray) -> np.ndarray:
        """Return times in the new unit."""
        wide = times.astype(np.longdouble)
        return wide if self == TimeChange() else (wide * self.seconds + self.shift) / self.new_seconds

    def __call__(self, array: Array) -> DerivedReader:
        """Open an array of times in the new unit."""
        return DerivedReader(array, self._fill)

    def _fill(self, block: np.ndarray, values: np.ndarray, _: int) -> None:
        with np.errstate(all="ignore"):  # missing elements may have any value
            block[...] = self.convert(values)


def units_of(file: RankFile) -> dict[str, dict[str, str]]:
    """Return the `units` and `calendar` of the arrays of a file by name; bounds have those of their coordinate."""
    keys = ("units", "calendar")
    units = {
        array.name: {key: array.attributes[key] for key in keys if key in array.attributes} for array in file.headers
    }
    for array in file.headers:
        if array.bounds and array.bounds in units:
            units[array.bounds] = units[array.name] | units[array.bounds]
    return units


def _date(text: str) -> np.datetime64:
    """Return the begin of a unit in UTC; CF writes dates with or without zeros and a zone, such as 2000-1-1 0:00 -6."""
    plain = re.sub(r"\s*(UTC|Z)$", "", text.strip())
    zone = re.search(r"(?:(?<=:\d\d)|\s)([+-])(\d\d?):?(\d\d)?$", plain)
    sign, hours, minutes = zone.groups("0") if zone else ("+", "0", "0")
    begin = re.sub(r"(?<!\d)(\d)(?!\d)", r"0\1", plain[: zone.start()].rstrip() if zone else plain)
    return np.datetime64(begin, "s") - int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60)
