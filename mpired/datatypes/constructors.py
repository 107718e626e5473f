"""The table of what makes datatypes out of datatypes: one row a word of the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpired.datatypes import derived
from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.pairs import value_index
from mpired.datatypes.typemap import Run, TypeMap, basic, combined
from mpired.errors import DatatypeError

MAX_LENGTH = 64 << 10
"""Characters of a text that means a datatype."""


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


def map_of(datatype: Datatype) -> TypeMap:
    """Return the type map of a datatype: one entry for a plain type, two for a pair."""
    if datatype.typemap is not None:
        return datatype.typemap
    form = datatype.form
    if datatype.group is not Group.PAIR:
        return basic(spelled(datatype), form)
    fields = [form.fields[name] for name in form.names or ()] if form.fields else []
    return combined([Run(basic(_FIELD_NAMES.get(field[0].str, field[0].str), field[0]), field[1]) for field in fields])


_FIELD_NAMES = {"<f4": "float", "<f8": "double", "<f2": "real2", "<f16": "long_double"} | {
    f"{'|' if nbits == 8 else '<'}{sign}{nbits // 8}": f"{'u' * (sign == 'u')}int{nbits}_t"  # noqa: PLR2004 - one byte has no order
    for sign in "iu"
    for nbits in (8, 16, 32, 64)
}


def spelled(argument: Any) -> str:
    """Return an argument as the grammar has it."""
    if isinstance(argument, Datatype):
        return argument.name.lower() if argument.is_named else argument.name
    return f"[{','.join(map(spelled, argument))}]" if isinstance(argument, tuple) else str(argument)


_instances: dict[str, Datatype] = {}


def _derived(name: str, build: Callable[..., TypeMap]) -> Callable[..., Datatype]:
    """Return what makes a datatype by a function of type maps; there is one instance of each, to compare ranks."""

    def make(*arguments: Any) -> Datatype:
        text = f"{name}({','.join(map(spelled, arguments))})"
        if len(text) > MAX_LENGTH:
            raise DatatypeError(name, f"is written with more than {MAX_LENGTH} characters")
        if text not in _instances:
            try:
                typemap = build(*map(_mapped, arguments))
            except ValueError as error:
                raise DatatypeError(name, str(error)) from None
            form = typemap.form()
            _instances[text] = Datatype(text, Group.DERIVED, form, handle=DATATYPE_NULL, typemap=typemap)
        return _instances[text]

    return make


def _mapped(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_mapped, argument))
    return map_of(argument) if isinstance(argument, Datatype) else argument


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
