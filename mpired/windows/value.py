"""One element from text, as on the command line: `-3`, `0x1f`, `1e-3`, `2+1j`, `true`, `5.5,7`; or from numbers.

A point in time is read as ISO 8601 writes it, `2021-02-03T04:05:06`, a duration as its number of units.
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
from mpired.datatypes.times import numpy_form
from mpired.errors import CountError, UsageError
from mpired.formats import InputOptions, open_rank
from mpired.formats.array import whole
from mpired.formats.missing import masked

_NULL = "null"  # as a missing element is printed
_TRUTHS = {"true": 1, "false": 0}
_DATE = r"-?\d{4,}(-\d\d(-\d\d)?)?"
_MOMENT = re.compile(rf"{_DATE}([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?Z?)?|NaT", re.ASCII)
_HINTS = {Group.PAIR: "; write VALUE,INDEX", Group.TIME: "; write it as 2021-02-03T04:05:06"}


def element_of(value: Any, datatype: Datatype, what: str, inputs: InputOptions) -> np.ndarray:
    """Return an array of one element, from text, from a file with the chosen column, or from a Python number."""
    if np.ma.is_masked(value) or (isinstance(value, str) and value == _NULL):
        if not inputs.nullable:
            raise UsageError(what, "is a missing value; allow these with `nulls='propagate'`")
        return masked(np.zeros(1, datatype.form), mask=True)
    if isinstance(value, str):
        try:
            return _of_text(value, datatype)
        except UsageError:
            if not os.path.exists(value):
                raise
    if isinstance(value, str | os.PathLike):
        own = InputOptions(datatype, columns=inputs.columns, nullable=inputs.nullable, context=inputs.context)
        array = open_rank(os.fspath(value), own).only_buffer()
        if array.count != 1:
            raise CountError(str(value), f"has {array.count} elements, and {what} is one")
        return whole(array, inputs.context)
    return _of_number(value, datatype, what)


def _of_text(text: str, datatype: Datatype) -> np.ndarray:
    """Return an array of one element."""
    words, word = text.split(",") if datatype.group is Group.PAIR else [text], text.strip()
    with contextlib.suppress(ValueError, OverflowError):
        if datatype.group is not Group.TIME:
            return _element(words, datatype, _from_text)
        if datatype.name.startswith(("time32", "time64")):  # a time of day has no date before it
            return _exactly(np.datetime64(f"1970-01-01T{word}") - np.datetime64(0, "D"), datatype)
        if _MOMENT.fullmatch(word):
            return _exactly(np.datetime64(word.removesuffix("Z")), datatype)
    raise UsageError(repr(text), f"is not an element of {datatype.label}{_HINTS.get(datatype.group, '')}")


def _of_number(value: Any, datatype: Datatype, what: str) -> np.ndarray:
    """Return an array of one element that is exactly a number, or a pair of numbers; floats may be rounded."""
    try:
        if datatype.group in TIMES and isinstance(value, np.datetime64 | np.timedelta64):
            return _exactly(value, datatype)
        parts = [value]
        if datatype.group is Group.PAIR:  # a tuple, or an element of an array with fields
            pair = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
            names = datatype.form.names or ()
            has_fields = isinstance(pair, np.void) and set(pair.dtype.names or ()) == set(names)
            parts = [pair[name] for name in names] if has_fields else list(pair)
        return _element(parts, datatype, _from_number)
    except (TypeError, ValueError, OverflowError) as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(what, f"{value!r} is not an element of {datatype.label}{reason}") from None


def _element(parts: Sequence[Any], datatype: Datatype, read: Callable[[Any, np.dtype], Any]) -> np.ndarray:
    """Return an array of one element that is made of one part, or of two."""
    element, form = np.zeros(1, datatype.form), datatype.form
    if datatype.group is Group.PAIR:
        for name, part in zip(form.names or (), parts, strict=True):
            element[name] = _fitting(read(part, form[name]), form[name])
    elif datatype.group is Group.COMPLEX:
        number = read(parts[0], np.dtype(complex))
        both = [_fitting(each, datatype.component) for each in (number.real, number.imag)]
        if form.names:  # NumPy has no type for it
            element[0] = tuple(both)
        else:
            element.real, element.imag = both
    else:
        element[0] = _fitting(read(parts[0], form), form)
    return element


def _exactly(time: np.datetime64 | np.timedelta64, datatype: Datatype) -> np.ndarray:
    """Return an array of a time in the unit of the datatype, which has to hold it."""
    form = numpy_form(datatype)
    if time.dtype.kind != form.kind:
        raise TypeError(f"it is {time.dtype.name}")
    element = time.astype(form)
    if not np.isnat(time) and (np.isnat(element) or element.astype(time.dtype) != time):
        raise ValueError(f"{datatype} cannot hold it")
    return np.array([element]).view("i8").astype(datatype.form)


def _from_text(word: str, form: np.dtype) -> Any:
    """Return the number that a text stands for; a real one is its text, which the form rounds once."""
    if not word.isascii() or "_" in word:  # which Python takes in numbers
        raise ValueError(word)
    word = word.strip()
    if form.kind in "iu":
        return _TRUTHS[word.lower()] if word.lower() in _TRUTHS else int(word, 0)
    if form.kind == "c":
        return complex(word.replace("i", "j") if "inf" not in word else word)
    return word


def _from_number(value: Any, form: np.dtype) -> Any:
    """Return a number of a program, which has to be of the kind of the form."""
    if isinstance(value, np.ndarray):
        value = value.item() if value.dtype.char not in "gG" else value.reshape(())[()]
    if form.kind in "iu":
        return int(value) if isinstance(value, np.bool_) else operator.index(value)
    if isinstance(value, str | bytes) or (form.kind == "f" and isinstance(value, complex | np.complexfloating)):
        raise TypeError(f"it is {type(value).__name__}")
    return np.clongdouble(value) if form.kind == "c" else value


def _fitting(number: Any, form: np.dtype) -> Any:
    """Return a number, or its text, in a form, which has to hold it: no finite one becomes infinite."""
    if form.kind in "iu":
        if not np.iinfo(form).min <= number <= np.iinfo(form).max:
            raise OverflowError
        return number
    with np.errstate(all="ignore"):
        cast = form.type(number)
        if np.isinf(cast) and not np.isinf(np.longdouble(number)):
            raise OverflowError
    return cast
