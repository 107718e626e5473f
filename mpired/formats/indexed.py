"""Plain values that are read as pairs: each with an index, which says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.pairs import FIELDS, column_names
from mpired.formats.rank import RankBuffer
from mpired.sources.source import Source


@dataclass(frozen=True, eq=False)
class IndexedBuffer:
    """One rank's plain values, as pairs of the value and an index (MPI-4.1, 6.9.4, first example of MPI_MAXLOC)."""

    values: RankBuffer  # what is in the file
    datatype: Datatype  # the pair type
    first: int  # the index of the first element
    counting: bool = False  # whether the index rises by one from each element to the next; else it is the same for all
    fields: ClassVar[tuple[str, ...]] = FIELDS
    form: ClassVar[None] = None  # the pairs are in no file

    count = property(attrgetter("values.count"))
    shape = property(attrgetter("values.shape"))
    fortran_order = property(attrgetter("values.fortran_order"))
    byte_order = property(attrgetter("values.byte_order"))
    datarep = property(attrgetter("values.datarep"))
    isolated = property(attrgetter("values.isolated"))

    @property
    def source(self) -> Source:
        """The file."""
        return self.values.source

    @property
    def name(self) -> str:
        """The columns of a table that the pairs become; an array has none."""
        return ",".join(self.columns) if self.values.name else ""

    @property
    def columns(self) -> tuple[str, ...]:
        """What the columns of values and of indices are called in a table."""
        return column_names(self.values.name)

    def open(self) -> IndexedReader:
        """Open the file for reading by element ranges."""
        return IndexedReader(self)


class IndexedReader:
    """Reads element ranges of an `IndexedBuffer`. The caller closes it."""

    def __init__(self, buffer: IndexedBuffer) -> None:
        self._buffer = buffer
        self._values = buffer.values.open()
        self._form = buffer.values.datatype.form

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the pairs of the elements from `start` on, and return which of the values are there."""
        values = np.empty(len(block), self._form)  # not kept: very many ranks may be open
        there = self._values.read(start, values)
        first, (value, index) = self._buffer.first, FIELDS
        block[value] = values
        if self._buffer.counting:
            block[index] = np.arange(first + start, first + start + len(block), dtype=block.dtype[index])
        else:
            block[index] = first
        return there

    def check_end(self) -> None:
        """Do so for the values."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()
