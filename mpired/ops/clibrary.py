"""User-defined ops in C: an `MPI_User_function` in a shared library (MPI-4.1, 6.9.5).

    void f(void *invec, void *inoutvec, int *len, MPI_Datatype *datatype);

or, with `:count` behind the symbol, the large-count `MPI_User_function_c`, whose `len` is an
MPI_Count of 64 bits. `*datatype` is the handle value of the MPI-5.0 ABI: 0x20E for
MPI_UNSIGNED_LONG and so on as `mpired types --json` lists them, MPI_DATATYPE_NULL for derived types.
The function gets copies of the operands, so that what it may write beside them can be noticed.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.errors import UserOpError
from mpired.ops.contract import Failing, Properties, limited

_INT_MAX = 2**31 - 1
_CANARY_BYTES = 64
_CANARY = 0xA5
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
    """

    path: str
    symbol: str
    variant: str = ""
    timeout: float | None = None

    @property
    def place(self) -> str:
        """What messages call the op."""
        return f"{self.path}:{self.symbol}"

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        """Apply the function to copies between canaries, in as many calls as its counter needs."""
        with limited(self.timeout), Failing(self.place):
            function, step = _load(self), len(invec) if self.variant else _INT_MAX
            for start in range(0, len(invec), step):
                part = slice(start, start + step)
                self._call(function, invec[part], inoutvec[part], datatype)
        return inoutvec

    def _call(self, function: Any, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        lower, upper = _guarded(0, invec), _guarded(1, inoutvec)
        counter, handle = _COUNTERS[self.variant](len(invec)), ctypes.c_void_p(datatype.handle)
        buffers = (_address(each, datatype.origin) for each in (lower, upper))
        function(*buffers, ctypes.byref(counter), ctypes.byref(handle))
        if not (_intact(lower) and _intact(upper)):
            raise UserOpError(self.place, f"wrote outside its buffers of {len(invec)} elements of {datatype}")
        inoutvec.view(np.uint8)[...] = upper[_CANARY_BYTES:-_CANARY_BYTES]

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
def _load(kernel: LibraryKernel) -> Any:
    try:
        # A path without a slash would be searched for in LD_LIBRARY_PATH.
        function = ctypes.CDLL(os.path.realpath(kernel.path))[kernel.symbol]
    except OSError as error:
        raise UserOpError(kernel.place, f"cannot be loaded ({error})") from None
    except AttributeError:
        raise UserOpError(kernel.place, f"there is no symbol {kernel.symbol!r} in {kernel.path}") from None
    function.restype = None
    return function


@functools.cache
def _room(_which: int, nbytes: int) -> np.ndarray:
    """Return a buffer with canaries on both sides, the same one every time."""
    return np.full(nbytes + 2 * _CANARY_BYTES, _CANARY, np.uint8)


def _guarded(which: int, block: np.ndarray) -> np.ndarray:
    room = _room(which, block.nbytes)
    room[_CANARY_BYTES:-_CANARY_BYTES] = block.view(np.uint8)
    return room


def _address(room: np.ndarray, origin: int) -> ctypes.c_void_p:
    """Return where displacement 0 of the first element is."""
    return ctypes.c_void_p(room.ctypes.data + _CANARY_BYTES + origin)


def _intact(room: np.ndarray) -> bool:
    return bool((room[:_CANARY_BYTES] == _CANARY).all() and (room[-_CANARY_BYTES:] == _CANARY).all())
