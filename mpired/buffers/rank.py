"""What a rank is: a file with one buffer, or with one a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

import numpy as np

from mpired.buffers.declared import ORDERS
from mpired.buffers.flat import Order
from mpired.buffers.model import BufferModel, Model
from mpired.buffers.source import Source
from mpired.datatypes import Datatype, Group
from mpired.errors import DatatypeError, UsageError, escaped

_ALL = ~Group(0)


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
    def columns(self) -> tuple[str, ...]: ...
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
    def datarep(self) -> str | None: ...
    @property
    def isolated(self) -> bool: ...
    def open(self) -> Reader: ...


def blocks(buffer: RankBuffer, count: int) -> Iterator[np.ndarray]:
    """Yield all elements of a buffer, at most `count` at a time, in the datatype's native form."""
    with closing(buffer.open()) as reader:
        for start in range(0, buffer.count, count):
            block = np.empty(min(count, buffer.count - start), buffer.datatype.form)
            reader.read(start, block)
            yield block


class RankFile(NamedTuple):
    """A rank: its file, and its buffers in order.

    Of a file with columns also the names and types of those that are no buffers, unless some were chosen, and the
    number of all. The name of the format is filled in by its row.
    """

    source: Source
    buffers: Sequence[RankBuffer]
    others: Sequence[tuple[str, str]] = ()
    ncolumns: int = 0
    format: str = ""

    def __repr__(self) -> str:
        """Say what `mpired info` says, on one line."""
        buffers = (f"{each.name + ': ' if each.name else ''}{each.count} x {each.datatype}" for each in self.buffers)
        return f"<{self.format} file {self.source.name!r}: {', '.join(buffers)}>"

    @property
    def model(self) -> Model:
        """What a result is like that is to be like this file."""
        buffers = (
            BufferModel(
                buffer.datatype,
                buffer.count,
                name=buffer.name,
                columns=buffer.columns,
                shape=buffer.shape,
                fortran_order=buffer.fortran_order,
                byte_order=buffer.byte_order,
                datarep=buffer.datarep,
            )
            for buffer in self.buffers
        )
        return Model(self.format, tuple(buffers), self.source)

    def check_complete(self, taken: Group = _ALL) -> None:
        """Raise `DatatypeError` if not every column is a buffer: to leave one out is the user's decision.

        Columns whose datatypes are `taken` are offered to choose.
        """
        for name, kind in self.others:
            numbers = [buffer.name for buffer in self.buffers if buffer.datatype.group in taken]
            raise no_number(self.source, name, kind, numbers)

    def check_some(self) -> None:
        """Raise `DatatypeError` if no column is a buffer."""
        if not self.buffers:
            self.check_complete()

    def only_buffer(self) -> RankBuffer:
        """Return the one buffer, where only one can be used.

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
            reason = f"has {number} columns ({names}), and one is needed; choose one with `columns`"
            raise UsageError(self.source.name, reason)
        return self.buffers[0]


def no_number(source: Source, column: str, kind: object, numbers: Sequence[str]) -> DatatypeError:
    """Return the error for a column that cannot be a buffer; `numbers` are those that can."""
    hint = f"choose with `columns='{','.join(numbers)}'`" if numbers else "there is no other that can be reduced so"
    return DatatypeError(source.name, f"column {column!r} is {kind}, no number; {hint}")


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
