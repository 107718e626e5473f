"""The nine named value-index types of MINLOC and MAXLOC (MPI-4.1, 6.9.4).

NumPy's `align=True` lays a structure out as the C compiler does, so the extents include the same
padding: MPI_DOUBLE_INT has 12 bytes in 16. In MPI_2REAL and MPI_2DOUBLE_PRECISION the index is a
floating-point number too, because Fortran of old had no mixed pairs.
"""

from __future__ import annotations

import numpy as np

from mpired.datatypes.datatype import Datatype, Group

_ROWS: tuple[tuple[str, str, str, int], ...] = (
    ("FLOAT_INT", "f4", "i4", 0x228),
    ("DOUBLE_INT", "f8", "i4", 0x229),
    ("LONG_INT", "l", "i4", 0x22A),
    ("2INT", "i4", "i4", 0x22B),
    ("SHORT_INT", "i2", "i4", 0x22C),
    ("LONG_DOUBLE_INT", "g", "i4", 0x22D),
    ("2REAL", "f4", "f4", 0x230),
    ("2DOUBLE_PRECISION", "f8", "f8", 0x231),
    ("2INTEGER", "i4", "i4", 0x232),
)


def _pair(name: str, value: str, index: str, handle: int) -> Datatype:
    dtype = np.dtype([("value", value), ("index", index)], align=True)
    return Datatype(name, Group.PAIR, dtype, handle=handle)


PAIRS: tuple[Datatype, ...] = tuple(_pair(*row) for row in _ROWS)
