"""User-defined ops in C: an `MPI_User_function` in a shared library (MPI-4.1, 6.9.5).

    void f(void *invec, void *inoutvec, int *len, MPI_Datatype *datatype);

or, with `:count` behind the symbol, the large-count `MPI_User_function_c`, whose `len` is an
MPI_Count of 64 bits. `*datatype` is the handle value of the MPI-5.0 ABI: 0x20E for
MPI_UNSIGNED_LONG and so on as `mpired types --json` lists them, MPI_DATATYPE_NULL for derived types. A
function that calls MPI has to initialise it, because mpired does without. The function gets copies of the
operands, so that what it may write beside them can be noticed.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import UserOpError
from mpired.ops import elf
from mpired.ops.contract import Elementwise, Failing, Properties, absolute, limited

_INT_MAX = 2**31 - 1
_CANARY_BYTES = 64
_CANARY = 0xA5
_ABI = "libmpi_abi"
_BUILD = f"MPI's ABI build ({_ABI}.so)"
# What may be called at any time (MPI-4.1, 11.4.1), or initialises.
_BEFORE_INIT = frozenset(
    {"MPI_Initialized", "MPI_Finalized", "MPI_Get_version", "MPI_Get_library_version", "MPI_Init", "MPI_Init_thread"}
)
_UNINITIALISED = 86  # a status that programs seldom have
_COUNTERS: dict[str, Any] = {"": ctypes.c_int, "count": ctypes.c_int64}


@dataclass(frozen=True)
class LibraryKernel:
    """The kernel of a C function; picklable, because it loads the library where it is first applied.

    Parameters
    ----------
    path
        The shared library.
    symbol
        The function.
    variant
        "" for `int *len`, "count" for `MPI_Count *len`.
    timeout
        Seconds that one application may take, None for ever.
    directory
        What the path is relative to; "" for the working directory of the process.
    """

    path: str
    symbol: str
    variant: str = ""
    timeout: float | None = None
    directory: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory.
        return LibraryKernel, (self.path, self.symbol, self.variant, self.timeout, absolute(self.directory))

    @property
    def place(self) -> str:
        """What messages call the op."""
        return f"{self.path}:{self.symbol}"

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        """Apply the function, and hold it to its contract."""
        return _elementwise(self)(invec, inoutvec, datatype)

    def try_again(self) -> None:
        """Try on the next elements, which are of another buffer, that each depends on its two operands alone."""
        _elementwise(self).try_again()

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Apply the function to copies between canaries, in as many calls as its counter needs."""
        with limited(self.timeout), Failing(self.place):
            function, step = _load(self), self._step(len(invec), datatype)
            for start in range(0, len(invec), step):
                part = slice(start, start + step)
                self._call(function, invec[part], inoutvec[part], datatype)

    def _step(self, count: int, datatype: Datatype) -> int:
        """Return how many elements there may be in one call."""
        if datatype.is_spread and pieces.overlaps(datatype.typemap, count) is not False:
            return 1  # what it leaves in one element is not to be seen in another
        return count if self.variant else _INT_MAX

    def _call(self, function: Any, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        lower, upper = _Operand(0, invec, datatype), _Operand(1, inoutvec, datatype)
        counter, handle = _COUNTERS[self.variant](len(invec)), ctypes.c_void_p(datatype.handle)
        function(lower.address, upper.address, ctypes.byref(counter), ctypes.byref(handle))
        if not (lower.intact and upper.intact):
            raise UserOpError(self.place, f"wrote outside its buffers of {len(invec)} elements of {datatype.label}")
        upper.copy_to(inoutvec)

    def explained(self, reason: str, exitcode: int | None) -> str:
        """Return why a worker died that called the function: `reason`, or more if MPI has to do with it."""
        needed = elf.imports(_path(self))
        called = [name for name in needed.symbols if name.startswith("MPI_") and name not in _BEFORE_INIT]
        other = next((name for name in needed.libraries if name.startswith("libmpi") and _ABI not in name), "")
        if not called:
            return reason
        build = f"compile it with mpicc_abi{other and f', not for {other}'}, because handles are those of {_BUILD}"
        if exitcode != _UNINITIALISED:
            return f"{reason}; it calls MPI: {build}" if other else reason
        way_out = f"call MPI_Init before {called[0]} if MPI_Initialized says that nobody has"
        return f"ended its worker, in which MPI is not initialised; {way_out}, and {build}; nothing was written"

    def properties(self) -> Properties:
        """Load the library and check that the symbol is there.

        Raises
        ------
        UserOpError
            If it cannot be loaded.
        """
        with limited(self.timeout), Failing(self.place):
            _load(self)
        return Properties(doc=f"C function {self.symbol}")


@functools.cache
def _elementwise(kernel: LibraryKernel) -> Elementwise:
    """Return what applies a kernel in this process, and remembers that it was tried."""
    return Elementwise(kernel.apply, kernel.place)


@functools.cache
def _load(kernel: LibraryKernel) -> Any:
    try:
        library = ctypes.CDLL(_path(kernel))
        function = library[kernel.symbol]
    except OSError as error:
        hint = f"; link it with {_BUILD}, by mpicc_abi" if "undefined symbol: MPI_" in str(error) else ""
        raise UserOpError(kernel.place, f"cannot be loaded ({error}){hint}") from None
    except AttributeError:
        raise UserOpError(kernel.place, f"there is no symbol {kernel.symbol!r} in {kernel.path}") from None
    function.restype = None
    if hasattr(library, "MPI_Initialized"):  # it is linked with MPI
        _note_exit(library)
    return function


_handlers: list[Any] = []
"""What the C library calls at an exit; it has to stay in memory."""


def _note_exit(library: Any) -> None:
    """Let this process end with a status of its own if MPI ends it, because nobody has initialised it."""

    def ended(_status: int, _argument: Any) -> None:
        initialised = ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(initialised))
        if not initialised.value:
            ctypes.CDLL(None).fflush(None)  # with what MPI has said
            os._exit(_UNINITIALISED)

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(ended))
    ctypes.CDLL(None).on_exit(_handlers[-1], None)


