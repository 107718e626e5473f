"""Conversion of elements between the forms of a datatype: byte order, padding, names of fields, external32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from mpired.datatypes import Datatype, external32, pair_fields
from mpired.errors import ConversionError

OF_A_PACKAGE = 2  # `isbuiltin` of the dtypes that packages define, whose elements are combined in a wider type

Order: TypeAlias = Literal["<", ">", "="]  # a byte order in NumPy's notation


def byte_order(stored: np.dtype) -> Order:
    """Return the byte order of elements of the form `stored`: "<", ">" or, for single bytes, "="."""
    fields = [stored] if stored.names is None else [stored[name] for name in stored.names]
    orders: dict[str, Order] = {"<": "<", ">": ">"}
    return next((orders[field.base.str[0]] for field in fields if field.base.str[0] in orders), "=")


def same_layout(stored: np.dtype, datatype: Datatype) -> bool:
    """Return whether elements of the form `stored` have the same bytes as elements of the datatype in memory."""
    form = datatype.form
    if stored == form or stored.names is None or form.names is None:
        return _layout(stored) == _layout(form)
    names, form_names = zip(*pair_fields(stored.names, form.names), strict=True)
    return _layout(stored, names) == _layout(form, form_names)


def _layout(dtype: np.dtype, names: Sequence[str] = ()) -> tuple[int, list[tuple[int, np.dtype | str]]]:
    """Return the size of a dtype, and the offset and type of each field."""
    places = {} if dtype.fields is None else {name: (dtype.fields[name][1], dtype[name]) for name in dtype.names or ()}
    fields = [places[name] for name in names or places] or [(0, dtype)]
    forms = [(offset, field if field.base.names else f"{field.shape}{field.base.str}") for offset, field in fields]
    return dtype.itemsize, forms


def convert(source: np.ndarray, target: np.ndarray, file: str, start: int) -> None:
    """Copy elements into another form of the same datatype: byte order, padding, names of fields, external32."""
    if target.dtype.hasobject:
        target[...] = source
        return
    parts = [(source, target)]
    if source.dtype.names is not None and target.dtype.names is not None:
        names = pair_fields(source.dtype.names, target.dtype.names)
        parts = [(source[old], target[new]) for old, new in names]
    elif source.dtype.names is not None and len(source.dtype.names) == 1:  # a value with padding
        parts = [(source[source.dtype.names[0]], target)]
    for old, new in parts:
        try:
            external32.convert(old, new)
        except external32.Misfit as misfit:
            raise ConversionError(file, f"element {start + misfit.position}: {misfit.reason}") from None


def as_in(
    form: np.dtype, elements: np.ndarray, datatype: Datatype, file: str = "an element", start: int = 0
) -> np.ndarray:
    """Convert native elements to the form of a file, or the reverse; return a view if their bytes are the same."""
    if elements.dtype == form or same_layout(elements.dtype if form == datatype.form else form, datatype):
        return elements.view(form)
    return in_form(elements, form, file, start)


def in_form(elements: np.ndarray, form: np.dtype, file: str = "an element", start: int = 0) -> np.ndarray:
    """Return a copy of elements in another form of the same datatype."""
    copy = np.zeros(len(elements), form)
    convert(elements, copy, file, start)
    return copy


def lost_numbers(numbers: np.ndarray, form: np.dtype) -> np.ndarray | None:
    """Return the mask of finite numbers that a form `OF_A_PACKAGE` does not hold, or None if it holds all."""
    with np.errstate(all="ignore"):
        lost: np.ndarray = np.isfinite(numbers) & ~np.isfinite(numbers.astype(form))
    return lost if lost.any() else None
