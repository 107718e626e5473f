"""What a rank is: a file with one buffer, or with one a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from mpired.buffers.declared import ORDERS
from mpired.buffers.flat import Order
from mpired.buffers.model import BufferModel, Kept, Model
from mpired.buffers.source import Source
from mpired.datatypes import Datatype, Group
from mpired.errors import BufferFileError, DatatypeError, UsageError, escaped


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


@dataclass(frozen=True)
class Other:
    """What of a file is no buffer.

    Parameters
    ----------
    name
        The column's name.
    type
        What its elements are.
    reason
        Why it is none, for an error of the file.
    count, shape
        How many elements there are, and their dimensions, of an array.
    """

    name: str
    type: str
    reason: str
    count: int | None = None
    shape: tuple[int, ...] | None = None


class RankFile(NamedTuple):
    """A rank: its file, and its buffers in order.

    Also what else is in the file, unless columns were chosen, the number of all columns, and those that are kept. The
    name of the format is filled in by its row. The obstacle is why a file that is only looked at has no buffers.
    """

    source: Source
    buffers: Sequence[RankBuffer]
    others: Sequence[Other] = ()
    ncolumns: int = 0
    format: str = ""
    obstacle: str = ""
    kept: Kept | None = None

    @classmethod
    def not_read(cls, source: Source, what: str, obstacle: str) -> RankFile:
        """Return what can be said of a file that is looked at only: what it is, and why it has no buffers."""
        return cls(source, (), format=what, obstacle=obstacle)

    def __repr__(self) -> str:
        """Say what `mpired info` says, on one line."""
        what = [(each.name, f"{each.count} x {each.datatype}") for each in self.buffers]
        what += [(each.name, f"{each.type}, no buffer") for each in self.others]
        texts = (f"{name}: {text}" if name else text for name, text in what)
        return f"<{self.format} file {self.source.name!r}: {', '.join(texts) or 'no buffer'}>"

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
        return Model(self.format, tuple(buffers), self.source, self.kept)

    def check_complete(self, taken: Group | None = None) -> None:
        """Raise an error if not every column is a buffer: to leave one out is the user's decision.

        Columns are offered to choose, where an op combines them those whose datatypes are `taken`.
        """
        self._check_there()
        numbers = [each.name for each in self.buffers if taken is None or each.datatype.group in taken]
        for other in self.others:
            kept = "" if taken is None else f", or carry it with `keep='{other.name}'`"
            hint = f"; {choice(numbers)}{kept}" if self.ncolumns else ""
            raise DatatypeError(self.source.name, f"{other.reason}{hint}")

    def check_some(self) -> None:
        """Raise an error if no column is a buffer, or one has nulls."""
        self._check_there()
        if not self.buffers:
            self.check_complete()

    def _check_there(self) -> None:
        for buffer in self.buffers:
            if nulls := getattr(buffer, "nulls", None):
                raise null_error(self.source, buffer.columns, nulls)
        if not self.buffers and not self.others:
            raise BufferFileError(self.source.name, "has no columns")

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


def choice(columns: Sequence[str]) -> str:
    """Return the way out where some columns cannot be combined: those that can."""
    return f"choose with `columns='{','.join(columns)}'`" if columns else "there is no other that can be reduced so"


def null_error(source: Source, columns: Sequence[str], nulls: int) -> DatatypeError:
    """Return the error for a column with missing values."""
    reason = f"{nulls} nulls in column {','.join(columns)!r}; fill or filter them first, MPI has no missing values"
    return DatatypeError(source.name, reason)


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
