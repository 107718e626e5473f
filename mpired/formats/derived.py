"""Elements made of those of an array as they are read: pairs with an index, a wider datatype, C for Fortran order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.dtypes import get
from mpired.datatypes.pairs import FIELDS, column_names
from mpired.files import calls
from mpired.formats.array import Array, FlatReader
from mpired.formats.convert import convert
from mpired.sources.source import OpenSource

_TURNED_NBYTES = 8 << 20  # that are read ahead of turned arrays without a limit of memory
_WINDOW_NBYTES = 1 << 20
# To copy this many bytes of the page cache takes about as long as another system call.
_NEAR_NBYTES = 4 << 10


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


class TransposedReader(FlatReader):
    """Reads element ranges of an array that is turned; cheapest in ascending order. The caller closes it."""

    # Neighbours of the one order are far apart in the other. So as many rows as memory allows are read at a time, of
    # which each stretch in the file has one element each.

    def __init__(self, array: Array, file: OpenSource | None = None) -> None:
        super().__init__(array, file)
        self._stored = array.stored
        # The dimensions with more than one index, the first of them fastest in the file and slowest when read.
        dims = tuple(dim for dim in array.shape or () if dim != 1)
        self._dims = dims[::-1] if array.fortran_order else dims
        self._units = [math.prod(self._dims[:axis]) for axis in range(len(dims))]  # the elements between neighbours
        # Fields are not looked at.
        self._form = np.dtype(f"V{self._stored.itemsize}") if self._stored.names else self._stored
        self._room = max(1, array.memory // self._stored.itemsize)
        self._ahead, self._first = np.empty(0, self._form), 0
        self._marks: TransposedReader | None = None
        if array.validity is not None:
            byte = get("BYTE")
            marks = array._replace(datatype=byte, stored=byte.form, offset=array.validity, validity=None)
            self._marks = TransposedReader(marks, self.file)

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, in native byte order, and return which are valid."""
        done = 0
        while done < len(block):
            at = start + done - self._first
            if not 0 <= at < len(self._ahead):
                self._read_ahead(start + done)
                at = start + done - self._first
            part = self._ahead[at : at + len(block) - done]
            room = block[done : done + len(part)]
            if self._direct:
                room.view(np.uint8)[...] = part.view(np.uint8)
            else:
                convert(part.view(self._stored), room, self._array.source.name, start + done)
            done += len(part)
        if self._marks is None:
            return self._array.valid(block)
        there = np.empty(len(block), np.uint8)
        self._marks.read(start, there)
        return there.view(np.bool_)

    def _read_ahead(self, start: int) -> None:
        """Read as many rows along an axis as memory allows, from that of the element `start` on."""
        sizes = [math.prod(self._dims[axis + 1 :]) for axis in range(len(self._dims))]  # of a row along each axis
        axis = next(axis for axis, size in enumerate(sizes) if size <= self._room)
        place = np.unravel_index(start // sizes[axis], self._dims[: axis + 1])
        count = min(self._room // sizes[axis], self._dims[axis] - int(place[-1]))
        self._ahead = self._ahead[:0]
        turned = np.empty((*self._dims[:axis:-1], count), self._form)
        base = sum(int(index) * unit for index, unit in zip(place, self._units, strict=False))
        with calls.errors_name(self._array.source.name):
            self._gather(base, self._units[axis:][::-1], turned)
        self._ahead, self._first = turned.T.reshape(-1), start // sizes[axis] * sizes[axis]

    def _gather(self, base: int, apart: list[int], out: np.ndarray) -> None:
        """Fill `out` with elements that are so far apart along each axis, `base` elements into the file."""
        nbytes, unit = self._stored.itemsize, apart[0]
        length = 1 + sum((count - 1) * each for count, each in zip(out.shape[1:], apart[1:], strict=True))
        is_near = (unit - length) * nbytes <= _NEAR_NBYTES
        step = max(1, _WINDOW_NBYTES // (unit * nbytes)) if is_near else 1
        for first in range(0, len(out), step):
            some = out[first : first + step]
            if step == 1 and out.ndim > 1:
                self._gather(base + first * unit, apart[1:], some[0])
                continue
            room = np.empty((len(some) - 1) * unit + length, self._form)
            octets = room.view(np.uint8)
            if self.file.read_into(octets.data, self._array.offset + (base + first * unit) * nbytes) < len(octets):
                raise self._array.source.changed()
            some[...] = np.ndarray(some.shape, self._form, room, strides=[each * nbytes for each in apart])


def in_order(array: Array, *, fortran_order: bool) -> Array:
    """Return an array whose elements come in that order; only one of several dimensions has another."""
    if array.shape is None or array.fortran_order == fortran_order or array.reader is not None:
        return array
    turned = array._replace(fortran_order=fortran_order)
    if array.count == 0 or sum(dim > 1 for dim in array.shape) < 2:  # noqa: PLR2004 - dimensions
        return turned
    return turned._replace(
        source=array.source.kept(), reader=TransposedReader, memory=_TURNED_NBYTES, is_transposed=True
    )
