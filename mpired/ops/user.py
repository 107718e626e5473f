"""User-defined ops in Python (MPI_Op_create; MPI-4.1, 6.9.5).

An op is named as `FILE.py:FUNCTION`, as `PACKAGE.MODULE:FUNCTION`, or by an entry point of the group
`mpired.ops`. Its code is loaded and run in workers only: whatever it does, the process that commits
the result is not the one that ran it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from mpired.datatypes import Datatype, parse
from mpired.errors import Abort, MpiredError, UserOpError

_F = TypeVar("_F", bound=Callable[..., Any])
GROUP = "mpired.ops"
_MPI_ARGUMENTS = 4


class Properties(NamedTuple):
    """What is known of a user-defined op without applying it.

    Parameters
    ----------
    name
        What it is called in messages and lists; "" for its place.
    commute
        Whether operands may change places; None if nobody said. The fold keeps the order of the ranks anyway.
    datatypes
        The names of the only datatypes it takes; empty for all.
    identity
        Its neutral element, None if it has none.
    doc
        The first line of its docstring.
    """

    name: str = ""
    commute: bool | None = None
    datatypes: tuple[str, ...] = ()
    identity: Any = None
    doc: str = ""


def op(
    *, commute: bool | None = None, datatypes: Sequence[str] = (), identity: Any = None, name: str = ""
) -> Callable[[_F], _F]:
    """Say the properties of an op where it is defined.

    Parameters
    ----------
    commute
        Whether `a op b` equals `b op a`.
    datatypes
        The names of the only datatypes that the op takes, as "double" or "MPI_DOUBLE_INT".
    identity
        The neutral element.
    name
        What messages and lists call the op.

    Examples
    --------
    >>> @op(commute=True, datatypes=["double"])
    ... def hypotenuse(invec, inoutvec, count, datatype):
    ...     np.hypot(invec, inoutvec, out=inoutvec)
    >>> hypotenuse.mpired_op.datatypes
    ('MPI_DOUBLE',)
    """
    known = tuple(str(parse(text)[0]) for text in datatypes)

    def decorate(function: _F) -> _F:
        doc = (inspect.getdoc(function) or "").partition("\n")[0]
        function.mpired_op = Properties(name, commute, known, identity, doc)  # type: ignore[attr-defined]
        return function

    return decorate


@dataclass(frozen=True)
class PythonKernel:
    """The kernel of a Python function; picklable, because it loads the function where it is first applied.

    Parameters
    ----------
    place
        `FILE.py:FUNCTION`, `PACKAGE.MODULE:FUNCTION`, or the name of an entry point.
    timeout
        Seconds that one application may take, None for ever.
    """

    place: str
    timeout: float | None = None

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Apply the function, and hold it to its contract."""
        with limited(self.timeout), failing(self.place):
            apply(_load(self.place), invec, inoutvec, datatype, self.place)

    def properties(self) -> Properties:
        """Load the function and return what it says of itself.

        Raises
        ------
        UserOpError
            If it cannot be loaded, or cannot be called as an op.
        """
        with limited(self.timeout), failing(self.place):
            function = _load(self.place)
            convention(function, self.place)
            return properties_of(function)


def properties_of(function: Callable[..., Any]) -> Properties:
    """Return what a function says of itself, by the decorator or at least by its docstring."""
    said = getattr(function, "mpired_op", None)
    if isinstance(said, Properties):
        return said
    return Properties(doc=(inspect.getdoc(function) or "").partition("\n")[0])


def apply(
    function: Callable[..., Any], invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype, place: str
) -> None:
    """Leave `invec op inoutvec` in `inoutvec`, by whichever convention the function follows.

    Raises
    ------
    UserOpError
        If the function returns what it should not.
    """
    lower = invec.view()
    lower.flags.writeable = False
    if convention(function, place) == _MPI_ARGUMENTS:
        result = function(lower, inoutvec, len(inoutvec), datatype)
        if result is not None:
            reason = f"returned {type(result).__name__}; an op of four arguments leaves its result in inoutvec"
            raise UserOpError(place, reason)
        return
    upper = inoutvec.view()
    upper.flags.writeable = False
    result = function(lower, upper)
    if not isinstance(result, np.ndarray) or result.shape != inoutvec.shape or result.dtype != inoutvec.dtype:
        expected = f"an array of {inoutvec.dtype} with the shape {inoutvec.shape}"
        raise UserOpError(place, f"returned {_described(result)}; an op of two arguments returns {expected}")
    inoutvec[...] = result


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with the shape {value.shape}"
    return f"{type(value).__name__}"


