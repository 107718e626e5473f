"""The identities of ops: an identity combined with any element, from either side, gives this element.

An exclusive scan can give the identity to rank 0 (MPI-4.1, 6.11.2), and a new target is filled with it. Each function
returns an element of a datatype, as an array without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from mpired.datatypes import Datatype, Group

Identity: TypeAlias = Callable[[Datatype], np.ndarray]
"""A function that returns the identity for a datatype.

It raises `TypeError`, `ValueError` or `OverflowError` if the datatype cannot hold the identity."""


def _highest(form: np.dtype) -> Any:
    return np.inf if form.kind == "f" else np.iinfo(form).max


def _element(datatype: Datatype, number: Callable[[np.dtype], Any]) -> np.ndarray:
    """Return an element with a number for each form; the index of a pair is the largest."""
    form = datatype.form
    element = np.zeros((), form)
    if datatype.group is Group.PAIR:
        value, index = form.names or ()
        element[value], element[index] = number(form[value]), _highest(form[index])
    elif form.names is not None:  # a complex number that is a structure of two numbers
        element[form.names[0]] = number(form[0])
    else:
        element[()] = number(form)
    return element


def lowest(datatype: Datatype) -> np.ndarray:
    """Return the lowest value; for pairs with the largest index, which loses each tie."""
    above = int(datatype.group is Group.DURATION)  # the minimum integer is NaT
    return _element(datatype, lambda form: -np.inf if form.kind == "f" else np.iinfo(form).min + above)


def _identity(number: Callable[[np.dtype], Any]) -> Identity:
    return lambda datatype: _element(datatype, number)


highest = _identity(_highest)  # for pairs with the largest index
zero = _identity(lambda form: form.type(0))
one = _identity(lambda form: form.type(1))
all_bits = _identity(lambda form: ~form.type(0))


class UserIdentity:
    """The identity of a user-defined op: a number, or a list with a number for each field."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    def __call__(self, datatype: Datatype) -> np.ndarray:
        """Return the identity as an element; two numbers may be a complex number."""
        value: Any = tuple(self.value) if isinstance(self.value, list) else self.value
        if datatype.group is Group.COMPLEX and isinstance(value, tuple) and datatype.form.names is None:
            value = np.array(value, datatype.component).view(datatype.form)[0] if len(value) == 2 else value  # noqa: PLR2004 - real, imag
        element = np.zeros((), datatype.form)
        element[()] = value
        return element
