"""All predefined datatypes, and NumPy's dtypes as datatypes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group, in_order
from mpired.datatypes.named import NAMED
from mpired.datatypes.pairs import FIELDS, PAIRS, value_index
from mpired.datatypes.times import of_numpy
from mpired.errors import DatatypeError

DATATYPES: tuple[Datatype, ...] = NAMED + PAIRS

BY_NAME = {name: row for row in DATATYPES for name in (row.name, *row.synonyms)}
if len(BY_NAME) != sum(1 + len(row.synonyms) for row in DATATYPES):
    raise AssertionError("two datatypes have one name")

# What an element without a declared MPI type is taken for: the C types of exact width.
_DEFAULTS = ("INT8_T", "UINT8_T", "INT16_T", "UINT16_T", "INT32_T", "UINT32_T", "INT64_T", "UINT64_T", "FLOAT",
             "DOUBLE", "LONG_DOUBLE", "REAL2", "COMPLEX4", "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX",
             "FLOAT_INT", "DOUBLE_INT", "LONG_INT", "2INT", "SHORT_INT", "LONG_DOUBLE_INT", "2REAL",
             "2DOUBLE_PRECISION")  # fmt: skip


def get(name: str) -> Datatype:
    """Return the datatype of that canonical name."""
    return BY_NAME[name]


@functools.lru_cache(maxsize=64)  # thousands of ranks have one
def from_dtype(dtype: np.dtype) -> Datatype:
    """Return the datatype that elements of the NumPy `dtype` are, whatever their byte order."""
    # A structure of a number and an integer is a pair, whether it is aligned as in C or packed, and whatever the order
    # of its fields if they are called value and index; any other structure of plain fields is a derived datatype.
    if dtype.kind == "b":
        return BY_NAME["C_BOOL"]
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] != "generic":  # without a unit it says no time
        return of_numpy(dtype)
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
    """Return the datatype of a structure in native form: the one instance, so that ranks can be compared."""
    made = _structures.get(form)
    if made is None:
        from mpired.datatypes.typemap.typemap import Run, combined  # noqa: PLC0415 - as above

        fields = [(name, *field[:2]) for name, field in (form.fields or {}).items()]
        parts = ", ".join(f"{_code(field)} {name}" for name, field, _ in fields)
        typemap = combined([
            Run(from_dtype(field.base).typemap, disp, math.prod(field.shape), field.base.itemsize)
            for _, field, disp in fields
        ])  # fmt: skip
        made = Datatype(f"struct({parts})", Group.DERIVED, form, handle=DATATYPE_NULL, structure=typemap)
        _structures[form] = made
    return made


def _code(field: np.dtype) -> str:
    times = "".join(f"[{n}]" for n in field.shape)
    return f"{field.base.newbyteorder('=').str[1:]}{times}"


def unit_of(datatype: Datatype) -> Datatype:
    """Return the fewest entries of a type that, repeated, are all of it: a plain type, a pair, or a structure."""
    unit = datatype.typemap.unit
    if not unit:
        count = datatype.typemap.entries
        reason = f"its {count} entries do not make a structure that NumPy can hold; use `to='raw'`"
        raise DatatypeError(f"{datatype}", reason)
    types = tuple(BY_NAME[entry.name.upper()] for entry in unit)
    if len(types) == 1:
        return types[0]
    pair = value_index(*types) if len(types) == 2 else None  # noqa: PLR2004 - value and index
    if pair is not None:
        return pair
    aligned = np.dtype([(f"f{i}", each.form) for i, each in enumerate(types)], align=True)
    disps = tuple(field[1] for field in (aligned.fields or {}).values())
    from mpired.datatypes.derived import CONSTRUCTORS  # noqa: PLC0415 - as above

    made = CONSTRUCTORS["struct"].make((1,) * len(types), disps, types)
    _ = made.form
    return made


def with_fields(datatype: Datatype, names: Sequence[str] | None) -> Datatype:
    """Return the structure like `datatype` with these names of fields; another datatype as it is."""
    form = datatype.form
    if names is None or form.names is None or set(form.names) == set(names):
        return datatype
    fields = [(name, form[old]) for name, old in zip(names, form.names, strict=True)]
    return structure(np.dtype(fields, align=True))


def agrees(datatype: Datatype, dtype: np.dtype) -> bool:
    """Return whether elements of the NumPy `dtype` can be read as `datatype`: the same components."""
    form = datatype.form
    if dtype == form:
        return True
    if dtype.kind in "mM":
        return of_numpy(dtype) is datatype
    if dtype.kind == "b":
        return datatype.group is Group.LOGICAL and datatype.extent == 1
    if dtype.names is None or form.names is None or len(dtype.names) != len(form.names):
        return _components(dtype) == _components(form)
    pairs = counterparts(dtype.names, form.names)
    return all(_component(dtype[name]) == _component(form[other]) for name, other in pairs)


def as_numbers(dtype: np.dtype) -> np.dtype:
    """Return the form that elements are read and written in: truth values are bytes, and times are integers."""
    if dtype.kind in "mM":
        return np.dtype("i8").newbyteorder(dtype.byteorder)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def counterparts(names: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Pair as many fields of two structures: by name if all have the same names, else in their order."""
    if set(names) == set(others):
        return [(name, name) for name in names]
    own, ordered = in_order(names), in_order(others)
    if own == tuple(names):
        return list(zip(names, ordered, strict=True))
    return [(name, ordered[own.index(name)]) for name in names]


def _components(dtype: np.dtype) -> tuple[str, ...]:
    """Return the native codes of an element's components, without names, offsets and byte order."""
    fields = [dtype] if dtype.names is None else [dtype[name] for name in dtype.names]
    return tuple(map(_component, fields))


@functools.lru_cache(maxsize=256)  # of thousands of ranks all have the same
def _component(field: np.dtype) -> str:
    return f"{field.shape or ''}{field.base.newbyteorder('=').str}"


_BY_FORM = {_components(BY_NAME[name].form): BY_NAME[name] for name in _DEFAULTS}

# NumPy's other names of its numbers, but for those that are names in MPI, too.
_OTHER_NAMES = ("half", "single", "longdouble", "intc", "uintc", "intp", "uintp", "uint")
BY_NUMPY_NAME = {row.numpy_name: row for row in map(get, ("C_BOOL", *_DEFAULTS)) if row.numpy_name}
BY_NUMPY_NAME |= {name: from_dtype(np.dtype(name)) for name in _OTHER_NAMES}
"""The datatypes that NumPy's names mean, as float64. Names of MPI go before: float is MPI's, of 4 bytes."""
