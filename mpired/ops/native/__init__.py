"""The compiled twins of kernels: C where NumPy needs several passes or has no SIMD, the same bits.

kernels.c is compiled when mpired is installed, if there is a C compiler. Nothing is compiled later, and the library is
loaded when the first block is combined that is worth it. Without it, and with `MPIRED_NATIVE=0`, all kernels are those
of NumPy, which the twins are compared with.
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
"""The variable of the environment that chooses the kernels of NumPy."""
LEAST_BYTES = 4096
"""Blocks with fewer bytes are left to NumPy: a twin would save less than loading it takes."""

Twin: TypeAlias = Callable[[int, int, int], int]

_CHOICES = {"": True, "0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
_CHOICES |= {"off": False, "on": True}
# The dot keeps Python from taking it for a module.
_FILE = os.path.join(os.path.dirname(__file__), "kernels.c.so")


@functools.lru_cache(maxsize=512)
def twin(name: str, datatype: Datatype) -> Twin | None:
    """Return the compiled function for an op and a datatype; None if there is none, or this processor cannot run it."""
    library, _ = _loaded()
    function = getattr(library, f"{name}_{_code(datatype)}", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function if function(None, None, 0) >= 0 else None


class Step(ctypes.Structure):
    """A step of a state in `chain`: the address of its function and of its planes, and the bytes of their elements."""

    _fields_ = (("add", ctypes.c_void_p), ("planes", ctypes.c_void_p * 2), ("width", ctypes.c_size_t))


@functools.lru_cache(maxsize=64)
def step(name: str, datatype: Datatype) -> int:
    """Return the address of the compiled step of a state; 0 if there is none."""
    function = getattr(_loaded()[0], f"step_{name}_{_code(datatype)}", None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def chain(steps: ctypes.Array[Step], elements: int, itemsize: int, count: int, n: int) -> bool:
    """Add elements at an address, of the n-th rank, by some steps, and return whether one of these overflowed."""
    return bool(cast("ctypes.CDLL", _loaded()[0]).chain(steps, len(steps), elements, itemsize, count, n))


def obstacle() -> str:
    """Return why no twin is used at all, "" if they are."""
    return _loaded()[1]


def forget() -> None:
    """Forget the loaded library, and read the environment again."""
    twin.cache_clear()
    step.cache_clear()
    _loaded.cache_clear()


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    """Return the library and "", or None and the reason."""
    word = os.environ.get(VARIABLE, "")
    if word.lower() not in _CHOICES:
        raise UsageError(VARIABLE, f"is {word!r}; set it to 0 for the kernels of NumPy, or unset it")
    if not _CHOICES[word.lower()]:
        return None, f"{VARIABLE} is {word}"
    if not os.path.exists(_FILE):
        return None, "there was no C compiler when mpired was installed"
    try:
        library = ctypes.CDLL(_FILE)
    except OSError as error:  # of another kind of machine, or of a file system that runs no programs
        return None, f"the library cannot be loaded ({error})"
    size = ctypes.c_size_t
    library.chain.argtypes = [ctypes.c_void_p, size, ctypes.c_void_p, size, size, size]
    return library, ""


def _code(datatype: Datatype) -> str:
    """Return what names the form of an element in kernels.c: f8, c16, f8_i4."""
    form = datatype.form
    if datatype.group is Group.COMPLEX:
        return f"c{form.itemsize}"
    parts = [form[name] for name in form.names or ()] if datatype.group is Group.PAIR else [form]
    return "_".join(f"{part.kind}{part.itemsize}" for part in parts)
