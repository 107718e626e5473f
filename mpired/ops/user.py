"""User-defined ops (MPI_Op_create; MPI-4.1, 6.9.5): loading, calls, checks and errors of foreign code.

The name of an op is `FILE.py:FUNCTION`, `PACKAGE.MODULE:FUNCTION`, or an entry point of the group `mpired.ops`. The
code is loaded and run in workers only, so that it can do no harm to the process that commits the result.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mpired import installed, interrupts, mpi4py_objects
from mpired.datatypes import Datatype, parse
from mpired.errors import Abort, UserOpError

_F = TypeVar("_F", bound=Callable[..., Any])
entry_points = functools.partial(installed.entry_points, "mpired.ops")
_MPI_ARGUMENTS, _MPI4PY_ARGUMENTS = 4, 3
_LONGEST_REASON = 300
_SIMD_ELEMENTS = 64  # maximum of elements in a SIMD register, which has 512 bits
# Hints for messages of Python and NumPy if the code is for numbers, or writes to invec.
_FOR_NUMBERS = "an op gets arrays, not numbers: use numpy.maximum, numpy.where and the like"
_HINTS = {
    "truth value of an array": _FOR_NUMBERS,
    "can be converted to Python scalars": _FOR_NUMBERS,
    "read-only": "an op of two arrays returns the result, any other writes it to inoutvec, not to invec",
}
# Minimum and maximum of a timer of the kernel in seconds; 0 would stop the timer.
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 1e8
# Packages with frames between a worker and the code of an op: mpired and the import system. Libraries such as Dask load
# importlib_metadata in the place of importlib.
_OWN_PACKAGES = {"mpired", "importlib", "importlib_metadata"}


class Properties(NamedTuple):
    """The declared properties of a user-defined op."""

    name: str = ""  # the name in messages and lists; "" for the place of the op
    doc: str = ""  # the first line of the docstring
    commute: bool | None = None  # whether the op commutes; None if unknown. The fold keeps the order of the ranks
    datatypes: tuple[str, ...] = ()  # the names of the datatypes that the op takes; empty for all
    identity: Any = None  # the neutral element, or None


def digest(path: str) -> str:
    """Return a digest of the content of a file, "" if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return ""


def first_line(function: Any) -> str:
    """Return the first line of a function's docstring, "" if it has none."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def op(
    *, commute: bool | None = None, datatypes: str | Sequence[str | Datatype] = (), identity: Any = None, name: str = ""
) -> Callable[[_F], _F]:
    """Declare the properties of a user-defined op, as a decorator of its function.

    Parameters
    ----------
    commute
        Whether `a op b` equals `b op a`.
    datatypes
        The names of the only datatypes that the op takes, such as "double" or "MPI_DOUBLE_INT".
    identity
        The neutral element: a number, or one for each field.
    name
        The name of the op in messages and lists.

    Raises
    ------
    UnknownDatatypeError
        If `datatypes` has an unknown name.
    TypeError
        If `identity` is not a number or a list of numbers.

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
    names = tuple(str(parse(str(text))[0]) for text in texts)
    properties = Properties(str(name), "", None if commute is None else bool(commute), names, _plain(identity))

    def decorate(function: _F) -> _F:
        function.mpired_op = properties._replace(doc=first_line(function))  # type: ignore[attr-defined]
        return function

    return decorate


def _plain(identity: Any) -> Any:
    """Return an identity as Python numbers, which all processes can unpickle."""
    numbers = np.asarray(0 if identity is None else identity)
    if numbers.dtype.kind not in "biufc":
        raise TypeError(f"the identity is {type(identity).__name__}, not a number or one for each field")
    return None if identity is None else numbers.tolist()


