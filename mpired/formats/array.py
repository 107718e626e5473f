"""Arrays of files, and the reader of flat ones: consecutive elements, stored as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpired.context import STREAMED_BASE_NBYTES, STREAMED_LEAST_NBYTES, Context
from mpired.datatypes import Datatype
from mpired.datatypes.pairs import FIELDS, column_of
from mpired.errors import BufferFileError, CountError, MpiredError
from mpired.files import calls
from mpired.formats.convert import Order, byte_order, convert, same_layout
from mpired.formats.missing import Missing, masked, null_error
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source

UNKNOWN_COUNT = 1 << 63  # the count of an array whose end shows when it is read: one more than any file can declare
NOWHERE: Source = LocalSource("a result", "", (0, 0, 0, 0))
"""The source of arrays that are only models of results."""
REGISTERED = 2  # `isbuiltin` of a dtype that another library has made: its elements are combined as a wider type


class Reader(Protocol):
    """An open array."""

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with native elements from `start` on, and return which are valid; None if all are."""

    def close(self) -> None:
        """Close the file."""


class Opener(Protocol):
    """The way to read arrays that are not flat; it can be pickled."""

    def __call__(self, array: Array, /) -> Reader:
        """Open an array."""


class Array(NamedTuple):
    """An array of a file: one rank's buffer, as its header describes it. Small and picklable."""

    source: Source  # the file
    datatype: Datatype  # of an element as it is combined
    # number of elements, or `UNKNOWN_COUNT`
    count: int  # type: ignore[assignment]  # tuples are not counted
    stored: np.dtype  # the NumPy form of an element in the file: its byte order, and a pair packed or padded
    offset: int = 0  # bytes before the first element
    shape: tuple[int, ...] | None = None  # the dimensions that the file declares, None where it declares none
    fortran_order: bool = False  # whether the first index of `shape` runs fastest, as the elements are read
    name: str = ""  # the name in the file; "" if it has none
    dims: tuple[str, ...] = ()  # the names of its dimensions, "" for one without; () if none has any
    parts: tuple[str, ...] = ()  # the columns that it consists of: one, or those of the values and indices of pairs
    reader: Opener | None = None  # opens it; None for a flat array
    isolated: bool = False  # whether a library decodes it, which a damaged file may end together with the process
    memory: int = 0  # the most bytes that `reader` decodes or reads ahead at once; 0 if it does neither
    grain: int = 1  # the elements that are decoded together
    is_transposed: bool = False  # whether the elements are read in the other order than they are stored in
    values: Array | None = None  # the plain values in the file, of pairs whose indices are generated
    datarep: str | None = None  # "native" or "external32", of a raw file; None where the format leaves no choice
    to_end: bool = False  # whether a source that is read forward has to end behind the last element
    like: tuple[str, str] | None = None  # what this rank and another one are called, if the count is of the other one
    nulls: int | None = 0  # how many elements are missing, as far as the header tells; None if it does not say
    nullable: bool = False  # whether elements may be missing; else that is an error
    missing: Missing | None = None  # which values mean that an element is missing; None if none does
    # where a byte for each element begins that is 0 if the element is null; None if there are none
    validity: int | None = None
    # of a window, whose elements are all there: which values mean to readers of its file that one is missing
    marked: Missing | None = None
    unset: float | None = None  # the value of elements that were never written, if nothing declares it; None without
    unit: str = ""  # the unit of the values, as the file names it; "" if it does not
    storage: str = ""  # how the file stores them, in a few words; "" if there is nothing to say
    packed: str = ""  # NumPy's name for the elements that stand for these in the file; "" if they are not packed
    # whether the format has one byte order for all, so that results in others do not take it over
    fixed_order: bool = False
    alone: str | None = None  # of a result of one of several ops, the name that it would have alone; None of others
    modelled_on: tuple[str, ...] = ()  # of a result, the names of the columns of the rank's file that it is made of

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions: one of all elements where the file declares none."""
        return (self.count,) if self.shape is None else self.shape

    @property
    def axes(self) -> list[tuple[str, int]]:
        """The name, "" for none, and the length of each dimension."""
        names = self.dims if len(self.dims) == len(self.dimensions) else [""] * len(self.dimensions)
        return list(zip(names, self.dimensions, strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it consists of; an array with a name is one."""
        return self.parts or ((self.name,) if self.name else ())

    @property
    def origin(self) -> str:
        """Of a result the array of the rank's file whose dimensions it has: that of its name, unless it got another."""
        return self.own_name if self.own_name in self.modelled_on else next(iter(self.modelled_on), self.own_name)

    @property
    def own_name(self) -> str:
        """Of a result its name if its op were the only one."""
        return self.name if self.alone is None else self.alone

    @property
    def byte_order(self) -> Order:
        """The byte order of the stored elements: "<", ">" or, for single bytes and where there is no choice, "="."""
        if self.fixed_order:
            return "="
        return ">" if self.datarep == "external32" else byte_order(self.stored)

    @property
    def form(self) -> np.dtype | None:
        """The native form of a structure with the names and gaps of a file that says them; None for other elements."""
        return self.stored.newbyteorder("=") if self.stored.names and self.datarep is None else None

    @property
    def nbytes(self) -> int:
        """The bytes that a type map can address: those of the elements, or a whole raw file."""
        elements, rest = self.count * self.stored.itemsize, max(self.source.nbytes - self.offset, 0)
        return elements if self.shape is not None else rest if self.to_end else min(elements, rest)

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last element."""
        return self.offset + self.count * self.stored.itemsize

    @property
    def result(self) -> Array:
        """An array of a result that is like this one."""
        columns = self.columns
        return Array(
            NOWHERE, self.datatype, self.count, self.stored, 0, self.shape, self.fortran_order, self.name,
            dims=self.dims, parts=columns, datarep=self.datarep, fixed_order=self.fixed_order,
            modelled_on=columns if self.values is None else self.values.columns,
        )  # fmt: skip

    @classmethod
    def of_result(
        cls, datatype: Datatype, count: int, shape: tuple[int, ...] | None = None, byte_order: Order = "="
    ) -> Array:
        """Return an array of a result that is like that of no rank."""
        return cls(NOWHERE, datatype, count, datatype.form.newbyteorder(byte_order), shape=shape)

    def of_datatype(self, datatype: Datatype) -> Array:
        """Return an array of a result with elements of another datatype."""
        if datatype == self.datatype:
            return self
        return self._replace(datatype=datatype, stored=datatype.form.newbyteorder(self.byte_order))

    def of_field(self, datatype: Datatype, field: str) -> Array:
        """Return an array of a result with elements of another datatype, for one field of pairs if that is not ""."""
        made = self.of_datatype(datatype)
        if field not in FIELDS:
            return made
        name = column_of(self.name, self.columns, field)
        return made._replace(name=name, parts=self.columns if field == FIELDS[1] else (name,))

    def valid(self, block: np.ndarray) -> np.ndarray | None:
        """Return which elements of a block are valid by their values; None if all are."""
        valid = None if self.missing is None else self.missing.present(block)
        if valid is not None and not self.nullable:
            raise null_error(self.source, self.columns, int(np.count_nonzero(~valid)), "missing elements")
        return valid

    def miscounted(self, what: str) -> MpiredError:
        """Return the error for a rank whose end tells another count than its header, or than another rank."""
        if self.shape is not None:
            return BufferFileError(self.source.name, f"has {what}, but its header declares {self.count}")
        this, other = self.like or ("it", "`count`")
        return CountError(self.source.name, f"{this} has {what}, but {other} has {self.count}")

    def open(self) -> Reader:
        """Open the file for reading by element ranges; cheapest in ascending order."""
        return FlatReader(self) if self.reader is None else self.reader(self)


def stored_array(array: Array) -> Array:
    """Return the array in the file; the values only, if indices are generated."""
    return array.values or array


def with_stored(array: Array, **changes: Any) -> Array:
    """Return an array with changes of the one in the file."""
    if array.values is None:
        return array._replace(**changes)
    stored = array.values._replace(**changes)
    return array._replace(values=stored, source=stored.source, count=stored.count)


def within_memory(array: Array, nbytes: int) -> Array:
    """Return an array with the most bytes that it may decode or read ahead at once."""
    return with_stored(array, memory=nbytes) if stored_array(array).memory else array


def within_budget(array: Array, context: Context) -> Array:
    """Return an array that decodes no more at once than the user's limit of memory leaves for it."""
    if not array.isolated or (spare := context.spare_memory(STREAMED_LEAST_NBYTES)) is None:
        return array
    context.check_memory(STREAMED_BASE_NBYTES)
    return within_memory(array, context.allowed(spare, stored_array(array).memory))


