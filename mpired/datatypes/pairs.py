"""The nine named value-index types of MINLOC and MAXLOC (MPI-4.1, 6.9.4).

NumPy's `align=True` lays a structure out as the C compiler does, so the extents include the same
padding: MPI_DOUBLE_INT has 12 bytes in 16. In MPI_2REAL and MPI_2DOUBLE_PRECISION the index is a
floating-point number too, because Fortran of old had no mixed pairs.
"""

from __future__ import annotations

import numpy as np

from mpired.datatypes.datatype import Datatype, Group

_ROWS: tuple[tuple[str, str, str], ...] = (
    ("FLOAT_INT", "f4", "i4"),
    ("DOUBLE_INT", "f8", "i4"),
    ("LONG_INT", "l", "i4"),
    ("2INT", "i4", "i4"),
    ("SHORT_INT", "i2", "i4"),
    ("LONG_DOUBLE_INT", "g", "i4"),
    ("2REAL", "f4", "f4"),
    ("2DOUBLE_PRECISION", "f8", "f8"),
    ("2INTEGER", "i4", "i4"),
)


def _pair(name: str, value: str, index: str) -> Datatype:
    dtype = np.dtype([("value", value), ("index", index)], align=True)
    return Datatype(name, Group.PAIR, dtype)


PAIRS: tuple[Datatype, ...] = tuple(_pair(*row) for row in _ROWS)
