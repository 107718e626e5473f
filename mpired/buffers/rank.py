"""What a rank is: a file with one buffer, or with one a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from mpired.buffers.flat import Order
from mpired.buffers.source import Source
from mpired.buffers.spread import Records
from mpired.datatypes import Datatype
from mpired.errors import DatatypeError, UsageError, escaped

ORDERS: dict[str | None, Order] = {"little": "<", "big": ">", "native": "=", None: "="}


class Reader(Protocol):
    """An open buffer."""

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on, in the datatype's native form."""

    def close(self) -> None:
        """Close the file."""


class RankBuffer(Protocol):
    """One buffer of one rank. Small and picklable: it opens its file when asked to.

    It is `isolated` if a library decodes it, which a damaged file may end together with the process.
    """

    @property
    def source(self) -> Source: ...
    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> Datatype: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def fortran_order(self) -> bool: ...
    @property
    def byte_order(self) -> Order: ...
    @property
    def datarep(self) -> str: ...
    @property
    def isolated(self) -> bool: ...
    def open(self) -> Reader: ...


class RankFile(NamedTuple):
    """A rank: its file, the format's name, its buffers in order.

    Of a file with columns also the names and types of those that are no buffers, unless some were chosen, and the
    number of all.
    """

    source: Source
    format: str
    buffers: Sequence[RankBuffer]
    others: Sequence[tuple[str, str]] = ()
    ncolumns: int = 0

    def check_complete(self) -> None:
        """Raise `DatatypeError` if not every column is a buffer: to leave one out is the user's decision."""
        for name, kind in self.others:
            raise no_number(self.source, name, kind, [buffer.name for buffer in self.buffers])

    def check_some(self) -> None:
        """Raise `DatatypeError` if no column is a buffer."""
        if not self.buffers:
            self.check_complete()

    def only_buffer(self, to: str | None = None) -> RankBuffer:
        """Return the one buffer, where only one can be used, or in a format `to` that holds only one.

        Raises
        ------
        UsageError
            If there are several.
        DatatypeError
            If no column is one.
        """
        self.check_some()
        if len(self.buffers) > 1:
            number, names = len(self.buffers), ", ".join(buffer.name for buffer in self.buffers)
            if to is None:
                reason = f"has {number} columns ({names}), and one is needed; choose one with --columns"
                raise UsageError(self.source.name, reason)
            reason = f"holds one buffer, but there are {number} ({names}); choose one with --columns"
            raise UsageError(f"--to {to}", reason)
        return self.buffers[0]


def no_number(source: Source, column: str, kind: object, numbers: Sequence[str]) -> DatatypeError:
    """Return the error for a column that cannot be a buffer; `numbers` are those that can."""
    hint = f"choose with --columns {','.join(numbers)}" if numbers else "there is no other that is one"
    return DatatypeError(source.name, f"column {column!r} is {kind}, no number; {hint}")


@dataclass(frozen=True, eq=False)
class Declared:
    """What the user says of the inputs, beyond what the files say themselves.

    Parameters
    ----------
    datatype
        The MPI datatype of an element; needed for raw, elsewhere it must agree.
    byte_order
        "little", "big" or "native", of raw files.
    datarep
        "native" or "external32", the data representation of raw files (MPI-4.1, 14.5).
    type_order
        The byte order that `datatype` was given with, "little", "big" or "native"; of every file.
    format
        The name of a format, instead of looking at the content.
    columns
        The columns that are buffers, in order; empty for all.
    pair
        Two columns that are together one buffer of pairs, (value, index).
    offset
        Bytes before the first element, of raw files.
    count
        Number of elements, of raw files; None for all there are.
    packed
        Whether elements lie in raw files without any gaps, as MPI_Pack leaves them.
    named
        Whether the fields of a structure keep their names, because a user-defined op sees them.
    """

    datatype: Datatype | None = None
    byte_order: str | None = None
    datarep: str | None = None
    type_order: str | None = None
    format: str | None = None
    columns: tuple[str, ...] = ()
    pair: tuple[str, str] | None = None
    offset: int = 0
    count: int | None = None
    packed: bool = False
    named: bool = False

    @property
    def describes_bytes(self) -> bool:
        """Whether it is said how elements lie in raw files, those that are written too."""
        return self.byte_order is not None or self.datarep is not None

    @property
    def is_external(self) -> bool:
        """Whether raw files are in external32."""
        return self.datarep == "external32"

    def stored(self, datatype: Datatype) -> np.dtype:
        """Return the NumPy form of elements of a datatype in a raw file."""
        if self.is_external:
            return datatype.external_form
        if self.packed:
            return self.packed_form(datatype)
        return datatype.form.newbyteorder(ORDERS[self.byte_order or self.type_order])

    def spreads(self, datatype: Datatype) -> bool:
        """Tell whether elements of a datatype are spread over a raw file; packed and in external32 they are not."""
        return datatype.is_spread and not self.is_external and not self.packed

    def start(self, datatype: Datatype) -> int:
        """Return the bytes before the form of the first element in a raw file; its displacement 0 is at `offset`."""
        return self.offset - (0 if self.is_external or self.packed else datatype.origin)

    def packed_form(self, datatype: Datatype) -> np.dtype:
        """Return the NumPy form of packed elements of a datatype in the byte order that is declared."""
        return datatype.packed_form.newbyteorder(ORDERS[self.byte_order or self.type_order])

    def of_units(self, unit: Datatype, packed: Declared) -> Declared:
        """Return what is said of packed elements, `packed`, with what is said of the bytes here."""
        return replace(
            packed,
            datatype=unit,
            byte_order=self.byte_order or self.type_order,
            datarep=self.datarep,
            packed=True,
        )

    def refused(self, source: Source, datatype: Datatype, what: str) -> DatatypeError:
        """Return the error for a file that says of its elements that they are something else."""
        way_out = "give what `mpired pack` makes of that type" if self.packed else "leave --type out"
        return DatatypeError(source.name, f"{what}, which is not {datatype}; {way_out}")

    @property
    def stream_limit(self) -> int | None:
        """The most bytes that a stream has to give, None if that is not known."""
        if self.count is None or self.datatype is None:
            return None
        if self.spreads(self.datatype):
            return Records(self.datatype, self.count, self.offset).reach[1]
        return self.start(self.datatype) + self.count * self.stored(self.datatype).itemsize


def dtype_text(dtype: np.dtype, byte_order: str | None = None) -> str:
    """Return a short text for a dtype, perhaps in another byte order: `<f8`, or `(<f8, <i4)` for a structure."""
    if byte_order is not None:
        dtype = dtype.newbyteorder(ORDERS[byte_order])
    if dtype.names is None:
        return dtype.str
    return f"({', '.join(_field_text(dtype[name]) for name in dtype.names)})"


def _field_text(field: np.dtype) -> str:
    return field.base.str + "".join(f"[{n}]" for n in field.shape)


def reordered(fields: Sequence[str], others: Sequence[str], datatype: Datatype) -> str | None:
    """Say how the fields of two structures stand in another order, unless the datatype knows them by their names."""
    if set(fields) != set(others) or list(fields) == list(others) or set(fields) == set(datatype.form.names or ()):
        return None
    return f"fields {', '.join(map(escaped, fields))}, not {', '.join(map(escaped, others))}; save all in one order"
