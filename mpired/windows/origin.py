"""What is combined into a window: the elements of a file, or of an array, in the order of the type map."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing, nullcontext

import numpy as np

from mpired.context import BASE_NBYTES, STREAMED_BASE_NBYTES, Context, spare_open_files
from mpired.datatypes import Datatype, agrees, as_numbers, from_dtype
from mpired.datatypes.datatype import gaps, tail
from mpired.datatypes.typemap import transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import CountError, DatatypeError
from mpired.files import calls
from mpired.formats import Array, Model
from mpired.formats.array import Reader, in_order, within_memory
from mpired.formats.convert import as_in, in_form
from mpired.formats.decoding import Decoder
from mpired.formats.missing import Missing
from mpired.formats.rank import element_text
from mpired.sources.compressed import UnpackedSource, unpacking_nbytes
from mpired.windows.runs import Index, Runs

_BLOCK_NBYTES = 1 << 20
_MAX_OPEN = 16
# What a file with columns was measured to hold while it is open, and what all that is open may hold without a limit.
_COLUMNS_NBYTES, _OPEN_NBYTES = 20 << 20, 320 << 20
# What is held of an element that lies as a type map says, when it is looked for.
_PLACE_NBYTES = 64


class Origin:
    """The origin of a request: its elements by position, in native byte order."""

    format = ""
    column = ""
    takes = 0
    """About how many bytes of memory it takes while it is open."""

    shape: tuple[int, ...] | None = None
    fortran_order = False
    fields: tuple[str, ...] = ()
    marked: Missing | None = None
    """Which values mean in its file that an element is missing."""
    unset: float | None = None
    """The value of elements that were never written, if nothing declares it."""
    nunset = 0
    """How many of the elements that were combined have it."""

    def __init__(self, name: str, datatype: Datatype, count: int) -> None:
        self.name = name
        self.datatype = datatype
        self.count = count
        self._all: np.ndarray | None = None

    def read(self, index: Index) -> np.ndarray:
        """Return elements in an array of the caller's own."""
        if self._all is None:
            if isinstance(index, slice):
                return self._range(index)
            first, last = (int(index.min()), int(index.max())) if len(index) else (0, 0)
            if last - first < 2 * len(index):  # near each other
                near: np.ndarray = self._range(slice(first, last + 1))[index - first]
                return near
            self._all = self._range(slice(0, self.count))
        elements = self._all[index]
        return elements.copy() if isinstance(index, slice) else elements

    def _range(self, index: slice) -> np.ndarray:
        raise NotImplementedError

    def in_order(self, *, fortran_order: bool) -> Origin:
        """Return the same array with the elements in that order; only one of several dimensions has another."""
        raise NotImplementedError

    def model(self, *, whole: bool) -> Model:
        """Return what a file like it is like: with its shape and order, if the whole of it is meant."""
        array = Array.of_result(self.datatype, self.count)
        if whole:
            array = array._replace(shape=self.shape, fortran_order=self.fortran_order)
        return Model(self.format, (array,))

    def held(self, *, in_order: bool) -> int:
        """Return about how many bytes of memory it takes to read it, whether `in_order` or not."""
        return 0 if in_order or self._all is not None else self.count * self.datatype.itemsize

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all elements, in blocks, without the bytes that carry no value."""
        step = max(1, _BLOCK_NBYTES // self.datatype.extent)
        for start in range(0, self.count, step):
            block = self.read(slice(start, min(start + step, self.count)))
            self.datatype.clear_padding(block)
            yield block

    def check_unchanged(self) -> None:
        """Raise `BufferFileError` if the elements may be others than those that were read first."""

    def close(self) -> None:
        """Close what reading has opened."""


class ArrayOrigin(Origin):
    """Elements of an array in memory."""

    def __init__(self, name: str, datatype: Datatype, elements: np.ndarray) -> None:
        super().__init__(name, datatype, len(elements))
        self._all = elements

    @classmethod
    def of(cls, array: np.ndarray, declared: Datatype | None, first: int, count: int | None) -> ArrayOrigin:
        """Return the elements of any array, from the element `first` on."""
        datatype = declared or from_dtype(array.dtype)
        if not agrees(datatype, array.dtype):
            raise DatatypeError("array", f"has elements of {element_text(array.dtype)}, which are not {datatype.label}")
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        flat = array.ravel(order="F" if fortran else "C").view(as_numbers(array.dtype))
        count = max(len(flat) - first, 0) if count is None else count
        if first + count > len(flat):
            raise CountError("array", f"has {len(flat)} elements, fewer than origin_disp {first} and {count} more")
        made = cls("array", datatype, in_form(flat[first : first + count], datatype.form))
        made.shape, made.fortran_order, made.fields = array.shape, fortran, array.dtype.names or ()
        return made

    def in_order(self, *, fortran_order: bool) -> Origin:
        """Return the same array with the elements in that order."""
        if fortran_order == self.fortran_order or self.shape is None or self._all is None:
            return self
        array = self._all.reshape(self.shape, order="F" if self.fortran_order else "C")
        return ArrayOrigin(self.name, self.datatype, array.ravel(order="F" if fortran_order else "C"))


class FileOrigin(Origin):
    """Elements of a rank's buffer, from the element `first` on."""

    # The file stays open from one block to the next, because what is compressed can only be decoded in sequence, as
    # long as there are descriptors and memory for all that are open.

    _nopen = 0
    _nbytes_open = 0

    def __init__(self, buffer: Array, first: int, count: int, context: Context) -> None:
        super().__init__(buffer.source.name, buffer.datatype, count)
        self._context = context
        self.buffer, self.column = buffer, buffer.name
        self.shape, self.fortran_order, self.fields = buffer.shape, buffer.fortran_order, buffer.fields
        self.marked, self.unset = buffer.missing, buffer.unset
        self._first = first
        self._reader: Reader | None = None
        self.takes = _COLUMNS_NBYTES if buffer.isolated else 0
        if isinstance(buffer.source, UnpackedSource):
            self.takes += unpacking_nbytes([buffer.source.packed])
        if first + count > buffer.count:
            reason = f"has {buffer.count} elements, fewer than `origin_disp={first}` and `origin_count={count}` need"
            raise CountError(self.name, reason)

    def model(self, *, whole: bool) -> Model:
        """Return what a file like it is like: with its header and its byte order."""
        model = super().model(whole=whole)
        mine, (array,) = self.buffer, model.buffers
        array = array._replace(stored=array.stored.newbyteorder(mine.byte_order), name=mine.name, parts=mine.columns)
        return model._replace(buffers=(array,), source=mine.source)

    def in_order(self, *, fortran_order: bool) -> Origin:
        """Return the same array with the elements in that order."""
        turned = in_order(self.buffer, fortran_order=fortran_order)
        if turned.shape is not None and turned.fortran_order != fortran_order and turned.isolated:
            reason = f"its format cannot be read in {'Fortran' if fortran_order else 'C'} order, as the target's is"
            raise CountError(self.name, f"{reason}; save both in one order")
        if (spare := self._context.spare_memory(BASE_NBYTES)) is not None and turned.is_turned:
            turned = within_memory(turned, min(turned.memory, max(spare // 4, _BLOCK_NBYTES)))
        return self if turned is self.buffer else FileOrigin(turned, self._first, self.count, self._context)

    def _range(self, index: slice) -> np.ndarray:
        block = np.empty(index.stop - index.start, self.datatype.form)
        reader = self._reader or self.buffer.open()
        if self._reader is None and self._may_stay_open():
            self._reader = reader
            FileOrigin._nopen += 1
            FileOrigin._nbytes_open += self.takes
        with nullcontext() if reader is self._reader else closing(reader):
            reader.read(self._first + index.start, block)
        return block

    def _may_stay_open(self) -> bool:
        room = self._context.spare_memory(STREAMED_BASE_NBYTES if self.buffer.isolated else BASE_NBYTES)
        if FileOrigin._nbytes_open + self.takes > (_OPEN_NBYTES if room is None else room):
            return False
        return FileOrigin._nopen < spare_open_files(_MAX_OPEN, self._context.max_open_files)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all elements, in blocks, and close the file at the end."""
        try:
            yield from super().blocks()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            FileOrigin._nopen -= 1
            FileOrigin._nbytes_open -= self.takes

    def check_unchanged(self) -> None:
        """Raise `BufferFileError` if the file changed since it was looked at."""
        self.buffer.source.check_unchanged()


def whole(buffer: Array, context: Context) -> np.ndarray:
    """Return all elements of a small buffer."""
    with (
        closing(Decoder()) as decoder,
        closing(FileOrigin(decoder.decoding(buffer), 0, buffer.count, context)) as origin,
    ):
        return origin.read(slice(0, buffer.count))


def check_inside(buffer: Array, elements: Run) -> None:
    """Raise `CountError` if elements of a derived datatype reach beyond a buffer."""
    nbytes = buffer.nbytes
    start, stop = transfer.reach(elements) if elements.copies and elements.of.size else (0, 0)
    if start < 0 or stop > nbytes:
        reach = f"from byte {start} to {stop}"
        name = buffer.source.name
        raise CountError(name, f"`origin_type` and `origin_count` reach {reach}, but it has {nbytes} bytes")


class ScatteredOrigin(FileOrigin):
    """Elements of a flat file that lie as a type map says."""

    buffer: Array

    def __init__(self, buffer: Array, runs: Runs, context: Context) -> None:
        super().__init__(buffer, 0, 0, context)
        self.count = runs.entries
        self._runs = runs

    def held(self, *, in_order: bool) -> int:
        """Return about how many bytes of memory it takes to read it: where its elements are, and all between them."""
        between = 2 * self.buffer.nbytes
        return super().held(in_order=in_order) + between + self.count * _PLACE_NBYTES

    @functools.cached_property
    def _positions(self) -> np.ndarray:
        return self._runs.positions()

    def _range(self, index: slice) -> np.ndarray:
        """Read the elements with all that lies between them."""
        at, stored = self._positions[index], self.buffer.stored
        if not len(at):
            return np.empty(0, self.datatype.form)
        first, behind = int(at.min()), tail(stored)
        octets = np.zeros(int(at.max()) - first + stored.itemsize, np.uint8)
        wanted = octets[: len(octets) - behind]
        with closing(self.buffer.source.open()) as file, calls.blaming(self.name):
            if file.read_into(wanted.data, self.buffer.offset + first) < len(wanted):
                raise self.buffer.source.changed()
        return as_in(self.datatype.form, gathered(octets, at - first, stored), self.datatype)


def gathered(octets: np.ndarray, at: np.ndarray | None, form: np.dtype) -> np.ndarray:
    """Return the elements at some byte positions, as an array of its own; None for all, one after another."""
    elements: np.ndarray = (octets.copy() if at is None else _at_each_byte(octets, form.itemsize)[at]).view(form)
    return elements


def scattered(octets: np.ndarray, at: np.ndarray | None, elements: np.ndarray) -> None:
    """Put the bytes of elements that carry values back to where `gathered` has them from."""
    form, source = elements.dtype, elements.view(np.uint8)
    bounds = [0, *(bound for gap in gaps(form) for bound in (gap.start, gap.stop)), form.itemsize]
    for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
        if start < stop:
            where = slice(start, None, form.itemsize) if at is None else at + start
            _at_each_byte(octets, stop - start)[where] = _at_each_byte(source, stop - start)[start :: form.itemsize]


def _at_each_byte(octets: np.ndarray, nbytes: int) -> np.ndarray:
    """Return the `nbytes` from each byte on as an element, which NumPy copies as it is."""
    dtype = np.dtype(f"{'u' if nbytes in transfer.NUMBERS else 'V'}{nbytes}")
    found: np.ndarray = np.ndarray((len(octets) - nbytes + 1,), dtype, octets.data, 0, (1,))
    return found
