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
import signal
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
# Statuses that programs seldom have; after the last one those of the functions of MPI that were called.
_UNINITIALISED, _LOOKED, _CALLED = 86, 87, 160
_MOST_CALLED = 40
_MOST_FRAMES = 200
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
        # Handles of another MPI are other numbers, so that a function that looks at this one would do something else.
        passed = ctypes.c_void_p(_trap()) if self._other_mpi else ctypes.byref(handle)
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

    @functools.cached_property
    def called(self) -> list[str]:
        """The functions of MPI that it calls, which need an MPI that is initialised."""
        symbols = elf.imports(_path(self)).symbols
        return [name for name in symbols if name.startswith("MPI_") and name not in _BEFORE_INIT]

    def explained(self, reason: str, exitcode: int | None) -> str:
        """Return why a worker died that called the function: `reason`, or more if MPI has to do with it."""
        other, called = self._other_mpi, self.called
        if exitcode == _LOOKED:
            why = f"looks at its datatype, and is linked with {other}, whose handles are other numbers than those here"
            return f"{why}; compile it with mpicc_abi, because handles are those of {_BUILD}; nothing was written"
        if not called:
            return reason
        build = f"compile it with mpicc_abi{other and f', not for {other}'}, because handles are those of {_BUILD}"
        if exitcode is None or (exitcode != _UNINITIALISED and not 0 <= exitcode - _CALLED < len(called)):
            return f"{reason}; it calls MPI: {build}" if other else reason
        function = " or ".join(called) if exitcode == _UNINITIALISED else called[exitcode - _CALLED]
        way_out = f"call MPI_Init before {function} if MPI_Initialized returns false"
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
    if hasattr(library, "MPI_Initialized"):  # it is linked with MPI
        _note_exit(library, kernel)
    return function


_digests: dict[str, str] = {}
"""What the libraries were that this process has loaded."""
_handlers: list[Any] = []
"""What the C library calls at an exit; it has to stay in memory."""


def _note_exit(library: Any, kernel: LibraryKernel) -> None:
    """Let this process end with a status of its own if MPI ends it, because nobody has initialised it."""

    def ended(_status: int, _argument: Any) -> None:
        initialised = ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(initialised))
        if not initialised.value:
            ctypes.CDLL(None).fflush(None)  # with what MPI has said
            function, known = _called_by(_path(kernel)), kernel.called[:_MOST_CALLED]
            os._exit(_CALLED + known.index(function) if function in known else _UNINITIALISED)

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(ended))
    ctypes.CDLL(None).on_exit(_handlers[-1], None)


class _Place(ctypes.Structure):
    """What `dladdr` says of an address: the file, and the symbol before it."""

    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p),
                ("start", ctypes.c_void_p))  # fmt: skip


def _called_by(path: str) -> str:
    """Return the function of others that a library is calling, "" if the stack does not tell."""
    c_library, frames, before = ctypes.CDLL(None), (ctypes.c_void_p * _MOST_FRAMES)(), ""
    if not hasattr(c_library, "backtrace"):
        return ""
    for frame in frames[: c_library.backtrace(frames, _MOST_FRAMES)]:
        place = _Place()
        if not c_library.dladdr(ctypes.c_void_p(frame), ctypes.byref(place)):
            continue
        if os.path.realpath(os.fsdecode(place.file or b"")) == path:
            return before
        before = (place.symbol or b"").decode(errors="replace").removeprefix("P")
    return ""


@functools.cache
def _trap() -> int:
    """Return the address of a page that ends this process with a status of its own if it is read or written."""
    c_library = ctypes.CDLL(None)
    c_library.mmap.restype = ctypes.c_void_p
    c_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    no_access = 0
    nbytes = os.sysconf("SC_PAGESIZE")
    start: int = c_library.mmap(None, nbytes, no_access, _OF_NO_FILE, -1, 0)
    if start == ctypes.c_void_p(-1).value:
        raise MemoryError

    def ended(_number: int, info: int, _context: int) -> None:
        at = ctypes.c_void_p.from_address(info + _SI_ADDR).value or 0
        if start <= at < start + nbytes:
            c_library.fflush(None)
            os._exit(_LOOKED)
        c_library.signal(signal.SIGSEGV, None)  # the next time it ends the process, as ever

    _handlers.append(_OnFault(ended))
    action = _Action(ctypes.cast(_handlers[-1], ctypes.c_void_p), flags=_SA_SIGINFO)
    c_library.sigaction(signal.SIGSEGV, ctypes.byref(action), None)
    return start


_OnFault = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_OF_NO_FILE = 0x22  # MAP_PRIVATE and MAP_ANONYMOUS
_SA_SIGINFO = 4
_SI_ADDR = 16  # bytes in a siginfo_t of 64 bits before the address of a fault


class _Action(ctypes.Structure):
    """A `struct sigaction` of Linux's C libraries."""

    _fields_ = (("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p))  # fmt: skip


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
