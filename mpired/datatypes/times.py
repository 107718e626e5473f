"""Times, which MPI does not have: timestamps, dates, times of day and durations, in columns and in arrays of NumPy.

An element is an integer, the number of units since some point. It is a datatype of its own, so that times are not
taken for numbers, no op combines them without a meaning, and all ranks of a call have the same unit and zone. The
least integer of 64 bits is NumPy's NaT, "not a time".
"""

from __future__ import annotations

import functools

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, TIMES, Datatype, Group

FAMILIES = {
    Group.TIME: ("timestamp", "date32", "date64", "time32", "time64", "datetime64"),
    Group.DURATION: ("duration", "timedelta64"),
}
"""The prefixes of the names of these datatypes in Arrow and NumPy; a unit follows."""
_OF_4_BYTES = ("date32", "time32")
_SINCE_MIDNIGHT = ("time32", "time64")
_ARROW_UNITS = ("s", "ms", "us", "ns")
_NUMPY_NAMES = ("datetime64", "timedelta64")


@functools.cache
def time_type(name: str) -> Datatype:
    """Return the datatype of that name, as Arrow writes it: `timestamp[us, tz=UTC]`, `date32[day]`, `duration[s]`."""
    # What Arrow does not have is as NumPy writes it: `datetime64[D]`.
    group = Group.DURATION if name.startswith(FAMILIES[Group.DURATION]) else Group.TIME
    return Datatype(name, group, np.dtype("i4" if name.startswith(_OF_4_BYTES) else "i8"), handle=DATATYPE_NULL)


def of_numpy(dtype: np.dtype) -> Datatype:
    """Return the datatype of a datetime64 or timedelta64: Arrow's of the same unit, so that both can be ranks."""
    unit, step = np.datetime_data(dtype)
    if unit not in _ARROW_UNITS or step != 1:
        return time_type(dtype.newbyteorder("=").name)
    return time_type(f"{'timestamp' if dtype.kind == 'M' else 'duration'}[{unit}]")


def numpy_form(datatype: Datatype) -> np.dtype:
    """Return NumPy's type of such elements: datetime64, or timedelta64 for durations and times of day."""
    # NumPy knows no zones: times with one are in UTC, as in the file.
    if datatype.name.startswith(_NUMPY_NAMES):
        return np.dtype(datatype.name)
    unit = datatype.name.partition("[")[2].rstrip("]").partition(",")[0]
    is_span = datatype.group is Group.DURATION or datatype.name.startswith(_SINCE_MIDNIGHT)
    return np.dtype(f"{'m' if is_span else 'M'}8[{'D' if unit == 'day' else unit}]")


def dtype_name(datatype: Datatype) -> str | None:
    """Return what NumPy calls the type of plain elements, of times too; None for pairs and structures."""
    return str(numpy_form(datatype)) if datatype.group in TIMES else datatype.numpy_name or None


def is_of_numpy(datatype: Datatype) -> bool:
    """Return whether NumPy's type says all of such a datatype: no date of 4 bytes, and no zone."""
    return of_numpy(numpy_form(datatype)) is datatype


def family(datatype: Datatype) -> tuple[Group, str, str]:
    """Return the kind of times of any unit: points in time, times of the day or durations; and their zone."""
    return datatype.group, numpy_form(datatype).kind, datatype.name.partition(",")[2]


def in_unit(block: np.ndarray, datatype: Datatype, wanted: Datatype) -> np.ndarray:
    """Return times in the finer unit of another datatype; a time beyond its range becomes the last one within."""
    times = as_times(block, datatype)
    found = times.astype(numpy_form(wanted))
    limits = np.iinfo(np.int64)
    last = np.where(times.view("i8") > 0, limits.max, limits.min + 1)
    units: np.ndarray = np.where((found.astype(times.dtype) == times) | np.isnat(times), found.view("i8"), last)
    return units


def as_times(block: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return elements of such a datatype as NumPy's."""
    return block.astype("i8").view(numpy_form(datatype))
