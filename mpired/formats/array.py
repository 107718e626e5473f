"""`Array`, the description of an array of a file, and the reader of flat arrays.

The elements of a flat array are consecutive and not encoded. Other arrays have a `reader`, which decodes elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpired.context import STREAMED_BASE_NBYTES, STREAMED_LEAST_NBYTES, Context
from mpired.datatypes import Datatype, Group
from mpired.datatypes.predefined import FIELDS, VALID, column_name
from mpired.errors import BufferFileError, CountError, DatatypeError, MpiredError, number
from mpired.files import calls
from mpired.formats.convert import Order, byte_order, convert, same_layout
from mpired.formats.missing import Missing, masked
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source

UNKNOWN_COUNT = 1 << 63  # count of a stream that is read to its end; one more than any file can declare
NOWHERE: Source = LocalSource("a result", "", (0, 0, 0, 0))
"""The source of arrays that are only models of results."""


class Reader(Protocol):
    """An open array."""

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with native elements from `start` on, and return the mask, or None if all are valid."""

    def close(self) -> None:
        """Close the file."""


class ArrayOpener(Protocol):
    """Opens arrays that are not flat. Picklable."""

    def __call__(self, array: Array, /) -> Reader:
        """Open an array."""


class Array(NamedTuple):
    """An array of a file, described from the header: the buffer of a rank. Small and picklable."""

    source: Source  # the file
    datatype: Datatype  # of the elements when they are combined
    # number of elements, or `UNKNOWN_COUNT`
    count: int  # type: ignore[assignment]  # tuples are not counted
    stored: np.dtype  # NumPy form of an element in the file, with its byte order and padding
    offset: int = 0  # bytes before the first element
    shape: tuple[int, ...] | None = None  # declared dimensions, or None if the file declares none
    fortran_order: bool = False  # the first index of `shape` runs fastest in the order of reading
    name: str = ""  # name in the file, or ""
    dims: tuple[str, ...] = ()  # names of the dimensions, "" for an unnamed dimension; () if all are unnamed
    parts: tuple[str, ...] = ()  # names of its columns: one, or a column of values and a column of indices
    reader: ArrayOpener | None = None  # opens the array, or None if it is flat
    isolated: bool = False  # a library decodes the elements, in a worker: a damaged file may end the process
    memory: int = 0  # maximum bytes that `reader` decodes or prefetches at once; 0 if it does neither
    grain: int = 1  # number of elements that are decoded together
    is_transposed: bool = False  # the reader changes the order of the dimensions
    values: Array | None = None  # stored values of pairs whose indices are generated
    datarep: str | None = None  # "native" or "external32" of a raw file, None in other formats
    must_end: bool = False  # bytes after the last element are an error in a sequential source
    # names of this rank and of the rank that `count` comes from, for messages
    counted_like: tuple[str, str] | None = None
    nulls: int | None = 0  # number of missing elements, or None if the header does not contain it
    nullable: bool = False  # missing elements are allowed
    missing: Missing | None = None  # rule for missing elements, or None if all values are valid
    mask_offset: int | None = None  # offset of the mask, a byte per element that is 0 for null; None without a mask
    ignored_missing: Missing | None = None  # rule of the file of a window, which all ops ignore
    unset: float | None = None  # undeclared value of elements that were never written, or None
    unit: str = ""  # unit of the values in the file, or ""
    storage: str = ""  # kind of storage in a few words, such as "deflated"; "" for plain storage
    packed: str = ""  # name of the dtype of packed elements, or "" if they are not packed
    fixed_order: bool = False  # the format has a single byte order, which results in other formats do not inherit
    only_op_name: str | None = None  # name of this result if its op were the only op; None if it is the only op
    model_columns: tuple[str, ...] = ()  # columns of the file of a rank from which this result is made

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The shape; without a declared shape, one dimension with all elements."""
        return (self.count,) if self.shape is None else self.shape

    @property
    def axes(self) -> list[tuple[str, int]]:
        """The name, or "", and the length of each dimension."""
        names = self.dims if len(self.dims) == len(self.dimensions) else [""] * len(self.dimensions)
        return list(zip(names, self.dimensions, strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns; a named array is one column."""
        return self.parts or ((self.name,) if self.name else ())

    @property
    def origin(self) -> str:
        """The name of the array in the file of the rank from which a result takes its dimensions."""
        return self.own_name if self.own_name in self.model_columns else next(iter(self.model_columns), self.own_name)

    @property
    def own_name(self) -> str:
        """The name of a result if its op were the only op."""
        return self.name if self.only_op_name is None else self.only_op_name

    @property
    def byte_order(self) -> Order:
        """The byte order of the stored elements: "<", ">", or "=" for single bytes and formats with a fixed order."""
        if self.fixed_order:
            return "="
        return ">" if self.datarep == "external32" else byte_order(self.stored)

    @property
    def form(self) -> np.dtype | None:
        """The native form of structures with the field names and gaps of the file; None for other elements."""
        return self.stored.newbyteorder("=") if self.stored.names and self.datarep is None else None

    @property
    def nbytes(self) -> int:
        """The number of bytes that a type map can address: those of the elements, or the rest of a raw file."""
        elements, available = self.count * self.stored.itemsize, max(self.source.nbytes - self.offset, 0)
        return elements if self.shape is not None else available if self.must_end else min(elements, available)

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last element."""
        return self.offset + self.count * self.stored.itemsize

    @property
    def result(self) -> Array:
        """The model of a result with the same elements, shape and names."""
        columns = self.columns
        return Array(
            NOWHERE, self.datatype, self.count, self.stored, 0, self.shape, self.fortran_order, self.name,
            dims=self.dims, parts=columns, datarep=self.datarep, fixed_order=self.fixed_order,
            model_columns=columns if self.values is None else self.values.columns,
        )  # fmt: skip

    @classmethod
    def of_result(
        cls, datatype: Datatype, count: int, shape: tuple[int, ...] | None = None, byte_order: Order = "="
    ) -> Array:
        """Return the model of a result without a rank as its model."""
        return cls(NOWHERE, datatype, count, datatype.form.newbyteorder(byte_order), shape=shape)

    def of_datatype(self, datatype: Datatype) -> Array:
        """Return the model of a result with elements of `datatype`."""
        if datatype == self.datatype:
            return self
        return self._replace(datatype=datatype, stored=datatype.form.newbyteorder(self.byte_order))

    def of_field(self, datatype: Datatype, field: str) -> Array:
        """Return the model of a result with elements of `datatype`: a field of pairs, or all if `field` is ""."""
        array = self.of_datatype(datatype)
        if field not in FIELDS:
            is_number = self.datatype.group is Group.PAIR and datatype.group is not Group.PAIR
            name = column_name(self.name, self.columns, VALID if is_number else "")
            return array if name == self.name else array._replace(name=name, parts=(name,))
        name = column_name(self.name, self.columns, field)
        return array._replace(name=name, parts=self.columns if field == FIELDS[1] else (name,))

    def mask_of(self, block: np.ndarray) -> np.ndarray | None:
        """Return the mask of a block by the rule `missing`, or None if all elements are valid."""
        valid = None if self.missing is None else self.missing.valid_mask(block)
        if valid is not None and not self.nullable:
            self.check_valid(valid)
        return valid

    def check_valid(self, valid: np.ndarray) -> None:
        """Raise an error if elements are missing by this mask."""
        if not valid.all():
            raise self.null_error(int(np.count_nonzero(~valid)))

    def null_error(self, nulls: int, others: str = "") -> DatatypeError:
        """Return the error for missing elements; `others` names other columns that have some."""
        noun = "null" if self.missing is self.ignored_missing is None else "missing element"
        name = f"{','.join(self.columns)!r} " if self.columns else ""
        reason = f"{name}has {number(nulls, noun)}{others}"
        return DatatypeError(self.source.name, f"{reason}; skip them with `nulls='ignore'`, or fill them first")

    def count_error(self, contents: str) -> MpiredError:
        """Return the error for a source whose contents differ from the count of its header or of another rank."""
        if self.shape is not None:
            return BufferFileError(self.source.name, f"has {contents}, but its header declares {self.count}")
        this, other = self.counted_like or ("it", "`count`")
        return CountError(self.source.name, f"{this} has {contents}, but {other} has {self.count}")

    def open(self) -> Reader:
        """Open a reader of ranges of elements; ascending order is cheapest."""
        return FlatReader(self) if self.reader is None else self.reader(self)


def stored_array(array: Array) -> Array:
    """Return the array in the file; the values only, if indices are generated."""
    return array.values or array


def with_stored(array: Array, **changes: Any) -> Array:
    """Return an array with changed fields of the array in the file."""
    if array.values is None:
        return array._replace(**changes)
    stored = array.values._replace(**changes)
    return array._replace(values=stored, source=stored.source, count=stored.count)


def with_memory_limit(array: Array, nbytes: int) -> Array:
    """Return an array that decodes or prefetches at most `nbytes` at once."""
    return with_stored(array, memory=nbytes) if stored_array(array).memory else array


def limit_decoding(array: Array, context: Context) -> Array:
    """Return an array that decodes within the memory limit of the call."""
    if not array.isolated or (spare := context.spare_memory(STREAMED_LEAST_NBYTES)) is None:
        return array
    context.check_memory(STREAMED_BASE_NBYTES)
    return with_memory_limit(array, context.allowed(spare, stored_array(array).memory))


def blocks(
    array: Array, count: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield blocks of at most `count` native elements, each with its mask, or None if all elements are valid."""
    stop = array.count if stop is None else stop
    with closing(array.open()) as reader:
        for first in range(start, stop, count):
            block = np.empty(min(count, stop - first), array.datatype.form)
            yield block, reader.read(first, block)


