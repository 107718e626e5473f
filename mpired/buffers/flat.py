"""Buffers whose elements lie one after another in a file: raw and npy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from mpired.buffers.source import Source
from mpired.datatypes import Datatype, counterparts, external32
from mpired.errors import ConversionError
from mpired.storage import calls

Order: TypeAlias = Literal["<", ">", "="]
"""A byte order as NumPy writes it."""


@dataclass(frozen=True, eq=False)
class FlatBuffer:
    """One rank's buffer as a run of elements in a file.

    Parameters
    ----------
    source
        The file.
    datatype
        What an element is.
    count
        Number of elements.
    stored
        The NumPy form of an element as it lies in the file: its byte order, and a pair packed or padded.
    offset
        Bytes before the first element.
    shape
        The shape that the file declares, None where it declares none.
    fortran_order
        Whether the first index of `shape` runs fastest.
    name
        The column's name, for results of formats with columns.
    datarep
        "native" or "external32", of a raw file; None where the format leaves no choice.
    """

    source: Source
    datatype: Datatype
    count: int
    stored: np.dtype
    offset: int = 0
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    name: str = ""
    datarep: str | None = None
    isolated: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ()

    @property
    def byte_order(self) -> Order:
        """The byte order of the stored elements: "<", ">" or, for single bytes, "="."""
        return ">" if self.datarep == "external32" else byte_order(self.stored)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names that the file gives the fields of an element, in its order."""
        return self.stored.names or ()

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last element."""
        return self.offset + self.count * self.stored.itemsize

    def open(self) -> FlatReader:
        """Open the file for reading by element ranges."""
        return FlatReader(self)


class FlatLayout(NamedTuple):
    """How a result lies in a flat file.

    Parameters
    ----------
    stored
        The NumPy form of an element as it is to lie in the file.
    head
        The bytes before the first element.
    around
        A buffer whose file gives the bytes before and after the result instead, for replacing it in place.
    before
        A buffer whose file gives the bytes before the result instead.
    """

    stored: np.dtype
    head: bytes = b""
    around: FlatBuffer | None = None
    before: FlatBuffer | None = None

    @property
    def offset(self) -> int:
        """Bytes before the first element."""
        like = self.around or self.before
        return len(self.head) if like is None else like.offset


class FlatReader:
    """Reads element ranges of a `FlatBuffer`. The caller closes it."""

    def __init__(self, buffer: FlatBuffer) -> None:
        self._buffer = buffer
        self.file = buffer.source.open()
        self._itemsize = buffer.stored.itemsize
        self._direct = lies_as(buffer.stored, buffer.datatype)

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on, in native byte order.

        Raises
        ------
        BufferFileError
            If the file has become shorter.
        ConversionError
            If it holds a value that the native form cannot.
        """
        stored = block if self._direct else np.empty(len(block), self._buffer.stored)
        self._fill(start, stored.view(np.uint8))
        if not self._direct:
            convert(stored, block, self._buffer.source.name, start)

    def _position(self, start: int) -> int:
        return self._buffer.offset + start * self._itemsize

    def _fill(self, start: int, octets: np.ndarray) -> None:
        buffer = self._buffer
        with calls.blaming(buffer.source.name):
            got = self.file.read_into(octets.data, self._position(start))
        missing = len(octets) - got
        if missing:
            # A raw file may end with the last element's last component, before its padding (MPI-4.1, 5.1.6).
            padded = self._itemsize == buffer.datatype.extent
            if not padded or missing > buffer.datatype.tail:
                raise buffer.source.changed()
            octets[got:] = 0

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def byte_order(stored: np.dtype) -> Order:
    """Return the byte order of elements of the form `stored`: "<", ">" or, for single bytes, "="."""
    fields = [stored] if stored.names is None else [stored[name] for name in stored.names]
    orders: dict[str, Order] = {"<": "<", ">": ">"}
    return next((orders[field.base.str[0]] for field in fields if field.base.str[0] in orders), "=")


def lies_as(stored: np.dtype, datatype: Datatype) -> bool:
    """Tell whether elements of the form `stored` have the very bytes of the datatype in memory."""
    form = datatype.form
    if stored == form:
        return True
    if stored.names is None or form.names is None:
        return _layout(stored) == _layout(form)
    names, others = zip(*counterparts(stored.names, form.names), strict=True)
    return _layout(stored, names) == _layout(form, others)


def _layout(dtype: np.dtype, names: Sequence[str] = ()) -> tuple[int, list[tuple[int, str]]]:
    places = {} if dtype.fields is None else {name: (dtype.fields[name][1], dtype[name]) for name in dtype.names or ()}
    fields = [places[name] for name in names or places] or [(0, dtype)]
    return dtype.itemsize, [(offset, f"{field.shape}{field.base.str}") for offset, field in fields]


def convert(source: np.ndarray, target: np.ndarray, file: str, start: int) -> None:
    """Copy elements into another form of the same datatype: byte order, padding, names of fields, external32.

    Raises
    ------
    ConversionError
        If a value does not fit; it names `file`, and the element, `start` being the number of the first.
    """
    parts = [(source, target)]
    if source.dtype.names is not None and target.dtype.names is not None:
        names = counterparts(source.dtype.names, target.dtype.names)
        parts = [(source[old], target[new]) for old, new in names]
    for old, new in parts:
        try:
            external32.convert(old, new)
        except external32.Misfit as misfit:
            raise ConversionError(file, f"element {start + misfit.position}: {misfit.reason}") from None
