"""Origins: the elements that are combined into a window, by position."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from typing import TypeAlias

import numpy as np

from mpired.context import BASE_NBYTES, RESERVED, STREAMED_BASE_NBYTES, Context
from mpired.datatypes import Datatype
from mpired.datatypes.datatype import tail
from mpired.datatypes.typemap import transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import CountError, DatatypeError, UsageError
from mpired.files import calls
from mpired.formats import Array, InputOptions, Model, RankObject, open_rank
from mpired.formats.array import Reader, within_budget, within_memory
from mpired.formats.convert import as_in
from mpired.formats.derived import Widening, in_order, widened
from mpired.formats.memory import ArrayRank
from mpired.formats.rank import lacking
from mpired.ops.state import Elements
from mpired.options import Options, PathLike
from mpired.sources.stream import unpacking_nbytes
from mpired.windows.placement import Index, Runs, check_layout

_BLOCK_NBYTES = 1 << 20
_MAX_OPEN = 16
# Memory of an open file with columns, as measured, and of all that is open if there is no limit.
_COLUMNS_NBYTES, _OPEN_NBYTES = 20 << 20, 320 << 20
_PLACE_NBYTES = 64  # memory of an element whose place a type map gives, while the place is computed

OriginLike: TypeAlias = PathLike | RankObject


class Origin:
    """Elements of an array in native byte order: from the element `first` on, or those at the places of `runs`."""

    def __init__(
        self,
        array: Array,
        context: Context,
        form: str = "",
        first: int = 0,
        count: int | None = None,
        *,
        runs: Runs | None = None,
    ) -> None:
        self.array, self.format = array, form
        self.name, self.datatype = array.source.name, array.datatype
        self.count = max(array.count - first, 0) if count is None else count
        if first + self.count > array.count:
            reason = f"has {array.count} elements, fewer than `origin_disp={first}` and `origin_count={count}` need"
            raise CountError(self.name, reason)
        self.open_nbytes = _COLUMNS_NBYTES if array.isolated else 0  # memory while it is open
        if array.source.packed is not None:
            self.open_nbytes += unpacking_nbytes([array.source])
        self._runs, self._places = runs, np.empty(0, np.int64)  # of a flat file
        self.places_nbytes = 0  # memory of the places of elements, and of all between them
        if runs is not None:
            self.count = runs.entries
            self.places_nbytes = 2 * array.nbytes + self.count * _PLACE_NBYTES
        self.nunset = 0  # elements combined so far that have the value of those that were never written
        # from one block to the next: compressed elements can only be decoded in sequence
        self.stays_open = True
        self._context, self._first = context, first
        self._reader: Reader | None = None
        self._all: Elements | None = None

    def read(self, index: Index) -> Elements:
        """Return elements in an array of the caller's own, and which of them are there; None for all."""
        elements = self._all
        if elements is None and isinstance(index, slice):
            if self._runs is not None:
                return self._scattered(self._runs, index)
            block = np.empty(index.stop - index.start, self.datatype.form)
            reader = self._reader or self.array.open()
            if self.stays_open:
                self._reader = reader
            with nullcontext() if self.stays_open else closing(reader):
                return block, reader.read(self._first + index.start, block)
        if elements is None:
            assert isinstance(index, np.ndarray)  # noqa: S101 - else it has returned
            first, last = (int(index.min()), int(index.max())) if len(index) else (0, 0)
            if last - first < 2 * len(index):  # near each other
                elements, index = self.read(slice(first, last + 1)), index - first
            else:
                elements = self._all = self.read(slice(0, self.count))
        values, valid = elements
        some = values[index]
        return some.copy() if isinstance(index, slice) else some, None if valid is None else valid[index]

    def _scattered(self, runs: Runs, index: slice) -> Elements:
        """Read elements at the places of runs with all that lies between them."""
        if not len(self._places):
            self._places = runs.positions()
        at, array = self._places[index], self.array
        if not len(at):
            return np.empty(0, self.datatype.form), None
        first, stored = int(at.min()), array.stored
        octets = np.zeros(int(at.max()) - first + stored.itemsize, np.uint8)
        needed = octets[: len(octets) - tail(stored)]
        with closing(array.source.open()) as file, calls.errors_name(self.name):
            if file.read_into(needed.data, array.offset + first) < len(needed):
                raise array.source.changed()
        block = as_in(self.datatype.form, gathered(octets, at - first, stored), self.datatype)
        return block, array.valid(block)

    def as_in(self, window: Array, missing: float | None, *, by_shape: bool) -> Origin:
        """Return an origin with the elements in the datatype of a window and, `by_shape`, in its order."""
        array = self.array
        if by_shape:
            array = in_order(array, fortran_order=window.fortran_order)
            if array.shape is not None and array.fortran_order != window.fortran_order and array.isolated:
                reason = f"its format cannot be read in {'Fortran' if window.fortran_order else 'C'} order"
                raise CountError(self.name, f"{reason}, as the target's is; save both in one order")
            if (spare := self._context.spare_memory(BASE_NBYTES)) is not None and array.is_transposed:
                array = within_memory(array, min(array.memory, max(spare // 4, _BLOCK_NBYTES)))
        if window.datatype != self.datatype:
            array = widened(array, window.datatype, Widening(missing))
        if array is self.array:
            return self
        origin = Origin(array, self._context, self.format, self._first, self.count)
        origin.stays_open = self.stays_open
        return origin

    def model(self, *, whole: bool) -> Model:
        """Return the model of a file like this one, with its shape and order if the origin is the `whole` array."""
        mine = self.array
        array = Array.of_result(self.datatype, self.count, byte_order=mine.byte_order)
        if whole:
            array = array._replace(shape=mine.shape, fortran_order=mine.fortran_order)
        array = array._replace(name=mine.name, parts=mine.columns, missing=mine.missing, nulls=mine.nulls)
        return Model(self.format, (array,), mine.source)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all elements, in blocks, without the bytes that carry no value, and close the file at the end."""
        # Behind a block of which elements may be missing comes which of them are there.
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
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def choose_open(origins: Sequence[Origin], context: Context) -> None:
    """Let origins stay open as long as there are descriptors and memory for all that are."""
    nopen, nbytes, limit = 0, 0, context.max_open_files
    most = _MAX_OPEN if limit is None else min(_MAX_OPEN, limit - RESERVED)
    for origin in origins:
        spare = context.spare_memory(STREAMED_BASE_NBYTES if origin.array.isolated else BASE_NBYTES)
        room = _OPEN_NBYTES if spare is None else context.allowed(spare, _OPEN_NBYTES)
        origin.stays_open = nopen < most and nbytes + origin.open_nbytes <= room
        if origin.stays_open:
            nopen, nbytes = nopen + 1, nbytes + origin.open_nbytes


def open_origin(origin: OriginLike, inputs: InputOptions, options: Options, derived: Datatype | None) -> list[Origin]:
    """Open an origin: one array, or all those of a file with columns."""
    first, count, context = options["origin_disp"], options["origin_count"], inputs.context
    for name, number in (("`origin_disp`", first), ("`origin_count`", count or 0)):
        if number < 0:
            raise CountError(f"{name} {number}", "is negative; give 0 or more")
    if is_array := isinstance(origin, ArrayRank):  # which has the byte order that it has
        inputs = inputs._replace(type_order=None)
    # A raw file with too few bytes for an element has none to give (MPI-4.1, 12.3.4).
    inputs = inputs._replace(count=0) if count == 0 and not first else inputs
    # The elements of a derived type need not be whole elements of the basic one.
    inputs = inputs if derived is None or inputs.is_external else inputs._replace(window=True)
    file = open_rank(origin if isinstance(origin, RankObject) else os.fspath(origin), inputs)
    file.check(inputs.taken)
    if derived is not None:
        return [_scattered(file.only_buffer(), derived, first, count, context)]
    arrays = [context.worker.decoding(within_budget(each, context)) if each.isolated else each for each in file.buffers]
    if is_array:  # a target that is made like it has the format of its name, and native byte order
        arrays, file = [array._replace(fixed_order=True) for array in arrays], file._replace(format="")
    return [Origin(array, context, file.format, first, count) for array in arrays]


def _scattered(array: Array, derived: Datatype, first: int, count: int | None, context: Context) -> Origin:
    """Return the components of elements of a derived datatype, the first of them `first` components in."""
    name, itemsize, typemap = array.source.name, array.stored.itemsize, derived.typemap
    if array.reader is not None:
        raise UsageError("`origin_type`", f"is for raw and npy files, and {name} is none")
    check_layout(array, "`origin_type`")
    if count is None and not typemap.entries:
        count = 0
    if count is None:
        rest = array.nbytes - first * itemsize - typemap.true_ub
        if typemap.extent <= 0:
            raise UsageError("`origin_count`", f"is needed, because {derived} has extent {typemap.extent}")
        count = rest // typemap.extent + 1 if rest >= 0 else min(array.nbytes, 1)
    # Before they are laid out: there may be any number of them.
    start, stop = (
        transfer.reach(Run(typemap, first * itemsize, count, typemap.extent)) if count * typemap.size else (0, 0)
    )
    if start < 0 or stop > array.nbytes:
        reach = f"from byte {start} to {stop}"
        raise CountError(name, f"`origin_type` and `origin_count` reach {reach}, but it has {array.nbytes} bytes")
    runs = Runs.of(typemap, array.datatype, itemsize).repeated(first * itemsize, count, typemap.extent, context)
    return Origin(array, context, runs=runs)


def check_like(origin: Sequence[Origin], other: Sequence[Origin], *, datatypes: bool = False) -> None:
    """Raise an error if the arrays of an origin have not the count and shape of those of another."""
    # Their `datatypes` are compared with those of the target too, when that is locked.
    if len(origin) != len(other):
        reason = f"has {len(origin)} arrays, but {other[0].name!r} has {len(other)}"
        names = [each.array.name for each in origin], "the other", [each.array.name for each in other]
        raise CountError(origin[0].name, f"{reason}{lacking('it', *names)}")
    own = {each.array.name: each for each in origin}
    for number, theirs in enumerate(other):  # those of the same names may be in another order
        mine = own.get(theirs.array.name, origin[number])
        if datatypes and mine.datatype != theirs.datatype:
            reason = f"has datatype {mine.datatype.label}, but {theirs.name!r} has {theirs.datatype.label}"
            raise DatatypeError(mine.name, reason)
        if mine.count != theirs.count:
            raise CountError(mine.name, f"has {mine.count} elements, but {theirs.name!r} has {theirs.count}")
        if None not in (mine.array.shape, theirs.array.shape) and mine.array.shape != theirs.array.shape:
            raise CountError(mine.name, f"has shape {mine.array.shape}, but {theirs.name!r} has {theirs.array.shape}")


def gathered(octets: np.ndarray, at: np.ndarray | None, form: np.dtype) -> np.ndarray:
    """Return the elements at some byte positions, as an array of its own; `None` for all, one after another."""
    elements: np.ndarray = (octets.copy() if at is None else at_each_byte(octets, form.itemsize)[at]).view(form)
    return elements


def at_each_byte(octets: np.ndarray, nbytes: int) -> np.ndarray:
    """Return the `nbytes` from each byte on as an element, which NumPy copies as it is."""
    dtype = np.dtype(f"{'u' if nbytes in transfer.NUMBERS else 'V'}{nbytes}")
    elements: np.ndarray = np.ndarray((len(octets) - nbytes + 1,), dtype, octets.data, 0, (1,))
    return elements
