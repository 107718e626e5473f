"""What a rank is: a file with one buffer, or with one a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from mpired.buffers.source import Source
from mpired.datatypes import Datatype
from mpired.errors import DatatypeError, UsageError

Order: TypeAlias = Literal["<", ">", "="]
"""A byte order as NumPy writes it."""


class Reader(Protocol):
    """An open buffer."""

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on, in the datatype's native form."""

    def close(self) -> None:
        """Close the file."""


class RankBuffer(Protocol):
    """One buffer of one rank. Small and picklable: it opens its file when asked to."""

    @property
    def source(self) -> Source: ...
    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> Datatype: ...
    @property
    def count(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def fortran_order(self) -> bool: ...
    @property
    def byte_order(self) -> Order: ...
    def open(self) -> Reader: ...


class RankFile(NamedTuple):
    """A rank: its file, the format's name, its buffers in order, and the names and types of columns that are none."""

    source: Source
    format: str
    buffers: Sequence[RankBuffer]
    others: Sequence[tuple[str, str]] = ()

    def check_complete(self) -> None:
        """Raise `DatatypeError` if not every column is a buffer: to leave one out is the user's decision."""
        for name, kind in self.others:
            raise no_number(self.source, name, kind, [buffer.name for buffer in self.buffers])

    def only_buffer(self, to: str) -> RankBuffer:
        """Return the one buffer, for a format `to` that holds only one.

        Raises
        ------
        UsageError
            If there are several.
        """
        if len(self.buffers) != 1:
            names = ", ".join(buffer.name for buffer in self.buffers)
            reason = f"holds one buffer, but there are {len(self.buffers)} ({names}); choose one with --columns"
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
    named
        Whether the fields of a structure keep their names, because a user-defined op sees them.
    """

    datatype: Datatype | None = None
    byte_order: str | None = None
    type_order: str | None = None
    format: str | None = None
    columns: tuple[str, ...] = ()
    pair: tuple[str, str] | None = None
    offset: int = 0
    count: int | None = None
    named: bool = False

    @property
    def describes_raw(self) -> bool:
        """Whether something is said that only raw files need."""
        return bool(self.offset) or self.count is not None or self.byte_order is not None

    @property
    def stream_limit(self) -> int | None:
        """The most bytes that a stream has to give, None if that is not known."""
        if self.count is None or self.datatype is None:
            return None
        return self.offset + self.count * self.datatype.extent
