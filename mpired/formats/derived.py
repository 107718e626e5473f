"""Elements that are made of those of an array as they are read: pairs with an index, and those of a wider datatype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.pairs import FIELDS, column_names
from mpired.formats.array import Array


class GeneratedIndices(NamedTuple):
    """The reader of pairs of a value and an index (MPI-4.1, 6.9.4, first example of MPI_MAXLOC)."""

    first: int  # the index of the first element
    counting: bool  # whether the index rises by one from each element to the next; else it is the same for all

    def __call__(self, array: Array) -> DerivedReader:
        """Open an array of pairs."""
        return DerivedReader(array, self.fill)

    def fill(self, block: np.ndarray, values: np.ndarray, start: int) -> None:
        """Fill a block with the pairs of the values from `start` on."""
        first, (value, index) = self.first, FIELDS
        block[value] = values
        if self.counting:
            block[index] = np.arange(first + start, first + start + len(block), dtype=block.dtype[index])
        else:
            block[index] = first


def with_indices(values: Array, datatype: Datatype, indices: GeneratedIndices) -> Array:
    """Return an array of plain values as pairs of a datatype."""
    columns = column_names(values.name)
    return Array(
        values.source, datatype, values.count, datatype.form.newbyteorder(values.byte_order), shape=values.shape,
        name=",".join(columns) if values.name else "", parts=columns, reader=indices, values=values,
        isolated=values.isolated, datarep=values.datarep, fixed_order=values.fixed_order,
        fortran_order=values.fortran_order,
    )  # fmt: skip


def without_indices(array: Array) -> Array:
    """Return the values of pairs whose indices are generated, and another array as it is."""
    return array.values if isinstance(array.reader, GeneratedIndices) and array.values is not None else array


class Widening(NamedTuple):
    """The reader of elements in a wider datatype."""

    missing: float | None  # the value that means a missing one; None for none
    is_needed: bool = True  # whether ranks have several datatypes; else ops that take that of all ranks get it

    def __call__(self, array: Array) -> DerivedReader:
        """Open an array of wider elements."""
        return DerivedReader(array, self._fill)

    def _fill(self, block: np.ndarray, values: np.ndarray, start: int) -> None:
        """Fill a block with values; those that mean missing ones have the precision of the array."""
        del start
        block[...] = values
        if self.missing is not None and values.dtype.kind == "f":
            block[values == np.array(self.missing).astype(values.dtype)] = self.missing


def widened(values: Array, datatype: Datatype, widening: Widening) -> Array:
    """Return an array with the same values as elements of a wider datatype."""
    if values.datatype == datatype:
        return values
    stored = datatype.form.newbyteorder(values.byte_order)
    return values._replace(datatype=datatype, stored=stored, reader=widening, values=values)


class DerivedReader:
    """Reads element ranges that are made of those of another array. The caller closes it."""

    def __init__(self, array: Array, fill: Callable[[np.ndarray, np.ndarray, int], None]) -> None:
        assert array.values is not None  # noqa: S101 - of an array that is made of another one
        self._fill, self._values, self._datatype = fill, array.values.open(), array.values.datatype

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return which of the values are valid."""
        values = np.empty(len(block), self._datatype.form)  # not kept: very many ranks may be open
        valid = self._values.read(start, values)
        self._fill(block, values != 0 if self._datatype.is_bool else values, start)
        return valid

    def check_end(self) -> None:
        """Do so for the values."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()