def whole(array: Array, context: Context) -> np.ndarray:
    """Return all elements of a small array, masked if some are missing."""
    elements = np.empty(array.count, array.datatype.form)
    with closing((context.worker.decoding(array) if array.isolated else array).open()) as reader:
        valid = reader.read(0, elements)
    return elements if valid is None else masked(elements, ~valid)


class FlatReader:
    """Reads ranges of elements of a flat array. The caller closes it."""

    def __init__(self, array: Array, file: OpenSource | None = None) -> None:
        self._array = array
        self.file = file or array.source.open()
        self.close = self.file.close
        self._itemsize = array.stored.itemsize
        self._direct = array.stored == array.datatype.form or same_layout(array.stored, array.datatype)

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with native elements from `start` on, and return the mask, or None if all are valid."""
        array = self._array
        stored = block if self._direct else np.empty(len(block), array.stored)
        octets = stored.view(np.uint8)
        try:  # faster than `errors_name`, for each block of each rank
            nread = self.file.read_into(octets.data, array.offset + start * self._itemsize)
        except OSError as error:
            error.filename = array.source.name
            raise
        if (lacking := len(octets) - nread) > 0:
            tail, nbytes = array.datatype.tail, start * self._itemsize + nread
            if array.source.is_sequential and lacking > tail:
                count, remainder = divmod(nbytes, self._itemsize)
                is_uneven = array.shape is None and remainder > tail
                raise self._uneven(nbytes) if is_uneven else array.count_error(f"count {count}")
            # A raw file may end with the last element's last component, before its padding (MPI-4.1, 5.1.6).
            if self._itemsize != array.datatype.extent or lacking > tail:
                raise array.source.changed()
            octets[nread:] = 0
        if not self._direct:
            convert(stored, block, array.source.name, start)
        if array.missing is not None:
            return array.mask_of(block)
        if array.mask_offset is None:
            return None
        valid = np.zeros(len(block), np.bool_)
        with calls.errors_name(array.source.name):
            self.file.read_into(valid.view(np.uint8).data, array.mask_offset + start)
        return valid

    def available(self, start: int, count: int) -> int:
        """Return how many of the `count` elements from `start` on a sequential source has."""
        array, position = self._array, self._array.offset + start * self._itemsize
        with calls.errors_name(array.source.name):
            if start == 0 and position and not self.file.available(1, position - 1):
                raise CountError(array.source.name, "has fewer bytes than `offset` skips")
            nbytes = self.file.available(count * self._itemsize, position)
        available, remainder = divmod(nbytes + array.datatype.tail if nbytes else 0, self._itemsize)
        if nbytes < count * self._itemsize and remainder > array.datatype.tail:
            raise self._uneven(start * self._itemsize + nbytes)
        return min(available, count)

    def check_end(self) -> None:
        """Raise an error if a sequential source has bytes after its last element, and must not have them."""
        array = self._array
        if array.must_end and self.file.available(1, array.end):
            raise array.count_error(f"more than {array.count} elements")

    def _uneven(self, nbytes: int) -> CountError:
        """Return the error for a source whose bytes are not a whole number of elements."""
        unit = f"the bytes of an element of {self._array.datatype.label}"
        return CountError(self._array.source.name, f"{nbytes} bytes is not a multiple of {self._itemsize}, {unit}")
