"""User-defined ops in C: an `MPI_User_function` in a shared library (MPI-4.1, 6.9.5).

    void f(void *invec, void *inoutvec, int *len, MPI_Datatype *datatype);

or, with `:count` behind the symbol, the large-count `MPI_User_function_c`, whose `len` is an
MPI_Count of 64 bits. `*datatype` is the handle value of the MPI-5.0 ABI: 0x20E for
MPI_UNSIGNED_LONG and so on as `mpired types --json` lists them, MPI_DATATYPE_NULL for derived types. A
function that calls MPI has to initialise it, because mpired does without. The function gets copies of the
operands, so that a write beside them is noticed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from typing import Any

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import UserOpError
from mpired.ops.user import Properties, UserKernel

_CANARY_BYTES = 64
_CANARY = 0xA5
_ABI = "libmpi_abi"
_BUILD = f"MPI's ABI build ({_ABI}.so)"
_MOST = 64 << 20  # bytes of a library that are looked at
# The names that a library needs of others are in it between zeros.
_LIBRARIES = re.compile(rb"\0(libmpi\w*\.so[\w.]*)(?=\0)")
_OPEN_MPI = re.compile(rb"\0ompi_(mpi|op|predefined)_")


class CFunction:
    """A C function that is an op, loaded from a library at a place `LIBRARY.so:SYMBOL`."""

    counter: Any = ctypes.c_int
    most = 2**31 - 1  # elements of a call

    def __init__(self, kernel: UserKernel) -> None:
        self._place, self._file = kernel.place, os.path.realpath(kernel.file)
        self._is_of_other_mpi = bool(_other_mpi(self._file))
        symbol = kernel.place.rpartition(":")[2]
        self.properties = Properties(doc=f"C function {symbol}")
        if kernel.digest and kernel.digest != _digests.setdefault(self._file, kernel.digest):
            reason = f"{kernel.path} has changed, and a process cannot load it twice; start the workers again"
            raise UserOpError(kernel.place, reason)
        try:
            self._function = ctypes.CDLL(self._file)[symbol]  # one without a slash would be searched for
        except OSError as error:
            hint = ""
            if missing := re.search(r"undefined symbol: (\w+)", str(error)):
                if missing[1].startswith("MPI_"):
                    hint = f"; link it with {_BUILD}, by mpicc_abi"
                elif missing[1].startswith("ompi_"):
                    hint = (
                        f"; it is compiled for the handles of Open MPI, compile it with mpicc_abi for those of {_BUILD}"
                    )
            raise UserOpError(kernel.place, f"cannot be loaded ({error}){hint}") from None
        except AttributeError:
            raise UserOpError(kernel.place, f"there is no symbol {symbol!r} in {kernel.path}") from None
        self._function.restype = None

    def apply(self, invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        """Apply the function to copies between canaries, in as many calls as its counter needs."""
        step = self.most
        if datatype.is_spread and pieces.overlaps(datatype.typemap, len(invec)) is not False:
            step = 1  # nothing that it leaves in one element shows in another
        for start in range(0, len(invec), step):
            part = slice(start, start + step)
            lower, upper = _Operand(0, invec[part], datatype), _Operand(1, inoutvec[part], datatype)
            count, handle = len(invec[part]), ctypes.c_void_p(datatype.handle)
            # Handles of another MPI are other numbers: a function that looks at the datatype has to end there.
            passed = None if self._is_of_other_mpi else ctypes.byref(handle)
            counter = self.counter(count)
            self._function(lower.address, upper.address, ctypes.byref(counter), passed)
            if not (lower.intact and upper.intact):
                raise UserOpError(self._place, f"wrote outside its buffers of {count} elements of {datatype.label}")
            upper.copy_to(inoutvec[part])

    @staticmethod
    def explained(path: str, reason: str) -> str:
        """Return why a worker died that called a function: `reason`, and what the library is linked with."""
        if not (other := _other_mpi(path)):
            return reason
        return f"{reason}; it is linked with {other}: compile it with mpicc_abi for {_BUILD}"


class LargeCFunction(CFunction):
    """A C function whose counter has 64 bits."""

    counter = ctypes.c_int64
    most = 2**63 - 1


def _other_mpi(path: str) -> str:
    """Return the library of an MPI with other handles that a library is linked with, "" for none."""
    content = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        content = file.read(_MOST)
    allowed = {_ABI, os.path.basename(os.path.realpath(path)).partition(".so")[0]}  # its own name is in it, too
    names = map(os.fsdecode, _LIBRARIES.findall(content))
    linked = (name for name in names if name.partition(".so")[0] not in allowed)
    # One that is not linked finds the variables of an Open MPI that the process has loaded.
    return next(linked, "Open MPI" if _OPEN_MPI.search(content) else "")


_digests: dict[str, str] = {}
"""The digests of the libraries that this process has loaded."""


class _Operand:
    """A copy of elements as in the memory of an MPI program, between canaries."""

    def __init__(self, which: int, block: np.ndarray, datatype: Datatype) -> None:
        self._run = Run(datatype.typemap, 0, len(block), datatype.extent) if datatype.is_spread else None
        low, high = transfer.reach(self._run) if self._run else (-datatype.origin, block.nbytes - datatype.origin)
        self._room = _room(which, high - low)  # 0 and 1 have rooms of their own, the same every time
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
    free_block = np.zeros(nbytes + 2 * _CANARY_BYTES, np.uint8)
    free_block[:_CANARY_BYTES] = free_block[-_CANARY_BYTES:] = _CANARY
    return free_block