class Function(NamedTuple):
    """A Python function that is an op."""

    call: Callable[..., Any]
    place: str  # its name in messages
    arguments: int  # four as in MPI, three as in mpi4py, or two, if the function returns the result
    commute: bool | None = None  # whether an op of mpi4py commutes

    @property
    def properties(self) -> Properties:
        """The properties of the decorator `mpired.op`, or else of the docstring."""
        declared = getattr(self.call, "mpired_op", None)
        if isinstance(declared, Properties):
            return declared
        return Properties(commute=self.commute, doc=first_line(self.call))

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Compute `inoutvec = invec op inoutvec`."""
        lower, upper = _read_only(invec), inoutvec.view()
        if self.arguments == _MPI4PY_ARGUMENTS:  # mpi4py ignores the value that the function returns
            if datatype.is_spread or datatype.origin:
                reason = f"takes three arguments, as functions of mpi4py do, and elements of {datatype} are not stored"
                hint = "write it as (invec, inoutvec, len, datatype)"
                raise UserOpError(self.place, f"{reason} one after another from displacement 0 on; {hint}")
            self.call(*mpi4py_objects.arguments(invec.view(np.uint8), inoutvec.view(np.uint8), str(datatype)))
            return
        if self.arguments == _MPI_ARGUMENTS:
            result = self.call(lower, upper, len(upper), datatype)
            if result is not None:
                reason = f"returned {_describe(result)}; an op of four arguments leaves its result in inoutvec"
                raise UserOpError(self.place, reason)
            return
        result = self.call(lower, _read_only(upper))
        if type(result) is not np.ndarray or result.shape != inoutvec.shape or result.dtype != inoutvec.dtype:
            expected = f"an array of {inoutvec.dtype} with the shape {inoutvec.shape}"
            reason = f"returned {_describe(result)}; an op of two arguments returns {expected}"
            raise UserOpError(self.place, reason)
        inoutvec[...] = result


def _read_only(block: np.ndarray) -> np.ndarray:
    view = block.view()
    view.flags.writeable = False
    return view


def _describe(value: Any) -> str:
    name = type(value).__name__
    return f"{name} of {value.dtype} with the shape {value.shape}" if isinstance(value, np.ndarray) else name


def as_op(value: Any, place: str = "") -> Function:
    """Return the op of a function, or of an op of mpi4py; the default of the place is the name of the function."""
    created = mpi4py_objects.user_function(value)
    function, commute = (value, None) if created is None else created
    place = place or str(getattr(function, "__name__", type(function).__name__))
    if created is not None:
        return Function(function, place, _MPI4PY_ARGUMENTS, commute)
    if not callable(value):
        raise UserOpError(place, f"is {type(value).__name__}, not a function")
    arguments = _arguments(value)
    if arguments is None:
        raise UserOpError(place, "must take two arrays, or (invec, inoutvec, len, datatype)")
    if arguments == _MPI4PY_ARGUMENTS and mpi4py_objects.module() is None:
        reason = "takes three arguments, as functions of mpi4py do, and that is not imported"
        raise UserOpError(place, f"{reason}; import mpi4py.MPI, or take (invec, inoutvec, len, datatype) or two arrays")
    return Function(value, place, arguments)


def _arguments(function: Callable[..., Any]) -> int | None:
    """Return the number of arguments with which an op calls a function; None if it cannot be called as an op."""
    if isinstance(function, np.ufunc):
        return 2 if (function.nin, function.nout) == (2, 1) else None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have no signature
        return None
    is_variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    # A wrapper with any number of arguments is more often around a function with the four of MPI.
    for arguments in (_MPI_ARGUMENTS, 2) if is_variadic else (2, _MPI4PY_ARGUMENTS, _MPI_ARGUMENTS):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments
    return None


@dataclass(eq=False)
class UserKernel:
    """The kernel of a user-defined op. It is picklable, and loads the code when it is first applied."""

    # An element of the result must depend on its two operands only, because MPI and mpired apply an op to any pieces of
    # the buffers (MPI-4.1, 6.9.5). Therefore the first elements of each buffer are combined twice: as a whole, and in
    # two pieces. An op that reads the neighbours of an element gives other bits.

    place: str  # the name of the op in messages
    load: Callable[[UserKernel], Any]  # returns the code, with `properties` and `apply`
    path: str = ""  # the file with the code, "" for a module or an entry point
    timeout: float | None = None  # seconds for one application, which includes the loading; None without a limit
    isolated: bool = True  # whether the code runs in workers only, where it may raise any exception, also SystemExit
    directory: str = ""  # the directory of a relative path; "" for the working directory of the process
    digest: str = ""  # the digest of the file in the process that pickled the kernel; "" in that process

    _is_checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory, or may have loaded the file before it changed.
        directory = self.directory
        with suppress(OSError):  # the working directory may be removed
            directory = os.path.abspath(directory)
        file_digest = self.digest or digest(self.file)
        return UserKernel, (self.place, self.load, self.path, self.timeout, self.isolated, directory, file_digest)

    @property
    def file(self) -> str:
        """The path of the file for this process, "" for a module or an entry point."""
        return self.path and os.path.join(self.directory, self.path)

    @functools.cached_property
    def code(self) -> Any:
        """The loaded code."""
        self.check_file()
        return self.load(self)

    def properties(self) -> Properties:
        """Load the code, and return its properties."""
        with limit_time(self.timeout), WrapErrors(self.place):
            properties: Properties = self.code.properties
            return properties

    def _apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Compute `inoutvec = invec op inoutvec`."""
        with limit_time(self.timeout), WrapErrors(self.place, BaseException if self.isolated else Exception):
            interrupts.interruptible(lambda: self.code.apply(invec, inoutvec, datatype))

    def check_again(self) -> None:
        """Check the op again on the next elements, which are of another buffer."""
        self._is_checked = False

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        """Apply the op, and return `inoutvec`; the first application is checked."""
        if self._is_checked or len(inoutvec) < 2:  # noqa: PLR2004 - one element cannot be cut
            self._apply(invec, inoutvec, datatype)
            return inoutvec
        in_pieces = inoutvec.copy()
        self._apply(invec, inoutvec, datatype)
        self._is_checked = True
        middle = len(in_pieces) // 2
        if middle > _SIMD_ELEMENTS:
            middle -= middle % _SIMD_ELEMENTS  # loops may combine the elements after the last whole register otherwise
        for piece in (slice(0, middle), slice(middle, None)):
            self._apply(invec[piece], in_pieces[piece], datatype)
        if not same_bits(in_pieces, inoutvec):
            count = len(in_pieces)
            reason = f"gives other bits for {count} elements at once than for {middle} and the rest; each element"
            raise UserOpError(self.place, f"{reason} must depend on its two operands alone (MPI-4.1, 6.9.5)")
        return inoutvec

    def check_file(self) -> None:
        """Raise `UserOpError` if the file has another digest than in the process that pickled the kernel."""
        if self.digest and digest(self.file) != self.digest:
            reason = f"{self.file} is another file here than where the command runs, or has changed; run again"
            raise UserOpError(self.place, reason)


