"""User-defined ops in C: an `MPI_User_function` in a shared library (MPI-4.1, 6.9.5).

    void f(void *invec, void *inoutvec, int *len, MPI_Datatype *datatype);

With `:count` after the symbol it is an `MPI_User_function_c`, whose `len` is an MPI_Count of 64 bits. `*datatype` is
the handle of the MPI-5.0 ABI, such as 0x20E for MPI_UNSIGNED_LONG (`mpired types --json` lists all), or
MPI_DATATYPE_NULL for derived types. A function that calls MPI must initialise it, because mpired does not. The function
gets copies of the operands between canaries, which show a write outside the elements.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from typing import Any

import numpy as np

from mpired.datatypes import Datatype, transfer
from mpired.datatypes.typemap import overlaps
from mpired.errors import UserOpError
from mpired.ops.user import Properties, UserKernel

_CANARY_BYTES = 64
_CANARY = 0xA5
_ABI = "libmpi_abi"
_BUILD = f"MPI's ABI build ({_ABI}.so)"
_MAX_BYTES = 64 << 20  # the searched part of a library
# A library contains the names of the libraries that it needs, between zeros.
_LIBRARIES = re.compile(rb"\0(libmpi\w*\.so[\w.]*)(?=\0)")
_OPEN_MPI = re.compile(rb"\0ompi_(mpi|op|predefined)_")


class CFunction:
    """A C function that is an op, from a place `LIBRARY.so:SYMBOL`."""

    counter: Any = ctypes.c_int  # the type of the count of elements
    max_count = 2**31 - 1

    def __init__(self, kernel: UserKernel) -> None:
        self._place, self._file = kernel.place, os.path.realpath(kernel.file)
        self._is_of_other_mpi = bool(_other_mpi(self._file))
        symbol = kernel.place.rpartition(":")[2]
        self.properties = Properties(doc=f"C function {symbol}")
        if kernel.digest and kernel.digest != _digests.setdefault(self._file, kernel.digest):
            reason = f"{kernel.path} has changed, and a process cannot load it twice; start the workers again"
            raise UserOpError(kernel.place, reason)
        try:
            self._function = ctypes.CDLL(self._file)[symbol]  # by a path, because a name is searched for
        except OSError as error:
            hints = {
                "MPI_": f"link it with {_BUILD}, by mpicc_abi",
                "ompi_": f"it is compiled for the handles of Open MPI, compile it with mpicc_abi for those of {_BUILD}",
            }
            missing = re.search(r"undefined symbol: (MPI_|ompi_)", str(error))
            hint = f"; {hints[missing[1]]}" if missing else ""
            raise UserOpError(kernel.place, f"cannot be loaded ({error}){hint}") from None
        except AttributeError:
            raise UserOpError(kernel.place, f"there is no symbol {symbol!r} in {kernel.path}") from None
        self._function.restype = None

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Apply the function to copies between canaries, in calls of at most `max_count` elements."""
        step = self.max_count
        if datatype.is_spread and overlaps(datatype.typemap, len(invec)) is not False:
            step = 1  # a call for each element, because elements overlap
        for start in range(0, len(invec), step):
            part = slice(start, start + step)
            lower, upper = _Operand(0, invec[part], datatype), _Operand(1, inoutvec[part], datatype)
            count, handle = len(invec[part]), ctypes.c_void_p(datatype.handle)
            # Another MPI has other handles: its functions get a null pointer, so that a read of the datatype crashes.
            argument = None if self._is_of_other_mpi else ctypes.byref(handle)
            counter = self.counter(count)
            self._function(lower.address, upper.address, ctypes.byref(counter), argument)
            if not (lower.intact and upper.intact):
                raise UserOpError(self._place, f"wrote outside its buffers of {count} elements of {datatype.label}")
            upper.copy_to(inoutvec[part])

    @staticmethod
    def explained(path: str, reason: str) -> str:
        """Return the reason why a worker died, with a hint if the library is linked with another MPI."""
        if not (other := _other_mpi(path)):
            return reason
        return f"{reason}; it is linked with {other}: compile it with mpicc_abi for {_BUILD}"


class LargeCFunction(CFunction):
    """A C function with a count of 64 bits."""

    counter = ctypes.c_int64
    max_count = 2**63 - 1


def _other_mpi(path: str) -> str:
    """Return the name of another MPI with which a library is linked, "" if there is none."""
    content = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        content = file.read(_MAX_BYTES)
    allowed = {_ABI, os.path.basename(os.path.realpath(path)).partition(".so")[0]}  # a library contains its own name
    names = map(os.fsdecode, _LIBRARIES.findall(content))
    linked = (name for name in names if name.partition(".so")[0] not in allowed)
    # A library that is not linked with Open MPI can use an Open MPI that the process has loaded.
    return next(linked, "Open MPI" if _OPEN_MPI.search(content) else "")


_digests: dict[str, str] = {}
"""The digests of the libraries that this process has loaded."""


class _Operand:
    """A copy of elements with the layout of an MPI program, between canaries."""

    def __init__(self, which: int, block: np.ndarray, datatype: Datatype) -> None:
        self._run = datatype.typemap.elements(len(block)) if datatype.is_spread else None
        low, high = self._run.reach if self._run else (-datatype.origin, block.nbytes - datatype.origin)
        self._guarded = _guarded_bytes(which, high - low)  # different for both operands, the same for each call
        self._inside = self._guarded[_CANARY_BYTES:-_CANARY_BYTES]
        # MPI passes the address of displacement 0 of the first element, which need not be the lowest byte.
        self.address = ctypes.c_void_p(self._inside.ctypes.data - low)
        if self._run:
            transfer.whole_window(self._run).scatter(self._inside, block.view(np.uint8))
        else:
            self._inside[...] = block.view(np.uint8)

    @property
    def intact(self) -> bool:
        """Whether the canaries are unchanged."""
        canaries = self._guarded[:_CANARY_BYTES], self._guarded[-_CANARY_BYTES:]
        return all(bool((canary == _CANARY).all()) for canary in canaries)

    def copy_to(self, block: np.ndarray) -> None:
        """Copy the elements back to an array."""
        if self._run:
            transfer.whole_window(self._run).gather(self._inside, block.view(np.uint8))
        else:
            block.view(np.uint8)[...] = self._inside


@functools.cache
def _guarded_bytes(_which: int, nbytes: int) -> np.ndarray:
    """Return zeros between canaries; untouched pages of spread elements take no memory."""
    octets = np.zeros(nbytes + 2 * _CANARY_BYTES, np.uint8)
    octets[:_CANARY_BYTES] = octets[-_CANARY_BYTES:] = _CANARY
    return octets