@functools.cache
def convention(function: Callable[..., Any], place: str) -> int:
    """Return how many arguments a function takes: four as in MPI, or two and then it returns the result.

    Raises
    ------
    UserOpError
        If it takes neither.
    """
    if isinstance(function, np.ufunc):
        arguments = function.nin if function.nout == 1 else 0
        accepted = arguments == 2  # noqa: PLR2004 - a binary op
        if accepted:
            return arguments
    else:
        signature = inspect.signature(function)
        for arguments in (_MPI_ARGUMENTS, 2):
            try:
                signature.bind(*range(arguments))
            except TypeError:
                continue
            return arguments
    raise UserOpError(place, "takes neither (invec, inoutvec, len, datatype) nor two arrays")


@contextmanager
def failing(place: str) -> Iterator[None]:
    """Turn whatever foreign code raises, SystemExit too, into one error that says where."""
    try:
        yield
    except (MpiredError, MemoryError):
        raise
    except Abort as abort:
        raise UserOpError(place, f"aborted: {abort}") from None
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno})" if frames else ""
        text = " ".join(str(error).split())
        raise UserOpError(place, f"raised {type(error).__name__}{': ' if text else ''}{text}{where}") from None


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Let the kernel end this process if the block takes longer: no Python code could stop a loop in C."""
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@functools.cache
def _load(place: str) -> Callable[..., Any]:
    """Return the function at a place."""
    home, colon, name = place.rpartition(":")
    function = _from_entry_point(place) if not colon else _attribute(_module(home), name, place)
    if not callable(function):
        raise UserOpError(place, f"is {type(function).__name__}, not a function")
    return cast("Callable[..., Any]", function)


def _attribute(module: Any, dotted: str, place: str) -> Any:
    found = module
    for name in dotted.split("."):
        if not hasattr(found, name):
            raise UserOpError(place, f"there is no {name!r} in {getattr(found, '__file__', found.__name__)}")
        found = getattr(found, name)
    return found


def _module(home: str) -> Any:
    return load_file(home) if is_file(home) else importlib.import_module(home)


def is_file(home: str) -> bool:
    """Tell whether the text before the colon means a file, not a module."""
    return home.endswith(".py") or "/" in home


@functools.cache
def load_file(path: str) -> Any:
    """Import a Python file by its path, without touching sys.path or leaving compiled files behind."""
    if os.path.isdir(path) or not path.endswith(".py"):
        raise UserOpError(path, "is not a Python file (.py) or a shared library (.so)")
    sys.dont_write_bytecode = True
    name = f"mpired_user_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserOpError(path, "cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def entry_points() -> dict[str, list[Any]]:
    """Return the installed entry points of the group by name, without loading any."""
    from importlib import metadata  # noqa: PLC0415 - slow, and seldom needed

    found: dict[str, list[Any]] = {}
    for point in metadata.entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _from_entry_point(name: str) -> Any:
    points = entry_points().get(name, [])
    if len(points) != 1:
        raise UserOpError(name, ambiguity(points) if points else "is no entry point")
    return points[0].load()


def ambiguity(points: Sequence[Any]) -> str:
    """Return the reason why several entry points of one name cannot be used."""
    homes = ", ".join(sorted(f"{point.value} of {point.dist.name if point.dist else 'unknown'}" for point in points))
    return f"is the name of {len(points)} entry points ({homes}); write the place of one instead"


def decorated(path: str) -> list[str]:
    """Return the names of the decorated ops of a Python file."""
    with failing(path):
        return [name for name, value in vars(load_file(path)).items() if hasattr(value, "mpired_op")]
