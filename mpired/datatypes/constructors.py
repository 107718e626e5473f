"""The table of what makes datatypes out of datatypes: one row a word of the grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from mpired.datatypes import derived
from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.named import NAMED
from mpired.datatypes.pairs import value_index
from mpired.datatypes.typemap import TypeMap
from mpired.errors import DatatypeError

MAX_LENGTH = 32 << 10
"""Characters of a text that means a datatype."""

MAX_DEPTH = 100
"""Constructors in one another: what reads them, and walks through their maps, takes up to five calls for each."""


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


_INDEX = next(row for row in NAMED if row.name == "INT")


def _pair(value: Datatype, index: Datatype) -> Datatype:
    made = value_index(value, index)
    if made is None:
        reason = "a pair has a value that MAX and MIN take and an integer index (MPI-4.1, 6.9.4)"
        # What can be a value with the index int, is not to blame.
        blamed = 0 if value_index(value, _INDEX) is None else 1
        raise DatatypeError(f"pair of {value} and {index}", reason) from derived.ArgumentError(reason, blamed)
    return made


def spelled(argument: Any) -> str:
    """Return an argument as the grammar has it."""
    if isinstance(argument, Datatype):
        return argument.name.lower() if argument.is_named else argument.name
    return f"[{','.join(map(spelled, argument))}]" if isinstance(argument, tuple) else str(argument)


# One instance of each, to compare ranks by; those that nobody uses any more are forgotten.
_instances: WeakValueDictionary[str, Datatype] = WeakValueDictionary()


def _derived(name: str, build: Callable[..., TypeMap]) -> Callable[..., Datatype]:
    """Return what makes a datatype by a function of type maps."""

    def make(*arguments: Any) -> Datatype:
        text = f"{name}({','.join(map(spelled, arguments))})"
        if len(text) > MAX_LENGTH:
            raise DatatypeError(name, f"is written with more than {MAX_LENGTH} characters")
        depth = 1 + max(_depths(arguments))
        if depth > MAX_DEPTH:
            raise DatatypeError(name, f"is nested deeper than {MAX_DEPTH}")
        made = _instances.get(text)
        if made is None:
            try:
                structure = build(*map(_mapped, arguments))
            except ValueError as error:
                raise DatatypeError(name, str(error)) from error
            made = Datatype(text, Group.DERIVED, None, handle=DATATYPE_NULL, structure=structure, depth=depth)
            _instances[text] = made
        return made

    return make


def _mapped(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_mapped, argument))
    return argument.typemap if isinstance(argument, Datatype) else argument


def _depths(arguments: tuple[Any, ...]) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, Datatype):
            yield argument.depth
        elif isinstance(argument, tuple) and argument and isinstance(argument[0], Datatype):
            yield from _depths(argument)
        else:
            yield 0


# the word, the sorts of its arguments, and what makes its type map
_ROWS: tuple[tuple[str, str, Callable[..., TypeMap]], ...] = (
    ("contiguous", "count type", derived.contiguous),
    ("vector", "count count number type", derived.vector),
    ("hvector", "count count number type", derived.hvector),
    ("indexed", "counts numbers type", derived.indexed),
    ("hindexed", "counts numbers type", derived.hindexed),
    ("indexed_block", "count numbers type", derived.indexed_block),
    ("hindexed_block", "count numbers type", derived.hindexed_block),
    ("struct", "counts numbers types", derived.struct),
    ("subarray", "counts counts counts order type", derived.subarray),
    ("darray", "count count counts distributions dargs counts order type", derived.darray),
    ("resized", "number number type", derived.resized),
    ("dup", "type", derived.dup),
)

CONSTRUCTORS = {
    "pair": Constructor("pair", ("type", "type"), _pair),
    **{name: Constructor(name, tuple(sorts.split()), _derived(name, build)) for name, sorts, build in _ROWS},
}
