"""Datatypes of times, which MPI does not have: timestamps, dates, times of day and durations, of Arrow and NumPy.

An element is an integer: a number of units since midnight or an epoch. Each unit and zone is a datatype of its own, so
that all ranks of a call have the same, and only ops with a meaning for times take them. The minimum of 64-bit integers
is NumPy's NaT, "not a time".
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
    """Return the datatype with an Arrow name, such as `timestamp[us, tz=UTC]`, `date32[day]` or `duration[s]`."""
    # Types that Arrow does not have get the NumPy name, such as `datetime64[D]`.
    group = Group.DURATION if name.startswith(FAMILIES[Group.DURATION]) else Group.TIME
    return Datatype(name, group, np.dtype("i4" if name.startswith(_OF_4_BYTES) else "i8"), handle=DATATYPE_NULL)


def from_numpy(dtype: np.dtype) -> Datatype:
    """Return the datatype of a datetime64 or timedelta64: that of the Arrow type of the same unit, if there is one."""
    unit, step = np.datetime_data(dtype)
    if unit not in _ARROW_UNITS or step != 1:
        return time_type(dtype.newbyteorder("=").name)
    return time_type(f"{'timestamp' if dtype.kind == 'M' else 'duration'}[{unit}]")


def numpy_form(datatype: Datatype) -> np.dtype:
    """Return the NumPy type of times: datetime64, or timedelta64 for durations and times of day."""
    # NumPy has no zones: times with a zone stay in UTC, as in the file.
    if datatype.name.startswith(_NUMPY_NAMES):
        return np.dtype(datatype.name)
    unit = datatype.name.partition("[")[2].rstrip("]").partition(",")[0]
    is_span = datatype.group is Group.DURATION or datatype.name.startswith(_SINCE_MIDNIGHT)
    return np.dtype(f"{'m' if is_span else 'M'}8[{'D' if unit == 'day' else unit}]")


def dtype_name(datatype: Datatype) -> str | None:
    """Return the NumPy name of numbers and times, such as datetime64[s]; None for pairs and structures."""
    return str(numpy_form(datatype)) if datatype.group in TIMES else datatype.numpy_name or None


def has_numpy_type(datatype: Datatype) -> bool:
    """Return whether a NumPy type determines the datatype, unlike dates of 4 bytes and times with a zone."""
    return from_numpy(numpy_form(datatype)) is datatype


def family(datatype: Datatype) -> tuple[Group, str, str]:
    """Return group, NumPy kind and zone of a datatype of times, which times of another unit may share."""
    return datatype.group, numpy_form(datatype).kind, datatype.name.partition(",")[2]


def convert_unit(block: np.ndarray, datatype: Datatype, finer: Datatype) -> np.ndarray:
    """Return times in the unit of a finer datatype; times beyond its range become its first or last time."""
    times = as_times(block, datatype)
    converted = times.astype(numpy_form(finer))
    limits = np.iinfo(np.int64)
    last = np.where(times.view("i8") > 0, limits.max, limits.min + 1)
    fits = (converted.astype(times.dtype) == times) | np.isnat(times)
    return np.where(fits, converted.view("i8"), last)


def as_times(block: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return times as an array of datetime64 or timedelta64."""
    return block.astype("i8").view(numpy_form(datatype))
