"""Conversion between arrays of Arrow and of NumPy, which share their buffers.

The conversions of pyarrow (`to_numpy`, `pa.array`, `pa.scalar`) import pandas if it is installed. This takes longer
than a small reduction.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

import numpy as np

from mpired.codecs.arrow import pa
from mpired.datatypes import pair_fields
from mpired.datatypes.dtypes import as_times, time_type
from mpired.formats.streamed import Values

_NUMBERS = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
DTYPES: dict[pa.DataType, np.dtype] = {getattr(pa, name)(): np.dtype(name.rstrip("_")) for name in _NUMBERS.split()}
"""Arrow's types of numbers, with the dtypes of NumPy."""


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are times, which are integers with a unit; intervals are not."""
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers or times."""
    return kind in DTYPES or is_time(kind)


def decoded_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of numbers or times without their dictionary encoding; other types stay."""
    return kind.value_type if pa.types.is_dictionary(kind) and is_plain(kind.value_type) else kind


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to another encoding of its values; pyarrow cannot cast dictionaries of views."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type) and pa.types.is_dictionary(kind):
        values = column.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, values, ordered=kind.ordered)
    return column.cast(kind)


def has_array_class(kind: pa.DataType) -> bool:
    """Return whether pyarrow has arrays of a type: not of intervals in months, or in days and milliseconds."""
    return str(kind) not in {"month_interval", "day_time_interval"}


def nullable_values(column: pa.Array) -> Values:
    """Return the values of a column with 0 for nulls, truth values as bytes and times as integers; and the mask."""
    (bitmap, data), start, count = column.buffers(), column.offset, len(column)
    dtype = DTYPES.get(column.type) or np.dtype(f"i{column.type.bit_width // 8}")  # times are integers
    if pa.types.is_boolean(column.type):
        values = _unpack_bits(data, start, count)
    else:
        values = np.frombuffer(data, dtype, count, start * dtype.itemsize) if count else np.empty(0, dtype)
    if not column.null_count:
        return values, None
    valid = _unpack_bits(bitmap, start, count).view(bool)
    return np.where(valid, values, values.dtype.type(0)), valid


def objects_of(column: pa.Array) -> Values:
    """Return the values of a column of any type as objects of Python, and the mask."""
    values = _python_values(column)
    return np.fromiter(values, object, len(values)), np.array([value is not None for value in values], np.bool_)


def _python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as objects of Python: None for nulls, strings for times."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        values = _python_values(column.storage)
    elif pa.types.is_dictionary(kind):
        dictionary, indices = column.dictionary, column.indices.to_pylist()  # pyarrow cannot decode views
        by_index = {index: _python_values(dictionary[index : index + 1])[0] for index in {*indices} - {None}}
        values = [by_index.get(index) for index in indices]
    elif is_time(kind):
        values = as_times(nullable_values(column)[0], time_type(str(kind))).astype(str).tolist()
    elif pa.types.is_struct(kind) and kind.num_fields:
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*map(_python_values, column.flatten()), strict=True)
        # A dictionary cannot have two fields of a name.
        values = [dict(zip(names, row, strict=True)) if len(set(names)) == len(names) else row for row in rows]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = iter(_python_values(column.flatten()))
        values = [list(islice(items, length or 0)) for length in column.value_lengths().to_pylist()]
    elif pa.types.is_map(kind):
        values = [_python_values(items.values) if items.is_valid else None for items in column]
    else:
        return cast("list[Any]", column.to_pylist())
    if not column.null_count:
        return values
    mask = column.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, mask, strict=True)]


def arrow_column(block: np.ndarray, kind: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Return elements as a column of this type, null where the mask is false."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        pairs = pair_fields([field.name for field in fields], block.dtype.names) if block.dtype.names else []
        parts = [block[name] for _, name in pairs] or [block]  # a block of plain values is the only field
        arrays = [arrow_column(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(
            arrays, fields=fields, mask=None if valid is None else arrow_column(~valid, pa.bool_())
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(arrow_column(block.reshape(-1), kind.value_type), type=kind)
    if block.dtype.kind in "SUVO":
        return pa.array(block.tolist(), kind)
    if pa.types.is_boolean(kind):
        data = np.packbits(block != 0, bitorder="little")
    else:
        data = np.ascontiguousarray(block, DTYPES.get(kind) or f"i{kind.bit_width // 8}")
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(block), [bitmap, pa.py_buffer(data)])


def _unpack_bits(data: pa.Buffer, start: int, count: int) -> np.ndarray:
    """Return `count` bits of a buffer, from bit `start` on, as bytes of 0 and 1."""
    octets = np.frombuffer(data, np.uint8, -(-(start % 8 + count) // 8), start // 8) if count else np.empty(0, np.uint8)
    return np.unpackbits(octets, bitorder="little")[start % 8 :][:count]