def blocks(
    array: Array, count: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield elements of an array, at most `count` at a time, in native form, and which are valid; None if all."""
    stop = array.count if stop is None else stop
    with closing(array.open()) as reader:
        for at in range(start, stop, count):
            block = np.empty(min(count, stop - at), array.datatype.form)
            yield block, reader.read(at, block)


def whole(array: Array, context: Context) -> np.ndarray:
    """Return all elements of a small array."""
    elements = np.empty(array.count, array.datatype.form)
    with closing((context.worker.decoding(array) if array.isolated else array).open()) as reader:
        valid = reader.read(0, elements)
    return elements if valid is None else masked(elements, ~valid)


class FlatReader:
    """Reads element ranges of an array that is flat. The caller closes it."""

    def __init__(self, array: Array, file: OpenSource | None = None) -> None:
        self._array = array
        self.file = file or array.source.open()
        self.close = self.file.close
        self._itemsize = array.stored.itemsize
        self._direct = array.stored == array.datatype.form or same_layout(array.stored, array.datatype)

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, in native byte order, and return which are valid."""
        array = self._array
        stored = block if self._direct else np.empty(len(block), array.stored)
        octets = stored.view(np.uint8)
        try:  # cheaper than a context: it is done for each block of each rank
            got = self.file.read_into(octets.data, array.offset + start * self._itemsize)
        except OSError as error:
            error.filename = array.source.name
            raise
        if (lacking := len(octets) - got) > 0:
            tail, nbytes = array.datatype.tail, start * self._itemsize + got
            if array.source.is_sequential and lacking > tail:
                count, rest = divmod(nbytes, self._itemsize)
                is_uneven = array.shape is None and rest > tail
                raise self._uneven(nbytes) if is_uneven else array.miscounted(f"count {count}")
            # A raw file may end with the last element's last component, before its padding (MPI-4.1, 5.1.6).
            if self._itemsize != array.datatype.extent or lacking > tail:
                raise array.source.changed()
            octets[got:] = 0
        if not self._direct:
            convert(stored, block, array.source.name, start)
        if array.missing is not None:
            return array.valid(block)
        if array.validity is None:
            return None
        valid = np.zeros(len(block), np.bool_)
        with calls.errors_name(array.source.name):
            self.file.read_into(valid.view(np.uint8).data, array.validity + start)
        return valid

    def available(self, start: int, count: int) -> int:
        """Return how many of some elements there are before the end of a source that is read forward."""
        array, position = self._array, self._array.offset + start * self._itemsize
        with calls.errors_name(array.source.name):
            if start == 0 and position and not self.file.ahead(1, position - 1):
                raise CountError(array.source.name, "has fewer bytes than `offset` skips")
            nbytes = self.file.ahead(count * self._itemsize, position)
        found, rest = divmod(nbytes + array.datatype.tail if nbytes else 0, self._itemsize)
        if nbytes < count * self._itemsize and rest > array.datatype.tail:
            raise self._uneven(start * self._itemsize + nbytes)
        return min(found, count)

    def check_end(self) -> None:
        """Raise an error if a source that is read forward goes on behind the last element, and is to end there."""
        array = self._array
        if array.to_end and self.file.ahead(1, array.end):
            raise array.miscounted(f"more than {array.count} elements")

    def _uneven(self, nbytes: int) -> CountError:
        """Return the error for a source whose bytes are not a whole number of elements."""
        what = f"the bytes of an element of {self._array.datatype.label}"
        return CountError(self._array.source.name, f"{nbytes} bytes is not a multiple of {self._itemsize}, {what}")
