"""The choice of columns or arrays of a file: by their names, or by patterns of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from mpired.datatypes import Group, from_dtype, value_index
from mpired.datatypes.pairs import FIELDS
from mpired.errors import BufferFileError, DatatypeError, UsageError
from mpired.formats.input_options import InputOptions
from mpired.sources.source import Source

_FEW = 20
_SIGNS = frozenset("*?[")


def picked(source: Source, names: Iterable[str], wanted: Sequence[str], what: str) -> list[str]:
    """Return the names that are wanted, in that order; a pattern stands for those that it matches, as in a shell."""
    there = dict.fromkeys(names)
    found: dict[str, None] = {}
    for name in wanted:
        some = [name] if name in there else [each for each in there if fnmatch.fnmatchcase(each, name)]
        is_pattern = bool(_SIGNS & set(name))
        if not some or (name not in there and not is_pattern):
            pattern = " like" if is_pattern else ""
            raise BufferFileError(source.name, f"has no {what}{pattern} {name!r}; its {what}s are {listed([*there])}")
        found |= dict.fromkeys(some)
    return list(found)


def chosen(source: Source, names: Collection[str], inputs: InputOptions) -> tuple[dict[str, None], dict[str, None]]:
    """Return the names of the arrays that are combined, none if all others are, and of those that are kept."""
    # A name goes before a pattern, and of two patterns that of the arrays that are combined.
    free = [name for name in names if name not in inputs.keep]
    combined = dict.fromkeys(picked(source, free, inputs.pair or inputs.columns, inputs.noun))
    if inputs.pair and len(combined) != 2:  # noqa: PLR2004 - a pair
        raise UsageError("`pair`", f"means the {inputs.noun}s {listed([*combined])} of {source.name}; name two")
    kept = (name for name in picked(source, names, inputs.keep, inputs.noun) if name not in combined)
    return combined, dict.fromkeys(kept)


def listed(names: Sequence[str]) -> str:
    """Return some names, the first ones of many."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(map(repr, names[:_FEW])) or 'none'}{more}"


def also(names: Sequence[str]) -> str:
    """Return what a message about the first of some columns adds for the others."""
    return f" (also {listed(names)})" if names else ""


def lacking(this: str, mine: Sequence[str], other: str, theirs: Sequence[str]) -> str:
    """Say which buffers each of two lacks that the other has, for the end of a message; "" if some have no names."""
    if not all([*mine, *theirs]):
        return ""
    text = ""
    for who, names, others in ((this, mine, theirs), (other, theirs, mine)):
        own = set(names)
        if lacks := [name for name in others if name not in own]:
            text += f", and {who} lacks {listed(lacks)}"
    return text


def check_pair(source: Source, pair: Sequence[str], dtype: np.dtype, what: str) -> None:
    """Raise `DatatypeError` if two columns or arrays of numbers, `dtype` together, are not a value and an index."""
    if from_dtype(dtype).group is Group.PAIR:
        return
    value, index = (from_dtype(dtype[name]) for name in FIELDS)
    reason = f"{what} {pair[0]!r}, {value.label}, and {pair[1]!r}, {index.label}, are not a value and an index"
    way_out = "an index is an integer"
    if value_index(index, value) is not None:
        way_out += f"; `pair='{pair[1]},{pair[0]}'` has them in the other order"
    raise DatatypeError(source.name, f"{reason}; {way_out}")
