"""The named predefined datatypes, one row each (MPI-4.1, 3.2.2, 6.9.2; LOGICAL*n from MPI-5.0).

The NumPy code is what the type is in C or gfortran on a 64-bit Linux machine; "l" and "q" and the
like are NumPy's own names of the C types. Sizes and extents follow from it.
"""

from __future__ import annotations

import numpy as np

from mpired.datatypes.datatype import Datatype, Group

_C = Group.C_INTEGER
_F = Group.FORTRAN_INTEGER
_R = Group.FLOATING_POINT
_L = Group.LOGICAL
_Z = Group.COMPLEX
_M = Group.MULTI_LANGUAGE
_X = Group.CHARACTER

# name and synonyms, group, NumPy code
_ROWS: tuple[tuple[str, Group, str], ...] = (
    ("SIGNED_CHAR", _C, "b"),
    ("UNSIGNED_CHAR", _C, "B"),
    ("SHORT", _C, "h"),
    ("UNSIGNED_SHORT", _C, "H"),
    ("INT", _C, "i"),
    ("UNSIGNED", _C, "I"),
    ("LONG", _C, "l"),
    ("UNSIGNED_LONG", _C, "L"),
    ("LONG_LONG_INT LONG_LONG", _C, "q"),
    ("UNSIGNED_LONG_LONG", _C, "Q"),
    ("INT8_T", _C, "i1"),
    ("UINT8_T", _C, "u1"),
    ("INT16_T", _C, "i2"),
    ("UINT16_T", _C, "u2"),
    ("INT32_T", _C, "i4"),
    ("UINT32_T", _C, "u4"),
    ("INT64_T", _C, "i8"),
    ("UINT64_T", _C, "u8"),
    ("INTEGER", _F, "i4"),
    ("INTEGER1", _F, "i1"),
    ("INTEGER2", _F, "i2"),
    ("INTEGER4", _F, "i4"),
    ("INTEGER8", _F, "i8"),
    ("FLOAT", _R, "f4"),
    ("DOUBLE", _R, "f8"),
    ("LONG_DOUBLE", _R, "g"),
    ("REAL", _R, "f4"),
    ("DOUBLE_PRECISION", _R, "f8"),
    ("REAL2", _R, "f2"),
    ("REAL4", _R, "f4"),
    ("REAL8", _R, "f8"),
    ("LOGICAL", _L, "i4"),
    # One byte, not NumPy's bool: a byte other than 0 and 1 is true in C and breaks NumPy's bool.
    ("C_BOOL", _L, "u1"),
    ("CXX_BOOL", _L, "u1"),
    ("LOGICAL1", _L, "i1"),
    ("LOGICAL2", _L, "i2"),
    ("LOGICAL4", _L, "i4"),
    ("LOGICAL8", _L, "i8"),
    ("C_COMPLEX C_FLOAT_COMPLEX", _Z, "c8"),
    ("C_DOUBLE_COMPLEX", _Z, "c16"),
    ("C_LONG_DOUBLE_COMPLEX", _Z, "G"),
    ("CXX_FLOAT_COMPLEX", _Z, "c8"),
    ("CXX_DOUBLE_COMPLEX", _Z, "c16"),
    ("CXX_LONG_DOUBLE_COMPLEX", _Z, "G"),
    ("COMPLEX", _Z, "c8"),
    ("DOUBLE_COMPLEX", _Z, "c16"),
    ("COMPLEX4", _Z, "f2,f2"),
    ("COMPLEX8", _Z, "c8"),
    ("COMPLEX16", _Z, "c16"),
    ("BYTE", Group.BYTE, "u1"),
    ("AINT", _M, "i8"),
    ("OFFSET", _M, "i8"),
    ("COUNT", _M, "i8"),
    ("CHAR", _X, "i1"),
    ("WCHAR", _X, "i4"),
    ("CHARACTER", _X, "u1"),
    ("PACKED", _X, "u1"),
)

# Known, but without a NumPy form: binary128 (REAL16 is not x87's long double) and 128-bit integers.
_UNAVAILABLE: tuple[tuple[str, Group, int], ...] = (
    ("INTEGER16", _F, 16),
    ("REAL16", _R, 16),
    ("LOGICAL16", _L, 16),
    ("COMPLEX32", _Z, 32),
)


def _available(names: str, group: Group, code: str) -> Datatype:
    name, *synonyms = names.split()
    dtype = np.dtype({"names": ["real", "imag"], "formats": code.split(",")}) if "," in code else np.dtype(code)
    return Datatype(name, group, dtype, tuple(synonyms))


NAMED: tuple[Datatype, ...] = (
    *(_available(*row) for row in _ROWS),
    *(Datatype(name, group, None, nbytes=nbytes) for name, group, nbytes in _UNAVAILABLE),
)
