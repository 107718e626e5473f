"""Datatypes and reductions of a real MPI, by mpi4py's module, which tests get from the fixture `mpi`."""

import functools
import re
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


def real_type(mpi: Any, text: str) -> Any:
    """Return the datatype that a text means."""
    words = {
        "contiguous": lambda n, of: of.Create_contiguous(n),
        "vector": lambda n, length, stride, of: of.Create_vector(n, length, stride),
        "hvector": lambda n, length, step, of: of.Create_hvector(n, length, step),
        "indexed": lambda lengths, at, of: of.Create_indexed(lengths, at),
        "hindexed": lambda lengths, at, of: of.Create_hindexed(lengths, at),
        "indexed_block": lambda length, at, of: of.Create_indexed_block(length, at),
        "hindexed_block": lambda length, at, of: of.Create_hindexed_block(length, at),
        "struct": mpi.Datatype.Create_struct,
        "subarray": lambda sizes, inside, starts, order, of: of.Create_subarray(sizes, inside, starts, order),
        "darray": lambda *arguments: arguments[-1].Create_darray(*arguments[:-1]),
        "resized": lambda lb, extent, of: of.Create_resized(lb, extent),
        "dup": lambda of: of.Dup(),
        "C": mpi.ORDER_C, "F": mpi.ORDER_FORTRAN,
        "block": mpi.DISTRIBUTE_BLOCK, "cyclic": mpi.DISTRIBUTE_CYCLIC, "dflt": mpi.DISTRIBUTE_DFLT_DARG,
    }  # fmt: skip

    def word(found: re.Match[str]) -> str:
        return found[0] if found[0] in words else f"basic({found[0]!r})"

    # Names such as 2int are not names in Python.
    calls = re.sub(r"\b\d?[A-Za-z]\w*", word, text)
    return eval(calls, words | {"basic": lambda name: handle(mpi, name.upper())})


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
