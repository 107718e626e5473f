"""Datatypes of elements: the predefined ones of MPI, and those made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpired.datatypes.datatype import TIMES, Datatype, Group, beside, value_type
from mpired.datatypes.dtypes import DATATYPES, agrees, as_numbers, counterparts, from_dtype, get, unit_of, with_fields
from mpired.datatypes.pairs import value_index

if TYPE_CHECKING:
    from mpired.datatypes.text.definitions import Definitions as definitions  # noqa: N813 - it is called
    from mpired.datatypes.text.parse import parse

__all__ = [
    "DATATYPES", "TIMES", "Datatype", "Group", "agrees", "as_numbers", "beside", "counterparts", "definitions",
    "from_dtype", "parse", "unit_of", "value_index", "value_type", "with_fields",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a predefined datatype by its MPI name, `mpired.datatypes.DOUBLE`; there is one instance of each."""
    if name in {"definitions", "parse"}:
        from mpired.datatypes.text import definitions, parse  # noqa: PLC0415 - most files store their datatype

        return definitions.Definitions if name == "definitions" else parse.parse
    try:
        return get(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
