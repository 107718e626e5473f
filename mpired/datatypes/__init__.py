"""What an element is: the predefined MPI datatypes, and those made of them."""

from mpired.datatypes.datatype import Datatype, Group
from mpired.datatypes.grammar import (
    DATATYPES,
    agrees,
    counterparts,
    definitions,
    from_dtype,
    get,
    parse,
    unit_of,
    with_fields,
)
from mpired.datatypes.pairs import value_index

__all__ = [
    "DATATYPES",
    "Datatype",
    "Group",
    "agrees",
    "counterparts",
    "definitions",
    "from_dtype",
    "parse",
    "unit_of",
    "value_index",
    "with_fields",
]


def __getattr__(name: str) -> Datatype:
    """Return a predefined datatype by its MPI name, `mpired.datatypes.DOUBLE`; there is one instance of each."""
    try:
        return get(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
