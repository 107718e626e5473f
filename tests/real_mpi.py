"""Datatypes and reductions of a real MPI, by mpi4py's module, which tests get from the fixture `mpi`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import reference

# Datatypes without a name in mpi4py, with their size in bytes. MPICH's handle of a predefined type is
# 0x4c000000 + size * 256 + a number of its own.
UNNAMED = {"REAL2": 2, "COMPLEX4": 4, "LOGICAL1": 1, "LOGICAL2": 2, "LOGICAL4": 4, "LOGICAL8": 8,
           "2REAL": 8, "2DOUBLE_PRECISION": 16, "2INTEGER": 8}  # fmt: skip
RENAMED = {"LONG_LONG_INT": "LONG_LONG", "2INT": "TWOINT"}


@functools.cache
def handle(mpi: Any, name: str) -> Any:
    """Return the datatype of that name, None if the library has none."""
    if name in UNNAMED:
        return _unnamed(mpi, name)
    found = getattr(mpi, RENAMED.get(name, name))
    return None if found == mpi.DATATYPE_NULL else found


def _unnamed(mpi: Any, name: str) -> Any:
    for number in range(256):
        try:
            found = mpi.Datatype.f2py(0x4C000000 | UNNAMED[name] << 8 | number)
            if found.Get_name() == f"MPI_{name}":
                return found
        except mpi.Exception:  # not a datatype
            continue
    return None


def left_fold(mpi: Any, op: str, name: str, ranks: Sequence[bytes]) -> bytes:
    """Return ((r0 op r1) op r2) ... by MPI_Reduce_local."""
    datatype, operation = handle(mpi, name), getattr(mpi, op)
    count = len(ranks[0]) // reference.FORMS[name][1]
    result = bytearray(ranks[0])
    for rank in ranks[1:]:
        upper = bytearray(rank)
        operation.Reduce_local([result, count, datatype], [upper, count, datatype])
        result = upper
    return bytes(result)
