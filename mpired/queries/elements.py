"""The elements of a buffer for those who only look at them: null values too, components as numbers, and places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group
from mpired.formats import Array
from mpired.formats.textual import components


def numbers(block: np.ndarray, datatype: Datatype) -> list[np.ndarray]:
    """Return the components of elements as numbers; truth values are 0 and 1, and times as `with_nat` has them."""
    if datatype.group is Group.LOGICAL:
        return [(block != 0).view(np.uint8)]
    if datatype.group in TIMES:
        return [block.view(with_nat(datatype))]
    return list(components(block, datatype).values())


def index_of(buffer: Array, element: int) -> tuple[int, ...]:
    """Return the index of an element of a buffer: in its shape, or else its number."""
    if buffer.shape is None:
        return (element,)
    order: Any = "F" if buffer.fortran_order else "C"
    return tuple(map(int, np.unravel_index(element, buffer.shape, order)))


def with_nat(datatype: Datatype) -> np.dtype:
    """Return the form whose NaN are those of the elements: of times of 8 bytes the least integer is NaT."""
    return np.dtype("m8") if datatype.group in TIMES and datatype.itemsize == np.dtype("m8").itemsize else datatype.form


def are_nan(values: np.ndarray) -> np.ndarray | None:
    """Return which numbers are NaN or NaT; None if none is."""
    found: np.ndarray | None = np.isnan(values) if values.dtype.kind in "fm" else None
    return None if found is None or not found.any() else found


def as_integers(values: np.ndarray) -> np.ndarray:
    """Return numbers without NaT as integers if they are times, and else as they are."""
    return values.view(np.int64) if values.dtype.kind == "m" else values


def place_text(column: str, index: Sequence[int], field: str = "") -> str:
    """Return the place of an element, or of a field of it: `[3, 0]`, `energy[4]` or `[3].value`."""
    return f"{column}[{', '.join(map(str, index))}]{f'.{field}' if field else ''}"


def in_json(value: Any, *, short: bool = False) -> Any:
    """Return a value as JSON can hold it: numbers without a form in JSON as strings, such as "nan", and so times."""
    # With `short` floats have the digits that tell them from others of their own precision.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: in_json(each, short=short) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(each, short=short) for each in value]
    if value is None or isinstance(value, str):
        return value
    if short and isinstance(value, np.floating) and math.isfinite(float(value)):
        value = float(str(value))
    own = np.longdouble | np.datetime64 | np.timedelta64  # that Python has no number for
    number = value.item() if isinstance(value, np.generic) and not isinstance(value, own) else value
    is_number = isinstance(number, int) or (isinstance(number, float) and math.isfinite(number))
    return number if is_number else str(value)
