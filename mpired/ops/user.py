"""User-defined ops (MPI_Op_create; MPI-4.1, 6.9.5): their contract, errors of code that breaks it, and ops in Python.

An op is named by `FILE.py:FUNCTION`, by `PACKAGE.MODULE:FUNCTION`, or by an entry point of the group
`mpired.ops`. Its code is loaded and run in workers only: whatever it does, the process that commits
the result is not the one that ran it.
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
_WIDEST = 64  # elements: a register of 512 bits has as many bytes
# Hints for what Python and NumPy say where code for numbers gets arrays, or writes to an operand.
_FOR_NUMBERS = "an op gets arrays, not numbers: use numpy.maximum, numpy.where and the like"
_HINTS = {
    "truth value of an array": _FOR_NUMBERS,
    "can be converted to Python scalars": _FOR_NUMBERS,
    "read-only": "an op of two arrays returns the result, any other writes it to inoutvec, not to invec",
}
# Seconds that a timer of the kernel can be set to; 0 would be none.
_SHORTEST, _LONGEST = 1e-6, 1e8
# Packages whose frames are between a worker and the op's own code: mpired, and what imports; the last takes the
# place of the one before when a library loads it, as Dask does.
_BETWEEN = {"mpired", "importlib", "importlib_metadata"}


class Properties(NamedTuple):
    """The properties of a user-defined op that are known without applying it."""

    name: str = ""  # its name in messages and lists; "" for its place
    doc: str = ""  # the first line of its docstring
    # Whether operands may change places; None if unknown. The fold keeps the order of the ranks anyway
    commute: bool | None = None
    datatypes: tuple[str, ...] = ()  # the names of the only datatypes it takes; empty for all
    identity: Any = None  # its neutral element, None if it has none


def digest(path: str) -> str:
    """Return what tells the content of a file from any other, "" if it cannot be read."""
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
    properties = Properties(str(name), "", None if commute is None else bool(commute), known, _plain(identity))

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


class Function(NamedTuple):
    """A function that is an op, with what messages call it and which convention it follows."""

    call: Callable[..., Any]  # the function
    place: str  # what messages call it
    arguments: int  # four as in MPI, three as in mpi4py, or two, and then it returns the result
    commute: bool | None = None  # what MPI knows of it, if it is an op of mpi4py

    @property
    def properties(self) -> Properties:
        """The properties that the decorator of the function sets, or at least its docstring."""
        own = getattr(self.call, "mpired_op", None)
        return own if isinstance(own, Properties) else Properties(commute=self.commute, doc=first_line(self.call))

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Leave `invec op inoutvec` in `inoutvec`."""
        lower, upper = _read_only(invec), inoutvec.view()
        if self.arguments == _MPI4PY_ARGUMENTS:  # which ignores the values that they return
            if datatype.is_spread or datatype.origin:
                reason = f"takes three arguments, as functions of mpi4py do, and elements of {datatype} are not stored"
                hint = "write it as (invec, inoutvec, len, datatype)"
                raise UserOpError(self.place, f"{reason} one after another from displacement 0 on; {hint}")
            self.call(*mpi4py_objects.arguments(invec.view(np.uint8), inoutvec.view(np.uint8), str(datatype)))
            return
        if self.arguments == _MPI_ARGUMENTS:
            result = self.call(lower, upper, len(upper), datatype)
            if result is not None:
                reason = f"returned {_described(result)}; an op of four arguments leaves its result in inoutvec"
                raise UserOpError(self.place, reason)
            return
        result = self.call(lower, _read_only(upper))
        if type(result) is not np.ndarray or result.shape != inoutvec.shape or result.dtype != inoutvec.dtype:
            expected = f"an array of {inoutvec.dtype} with the shape {inoutvec.shape}"
            reason = f"returned {_described(result)}; an op of two arguments returns {expected}"
            raise UserOpError(self.place, reason)
        inoutvec[...] = result


def _read_only(block: np.ndarray) -> np.ndarray:
    view = block.view()
    view.flags.writeable = False
    return view


def _described(value: Any) -> str:
    name = type(value).__name__
    return f"{name} of {value.dtype} with the shape {value.shape}" if isinstance(value, np.ndarray) else name


def as_op(found: Any, place: str) -> Function:
    """Return the object that was found at a place as an op."""
    if (op := mpi4py_objects.created(found)) is not None:
        call, commute = op
        return Function(call, place, _MPI4PY_ARGUMENTS, commute)
    if not callable(found):
        raise UserOpError(place, f"is {type(found).__name__}, not a function")
    arguments = _arguments(found)
    if arguments is None:
        raise UserOpError(place, "must take two arrays, or (invec, inoutvec, len, datatype)")
    if arguments == _MPI4PY_ARGUMENTS and mpi4py_objects.module() is None:
        reason = "takes three arguments, as functions of mpi4py do, and that is not imported"
        raise UserOpError(place, f"{reason}; import mpi4py.MPI, or take (invec, inoutvec, len, datatype) or two arrays")
    return Function(found, place, arguments)


def function_name(function: Any) -> str:
    """Return what messages call a function of this process, or the one of an op of mpi4py."""
    op = mpi4py_objects.created(function)
    function = function if op is None else op[0]
    return str(getattr(function, "__name__", type(function).__name__))


