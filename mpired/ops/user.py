"""User-defined ops in Python (MPI_Op_create; MPI-4.1, 6.9.5).

An op is named by `FILE.py:FUNCTION`, by `PACKAGE.MODULE:FUNCTION`, or by an entry point of the group
`mpired.ops`. Its code is loaded and run in workers only: whatever it does, the process that commits
the result is not the one that ran it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from mpired import installed
from mpired.datatypes import Datatype, parse
from mpired.errors import UserOpError
from mpired.ops.contract import Failing, Function, Properties, UserKernel, as_op, first_line, limited

_F = TypeVar("_F", bound=Callable[..., Any])
entry_points = functools.partial(installed.entry_points, "mpired.ops")


def op(
    *, commute: bool | None = None, datatypes: str | Sequence[str | Datatype] = (), identity: Any = None, name: str = ""
) -> Callable[[_F], _F]:
    """Say the properties of an op where it is defined.

    Parameters
    ----------
    commute
        Whether `a op b` equals `b op a`.
    datatypes
        The names of the only datatypes that the op takes, such as "double" or "MPI_DOUBLE_INT".
    identity
        The neutral element: a number, or one for each field.
    name
        What messages and lists call the op.

    Raises
    ------
    UnknownDatatypeError
        If one of `datatypes` is the name of none.
    TypeError
        If `identity` is not a number.

    Examples
    --------
    >>> import numpy as np
    >>> @op(commute=True, datatypes=["double"])
    ... def hypotenuse(invec, inoutvec, count, datatype):
    ...     np.hypot(invec, inoutvec, out=inoutvec)
    >>> hypotenuse.mpired_op.datatypes
    ('MPI_DOUBLE',)
    """
    texts = [datatypes] if isinstance(datatypes, str) else datatypes
    known = tuple(str(parse(str(text))[0]) for text in texts)
    properties = Properties(str(name), None if commute is None else bool(commute), known, _plain(identity))

    def decorate(function: _F) -> _F:
        function.mpired_op = properties._replace(doc=first_line(function))  # type: ignore[attr-defined]
        return function

    return decorate


def _plain(identity: Any) -> Any:
    """Return an identity as Python's own numbers, which every process can read."""
    numbers = np.asarray(0 if identity is None else identity)
    if numbers.dtype.kind not in "biufc":
        raise TypeError(f"the identity is {type(identity).__name__}, not a number or one for each field")
    return None if identity is None else numbers.tolist()


@dataclass(frozen=True)
class PythonKernel(UserKernel):
    """The kernel of a Python function."""

    place: str  # `FILE.py:FUNCTION`, `PACKAGE.MODULE:FUNCTION`, or the name of an entry point
    timeout: float | None = None
    directory: str = ""
    digest: str = ""

    @property
    def file(self) -> str:
        """The path of the Python file, "" for a module or an entry point."""
        home = self.place.rpartition(":")[0]
        return os.path.join(self.directory, home) if is_file(home) else ""

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Call the function once; the time for one call includes the loading of the code."""
        with limited(self.timeout), Failing(self.place):
            _load(self).apply(invec, inoutvec, datatype)

    def properties(self) -> Properties:
        """Load the function and return the properties that it declares."""
        with limited(self.timeout), Failing(self.place):
            return _load(self).properties


@functools.cache
def _load(kernel: PythonKernel) -> Function:
    """Return the function of a kernel."""
    home, colon, name = kernel.place.rpartition(":")
    if not colon:
        points = entry_points().get(kernel.place, [])
        if len(points) != 1:
            raise UserOpError(kernel.place, ambiguity(points) if points else "is not an entry point")
        return as_op(points[0].load(), kernel.place)
    if kernel.file:
        kernel.check_file()
        found = load_file(kernel.file, kernel.place, kernel.digest)
    else:
        found = importlib.import_module(home)
    for attribute in name.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            where = getattr(found, "__file__", None) or getattr(found, "__name__", None) or type(found).__name__
            raise UserOpError(kernel.place, f"there is no {attribute!r} in {where}") from None
    return as_op(found, kernel.place)


def ambiguity(points: Sequence[Any]) -> str:
    """Return the reason why several entry points of one name cannot be used."""
    homes = installed.homes(points)
    return f"is the name of {len(points)} entry points ({homes}); write the place of one instead"


def is_file(home: str) -> bool:
    """Return whether the text before the colon means a file, not a module."""
    return home.endswith(".py") or "/" in home


@functools.cache
def load_file(path: str, place: str, known: str = "") -> Any:
    """Import a Python file by its path, without touching sys.path or leaving compiled files behind."""
    # One with another digest is imported again.
    del known
    sys.dont_write_bytecode = True
    name = f"mpired_user_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path) if path.endswith(".py") else None
    if spec is None or spec.loader is None:
        raise UserOpError(place, f"{path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def decorated(path: str, timeout: float) -> list[tuple[str, Properties]]:
    """Return the names and the properties of the decorated ops of a Python file, which is loaded in time."""
    with limited(timeout), Failing(path):
        found = [(name, getattr(value, "mpired_op", None)) for name, value in vars(load_file(path, path)).items()]
    return [(name, properties) for name, properties in found if isinstance(properties, Properties)]
