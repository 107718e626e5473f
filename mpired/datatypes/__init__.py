"""Datatypes of elements: the predefined datatypes of MPI, pairs, derived datatypes, times and opaque values."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpired.datatypes.datatype import TIMES, Datatype, Group, beside, value_type
from mpired.datatypes.dtypes import (
    DATATYPES,
    from_dtype,
    get,
    has_same_components,
    numeric_form,
    pair_fields,
    rename_fields,
    structure,
    time_type,
)
from mpired.datatypes.predefined import value_index

if TYPE_CHECKING:
    from mpired.datatypes.text import Definitions as definitions  # noqa: N813 - it is called
    from mpired.datatypes.text import parse

__all__ = [
    "DATATYPES", "TIMES", "Datatype", "Group", "beside", "definitions", "from_dtype", "has_same_components",
    "numeric_form", "pair_fields", "parse", "rename_fields", "value_index", "value_type",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a predefined datatype by its MPI name, such as `mpired.datatypes.DOUBLE`."""
    if name in {"definitions", "parse"}:
        from mpired.datatypes import text  # noqa: PLC0415 - most files store their datatype

        return text.Definitions if name == "definitions" else text.parse
    try:
        return get(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def _reduce(datatype: Datatype) -> tuple[Callable[..., Datatype], tuple[object, ...]]:
    """Return the function and the arguments that pickle stores for a datatype."""
    # They give the instance of the other process, because datatypes are compared by identity.
    if datatype.is_named:
        return get, (datatype.name,)
    if datatype.group in TIMES:
        return time_type, (datatype.name,)
    if datatype.group is Group.VALUE:
        return value_type, (datatype.name, datatype.plain)
    return (_parse, (datatype.name,)) if datatype.plain is None or datatype.parts else (structure, (datatype.plain,))


def _parse(text: str) -> Datatype:
    """Return the datatype of a text; loads the parser."""
    datatype: Datatype = __getattr__("parse")(text)[0]
    return datatype


copyreg.pickle(Datatype, _reduce)
