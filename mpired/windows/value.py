"""Values of single elements: from text such as `-3`, `0x1f`, `1e-3`, `2+1j`, `true` or `5.5,7`, or from Python numbers.

A point in time is written as in ISO 8601, `2021-02-03T04:05:06`, a duration as its number of units.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.datatype import Group
from mpired.datatypes.dtypes import numpy_form
from mpired.errors import CountError, UsageError
from mpired.formats import InputOptions, open_rank
from mpired.formats.array import whole
from mpired.formats.missing import masked

_NULL = "null"  # a missing element
_TRUTHS = {"true": 1, "false": 0}
_DATE = r"-?\d{4,}(-\d\d(-\d\d)?)?"
_DATE_AND_TIME = re.compile(rf"{_DATE}([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?Z?)?|NaT", re.ASCII)
_HINTS = {Group.PAIR: "; write VALUE,INDEX", Group.TIME: "; write it as 2021-02-03T04:05:06"}


def element_of(value: Any, datatype: Datatype, name: str, inputs: InputOptions) -> np.ndarray:
    """Return an array of one element: from text, from a file with one element, or from a number; `name` is its name."""
    if np.ma.is_masked(value) or (isinstance(value, str) and value == _NULL):
        if not inputs.nullable:
            raise UsageError(name, "is a missing value; allow these with `nulls='propagate'`")
        return masked(np.zeros(1, datatype.form), mask=True)
    if isinstance(value, str):
        try:
            return _parse(value, datatype)
        except UsageError:
            if not os.path.exists(value):
                raise
    if isinstance(value, str | os.PathLike):
        file_inputs = InputOptions(datatype, columns=inputs.columns, nullable=inputs.nullable, context=inputs.context)
        array = open_rank(os.fspath(value), file_inputs).only_buffer()
        if array.count != 1:
            raise CountError(str(value), f"has {array.count} elements, and {name} is one")
        return whole(array, inputs.context)
    return _convert(value, datatype, name)


def _parse(text: str, datatype: Datatype) -> np.ndarray:
    """Return an array of one element."""
    parts, stripped = text.split(",") if datatype.group is Group.PAIR else [text], text.strip()
    with contextlib.suppress(ValueError, OverflowError):
        if datatype.group is not Group.TIME:
            return _element(parts, datatype, _parse_number)
        if datatype.name.startswith(("time32", "time64")):  # times of day have no date
            return _exact_time(np.datetime64(f"1970-01-01T{stripped}") - np.datetime64(0, "D"), datatype)
        if _DATE_AND_TIME.fullmatch(stripped):
            return _exact_time(np.datetime64(stripped.removesuffix("Z")), datatype)
    raise UsageError(repr(text), f"is not an element of {datatype.label}{_HINTS.get(datatype.group, '')}")


def _convert(value: Any, datatype: Datatype, name: str) -> np.ndarray:
    """Return an array of one element with the value of a number or a pair; only floats are rounded."""
    try:
        if datatype.group in TIMES and isinstance(value, np.datetime64 | np.timedelta64):
            return _exact_time(value, datatype)
        parts = [value]
        if datatype.group is Group.PAIR:  # a tuple, or an element of an array with fields
            pair = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
            fields = datatype.form.names or ()
            has_fields = isinstance(pair, np.void) and set(pair.dtype.names or ()) == set(fields)
            parts = [pair[field] for field in fields] if has_fields else list(pair)
        return _element(parts, datatype, _check_number)
    except (TypeError, ValueError, OverflowError) as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(name, f"{value!r} is not an element of {datatype.label}{reason}") from None


def _element(parts: Sequence[Any], datatype: Datatype, read: Callable[[Any, np.dtype], Any]) -> np.ndarray:
    """Return an array of one element with one part, or two parts for a pair; `read` converts a part to a number."""
    element, form = np.zeros(1, datatype.form), datatype.form
    if datatype.group is Group.PAIR:
        for name, part in zip(form.names or (), parts, strict=True):
            element[name] = _fit(read(part, form[name]), form[name])
    elif datatype.group is Group.COMPLEX:
        number = read(parts[0], np.dtype(complex))
        components = [_fit(component, datatype.component) for component in (number.real, number.imag)]
        if form.names:  # NumPy has no dtype for these complex numbers
            element[0] = tuple(components)
        else:
            element.real, element.imag = components
    else:
        element[0] = _fit(read(parts[0], form), form)
    return element


def _exact_time(time: np.datetime64 | np.timedelta64, datatype: Datatype) -> np.ndarray:
    """Return an array of a time in the unit of the datatype; raise `ValueError` if the time is not a multiple of it."""
    form = numpy_form(datatype)
    if time.dtype.kind != form.kind:
        raise TypeError(f"it is {time.dtype.name}")
    element = time.astype(form)
    if not np.isnat(time) and (np.isnat(element) or element.astype(time.dtype) != time):
        raise ValueError(f"{datatype} cannot hold it")
    return np.array([element]).view("i8").astype(datatype.form)


def _parse_number(text: str, form: np.dtype) -> Any:
    """Return an integer or a complex number; real numbers stay text, so that NumPy rounds them only once."""
    if not text.isascii() or "_" in text:  # Python would allow both
        raise ValueError(text)
    text = text.strip()
    if form.kind in "iu":
        return _TRUTHS[text.lower()] if text.lower() in _TRUTHS else int(text, 0)
    if form.kind == "c":
        return complex(text.replace("i", "j") if "inf" not in text else text)
    return text


def _check_number(value: Any, form: np.dtype) -> Any:
    """Return a number of the kind of a dtype; raise `TypeError` for another value."""
    if isinstance(value, np.ndarray):
        value = value.item() if value.dtype.char not in "gG" else value.reshape(())[()]
    if form.kind in "iu":
        return int(value) if isinstance(value, np.bool_) else operator.index(value)
    if isinstance(value, str | bytes) or (form.kind == "f" and isinstance(value, complex | np.complexfloating)):
        raise TypeError(f"it is {type(value).__name__}")
    return np.clongdouble(value) if form.kind == "c" else value


def _fit(number: Any, form: np.dtype) -> Any:
    """Return a number, or its text, in a dtype; raise `OverflowError` if it is out of range."""
    if form.kind in "iu":
        if not np.iinfo(form).min <= number <= np.iinfo(form).max:
            raise OverflowError
        return number
    with np.errstate(all="ignore"):
        cast = form.type(number)
        if np.isinf(cast) and not np.isinf(np.longdouble(number)):
            raise OverflowError
    return cast
