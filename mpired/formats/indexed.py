"""Plain values that are read as pairs, each with an index; and pairs that are written as two arrays of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.datatypes.pairs import FIELDS, column_names, field_type
from mpired.formats.array import Array
from mpired.formats.layout import MarkingLayout
from mpired.formats.missing import of_parts


class GeneratedIndices(NamedTuple):
    """The reader of pairs of a value and an index (MPI-4.1, 6.9.4, first example of MPI_MAXLOC)."""

    first: int  # the index of the first element
    counting: bool  # whether the index rises by one from each element to the next; else it is the same for all

    def __call__(self, array: Array) -> IndexedReader:
        """Open an array of pairs."""
        return IndexedReader(array, self)


def with_indices(values: Array, datatype: Datatype, indices: GeneratedIndices) -> Array:
    """Return an array of plain values as pairs of a datatype."""
    columns = column_names(values.name)
    stored = datatype.form.newbyteorder(values.byte_order)
    name = ",".join(columns) if values.name else ""
    pairs = Array(values.source, datatype, values.count, stored, shape=values.shape, name=name, parts=columns)
    pairs = pairs._replace(reader=indices, values=values, isolated=values.isolated, datarep=values.datarep)
    return pairs._replace(fixed_order=values.fixed_order, fortran_order=values.fortran_order)


class IndexedReader:
    """Reads element ranges of pairs whose indices are generated. The caller closes it."""

    def __init__(self, array: Array, indices: GeneratedIndices) -> None:
        assert array.values is not None  # noqa: S101 - of pairs
        self._indices = indices
        self._values = array.values.open()
        self._form = array.values.datatype.form

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the pairs of the elements from `start` on, and return which of the values are valid."""
        values = np.empty(len(block), self._form)  # not kept: very many ranks may be open
        valid = self._values.read(start, values)
        first, (value, index) = self._indices.first, FIELDS
        block[value] = values
        if self._indices.counting:
            block[index] = np.arange(first + start, first + start + len(block), dtype=block.dtype[index])
        else:
            block[index] = first
        return valid

    def check_end(self) -> None:
        """Do so for the values."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()


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
