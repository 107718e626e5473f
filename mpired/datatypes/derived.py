"""The table of what makes datatypes out of datatypes: one row a word of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.named import NAMED
from mpired.datatypes.pairs import value_index
from mpired.datatypes.typemap import constructors
from mpired.datatypes.typemap.typemap import TypeMap
from mpired.errors import DatatypeError

MAX_LENGTH = 32 << 10
"""Characters of a text that means a datatype."""


@dataclass(frozen=True, eq=False, repr=False)
class Draft:
    """A derived type that may be in another: it is spelled, and made the one of its text, only when it is finished."""

    typemap: TypeMap  # which bytes an element is made of
    parts: tuple[str | Draft, ...]  # what the text consists of, the types in it as drafts too
    length: int  # characters of the text

    def text(self) -> str:
        """Return the text."""
        texts: list[str] = []
        waiting: list[str | Draft] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str):
                texts.append(part)
            else:
                waiting += reversed(part.parts)
        return "".join(texts)


Made: TypeAlias = Datatype | Draft
"""A type that another may be made of."""


class Constructor(NamedTuple):
    """A row: the word, the sorts of its arguments, and what it makes."""

    name: str  # the word
    sorts: tuple[str, ...]  # what each argument is: a sort that the reader of texts knows, in the order of MPI
    make: Callable[..., Made]  # takes the arguments and returns the datatype, or what is to be finished


_INDEX = next(row for row in NAMED if row.name == "INT")


def _pair(*parts: Made) -> Datatype:
    value, index = map(finished, parts)
    made = value_index(value, index)
    if made is None:
        reason = "a pair has a value that MAX and MIN take and an integer index (MPI-4.1, 6.9.4)"
        # What can be a value with the index int, is not to blame.
        blamed = 0 if value_index(value, _INDEX) is None else 1
        raise DatatypeError(f"pair of {value} and {index}", reason) from constructors.ArgumentError(reason, blamed)
    return made


# One instance of each, to compare ranks by; those that are not used any more are forgotten.
_instances: WeakValueDictionary[str, Datatype] = WeakValueDictionary()


def finished(made: Made) -> Datatype:
    """Return the one instance of a datatype."""
    if isinstance(made, Datatype):
        return made
    text = made.text()
    found = _instances.get(text)
    if found is None:
        found = Datatype(text, Group.DERIVED, None, handle=DATATYPE_NULL, structure=made.typemap)
        _instances[text] = found
    return found


def _derived(name: str, build: Callable[..., TypeMap]) -> Callable[..., Draft]:
    """Return what makes a datatype by a function of type maps."""

    def make(*arguments: Any) -> Draft:
        parts = _listed(f"{name}(", arguments, ")")
        length = sum([part.length if isinstance(part, Draft) else len(part) for part in parts])
        if length > MAX_LENGTH:
            raise DatatypeError(name, f"is written with more than {MAX_LENGTH} characters")
        try:
            return Draft(build(*map(_mapped, arguments)), tuple(parts), length)
        except ValueError as error:
            raise DatatypeError(name, str(error)) from error

    return make


def _listed(opening: str, arguments: tuple[Any, ...], closing: str) -> list[str | Draft]:
    """Return what the text of some arguments, of which there is one at least, consists of."""
    parts: list[str | Draft] = [opening]
    for argument in arguments:
        if isinstance(argument, tuple) and argument and isinstance(argument[0], Made):
            parts += _listed("[", argument, "]")
        elif isinstance(argument, tuple):
            parts.append(f"[{','.join(map(str, argument))}]")
        elif isinstance(argument, Datatype):
            parts.append(argument.name.lower() if argument.is_named else argument.name)
        else:
            parts.append(argument if isinstance(argument, Draft) else str(argument))
        parts.append(",")
    parts[-1] = closing
    return parts


def _mapped(argument: Any) -> Any:
    if isinstance(argument, tuple) and argument and isinstance(argument[0], Made):
        return tuple(map(_mapped, argument))
    return argument.typemap if isinstance(argument, Made) else argument


# the word, the sorts of its arguments, and what makes its type map
_ROWS: tuple[tuple[str, str, Callable[..., TypeMap]], ...] = (
    ("contiguous", "count type", constructors.contiguous),
    ("vector", "count count number type", constructors.vector),
    ("hvector", "count count number type", constructors.hvector),
    ("indexed", "counts numbers type", constructors.indexed),
    ("hindexed", "counts numbers type", constructors.hindexed),
    ("indexed_block", "count numbers type", constructors.indexed_block),
    ("hindexed_block", "count numbers type", constructors.hindexed_block),
    ("struct", "counts numbers types", constructors.struct),
    ("subarray", "counts counts counts order type", constructors.subarray),
    ("darray", "count count counts distributions dargs counts order type", constructors.darray),
    ("resized", "number number type", constructors.resized),
    ("dup", "type", constructors.dup),
)

CONSTRUCTORS = {
    "pair": Constructor("pair", ("type", "type"), _pair),
    **{name: Constructor(name, tuple(sorts.split()), _derived(name, build)) for name, sorts, build in _ROWS},
}
