"""The table of what makes datatypes out of datatypes: one row a word of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpired.datatypes.datatype import Datatype
from mpired.datatypes.pairs import value_index
from mpired.errors import DatatypeError


class Constructor(NamedTuple):
    """A row: the word, the sorts of its arguments, and what it makes.

    Parameters
    ----------
    name
        The word.
    sorts
        What each argument is: a sort that the reader of texts knows, in the order of MPI.
    make
        Takes the arguments and returns the datatype.
    """

    name: str
    sorts: tuple[str, ...]
    make: Callable[..., Datatype]


def _pair(value: Datatype, index: Datatype) -> Datatype:
    made = value_index(value, index)
    if made is None:
        reason = "a pair has a value that MAX and MIN take and an integer index (MPI-4.1, 6.9.4)"
        raise DatatypeError(f"pair of {value} and {index}", reason)
    return made


_ROWS: tuple[tuple[str, str, Callable[..., Any]], ...] = (("pair", "type type", _pair),)

CONSTRUCTORS = {name: Constructor(name, tuple(sorts.split()), make) for name, sorts, make in _ROWS}
