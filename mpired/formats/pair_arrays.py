"""Pairs of a result as two arrays: of values and of indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mpired.datatypes import Group
from mpired.datatypes.pairs import FIELDS, field_type
from mpired.formats.array import Array
from mpired.formats.layout import MarkingLayout
from mpired.formats.missing import of_parts


def in_two(array: Array) -> bool:
    """Return whether pairs of a result are two arrays: with a name for each part, or values that mean missing ones."""
    return array.datatype.group is Group.PAIR and (len(array.columns) == len(FIELDS) or array.nullable)


def paired(layout: Any, fields: Sequence[Sequence[str]]) -> MarkingLayout:
    """Return the layout of results whose parts, which are `fields` of them, are written by another layout."""
    ends = np.cumsum([len(own) for own in fields])
    missing = (of_parts(own, layout.missing[end - len(own) : end]) for own, end in zip(fields, ends, strict=True))
    return MarkingLayout(partial(_encode, layout, fields), tuple(missing))


def _encode(layout: Any, fields: Sequence[Sequence[str]], results: Sequence[Array], fd: int) -> None:
    """Write results in parts."""
    layout([_part(result, field) for result, own in zip(results, fields, strict=True) for field in own], fd)


def _part(pairs: Array, field: str) -> Array:
    """Return a field of the pairs of a result, as an array of its own; without a field the result."""
    return pairs._replace(datatype=field_type(pairs.datatype, field), stored=pairs.stored[[field]]) if field else pairs
