"""Twins of kernels in C, with the same bits, for ops for which NumPy needs several passes or has no SIMD.

The installation of mpired compiles kernels.c if there is a C compiler. The library is loaded for the first block that
is large enough. Without the library, and with `MPIRED_NATIVE=0`, all kernels are those of NumPy.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import TypeAlias, cast

from mpired.datatypes import Datatype, Group
from mpired.errors import UsageError

VARIABLE = "MPIRED_NATIVE"
"""The environment variable that disables the twins."""
LEAST_BYTES = 4096
"""Minimum size of blocks for a twin; for smaller blocks the library costs more than it saves."""

Twin: TypeAlias = Callable[[int, int, int], int]

_CHOICES = {"": True, "0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_CHOICES |= {"off": False, "on": True}
# Because of the dot, Python does not import the library as a module.
_FILE = os.path.join(os.path.dirname(__file__), "kernels.c.so")


@functools.lru_cache(maxsize=512)
def twin(name: str, datatype: Datatype) -> Twin | None:
    """Return the twin for an op and a datatype; None if there is none, or if this processor cannot run it."""
    library, _ = _loaded()
    function = getattr(library, f"{name}_{_code(datatype)}", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function if function(None, None, 0) >= 0 else None


class Step(ctypes.Structure):
    """A step in `chain`: the addresses of a compiled function and of the planes, and the itemsize of the planes."""

    _fields_ = (("add", ctypes.c_void_p), ("planes", ctypes.c_void_p * 2), ("width", ctypes.c_size_t))


@functools.lru_cache(maxsize=64)
def step(name: str, datatype: Datatype) -> int:
    """Return the address of the compiled step of a state; 0 if there is none."""
    function = getattr(_loaded()[0], f"step_{name}_{_code(datatype)}", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def chain(steps: ctypes.Array[Step], elements: int, itemsize: int, count: int, n: int) -> bool:
    """Add the elements of the n-th rank, at an address, by all steps; return whether one of them overflowed."""
    return bool(cast("ctypes.CDLL", _loaded()[0]).chain(steps, len(steps), elements, itemsize, count, n))


def obstacle() -> str:
    """Return the reason why twins are not used, "" if they are."""
    return _loaded()[1]


def forget() -> None:
    """Forget the library, so that the environment is read again."""
    twin.cache_clear()
    step.cache_clear()
    _loaded.cache_clear()


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """Return the library and "", or None and the reason."""
    value = os.environ.get(VARIABLE, "")
    if value.lower() not in _CHOICES:
        raise UsageError(VARIABLE, f"is {value!r}; set it to 0 for the kernels of NumPy, or unset it")
    if not _CHOICES[value.lower()]:
        return None, f"{VARIABLE} is {value}"
    if not os.path.exists(_FILE):
        return None, "there was no C compiler when mpired was installed"
    size = ctypes.c_size_t
    try:
        library = ctypes.CDLL(_FILE)
        library.chain.argtypes = [ctypes.c_void_p, size, ctypes.c_void_p, size, size, size]
    except (OSError, AttributeError) as error:  # of another machine or version, or on a file system with noexec
        return None, f"the library cannot be loaded ({error})"
    return library, ""


def _code(datatype: Datatype) -> str:
    """Return the name of the form of an element in kernels.c, such as f8, c16 or f8_i4."""
    form = datatype.form
    if datatype.group is Group.COMPLEX:
        return f"c{form.itemsize}"
    parts = [form[name] for name in form.names or ()] if datatype.group is Group.PAIR else [form]
    return "_".join(f"{part.kind}{part.itemsize}" for part in parts)
