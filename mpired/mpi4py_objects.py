"""Objects of mpi4py that a caller may give: ops, datatypes, and functions as mpi4py calls them.

mpi4py is never imported here: who has such an object, or writes such a function, has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from mpired.errors import OpError

_NOT_ALIVE = "MPI is not initialised, or is finalised"
_CALLED_TWO = "TWO"  # mpi4py's TWOINT is MPI_2INT
_WORDS = {"order": "ORDER_", "distribs": "DISTRIBUTE_", "dargs": "DISTRIBUTE_DFLT_"}


def module() -> Any:
    """Return the module `mpi4py.MPI` if the program has imported it, else None."""
    return sys.modules.get("mpi4py.MPI")


class DatatypeText(str):
    """The text of a datatype of mpi4py, and what MPI says of its size and extent in bytes."""

    __slots__ = ("extent", "size")
    size: int
    extent: int

    def __new__(cls, datatype: Any) -> Self:
        """Decode a datatype, or raise `ValueError` if it has no exact counterpart."""
        if not _is_alive():
            raise ValueError(f"is a datatype of mpi4py, and {_NOT_ALIVE}; give its name")
        if not hasattr(datatype, "decode"):
            raise ValueError("is a datatype of an mpi4py before version 4; give its name")
        made = super().__new__(cls, _text(datatype))
        made.size, made.extent = datatype.Get_size(), datatype.Get_extent()[1]
        return made


def _is_alive() -> bool:
    """Return whether functions of MPI may be called, which end the process otherwise."""
    mpi = module()
    return bool(mpi.Is_initialized() and not mpi.Is_finalized())


def is_datatype(value: object) -> bool:
    """Return whether an object is a datatype of mpi4py."""
    mpi = module()
    return mpi is not None and isinstance(value, mpi.Datatype)


def _text(datatype: Any) -> str:
    """Return the text of a datatype: its name, or its constructor with the arguments that it was made with."""
    mpi = module()
    if datatype == mpi.DATATYPE_NULL:
        raise ValueError("MPI_DATATYPE_NULL is not a datatype")
    inner, combiner, arguments = datatype.decode()
    if combiner == "NAMED":  # MPI's name, whatever it was called by MPI_Type_set_name
        names = [name for name in dir(mpi) if is_datatype(found := getattr(mpi, name)) and found == datatype]
        if not names:
            raise ValueError(f"{datatype.Get_name() or 'it'} is not a datatype that mpi4py names")
        own = datatype.Get_name().removeprefix("MPI_")
        twos = [f"2{name.removeprefix(_CALLED_TWO)}" for name in names if name.startswith(_CALLED_TWO)]
        return f"MPI_{next((name for name in (own, *twos) if name in (*names, *twos)), names[0])}"
    if combiner.startswith("F90_"):
        raise ValueError(f"a type made by MPI_Type_create_{combiner.lower()} has no name; give that of its size")
    if combiner == "VALUE_INDEX":
        raise ValueError("a type made by MPI_Type_get_value_index has no name; write 'pair(VALUE,INDEX)'")
    types = arguments.pop("datatypes", None)
    words = [_argument(mpi, name, value) for name, value in arguments.items()]
    last = _text(inner) if types is None else f"[{','.join(map(_text, types))}]"
    return f"{combiner.lower()}({','.join([*words, last])})"


def _argument(mpi: Any, name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_argument(mpi, name, each) for each in value)}]"
    prefix = _WORDS.get(name)
    words = [word for word in dir(mpi) if prefix and word.startswith(prefix) and getattr(mpi, word) == value]
    return words[0].lower() if words else str(value)


def op_name(op: object) -> str | None:
    """Return the name of a predefined op of mpi4py; None for all else."""
    mpi = module()
    if mpi is None or not isinstance(op, mpi.Op) or not op.is_predefined:
        return None
    if op == mpi.OP_NULL:
        raise OpError("`op`", "is MPI_OP_NULL, which is not an op")
    return next(name for name in dir(mpi) if isinstance(found := getattr(mpi, name), mpi.Op) and found == op)


def created(op: object) -> tuple[Callable[[Any, Any, Any], Any], bool] | None:
    """Return the function of a user-defined op of mpi4py, and whether it commutes; None for another object."""
    # An op in C, or one that is known by its handle only, is called by MPI_Reduce_local.
    mpi = module()
    if mpi is None or not isinstance(op, mpi.Op):
        return None
    if _is_alive():
        with contextlib.suppress(TypeError, ValueError):
            _, (function, commute) = op.__reduce__()
            return function, bool(commute)

    def reduce_local(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
        if not _is_alive():
            raise RuntimeError(_NOT_ALIVE)
        op.Reduce_local([inbuf, datatype], [inoutbuf, datatype])

    return reduce_local, bool(_is_alive() and op.Is_commutative())


def arguments(invec: Any, inoutvec: Any, name: str) -> tuple[Any, Any, Any]:
    """Return what mpi4py calls a function with, for two arrays of elements of a datatype."""
    mpi = module()
    short = name.removeprefix("MPI_")
    known: Mapping[str, Any] = vars(mpi)
    datatype = known.get(f"{_CALLED_TWO}{short[1:]}" if short.startswith("2") else short, mpi.DATATYPE_NULL)
    buffer = known.get("buffer") or mpi.memory
    lower, upper = buffer.frombuffer(invec, readonly=True), buffer.frombuffer(inoutvec)
    return lower, upper, datatype if is_datatype(datatype) else mpi.DATATYPE_NULL