def load(kernel: UserKernel) -> Function:
    """Return the Python function of a kernel, whose place is `FILE.py:FUNCTION`, or a module or entry point."""
    home, colon, name = kernel.place.rpartition(":")
    if not colon:
        points = entry_points().get(kernel.place, [])
        if len(points) != 1:
            raise UserOpError(kernel.place, ambiguity(points) if points else "is not an entry point")
        return as_op(points[0].load(), kernel.place)
    value = load_file(kernel.file, kernel.place, kernel.digest) if kernel.path else importlib.import_module(home)
    for attribute in name.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            owner = getattr(value, "__file__", None) or getattr(value, "__name__", None) or type(value).__name__
            raise UserOpError(kernel.place, f"there is no {attribute!r} in {owner}") from None
    return as_op(value, kernel.place)


def ambiguity(points: Sequence[Any]) -> str:
    """Return the reason why several entry points of one name cannot be used."""
    places = installed.describe_points(points)
    return f"is the name of {len(points)} entry points ({places}); write the place of one instead"


@functools.cache
def load_file(path: str, place: str, file_digest: str = "") -> Any:
    """Import a Python file by its path, without a change of sys.path, and without a compiled file."""
    del file_digest  # a file with another digest is not in the cache, and is imported again
    sys.dont_write_bytecode = True
    name = f"mpired_user_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, path) if path.endswith(".py") else None
    if spec is None or spec.loader is None:
        raise UserOpError(place, f"{path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for dataclasses and pickle, which look up their module
    spec.loader.exec_module(module)
    return module


def decorated_ops(path: str, timeout: float) -> list[tuple[str, Properties]]:
    """Return the names and the properties of the decorated functions of a Python file."""
    with limit_time(timeout), WrapErrors(path):
        ops = [(name, getattr(value, "mpired_op", None)) for name, value in vars(load_file(path, path)).items()]
    return [(name, properties) for name, properties in ops if isinstance(properties, Properties)]


def same_bits(block: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays of one dtype have the same bits, except in padding and in the payload of NaN."""
    if block.dtype.names is not None:
        return all(same_bits(block[name], other[name]) for name in block.dtype.names)
    if block.dtype.kind == "c":
        return same_bits(block.real, other.real) and same_bits(block.imag, other.imag)
    if block.dtype.kind == "f":
        same = (block == other) & (np.signbit(block) == np.signbit(other))
        return bool((same | (np.isnan(block) & np.isnan(other))).all())
    return block.tobytes() == other.tobytes()


class WrapErrors(AbstractContextManager[None]):
    """Raises exceptions of foreign code as a `UserOpError` with their place."""

    # A generator with `contextlib` would confuse an error from a StopIteration with that exception.

    def __init__(self, place: str, caught: type[BaseException] = BaseException) -> None:
        self._place = place
        self._caught = caught  # all exceptions in a worker, also SystemExit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Abort):
            raise UserOpError(self._place, f"aborted: {_text(error)}") from error
        if isinstance(error, self._caught) and not isinstance(error, UserOpError):
            raise UserOpError(self._place, _describe_error(error)) from error


def _describe_error(error: BaseException) -> str:
    """Describe an exception of foreign code, with the last line of this code in its traceback."""
    text = _text(error)
    foreign = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _OWN_PACKAGES
    ]
    lines = [line for path, line in foreign if path == foreign[0][0]]
    where = f" ({os.path.basename(foreign[0][0])}, line {lines[-1]})" if lines else ""
    hint = next((f"; {hint}" for part, hint in _HINTS.items() if part in text), "")
    return f"raised {type(error).__name__}{': ' if text else ''}{text}{where}{hint}"


def _text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - `__str__` is foreign code
        return "(and its message cannot be had)"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."


@contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Let the operating system end this process if the block takes longer."""
    # A handler in Python could not interrupt a loop in C.
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, _MIN_SECONDS), _MAX_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
