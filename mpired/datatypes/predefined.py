"""The predefined datatypes, one row each (MPI-4.1, 3.2.2, 6.9.2, 6.9.4; LOGICAL*n from MPI-5.0), and all pairs.

The NumPy code is the type in C or gfortran on 64-bit Linux; codes such as "l" and "q" are NumPy's names of C types.
Sizes and extents follow from it.

Pairs of a value and an index are for MINLOC and MAXLOC. NumPy's `align=True` gives a structure the layout of the C
compiler, so the extents include the same padding: MPI_DOUBLE_INT has 12 bytes in 16. In MPI_2REAL and
MPI_2DOUBLE_PRECISION the index is a floating-point number, too, because Fortran 77 had no mixed pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group

FIELDS = ("value", "index")
VALID = "valid"
"""The field of the counts of valid elements."""

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

# name, names of value and index, handle
_PAIRS: tuple[tuple[str, str, str, int], ...] = (
    ("FLOAT_INT", "FLOAT", "INT", 0x228),
    ("DOUBLE_INT", "DOUBLE", "INT", 0x229),
    ("LONG_INT", "LONG", "INT", 0x22A),
    ("2INT", "INT", "INT", 0x22B),
    ("SHORT_INT", "SHORT", "INT", 0x22C),
    ("LONG_DOUBLE_INT", "LONG_DOUBLE", "INT", 0x22D),
    ("2REAL", "REAL", "REAL", 0x230),
    ("2DOUBLE_PRECISION", "DOUBLE_PRECISION", "DOUBLE_PRECISION", 0x231),
    ("2INTEGER", "INTEGER", "INTEGER", 0x232),
)

NAMED: tuple[Datatype, ...] = (
    *(
        Datatype(names.split()[0], group, np.dtype(code), tuple(names.split()[1:]), handle=handle)
        for names, group, code, handle in _ROWS
    ),
    *(Datatype(name, group, None, nbytes=nbytes, handle=handle) for name, group, nbytes, handle in _UNAVAILABLE),
)
_BY_NAME = {row.name: row for row in NAMED}


def _pair(name: str, value: str, index: str, handle: int) -> Datatype:
    parts = _BY_NAME[value], _BY_NAME[index]
    dtype = np.dtype([(name, part.form) for name, part in zip(FIELDS, parts, strict=True)], align=True)
    return Datatype(name, Group.PAIR, dtype, handle=handle, parts=parts)


_BY_PARTS = {(value, index): _pair(name, value, index, handle) for name, value, index, handle in _PAIRS}
PAIRS: tuple[Datatype, ...] = tuple(_BY_PARTS.values())
INDICES = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE
"""The groups of datatypes that may be the index of a pair."""
VALUES = INDICES | Group.FLOATING_POINT
"""The groups of datatypes that may be the value of a pair."""


def canonical(name: str) -> str:
    """Return a name as the tables spell it: in capitals, without `MPI_`, with `_` for the spaces of a C type."""
    # Some letters beyond ASCII have capitals in ASCII.
    return "_".join(name.split()).upper().removeprefix("MPI_") if name.isascii() else name


def value_index(value: Datatype, index: Datatype) -> Datatype | None:
    """Return the pair type of a value and an index (MPI_Type_get_value_index; MPI-4.1, 6.9.4).

    Returns
    -------
    Datatype or None
        The named pair of these types, or else their unnamed pair. None stands for MPI_DATATYPE_NULL: MAXLOC is not
        defined on such pairs.

    Examples
    --------
    >>> from mpired.datatypes import parse
    >>> str(value_index(parse("double")[0], parse("int")[0]))
    'MPI_DOUBLE_INT'
    >>> str(value_index(parse("double")[0], parse("uint64_t")[0]))
    'pair(double,uint64_t)'
    """
    parts = value.name, index.name
    if parts not in _BY_PARTS:
        if value.group not in VALUES or index.group not in INDICES or value.dtype is None or index.dtype is None:
            return None
        # Ranks are compared by the identity of their datatypes.
        _BY_PARTS[parts] = _pair(f"pair({value.name.lower()},{index.name.lower()})", *parts, DATATYPE_NULL)
    return _BY_PARTS[parts]


def field_type(datatype: Datatype, field: str) -> Datatype:
    """Return the datatype of `value`, `index` or `valid` of pairs; for the field "" the datatype itself."""
    if field == VALID:
        return _BY_NAME["INT64_T"]
    return datatype.parts[FIELDS.index(field)] if field else datatype


def column_names(name: str) -> tuple[str, str]:
    """Return the names of the two columns of a column of pairs, whose name is "" if it has none."""
    return (name, f"{name}_index") if name else ("value", "index")


def column_name(name: str, columns: Sequence[str], field: str) -> str:
    """Return the name of the column of a field of pairs; for the field "" that of the pairs.

    Numbers for each pair, such as `valid`, have the name of the pairs, or that of the values if two columns are pairs.
    """
    if field == VALID and len(columns) == len(FIELDS) and name not in columns:
        return columns[0]
    if field in {"", VALID}:
        return name
    return (columns if len(columns) == len(FIELDS) else column_names(name))[FIELDS.index(field)]
