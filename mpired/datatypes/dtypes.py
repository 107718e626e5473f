"""All predefined datatypes by name, the datatypes of NumPy dtypes, and datatypes of times.

A dtype has the datatype of the same components: names of fields, offsets and byte order make no difference.

MPI has no datatypes of times: timestamps, dates, times of day and durations, of Arrow and NumPy. An element is an
integer: a number of units since midnight or an epoch. Each unit and zone is a datatype of its own, so that all ranks of
a call have the same, and only ops with a meaning for times take them. The minimum of 64-bit integers is NumPy's NaT,
"not a time".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, TIMES, Datatype, Group, in_order
from mpired.datatypes.predefined import FIELDS, NAMED, PAIRS, value_index
from mpired.errors import DatatypeError

DATATYPES: tuple[Datatype, ...] = NAMED + PAIRS

BY_NAME = {name: row for row in DATATYPES for name in (row.name, *row.synonyms)}
if len(BY_NAME) != sum(1 + len(row.synonyms) for row in DATATYPES):
    raise AssertionError("two datatypes have one name")

# The datatypes of elements for which no MPI type is given: the C types of exact width.
_DEFAULTS = ("INT8_T", "UINT8_T", "INT16_T", "UINT16_T", "INT32_T", "UINT32_T", "INT64_T", "UINT64_T", "FLOAT",
             "DOUBLE", "LONG_DOUBLE", "REAL2", "COMPLEX4", "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX",
             "FLOAT_INT", "DOUBLE_INT", "LONG_INT", "2INT", "SHORT_INT", "LONG_DOUBLE_INT", "2REAL",
             "2DOUBLE_PRECISION")  # fmt: skip


def get(name: str) -> Datatype:
    """Return the predefined datatype with a canonical name."""
    return BY_NAME[name]


@functools.lru_cache(maxsize=64)  # thousands of ranks have the same
def from_dtype(dtype: np.dtype) -> Datatype:
    """Return the datatype of elements of a NumPy dtype; the byte order makes no difference."""
    # A structure of a number and an integer is a pair, aligned or packed, and in any order if the fields are named
    # value and index. Any other structure of numbers is a derived datatype.
    if dtype.kind == "b":
        return BY_NAME["C_BOOL"]
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] != "generic":  # without a unit they are not times
        return _time_of(dtype)
    plain = dtype[list(FIELDS)] if set(dtype.names or ()) == set(FIELDS) else dtype
    components = _components(plain)
    datatype = _BY_FORM.get(components)
    if datatype is None and len(components) == 2:  # noqa: PLR2004 - a pair
        value, index = (_BY_FORM.get((component,)) for component in components)
        datatype = value and index and value_index(value, index)
    if datatype is None and dtype.names is not None and all(dtype[name].base.kind in "biufc" for name in dtype.names):
        fields = [(name, dtype[name].newbyteorder("=")) for name in dtype.names]
        return structure(np.dtype(fields, align=True))
    if datatype is None:
        raise DatatypeError(str(dtype), "no predefined MPI datatype has this form; `mpired types` lists them all")
    return datatype


_structures: WeakValueDictionary[np.dtype, Datatype] = WeakValueDictionary()


def structure(form: np.dtype) -> Datatype:
    """Return the one instance of the datatype of a structure in native byte order."""
    datatype = _structures.get(form)
    if datatype is None:
        from mpired.datatypes.typemap import Run, combined  # noqa: PLC0415 - only for structures

        parts, runs = [], []
        for name, (field, disp, *_) in (form.fields or {}).items():
            lengths = "".join(f"[{length}]" for length in field.shape)
            parts.append(f"{field.base.newbyteorder('=').str[1:]}{lengths} {name}")
            runs.append(Run(from_dtype(field.base).typemap, disp, math.prod(field.shape), field.base.itemsize))
        text, typemap = f"struct({', '.join(parts)})", combined(runs)
        datatype = Datatype(text, Group.DERIVED, form, handle=DATATYPE_NULL, structure=typemap)
        _structures[form] = datatype
    return datatype


def rename_fields(datatype: Datatype, names: Sequence[str] | None) -> Datatype:
    """Return a datatype with these names of its fields; without names, or without fields, the datatype itself."""
    form = datatype.form
    if names is None or form.names is None or set(form.names) == set(names):
        return datatype
    fields = [(name, form[old]) for name, old in zip(names, form.names, strict=True)]
    return structure(np.dtype(fields, align=True))


def has_same_components(datatype: Datatype, dtype: np.dtype) -> bool:
    """Return whether elements of a NumPy dtype can be read as a datatype because they have the same components."""
    form = datatype.form
    if dtype == form:
        return True
    if dtype.kind in "mM":
        return _time_of(dtype) is datatype
    if dtype.kind == "b":
        return datatype.group is Group.LOGICAL and datatype.extent == 1
    if dtype.names is None or form.names is None or len(dtype.names) != len(form.names):
        return _components(dtype) == _components(form)
    pairs = pair_fields(dtype.names, form.names)
    return all(_component(dtype[name]) == _component(form[other]) for name, other in pairs)


def numeric_form(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which elements are read and written: bytes for truth values, integers for times."""
    if dtype.kind in "mM":
        return np.dtype("i8").newbyteorder(dtype.byteorder)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def pair_fields(names: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Pair the fields of two structures of equal length: by name if they have the same names, else in their order."""
    if set(names) == set(others):
        return [(name, name) for name in names]
    partners = dict(zip(in_order(names), in_order(others), strict=True))
    return [(name, partners[name]) for name in names]


def _components(dtype: np.dtype) -> tuple[str, ...]:
    """Return the NumPy codes of the components of an element in native byte order, without names and offsets."""
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    return tuple(map(_component, fields))


@functools.lru_cache(maxsize=256)  # thousands of ranks have the same
def _component(field: np.dtype) -> str:
    return f"{field.shape or ''}{field.base.newbyteorder('=').str}"


_BY_FORM = {_components(BY_NAME[name].form): BY_NAME[name] for name in _DEFAULTS}

# Other NumPy names of these numbers, except those that are also MPI names.
_OTHER_NAMES = ("half", "single", "longdouble", "intc", "uintc", "intp", "uintp", "uint")
BY_NUMPY_NAME = {row.numpy_name: row for row in map(get, ("C_BOOL", *_DEFAULTS)) if row.numpy_name}
BY_NUMPY_NAME |= {name: from_dtype(np.dtype(name)) for name in _OTHER_NAMES}
"""Datatypes by NumPy name, such as float64. Names of MPI take precedence: float is MPI_FLOAT, of 4 bytes."""

TIME_PREFIXES = {
    Group.TIME: ("timestamp", "date32", "date64", "time32", "time64", "datetime64"),
    Group.DURATION: ("duration", "timedelta64"),
}
"""The prefixes of the names of datatypes of times in Arrow and NumPy; a unit follows."""
_OF_4_BYTES = ("date32", "time32")
_SINCE_MIDNIGHT = ("time32", "time64")
_ARROW_UNITS = ("s", "ms", "us", "ns")
_NUMPY_NAMES = ("datetime64", "timedelta64")


@functools.cache
def time_type(name: str) -> Datatype:
    """Return the datatype with an Arrow name, such as `timestamp[us, tz=UTC]`, `date32[day]` or `duration[s]`."""
    # Types that Arrow does not have get the NumPy name, such as `datetime64[D]`.
    group = Group.DURATION if name.startswith(TIME_PREFIXES[Group.DURATION]) else Group.TIME
    return Datatype(name, group, np.dtype("i4" if name.startswith(_OF_4_BYTES) else "i8"), handle=DATATYPE_NULL)


def _time_of(dtype: np.dtype) -> Datatype:
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
    return _time_of(numpy_form(datatype)) is datatype


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
