"""Times in columns of parquet and arrow files: timestamps, dates, times of day and durations, which MPI does not have.

An element is an integer, the number of units since some point. It is a datatype of its own, so that no op combines what
makes no sense, nothing takes it for a number, and ranks with other units or zones are no ranks of one call.
"""

from __future__ import annotations

import functools

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group

TIMES = Group.TIME | Group.DURATION
"""The groups of these datatypes."""
_OF_4_BYTES = ("date32", "time32")


@functools.cache
def time_type(name: str) -> Datatype:
    """Return the datatype of that name, as Arrow writes it: `timestamp[us, tz=UTC]`, `date32[day]`, `duration[s]`."""
    group = Group.DURATION if name.startswith("duration") else Group.TIME
    return Datatype(name, group, np.dtype("i4" if name.startswith(_OF_4_BYTES) else "i8"), handle=DATATYPE_NULL)


def as_times(block: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return elements of such a datatype as NumPy's: datetime64, or timedelta64 for durations and times of day.

    NumPy knows no zones: what has one is in UTC, as it is in the file.
    """
    unit = datatype.name.partition("[")[2].rstrip("]").partition(",")[0]
    since_midnight = datatype.group is Group.DURATION or datatype.name.startswith("time3") or "time64" in datatype.name
    code = f"{'m' if since_midnight else 'M'}8[{'D' if unit == 'day' else unit}]"
    return block.astype("i8").view(code)
