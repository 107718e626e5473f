"""The text of `--op` to a row: a predefined op, or a user-defined one that is still to be loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.errors import UnknownOpError, UserOpError
from mpired.ops import table, user
from mpired.ops.clibrary import LibraryKernel
from mpired.ops.table import Op

_COUNT = ":count"


def of_function(function: Callable[..., Any], *, commute: bool | None = None) -> Op:
    """Return the op of a function of this process, for the Python API."""
    name = getattr(function, "__name__", "function")
    user.convention(function, name)

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        user.apply(function, invec, inoutvec, datatype, name)

    return with_properties(table.user_op(name, kernel, isolated=False), user.properties_of(function), commute=commute)


def with_properties(op: Op, said: user.Properties, *, commute: bool | None = None) -> Op:
    """Return a user-defined op with what it says of itself; `commute` goes before its own word."""
    chosen = said.commute if commute is None else commute
    return op._replace(
        name=said.name or op.name, commute=bool(chosen), datatypes=said.datatypes, identity=said.identity, doc=said.doc
    )


def resolve(text: str, timeout: float | None = None) -> Op:
    """Return the op that a text names; nothing of the user's is loaded yet.

    Parameters
    ----------
    text
        The name of a predefined op, `FILE.py:FUNCTION`, `PACKAGE.MODULE:FUNCTION`, `./LIB.so:SYMBOL`
        or `./LIB.so:SYMBOL:count`, or the name of an entry point of the group `mpired.ops`.
    timeout
        Seconds that one application of a user-defined op may take.

    Raises
    ------
    UnknownOpError
        If the text names nothing.
    UserOpError
        If the file is missing, or several entry points have the name.
    """
    if ":" in text:
        return _at_place(text, timeout)
    try:
        return table.get(text)
    except UnknownOpError:
        points = user.entry_points().get(text, [])
        if not points:
            raise
        if len(points) > 1:
            raise UserOpError(text, user.ambiguity(points)) from None
        return table.user_op(text, user.PythonKernel(text, timeout), isolated=True)


def _at_place(text: str, timeout: float | None) -> Op:
    home, _, name = text.removesuffix(_COUNT).rpartition(":")
    if ".so" in os.path.basename(home):
        if "/" not in home:
            raise UserOpError(text, f"a library needs a path; write ./{text}")
        _check_file(home, text)
        variant = "count" if text.endswith(_COUNT) else ""
        return table.user_op(text, LibraryKernel(home, name, variant, timeout), isolated=True)
    if user.is_file(text.rpartition(":")[0]):
        _check_file(text.rpartition(":")[0], text)
    return table.user_op(text, user.PythonKernel(text, timeout), isolated=True)


def _check_file(path: str, text: str) -> None:
    if not os.path.exists(path):
        raise UserOpError(text, f"there is no file {path}")
    if not os.path.isfile(path):
        raise UserOpError(text, f"{path} is not a regular file")
