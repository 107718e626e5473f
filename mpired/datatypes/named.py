"""The named predefined datatypes, one row each (MPI-4.1, 3.2.2, 6.9.2; LOGICAL*n from MPI-5.0).

The NumPy code is the type in C or gfortran on 64-bit Linux; codes such as "l" and "q" are NumPy's names of C types.
Sizes and extents follow from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpired.datatypes.datatype import Datatype, Group

_C = Group.C_INTEGER
_F = Group.FORTRAN_INTEGER
_R = Group.FLOATING_POINT
_L = Group.LOGICAL
_Z = Group.COMPLEX
_M = Group.MULTI_LANGUAGE
_X = Group.CHARACTER

# name and synonyms, group, NumPy code or fields, handle of the MPI-5.0 ABI
_ROWS: tuple[tuple[str, Group, Any, int], ...] = (
    ("SIGNED_CHAR", _C, "b", 0x244),
    ("UNSIGNED_CHAR", _C, "B", 0x245),
    ("SHORT", _C, "h", 0x208),
    ("UNSIGNED_SHORT", _C, "H", 0x20C),
    ("INT", _C, "i", 0x209),
    ("UNSIGNED", _C, "I", 0x20D),
    ("LONG", _C, "l", 0x20A),
    ("UNSIGNED_LONG", _C, "L", 0x20E),
    ("LONG_LONG_INT LONG_LONG", _C, "q", 0x20B),
    ("UNSIGNED_LONG_LONG", _C, "Q", 0x20F),
    ("INT8_T", _C, "i1", 0x240),
    ("UINT8_T", _C, "u1", 0x241),
    ("INT16_T", _C, "i2", 0x248),
    ("UINT16_T", _C, "u2", 0x249),
    ("INT32_T", _C, "i4", 0x250),
    ("UINT32_T", _C, "u4", 0x251),
    ("INT64_T", _C, "i8", 0x258),
    ("UINT64_T", _C, "u8", 0x259),
    ("INTEGER", _F, "i4", 0x219),
    ("INTEGER1", _F, "i1", 0x2C1),
    ("INTEGER2", _F, "i2", 0x2C9),
    ("INTEGER4", _F, "i4", 0x2D1),
    ("INTEGER8", _F, "i8", 0x2D9),
    ("FLOAT", _R, "f4", 0x210),
    ("DOUBLE", _R, "f8", 0x214),
    ("LONG_DOUBLE", _R, "g", 0x220),
    ("REAL", _R, "f4", 0x21A),
    ("DOUBLE_PRECISION", _R, "f8", 0x21C),
    ("REAL2", _R, "f2", 0x2CA),
    ("REAL4", _R, "f4", 0x2D2),
    ("REAL8", _R, "f8", 0x2DA),
    ("LOGICAL", _L, "i4", 0x218),
    # Bytes, because a byte other than 0 and 1 is true in C but breaks NumPy's bool.
    ("C_BOOL", _L, "u1", 0x238),
    ("CXX_BOOL", _L, "u1", 0x239),
    ("LOGICAL1", _L, "i1", 0x2C0),
    ("LOGICAL2", _L, "i2", 0x2C8),
    ("LOGICAL4", _L, "i4", 0x2D0),
    ("LOGICAL8", _L, "i8", 0x2D8),
    ("C_COMPLEX C_FLOAT_COMPLEX", _Z, "c8", 0x212),
    ("C_DOUBLE_COMPLEX", _Z, "c16", 0x216),
    ("C_LONG_DOUBLE_COMPLEX", _Z, "G", 0x224),
    ("CXX_FLOAT_COMPLEX", _Z, "c8", 0x213),
    ("CXX_DOUBLE_COMPLEX", _Z, "c16", 0x217),
    ("CXX_LONG_DOUBLE_COMPLEX", _Z, "G", 0x225),
    ("COMPLEX", _Z, "c8", 0x21B),
    ("DOUBLE_COMPLEX", _Z, "c16", 0x21D),
    ("COMPLEX4", _Z, [("real", "f2"), ("imag", "f2")], 0x2D3),
    ("COMPLEX8", _Z, "c8", 0x2DB),
    ("COMPLEX16", _Z, "c16", 0x2E3),
    ("BYTE", Group.BYTE, "u1", 0x247),
    ("AINT", _M, "i8", 0x201),
    ("OFFSET", _M, "i8", 0x203),
    ("COUNT", _M, "i8", 0x202),
    ("CHAR", _X, "i1", 0x243),
    ("WCHAR", _X, "i4", 0x23C),
    ("CHARACTER", _X, "u1", 0x21E),
    ("PACKED", _X, "u1", 0x207),
)

# Datatypes that NumPy does not have: binary128, which is not the long double of x87, and 128-bit integers.
_UNAVAILABLE: tuple[tuple[str, Group, int, int], ...] = (
    ("INTEGER16", _F, 16, 0x2E1),
    ("REAL16", _R, 16, 0x2E2),
    ("LOGICAL16", _L, 16, 0x2E0),
    ("COMPLEX32", _Z, 32, 0x2EB),
)


NAMED: tuple[Datatype, ...] = (
    *(
        Datatype(names.split()[0], group, np.dtype(code), tuple(names.split()[1:]), handle=handle)
        for names, group, code, handle in _ROWS
    ),
    *(Datatype(name, group, None, nbytes=nbytes, handle=handle) for name, group, nbytes, handle in _UNAVAILABLE),
)


def canonical(name: str) -> str:
    """Return a name as the tables spell it: in capitals, without `MPI_`, with `_` for the spaces of a C type."""
    # Some letters beyond ASCII have capitals in ASCII.
    return "_".join(name.split()).upper().removeprefix("MPI_") if name.isascii() else name
