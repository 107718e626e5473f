"""Arrow's arrays and NumPy's, each made of the buffers of the other.

The conversions of pyarrow itself (`to_numpy`, `pa.array`, `pa.scalar`) load pandas where it is installed, in each
process, which takes longer than many a fold.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import numpy as np

from mpired.codecs.arrow import pa
from mpired.datatypes import counterparts
from mpired.datatypes.times import as_times, time_type
from mpired.formats.streamed import Values

DTYPES: dict[pa.DataType, np.dtype] = {
    getattr(pa, name)(): np.dtype(name.rstrip("_"))
    for name in ("bool_", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
} | {getattr(pa, name)(): np.dtype(name) for name in ("float16", "float32", "float64")}
"""The types of columns that are numbers, and NumPy's."""


def is_time(kind: pa.DataType) -> bool:
    """Return whether a type is that of times, which are integers with a unit; not of intervals."""
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a type is that of numbers or times."""
    return kind in DTYPES or is_time(kind)


def value_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary of numbers or times; another type as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) and is_plain(kind.value_type) else kind


def with_kind(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in another type for the same values; pyarrow casts no dictionary of views."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type) and pa.types.is_dictionary(kind):
        values = column.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, values, ordered=kind.ordered)
    return column.cast(kind)


def has_arrays(kind: pa.DataType) -> bool:
    """Return whether pyarrow gives Python arrays of a type; except intervals that are not nanoseconds."""
    return str(kind) not in {"month_interval", "day_time_interval"}


def nullable_values(column: pa.Array) -> Values:
    """Return numbers, truth values as bytes, or times as integers, with 0 for nulls; and which are there."""
    (validity, data), start, count = column.buffers(), column.offset, len(column)
    dtype = DTYPES.get(column.type) or np.dtype(f"i{column.type.bit_width // 8}")  # as times are
    if pa.types.is_boolean(column.type):
        values = _from_bits(data, start, count)
    else:
        values = np.frombuffer(data, dtype, count, start * dtype.itemsize) if count else np.empty(0, dtype)
    if not column.null_count:
        return values, None
    valid = _from_bits(validity, start, count).view(bool)
    return np.where(valid, values, values.dtype.type(0)), valid


def objects_of(column: pa.Array) -> Values:
    """Return the values of an array of Arrow of any type as objects of Python, and which of them are valid."""
    values = _python_values(column)
    return np.fromiter(values, object, len(values)), np.array([each is not None for each in values], np.bool_)


def _python_values(column: pa.Array) -> list[Any]:
    """Return values as Python has them, None for nulls; times as text."""
    kind, found = column.type, list[Any]()
    if isinstance(column, pa.ExtensionArray):
        found = _python_values(column.storage)
    elif pa.types.is_dictionary(kind):
        values, numbers = column.dictionary, column.indices.to_pylist()  # pyarrow decodes none of views
        known = {each: _python_values(values[each : each + 1])[0] for each in {*numbers} - {None}}
        found = [known.get(each) for each in numbers]
    elif is_time(kind):
        found = as_times(nullable_values(column)[0], time_type(str(kind))).astype(str).tolist()
    elif pa.types.is_struct(kind) and kind.num_fields:
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*map(_python_values, column.flatten()), strict=True)
        # A dictionary keeps one field of each name.
        found = [dict(zip(names, row, strict=True)) if len(set(names)) == len(names) else row for row in rows]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = iter(_python_values(column.flatten()))
        found = [list(islice(inner, length or 0)) for length in column.value_lengths().to_pylist()]
    elif pa.types.is_map(kind):
        found = [_python_values(each.values) if each.is_valid else None for each in column]
    else:
        return cast("list[Any]", column.to_pylist())
    if not column.null_count:
        return found
    return [each if ok else None for each, ok in zip(found, column.is_valid().to_pylist(), strict=True)]


def column_of(block: np.ndarray, kind: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Return elements as an array of Arrow, null where one is not `valid`; structures give a part for each field."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        own = block.dtype.names
        names = counterparts([field.name for field in fields], own) if own else []
        parts = [block[name] for _, name in names] or [block]  # a structure of one field is as that is
        arrays = [column_of(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(
            arrays, fields=fields, mask=None if valid is None else column_of(~valid, pa.bool_())
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(column_of(block.reshape(-1), kind.value_type), type=kind)
    if block.dtype.kind in "SUVO":
        return pa.array(block.tolist(), kind)
    if pa.types.is_boolean(kind):
        data = np.packbits(block != 0, bitorder="little")
    else:
        data = np.ascontiguousarray(block, DTYPES.get(kind) or f"i{kind.bit_width // 8}")
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(block), [validity, pa.py_buffer(data)])


def _from_bits(data: pa.Buffer, start: int, count: int) -> np.ndarray:
    """Return some bits of a buffer as bytes of 0 and 1."""
    octets = np.frombuffer(data, np.uint8, -(-(start % 8 + count) // 8), start // 8) if count else np.empty(0, np.uint8)
    return np.unpackbits(octets, bitorder="little")[start % 8 :][:count]
