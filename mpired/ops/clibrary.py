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
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import UserOpError
from mpired.ops import elf
from mpired.ops.contract import Elementwise, Failing, Properties, absolute, check_same, digest, limited

_INT_MAX = 2**31 - 1
_CANARY_BYTES = 64
_CANARY = 0xA5
_ABI = "libmpi_abi"
_BUILD = f"MPI's ABI build ({_ABI}.so)"
# What may be called at any time (MPI-4.1, 11.4.1), or initialises.
_BEFORE_INIT = frozenset(
    {"MPI_Initialized", "MPI_Finalized", "MPI_Get_version", "MPI_Get_library_version", "MPI_Init", "MPI_Init_thread"}
)
_OPEN_MPI = re.compile(r"ompi_(mpi|op|predefined)_")
_COUNTERS: dict[str, Any] = {"": ctypes.c_int, "count": ctypes.c_int64}


@dataclass(frozen=True)
class LibraryKernel:
    """The kernel of a C function; picklable, because it loads the library where it is first applied."""

    path: str  # the shared library
    symbol: str  # the function
    variant: str = ""  # "" for `int *len`, "count" for `MPI_Count *len`
    timeout: float | None = None  # seconds that one application may take, None for ever
    directory: str = ""  # what the path is relative to; "" for the working directory of the process
    digest: str = ""  # the digest of the library, where another process loads it; "" for any

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory, and one that stays may have loaded what the file was before.
        known = self.digest or digest(_path(self))
        return LibraryKernel, (self.path, self.symbol, self.variant, self.timeout, absolute(self.directory), known)

    def check_file(self) -> None:
        """Raise `UserOpError` if the library is not the one with the digest."""
        check_same(_path(self), self.digest, self.place)

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
        # Handles of another MPI are other numbers: a function that looks at the datatype has to end there.
        passed = None if self._other_mpi else ctypes.byref(handle)
        function(lower.address, upper.address, ctypes.byref(counter), passed)
        if not (lower.intact and upper.intact):
            raise UserOpError(self.place, f"wrote outside its buffers of {len(invec)} elements of {datatype.label}")
        upper.copy_to(inoutvec)

    @functools.cached_property
    def _other_mpi(self) -> str:
        """The library of an MPI with other handles that this one is linked with, "" for none."""
        needed = elf.imports(_path(self))
        linked = (name for name in needed.libraries if name.startswith("libmpi") and _ABI not in name)
        # One that is not linked finds the variables of an Open MPI that the process has loaded.
        return next(linked, "Open MPI" if any(map(_OPEN_MPI.match, needed.symbols)) else "")

    @property
    def called(self) -> list[str]:
        """The functions of MPI that it calls, which need an MPI that is initialised."""
        symbols = elf.imports(_path(self)).symbols
        return [name for name in symbols if name.startswith("MPI_") and name not in _BEFORE_INIT]

    def explained(self, reason: str) -> str:
        """Return why a worker died that called the function: `reason`, and what it needs if it uses MPI."""
        if self._other_mpi:
            return f"{reason}; it is linked with {self._other_mpi}: compile it with mpicc_abi for {_BUILD}"
        if self.called:
            return f"{reason}; call MPI_Init before {' or '.join(self.called)} if MPI_Initialized returns false"
        return reason

    def properties(self) -> Properties:
        """Load the library and check that the symbol is there."""
        with limited(self.timeout), Failing(self.place):
            _load(self)
        return Properties(doc=f"C function {self.symbol}")


@functools.cache
def _elementwise(kernel: LibraryKernel) -> Elementwise:
    """Return what applies a kernel in this process, and remembers that it was tried."""
    return Elementwise(kernel.apply, kernel.place)


@functools.cache
def _load(kernel: LibraryKernel) -> Any:
    check_same(_path(kernel), kernel.digest, kernel.place)
    if kernel.digest and kernel.digest != _digests.setdefault(_path(kernel), kernel.digest):
        reason = f"{kernel.path} has changed, and a process cannot load it twice; start the workers again"
        raise UserOpError(kernel.place, reason)
    try:
        library = ctypes.CDLL(_path(kernel))
        function = library[kernel.symbol]
    except OSError as error:
        hint = ""
        if symbol := re.search(r"undefined symbol: (\w+)", str(error)):
            if symbol[1].startswith("MPI_"):
                hint = f"; link it with {_BUILD}, by mpicc_abi"
            elif _OPEN_MPI.match(symbol[1]):
                hint = f"; it is compiled for the handles of Open MPI, compile it with mpicc_abi for those of {_BUILD}"
        raise UserOpError(kernel.place, f"cannot be loaded ({error}){hint}") from None
    except AttributeError:
        raise UserOpError(kernel.place, f"there is no symbol {kernel.symbol!r} in {kernel.path}") from None
    function.restype = None
    return function


_digests: dict[str, str] = {}
"""What the libraries were that this process has loaded."""


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
