"""The identity of a predefined op: the element that leaves every other as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.errors import OpError
from mpired.ops.table import Op


def _lowest(form: np.dtype) -> Any:
    return -np.inf if form.kind == "f" else np.iinfo(form).min


def _highest(form: np.dtype) -> Any:
    return np.inf if form.kind == "f" else np.iinfo(form).max


_ZERO, _ONE = (lambda _form: 0), (lambda _form: 1)
# Of a number or a truth value; of a pair the value's, with the index that loses every tie.
_IDENTITIES = {
    "SUM": _ZERO, "PROD": _ONE, "MAX": _lowest, "MIN": _highest, "LAND": _ONE, "LOR": _ZERO, "LXOR": _ZERO,
    "BAND": lambda form: np.array(-1).astype(form), "BOR": _ZERO, "BXOR": _ZERO, "MAXLOC": _lowest, "MINLOC": _highest,
}  # fmt: skip


def identity(op: Op, datatype: Datatype) -> np.ndarray:
    """Return an array of the one element `e` with `e op x == x` for every `x`.

    Raises
    ------
    OpError
        If the op has none: REPLACE and NO_OP.
    """
    find = _IDENTITIES.get(op.name)
    if find is None:
        raise OpError(str(op), "has no identity to fill a new file with; make the file first")
    element = np.zeros(1, datatype.form)
    if datatype.form.names is None:
        element[...] = find(datatype.form)
    elif op.name in {"MAXLOC", "MINLOC"}:
        value, index = datatype.form.names
        element[value] = find(datatype.form[value])
        element[index] = _highest(datatype.form[index])
    else:  # two halves of a complex number
        element[datatype.form.names[0]] = find(datatype.form[0])
    return element
