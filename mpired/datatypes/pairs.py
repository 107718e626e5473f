"""Pairs of a value and an index for MINLOC and MAXLOC, with and without a name in MPI (MPI-4.1, 6.9.4).

NumPy's `align=True` gives a structure the layout of the C compiler, so the extents include the same padding:
MPI_DOUBLE_INT has 12 bytes in 16. In MPI_2REAL and MPI_2DOUBLE_PRECISION the index is a floating-point number, too,
because Fortran 77 had no mixed pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.named import NAMED

FIELDS = ("value", "index")

_ROWS: tuple[tuple[str, str, str, int], ...] = (
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
_BY_NAME = {row.name: row for row in NAMED}


def _pair(name: str, value: str, index: str, handle: int) -> Datatype:
    parts = _BY_NAME[value], _BY_NAME[index]
    dtype = np.dtype([(name, part.form) for name, part in zip(FIELDS, parts, strict=True)], align=True)
    return Datatype(name, Group.PAIR, dtype, handle=handle, parts=parts)


_BY_PARTS = {(value, index): _pair(name, value, index, handle) for name, value, index, handle in _ROWS}
PAIRS: tuple[Datatype, ...] = tuple(_BY_PARTS.values())
INDICES = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE
"""The groups of datatypes that may be the index of a pair."""
VALUES = INDICES | Group.FLOATING_POINT
"""The groups of datatypes that may be the value of a pair."""


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


VALID = "valid"
"""The field of the counts of valid elements."""


def field_type(datatype: Datatype, field: str) -> Datatype:
    """Return the datatype of `value`, `index` or `valid` of pairs; for the field "" the datatype itself."""
    if field == VALID:
        return _BY_NAME["INT64_T"]
    return datatype.parts[FIELDS.index(field)] if field else datatype


def column_names(name: str) -> tuple[str, str]:
    """Return the names of the two columns of a column of pairs, whose name is "" if it has none."""
    return (name, f"{name}_index") if name else ("value", "index")


def column_name(name: str, columns: Sequence[str], field: str) -> str:
    """Return the name of the column of a field of pairs; for the fields "" and `valid` that of the pairs."""
    if field in {"", VALID}:
        return name
    return (columns if len(columns) == len(FIELDS) else column_names(name))[FIELDS.index(field)]
