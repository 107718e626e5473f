"""Readers that derive elements from those of a stored array: pairs with an index, a wider datatype, another order.

An array of derived elements has the stored array as `values`, unless only its order differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.dtypes import get
from mpired.datatypes.predefined import FIELDS, column_names
from mpired.files import calls
from mpired.formats.array import Array, FlatReader
from mpired.formats.convert import convert
from mpired.sources.source import OpenSource

_TRANSPOSED_NBYTES = 8 << 20  # that a transposed array reads ahead without a limit of memory
_WINDOW_NBYTES = 1 << 20  # of a read that spans several rows
_GAP_NBYTES = 4 << 10  # to read a gap of this size takes about as long as another system call


class GeneratedIndices(NamedTuple):
    """The reader of pairs of a value and an index (MPI-4.1, 6.9.4, first example of MPI_MAXLOC)."""

    first: int  # the index of the first element
    counting: bool  # whether the index increases by one from element to element; else all have the same index

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
    """Return an array of pairs of a datatype, with the values of an array and generated indices."""
    columns = column_names(values.name)
    return Array(
        values.source, datatype, values.count, datatype.form.newbyteorder(values.byte_order), shape=values.shape,
        name=",".join(columns) if values.name else "", parts=columns, reader=indices, values=values,
        isolated=values.isolated, datarep=values.datarep, fixed_order=values.fixed_order,
        fortran_order=values.fortran_order,
    )  # fmt: skip


def without_indices(array: Array) -> Array:
    """Return the array of values if `array` has pairs with generated indices, else `array` itself."""
    return array.values if isinstance(array.reader, GeneratedIndices) and array.values is not None else array


class Widening(NamedTuple):
    """The reader of elements in a wider datatype."""

    missing: float | None  # the value of missing elements; None without one
    is_needed: bool = True  # whether ranks have several datatypes; else ops without `accumulate_in` read the stored one

    def __call__(self, array: Array) -> DerivedReader:
        """Open an array of wider elements."""
        return DerivedReader(array, self._fill)

    def _fill(self, block: np.ndarray, values: np.ndarray, start: int) -> None:
        """Fill a block with values; missing elements get the exact fill value, which the array has rounded."""
        del start
        block[...] = values
        if self.missing is not None and values.dtype.kind == "f":
            block[values == np.array(self.missing).astype(values.dtype)] = self.missing


def widen_array(values: Array, datatype: Datatype, widening: Widening) -> Array:
    """Return an array with the same values in a wider datatype."""
    if values.datatype == datatype:
        return values
    stored = datatype.form.newbyteorder(values.byte_order)
    return values._replace(datatype=datatype, stored=stored, reader=widening, values=values)


class DerivedReader:
    """Reads element ranges and derives them from the values of another array. The caller closes it."""

    def __init__(self, array: Array, fill: Callable[[np.ndarray, np.ndarray, int], None]) -> None:
        assert array.values is not None  # noqa: S101 - the array is derived
        self._fill, self._values, self._datatype = fill, array.values.open(), array.values.datatype

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return the mask of valid values, or None."""
        values = np.empty(len(block), self._datatype.form)  # a new buffer for each block: many ranks may be open
        valid = self._values.read(start, values)
        self._fill(block, values != 0 if self._datatype.is_bool else values, start)
        return valid

    def check_end(self) -> None:
        """Check the end of the values."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()


class TransposedReader(FlatReader):
    """Reads element ranges of a transposed array; cheapest in ascending order. The caller closes it."""

    # Elements that are adjacent in one order are far apart in the other. So rows are read ahead together, as many as
    # memory allows: each stretch of the file then has one element of every row.

    def __init__(self, array: Array, file: OpenSource | None = None) -> None:
        super().__init__(array, file)
        self._stored = array.stored
        # Lengths of the dimensions with more than one index, from the fastest in the file to the slowest.
        dims = tuple(length for length in array.shape or () if length != 1)
        self._dims = dims[::-1] if array.fortran_order else dims
        self._strides = [math.prod(self._dims[:axis]) for axis in range(len(dims))]  # in the file, in elements
        # Structures are copied as bytes.
        self._form = np.dtype(f"V{self._stored.itemsize}") if self._stored.names else self._stored
        self._capacity = max(1, array.memory // self._stored.itemsize)
        self._ahead, self._first = np.empty(0, self._form), 0  # elements that were read, and the index of the first
        self._mask: TransposedReader | None = None
        if array.mask_offset is not None:
            byte = get("BYTE")
            mask = array._replace(datatype=byte, stored=byte.form, offset=array.mask_offset, mask_offset=None)
            self._mask = TransposedReader(mask, self.file)

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, in native byte order, and return which are valid."""
        done = 0
        while done < len(block):
            if not self._first <= start + done < self._first + len(self._ahead):
                self._read_ahead(start + done)
            index = start + done - self._first
            elements = self._ahead[index : index + len(block) - done]
            target = block[done : done + len(elements)]
            if self._direct:
                target.view(np.uint8)[...] = elements.view(np.uint8)
            else:
                convert(elements.view(self._stored), target, self._array.source.name, start + done)
            done += len(elements)
        if self._mask is None:
            return self._array.mask_of(block)
        valid = np.empty(len(block), np.uint8)
        self._mask.read(start, valid)
        return valid.view(np.bool_)

    def _read_ahead(self, start: int) -> None:
        """Read as many rows along an axis as memory allows, from the row of the element `start` on."""
        sizes = [math.prod(self._dims[axis + 1 :]) for axis in range(len(self._dims))]  # of a row along each axis
        axis = next(axis for axis, size in enumerate(sizes) if size <= self._capacity)
        indices = np.unravel_index(start // sizes[axis], self._dims[: axis + 1])
        nrows = min(self._capacity // sizes[axis], self._dims[axis] - int(indices[-1]))
        self._ahead = np.empty(0, self._form)  # frees the memory of the last rows
        rows = np.empty((*self._dims[:axis:-1], nrows), self._form)
        base = sum(int(index) * stride for index, stride in zip(indices, self._strides, strict=False))
        with calls.errors_name(self._array.source.name):
            self._gather(base, self._strides[axis:][::-1], rows)
        self._ahead, self._first = rows.T.reshape(-1), start // sizes[axis] * sizes[axis]

    def _gather(self, base: int, strides: list[int], out: np.ndarray) -> None:
        """Fill `out` with the elements at `strides` along its axes, from the element `base` of the file on."""
        nbytes, stride = self._stored.itemsize, strides[0]
        length = 1 + sum((count - 1) * step for count, step in zip(out.shape[1:], strides[1:], strict=True))
        is_near = (stride - length) * nbytes <= _GAP_NBYTES
        nrows = max(1, _WINDOW_NBYTES // (stride * nbytes)) if is_near else 1
        for first in range(0, len(out), nrows):
            rows = out[first : first + nrows]
            if nrows == 1 and out.ndim > 1:
                self._gather(base + first * stride, strides[1:], rows[0])
                continue
            window = np.empty((len(rows) - 1) * stride + length, self._form)
            octets = window.view(np.uint8)
            if self.file.read_into(octets.data, self._array.offset + (base + first * stride) * nbytes) < len(octets):
                raise self._array.source.changed()
            rows[...] = np.ndarray(rows.shape, self._form, window, strides=[step * nbytes for step in strides])


def in_order(array: Array, *, fortran_order: bool) -> Array:
    """Return an array whose elements are read in C or in Fortran order, if it is flat and has a shape."""
    if array.shape is None or array.fortran_order == fortran_order or array.reader is not None:
        return array
    array = array._replace(fortran_order=fortran_order)
    if array.count == 0 or sum(length > 1 for length in array.dimensions) < 2:  # noqa: PLR2004 - dimensions
        return array
    return array._replace(
        source=array.source.seekable(), reader=TransposedReader, memory=_TRANSPOSED_NBYTES, is_transposed=True
    )
