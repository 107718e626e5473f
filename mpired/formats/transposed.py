"""Arrays that are read in the other order than they are stored in: C for Fortran, or Fortran for C."""

from __future__ import annotations

import math

import numpy as np

from mpired.datatypes.dtypes import get
from mpired.files import calls
from mpired.formats.array import Array, FlatReader
from mpired.formats.convert import convert

MEMORY = 8 << 20
"""The most bytes that are read ahead without a limit of memory."""
_WINDOW_NBYTES = 1 << 20
# To copy this many bytes of the page cache takes about as long as another system call.
_NEAR_NBYTES = 4 << 10


class TransposedReader(FlatReader):
    """Reads element ranges of an array that is turned; cheapest in ascending order. The caller closes it."""

    # Neighbours of the one order are far apart in the other. So as many rows as memory allows are read at a time, of
    # which each stretch in the file has one element each.

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self._stored = array.stored
        # The dimensions with more than one index, the first of them fastest in the file and slowest when read.
        dims = tuple(dim for dim in array.shape or () if dim != 1)
        self._dims = dims[::-1] if array.fortran_order else dims
        # Fields are not looked at.
        self._form = np.dtype(f"V{self._stored.itemsize}") if self._stored.names else self._stored
        self._room = max(1, array.memory // self._stored.itemsize)
        self._ahead, self._first = np.empty(0, self._form), 0
        self._marks: TransposedReader | None = None
        if array.validity is not None:
            byte = get("BYTE")
            self._marks = TransposedReader(
                array._replace(datatype=byte, stored=byte.form, offset=array.validity, validity=None)
            )

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

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._marks is not None:
            self._marks.close()

    def _read_ahead(self, start: int) -> None:
        """Read as many elements as memory allows: whole rows, if there is room for one, or else from `start` on."""
        row = math.prod(self._dims[1:])
        self._first = start // row * row if row <= self._room else start
        count = self._room // row * row or self._room
        self._ahead = self._ahead[:0]
        self._ahead = np.empty(min(count, self._array.count - self._first), self._form)
        with calls.errors_name(self._array.source.name):
            self._gather(0, 0, self._first, self._ahead)

    def _gather(self, axis: int, base: int, start: int, out: np.ndarray) -> None:
        """Fill `out` with elements of the array along `axis` and the next ones, `base` elements into the file."""
        row, unit = math.prod(self._dims[axis + 1 :]), math.prod(self._dims[:axis])
        stop = start + len(out)
        first, last = -(-start // row), stop // row  # the whole rows
        if first > last:
            self._gather(axis + 1, base + last * unit, start - last * row, out)
            return
        head, tail = first * row - start, stop - last * row
        if head:
            self._gather(axis + 1, base + (first - 1) * unit, row - head, out[:head])
        if first < last:
            self._rows(axis, base + first * unit, out[head : len(out) - tail])
        if tail:
            self._gather(axis + 1, base + last * unit, 0, out[len(out) - tail :])

    def _rows(self, axis: int, base: int, out: np.ndarray) -> None:
        """Fill `out` with whole rows along an axis, the first of them `base` elements into the file."""
        dims, unit = self._dims[axis + 1 :], math.prod(self._dims[:axis])
        row = math.prod(dims)
        stretches = np.empty((row, len(out) // row), self._form)
        if axis:
            for number, stretch in enumerate(stretches):
                self._strided(base + number * unit * self._dims[axis], unit, stretch)
        else:
            self._side_by_side(base, stretches)
        there = stretches.reshape(*dims[::-1], -1).T
        out.reshape(there.shape)[...] = there

    def _side_by_side(self, base: int, stretches: np.ndarray) -> None:
        """Fill stretches of elements without gaps, which are the length of the first axis apart."""
        apart, count = self._dims[0], stretches.shape[1]
        if (apart - count) * self._stored.itemsize > _NEAR_NBYTES:
            for number, stretch in enumerate(stretches):
                self._read(base + number * apart, stretch)
            return
        step = max(1, _WINDOW_NBYTES // (apart * self._stored.itemsize))
        for first in range(0, len(stretches), step):
            some = stretches[first : first + step]
            room = np.empty((len(some), apart), self._form)
            self._read(base + first * apart, room.reshape(-1)[: room.size - apart + count])
            some[...] = room[:, :count]

    def _strided(self, base: int, unit: int, stretch: np.ndarray) -> None:
        """Fill a stretch of elements that are `unit` elements apart."""
        near = unit * self._stored.itemsize <= _NEAR_NBYTES
        step = max(1, _WINDOW_NBYTES // (unit * self._stored.itemsize)) if near else 1
        for first in range(0, len(stretch), step):
            some = stretch[first : first + step]
            room = np.empty((len(some) - 1) * unit + 1, self._form)
            self._read(base + first * unit, room)
            some[...] = room[::unit]

    def _read(self, first: int, elements: np.ndarray) -> None:
        octets = elements.view(np.uint8)
        if self.file.read_into(octets.data, self._array.offset + first * self._stored.itemsize) < len(octets):
            raise self._array.source.changed()


def in_order(array: Array, *, fortran_order: bool) -> Array:
    """Return an array whose elements come in that order; only one of several dimensions has another."""
    if array.shape is None or array.fortran_order == fortran_order or not array.is_flat:
        return array
    turned = array._replace(fortran_order=fortran_order)
    if array.count == 0 or sum(dim > 1 for dim in array.shape) < 2:  # noqa: PLR2004 - dimensions
        return turned
    return turned._replace(source=array.source.kept(), reader=TransposedReader, memory=MEMORY, is_turned=True)