def _path(kernel: LibraryKernel) -> str:
    """Return the path of the library; one without a slash would be searched for in LD_LIBRARY_PATH."""
    return os.path.realpath(os.path.join(kernel.directory, kernel.path))


class _Operand:
    """A copy of elements as they lie in the memory of an MPI program, between canaries.

    Parameters
    ----------
    which
        0 or 1: each has its own room, the same every time.
    block
        The elements as arrays hold them.
    datatype
        What an element is.
    """

    def __init__(self, which: int, block: np.ndarray, datatype: Datatype) -> None:
        self._run = Run(datatype.typemap, 0, len(block), datatype.extent) if datatype.is_spread else None
        low, high = transfer.reach(self._run) if self._run else (-datatype.origin, block.nbytes - datatype.origin)
        self._room = _room(which, high - low)
        self._inside = self._room[_CANARY_BYTES:-_CANARY_BYTES]
        # MPI passes the address of displacement 0 of the first element, which need not be the lowest byte.
        self.address = ctypes.c_void_p(self._inside.ctypes.data - low)
        if self._run:
            transfer.whole(self._run).scatter(self._inside, block.view(np.uint8))
        else:
            self._inside[...] = block.view(np.uint8)

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside the elements."""
        return bool((self._room[:_CANARY_BYTES] == _CANARY).all() and (self._room[-_CANARY_BYTES:] == _CANARY).all())

    def copy_to(self, block: np.ndarray) -> None:
        """Copy the elements as they are now to an array."""
        if self._run:
            transfer.whole(self._run).gather(self._inside, block.view(np.uint8))
        else:
            block.view(np.uint8)[...] = self._inside


@functools.cache
def _room(_which: int, nbytes: int) -> np.ndarray:
    """Return zeros with canaries on both sides; pages of spread elements that are not touched take no memory."""
    room = np.zeros(nbytes + 2 * _CANARY_BYTES, np.uint8)
    room[:_CANARY_BYTES] = room[-_CANARY_BYTES:] = _CANARY
    return room
