"""The neutral elements: what an exclusive scan can give to rank 0 (MPI-4.1, 6.11.2), and what a new target holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.errors import OpError
from mpired.ops.table import Op


def _lowest(form: np.dtype) -> Any:
    return -np.inf if form.kind == "f" else np.iinfo(form).min


def _highest(form: np.dtype) -> Any:
    return np.inf if form.kind == "f" else np.iinfo(form).max


def _constant(number: int) -> Callable[[np.dtype], Any]:
    return lambda form: np.array(number).astype(form)


# A rank's element combined with this is that element. For pairs it is the value: the index loses every tie.
_NEUTRAL: dict[str, Callable[[np.dtype], Any]] = {
    "MAX": _lowest,
    "MIN": _highest,
    "SUM": _constant(0),
    "PROD": _constant(1),
    "LAND": _constant(1),
    "BAND": _constant(-1),
    "LOR": _constant(0),
    "BOR": _constant(0),
    "LXOR": _constant(0),
    "BXOR": _constant(0),
    "MAXLOC": _lowest,
    "MINLOC": _highest,
}


def neutral(op: Op, datatype: Datatype) -> np.ndarray:
    """Return the neutral element of an op on a datatype, as an array without dimensions.

    Raises
    ------
    OpError
        If the op has none: REPLACE, NO_OP, and a user-defined op that says of none, or of one that the datatype
        cannot hold.
    """
    form = datatype.form
    element = np.zeros((), form)
    if op.user:
        element[()] = _declared(op, datatype)
    elif op.name not in _NEUTRAL:
        raise OpError(str(op), "has no identity to fill a new file with; make the file first")
    elif datatype.group is Group.PAIR:
        value, index = form.names or ()
        element[value], element[index] = _NEUTRAL[op.name](form[value]), _highest(form[index])
    elif form.names is not None:  # a complex number without a NumPy type of its own: its real part
        element[form.names[0]] = _NEUTRAL[op.name](form[0])
    else:
        element[()] = _NEUTRAL[op.name](form)
    return element


def _declared(op: Op, datatype: Datatype) -> Any:
    """Return what a user-defined op says is its neutral element, in the form of the datatype."""
    if op.identity is None:
        raise OpError(str(op), "says of no neutral element; an op in Python gets one by @mpired.op(identity=...)")
    said = tuple(op.identity) if isinstance(op.identity, list) else op.identity
    if datatype.group is Group.COMPLEX and isinstance(said, tuple) and datatype.form.names is None:
        said = np.array(said, datatype.component).view(datatype.form)[0] if len(said) == 2 else said  # noqa: PLR2004 - real, imag
    try:
        element = np.zeros((), datatype.form)
        element[()] = said
    except (TypeError, ValueError, OverflowError):
        raise OpError(str(op), f"says that its neutral element is {op.identity}, which is no {datatype}") from None
    return element
