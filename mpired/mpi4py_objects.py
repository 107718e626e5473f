"""Objects of mpi4py as arguments: ops, datatypes, and the functions of user-defined ops.

This module does not import mpi4py: a caller with such an object has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from mpired.errors import OpError

_NOT_ALIVE = "MPI is not initialised, or is finalised"
_TWO = "TWO"  # MPI_2INT is TWOINT in mpi4py
_PREFIXES = {"order": "ORDER_", "distribs": "DISTRIBUTE_", "dargs": "DISTRIBUTE_DFLT_"}  # constants of arguments


def module() -> Any:
    """Return the module `mpi4py.MPI` if the program has imported it, or None."""
    return sys.modules.get("mpi4py.MPI")


class DatatypeText(str):
    """The text of a datatype of mpi4py, with its size and extent in bytes."""

    __slots__ = ("extent", "size")
    size: int
    extent: int

    def __new__(cls, datatype: Any) -> Self:
        """Decode a datatype, or raise `ValueError` if it has no exact counterpart."""
        if not _is_alive():
            raise ValueError(f"is a datatype of mpi4py, and {_NOT_ALIVE}; give its name")
        if not hasattr(datatype, "decode"):
            raise ValueError("is a datatype of an mpi4py before version 4; give its name")
        self = super().__new__(cls, _text(datatype))
        self.size, self.extent = datatype.Get_size(), datatype.Get_extent()[1]
        return self


def _is_alive() -> bool:
    """Return whether MPI is initialised and not finalised; otherwise its functions end the process."""
    mpi = module()
    return bool(mpi.Is_initialized() and not mpi.Is_finalized())


def is_datatype(value: object) -> bool:
    """Return whether an object is a datatype of mpi4py."""
    mpi = module()
    return mpi is not None and isinstance(value, mpi.Datatype)


def _text(datatype: Any) -> str:
    """Return the text of a datatype: its name, or its constructor and arguments."""
    mpi = module()
    if datatype == mpi.DATATYPE_NULL:
        raise ValueError("MPI_DATATYPE_NULL is not a datatype")
    inner, combiner, arguments = datatype.decode()
    if combiner == "NAMED":  # MPI_Type_set_name may have changed the name
        names = [name for name in dir(mpi) if is_datatype(value := getattr(mpi, name)) and value == datatype]
        if not names:
            raise ValueError(f"{datatype.Get_name() or 'it'} is not a datatype that mpi4py names")
        present_name = datatype.Get_name().removeprefix("MPI_")
        twos = [f"2{name.removeprefix(_TWO)}" for name in names if name.startswith(_TWO)]
        return f"MPI_{next((name for name in (present_name, *twos) if name in (*names, *twos)), names[0])}"
    if combiner.startswith("F90_"):
        raise ValueError(f"a type made by MPI_Type_create_{combiner.lower()} has no name; give that of its size")
    if combiner == "VALUE_INDEX":
        raise ValueError("a type made by MPI_Type_get_value_index has no name; write 'pair(VALUE,INDEX)'")
    types = arguments.pop("datatypes", None)
    texts = [_argument_text(mpi, name, value) for name, value in arguments.items()]
    texts.append(_text(inner) if types is None else f"[{','.join(map(_text, types))}]")
    return f"{combiner.lower()}({','.join(texts)})"


def _argument_text(mpi: Any, name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_argument_text(mpi, name, item) for item in value)}]"
    prefix = _PREFIXES.get(name)
    constants = [
        constant for constant in dir(mpi) if prefix and constant.startswith(prefix) and getattr(mpi, constant) == value
    ]
    return constants[0].lower() if constants else str(value)


def op_name(op: object) -> str | None:
    """Return the name of a predefined op of mpi4py; None for other objects."""
    mpi = module()
    if mpi is None or not isinstance(op, mpi.Op) or not op.is_predefined:
        return None
    if op == mpi.OP_NULL:
        raise OpError("`op`", "is MPI_OP_NULL, which is not an op")
    return next(name for name in dir(mpi) if isinstance(value := getattr(mpi, name), mpi.Op) and value == op)


def user_function(op: object) -> tuple[Callable[[Any, Any, Any], Any], bool] | None:
    """Return the function of a user-defined op of mpi4py, and whether it commutes; None for other objects."""
    # An op in C, and an op without a Python function, are called by MPI_Reduce_local.
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
    """Return the arguments of a function of mpi4py: two arrays as buffers, and the datatype of this name."""
    mpi = module()
    short = name.removeprefix("MPI_")
    attributes: Mapping[str, Any] = vars(mpi)
    datatype = attributes.get(f"{_TWO}{short[1:]}" if short.startswith("2") else short, mpi.DATATYPE_NULL)
    buffer = attributes.get("buffer") or mpi.memory
    lower, upper = buffer.frombuffer(invec, readonly=True), buffer.frombuffer(inoutvec)
    return lower, upper, datatype if is_datatype(datatype) else mpi.DATATYPE_NULL
