"""Plain values that are read as pairs: each with an index, which says where it comes from."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.pairs import FIELDS, column_names
from mpired.formats.array import Array


class GeneratedIndices(NamedTuple):
    """The reader of pairs of a value and an index (MPI-4.1, 6.9.4, first example of MPI_MAXLOC)."""

    first: int  # the index of the first element
    counting: bool  # whether the index rises by one from each element to the next; else it is the same for all

    def __call__(self, array: Array) -> IndexedReader:
        """Open an array of pairs."""
        return IndexedReader(array, self)

    def pair(self, start: int, values: np.ndarray, block: np.ndarray) -> None:
        """Fill `block` with the pairs of values of the elements from `start` on."""
        (value, index), first = FIELDS, self.first
        block[value] = values
        if self.counting:
            block[index] = np.arange(first + start, first + start + len(block), dtype=block.dtype[index])
        else:
            block[index] = first


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
        self._indices.pair(start, values, block)
        return valid

    def check_end(self) -> None:
        """Do so for the values."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()