def _arguments(function: Callable[..., Any]) -> int | None:
    """Return the number of arguments of a function, None if neither convention fits."""
    if isinstance(function, np.ufunc):
        return 2 if (function.nin, function.nout) == (2, 1) else None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C do not say
        return None
    variadic = any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values())
    # A wrapper that takes any arguments more probably stands for MPI's four.
    for arguments in (_MPI_ARGUMENTS, 2) if variadic else (2, _MPI4PY_ARGUMENTS, _MPI_ARGUMENTS):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments
    return None


@dataclass(eq=False)
class UserKernel:
    """The kernel of a user-defined op; picklable, because it loads the code where it is first applied."""

    # It holds the op to the rule that an element of the result depends on its two operands alone. MPI, as mpired, calls
    # an op on any pieces of the buffers (MPI-4.1, 6.9.5). So the first elements of each buffer are combined as a whole
    # and then again in two pieces: an op that looks at the neighbours of an element gives other bits.

    place: str  # what messages call the op
    load: Callable[[UserKernel], Any]  # returns the code: it has the `properties` of the op, and can `apply` it
    path: str = ""  # that of the file with the code, "" if none is known
    timeout: float | None = None  # seconds that one application may take, with the loading; None for ever
    isolated: bool = True  # whether it runs in workers only, where it may raise anything, SystemExit too
    directory: str = ""  # what the path is relative to; "" for the working directory of the process
    digest: str = ""  # the digest of the file, where another process loads it; "" for any

    _is_tried = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory, and one that stays may have loaded what the file was before.
        directory = self.directory
        with suppress(OSError):  # it may be gone
            directory = os.path.abspath(directory)
        known = self.digest or digest(self.file)
        return UserKernel, (self.place, self.load, self.path, self.timeout, self.isolated, directory, known)

    @property
    def file(self) -> str:
        """The path of the file in this process, "" if none is known."""
        return self.path and os.path.join(self.directory, self.path)

    @functools.cached_property
    def code(self) -> Any:
        """The loaded code."""
        self.check_file()
        return self.load(self)

    def properties(self) -> Properties:
        """Load the code, and return the properties that it declares."""
        with limited(self.timeout), Failing(self.place):
            properties: Properties = self.code.properties
            return properties

    def _apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Leave `invec op inoutvec` in `inoutvec`."""
        with limited(self.timeout), Failing(self.place, BaseException if self.isolated else Exception):
            interrupts.interruptible(lambda: self.code.apply(invec, inoutvec, datatype))

    def try_again(self) -> None:
        """Try the op once more, on the next elements, which are of another buffer."""
        self._is_tried = False

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        """Apply the op, and return the array that has the result."""
        if self._is_tried or len(inoutvec) < 2:  # noqa: PLR2004 - what can be cut
            self._apply(invec, inoutvec, datatype)
            return inoutvec
        reread = inoutvec.copy()
        self._apply(invec, inoutvec, datatype)
        self._is_tried = True
        middle = len(reread) // 2
        if middle > _WIDEST:
            middle -= middle % _WIDEST  # a cut within a SIMD register is for loops that combine the rest otherwise
        for piece in (slice(0, middle), slice(middle, None)):
            self._apply(invec[piece], reread[piece], datatype)
        if not same_bits(reread, inoutvec):
            reason = f"gives other bits for {len(reread)} elements at once than for {middle} and the rest; each element"
            raise UserOpError(self.place, f"{reason} must depend on its two operands alone (MPI-4.1, 6.9.5)")
        return inoutvec

    def check_file(self) -> None:
        """Raise `UserOpError` if the file is not the one that the command has looked at."""
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
    found = load_file(kernel.file, kernel.place, kernel.digest) if kernel.path else importlib.import_module(home)
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


class Failing(AbstractContextManager[None]):
    """Turns what foreign code raises into one error that says where."""

    # Not a generator: `contextlib` takes an error that is raised because of a StopIteration for that itself.

    def __init__(self, place: str, caught: type[BaseException] = BaseException) -> None:
        self._place = place
        self._caught = caught  # in a worker everything, SystemExit too

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Abort):
            raise UserOpError(self._place, f"aborted: {_text(error)}") from error
        if isinstance(error, self._caught) and not isinstance(error, UserOpError):
            raise UserOpError(self._place, raised(error)) from error


def raised(error: BaseException) -> str:
    """Return what foreign code raised, and the line of its own where that came from."""
    text = _text(error)
    foreign = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _BETWEEN
    ]
    lines = [line for path, line in foreign if path == foreign[0][0]]
    where = f" ({os.path.basename(foreign[0][0])}, line {lines[-1]})" if lines else ""
    hint = next((f"; {hint}" for words, hint in _HINTS.items() if words in text), "")
    return f"raised {type(error).__name__}{': ' if text else ''}{text}{where}{hint}"


def _text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - foreign code too
        return "(and its message cannot be had)"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Let the kernel end this process if the block takes longer: no Python code could stop a loop in C."""
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(max(seconds, _SHORTEST), _LONGEST))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
