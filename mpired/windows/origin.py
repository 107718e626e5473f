"""Origins: arrays whose elements are combined into a window; any positions of an origin can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from typing import TypeAlias

import numpy as np

from mpired.context import BASE_NBYTES, RESERVED, STREAMED_BASE_NBYTES, Context
from mpired.datatypes import Datatype, transfer
from mpired.datatypes.datatype import tail
from mpired.errors import CountError, UsageError
from mpired.files import calls
from mpired.formats import Array, Format, InputOptions, Model, RankObject, open_rank
from mpired.formats.array import Reader, limit_decoding, with_memory_limit
from mpired.formats.convert import as_in
from mpired.formats.derived import Widening, in_order, widen_array
from mpired.formats.memory import ArrayRank
from mpired.formats.rank import RankFile
from mpired.ops.state import Elements
from mpired.options import Options, PathLike
from mpired.sources.stream import decompression_nbytes
from mpired.windows.placement import Index, WindowSelection, check_layout

_BLOCK_NBYTES = 1 << 20
_MAX_OPEN = 16
_COLUMNS_NBYTES = 20 << 20  # memory of an open file with columns, as measured
_OPEN_NBYTES = 320 << 20  # memory of all open origins without a limit
_POSITION_NBYTES = 64  # memory for the position of an element in a type map, while positions are computed

OriginLike: TypeAlias = PathLike | RankObject


class Origin:
    """Elements of an array in native byte order: `count` elements from `first` on, or a selection of its bytes."""

    def __init__(
        self,
        array: Array,
        context: Context,
        form: Format | None = None,
        first: int = 0,
        count: int | None = None,
        *,
        selection: WindowSelection | None = None,
    ) -> None:
        self.array, self.format = array, form
        self.name, self.datatype = array.source.name, array.datatype
        self.count = max(array.count - first, 0) if count is None else count
        if first + self.count > array.count:
            reason = f"has {array.count} elements, fewer than `origin_disp={first}` and `origin_count={count}` need"
            raise CountError(self.name, reason)
        self.open_nbytes = _COLUMNS_NBYTES if array.isolated else 0  # memory of the open file
        if array.source.packed is not None:
            self.open_nbytes += decompression_nbytes([array.source])
        self._selection, self._positions = selection, np.empty(0, np.int64)  # in a flat file
        self.selection_nbytes = 0  # memory of the positions, and of the bytes between the elements
        if selection is not None:
            self.count = selection.entries
            self.selection_nbytes = 2 * array.nbytes + self.count * _POSITION_NBYTES
        self.nunset = 0  # combined elements that equal netCDF's default fill value, which no attribute declares
        self.stays_open = True  # between blocks: compressed elements can only be decoded in sequence
        self._context, self._first = context, first
        self._reader: Reader | None = None
        self._all: Elements | None = None

    def read(self, index: Index) -> Elements:
        """Return elements in a new array, and the mask of valid elements, None if all are valid."""
        elements = self._all
        if elements is None and isinstance(index, slice):
            if self._selection is not None:
                return self._read_selection(self._selection, index)
            block = np.empty(index.stop - index.start, self.datatype.form)
            reader = self._reader or self.array.open()
            if self.stays_open:
                self._reader = reader
            with nullcontext() if self.stays_open else closing(reader):
                return block, reader.read(self._first + index.start, block)
        if elements is None:
            assert isinstance(index, np.ndarray)  # noqa: S101 - slices were read above
            first, last = (int(index.min()), int(index.max())) if len(index) else (0, 0)
            if last - first < 2 * len(index):  # a dense index
                elements, index = self.read(slice(first, last + 1)), index - first
            else:
                elements = self._all = self.read(slice(0, self.count))
        values, valid = elements
        chosen = values[index]
        return chosen.copy() if isinstance(index, slice) else chosen, None if valid is None else valid[index]

    def _read_selection(self, selection: WindowSelection, index: slice) -> Elements:
        """Read selected elements, with the bytes between them."""
        if not len(self._positions):
            self._positions = selection.positions()
        positions, array = self._positions[index], self.array
        if not len(positions):
            return np.empty(0, self.datatype.form), None
        first, stored = int(positions.min()), array.stored
        octets = np.zeros(int(positions.max()) - first + stored.itemsize, np.uint8)
        needed = octets[: len(octets) - tail(stored)]
        with closing(array.source.open()) as file, calls.errors_name(self.name):
            if file.read_into(needed.data, array.offset + first) < len(needed):
                raise array.source.changed()
        block = as_in(self.datatype.form, gather(octets, positions - first, stored), self.datatype)
        return block, array.mask_of(block)

    def converted(self, window: Array, missing: float | None, *, by_shape: bool) -> Origin:
        """Return the origin in the datatype of a window and, with `by_shape`, in the order of its dimensions."""
        array = self.array
        if by_shape:
            array = in_order(array, fortran_order=window.fortran_order)
            if array.shape is not None and array.fortran_order != window.fortran_order and array.isolated:
                reason = f"its format cannot be read in {'Fortran' if window.fortran_order else 'C'} order"
                raise CountError(self.name, f"{reason}, as the target's is; save both in one order")
            if (spare := self._context.spare_memory(BASE_NBYTES)) is not None and array.is_transposed:
                array = with_memory_limit(array, min(array.memory, max(spare // 4, _BLOCK_NBYTES)))
        if window.datatype != self.datatype:
            array = widen_array(array, window.datatype, Widening(missing))
        if array is self.array:
            return self
        origin = Origin(array, self._context, self.format, self._first, self.count)
        origin.stays_open = self.stays_open
        return origin

    def model(self, *, whole: bool) -> Model:
        """Return the model of a file like that of the origin, with its shape and order if the array is `whole`."""
        array = Array.of_result(self.datatype, self.count, byte_order=self.array.byte_order)
        if whole:
            array = array._replace(shape=self.array.shape, fortran_order=self.array.fortran_order)
        array = array._replace(name=self.array.name, parts=self.array.columns)
        array = array._replace(missing=self.array.missing, nulls=self.array.nulls)
        return Model(self.format, (array,), self.array.source)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all elements in blocks, with zeros as padding, and the mask of each block that has one; then close."""
        step = max(1, _BLOCK_NBYTES // self.datatype.extent)
        try:
            for start in range(0, self.count, step):
                block, valid = self.read(slice(start, min(start + step, self.count)))
                self.datatype.clear_padding(block)
                yield block
                if valid is not None:
                    yield valid
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def choose_open(origins: Sequence[Origin], context: Context) -> None:
    """Choose the origins that stay open, within the limits of open files and of memory."""
    nopen, nbytes, limit = 0, 0, context.max_open_files
    max_open = _MAX_OPEN if limit is None else min(_MAX_OPEN, limit - RESERVED)
    for origin in origins:
        spare = context.spare_memory(STREAMED_BASE_NBYTES if origin.array.isolated else BASE_NBYTES)
        max_nbytes = _OPEN_NBYTES if spare is None else context.allowed(spare, _OPEN_NBYTES)
        origin.stays_open = nopen < max_open and nbytes + origin.open_nbytes <= max_nbytes
        if origin.stays_open:
            nopen, nbytes = nopen + 1, nbytes + origin.open_nbytes


def open_origin(origin: OriginLike, inputs: InputOptions, options: Options, derived: Datatype | None) -> list[Origin]:
    """Return the arrays of an origin: one, or all arrays of a file with columns."""
    first, count, context = options["origin_disp"], options["origin_count"], inputs.context
    for name, number in (("`origin_disp`", first), ("`origin_count`", count or 0)):
        if number < 0:
            raise CountError(f"{name} {number}", "is negative; give 0 or more")
    if is_array := isinstance(origin, ArrayRank):  # its dtype has the byte order
        inputs = inputs._replace(type_order=None)
    # With count 0 a raw file may be too short for an element (MPI-4.1, 12.3.4).
    inputs = inputs._replace(count=0) if count == 0 and not first else inputs
    # The size of the file need not be a multiple of the component of a derived type.
    inputs = inputs if derived is None or inputs.is_external else inputs._replace(window=True)
    file = open_rank(origin if isinstance(origin, RankObject) else os.fspath(origin), inputs)
    file.check(inputs.op_groups)
    if derived is not None:
        return [_open_derived(file.only_buffer(), derived, first, count, context)]
    worker = context.worker
    arrays = [worker.decoding(limit_decoding(array, context)) if array.isolated else array for array in file.buffers]
    if is_array:  # a new target like an array gets the format of its suffix, and native byte order
        arrays, file = [array._replace(fixed_order=True) for array in arrays], file._replace(format=None)
    return [Origin(array, context, file.format, first, count) for array in arrays]


def _open_derived(array: Array, derived: Datatype, first: int, count: int | None, context: Context) -> Origin:
    """Return the components of `count` elements of a derived datatype, from component `first` of the array on."""
    name, itemsize, typemap = array.source.name, array.stored.itemsize, derived.typemap
    if array.reader is not None:
        raise UsageError("`origin_type`", f"is for raw and npy files, and {name} is none")
    check_layout(array, "`origin_type`")
    if count is None and not typemap.entries:
        count = 0
    if count is None:
        available = array.nbytes - first * itemsize - typemap.true_ub
        if typemap.extent <= 0:
            raise UsageError("`origin_count`", f"is needed, because {derived} has extent {typemap.extent}")
        count = available // typemap.extent + 1 if available >= 0 else min(array.nbytes, 1)
    # Checked before the positions of all elements are in memory: there may be any number.
    start, stop = typemap.reach(count, first * itemsize)
    if start < 0 or stop > array.nbytes:
        bounds = f"from byte {start} to {stop}"
        raise CountError(name, f"`origin_type` and `origin_count` reach {bounds}, but it has {array.nbytes} bytes")
    element = WindowSelection.of(typemap, array.datatype, itemsize)
    selection = element.repeat(first * itemsize, count, typemap.extent, context)
    return Origin(array, context, selection=selection)


def file_of(origin: Sequence[Origin]) -> RankFile:
    """Return the description of an origin for comparisons."""
    arrays = [part.array._replace(count=part.count) for part in origin]
    return RankFile(arrays[0].source, arrays, format=origin[0].format)


def gather(octets: np.ndarray, positions: np.ndarray | None, form: np.dtype) -> np.ndarray:
    """Return a copy of the elements at byte positions, or of all elements, without gaps, if these are None."""
    chosen = octets.copy() if positions is None else view_at_each_byte(octets, form.itemsize)[positions]
    elements: np.ndarray = chosen.view(form)
    return elements


def view_at_each_byte(octets: np.ndarray, nbytes: int) -> np.ndarray:
    """Return overlapping elements of `nbytes`, one from each byte on, in a dtype that NumPy copies bit by bit."""
    dtype = np.dtype(f"{'u' if nbytes in transfer.NUMBERS else 'V'}{nbytes}")
    elements: np.ndarray = np.ndarray((len(octets) - nbytes + 1,), dtype, octets.data, 0, (1,))
    return elements
