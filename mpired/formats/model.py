"""What a result is modelled on: its elements and their form, without a file that it would be read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpired.context import NO_LIMITS, Context
from mpired.datatypes import Datatype, Group
from mpired.formats.flat import Order
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.formats.arrays import KeptArrays
    from mpired.formats.columns import KeptColumns


class Other(NamedTuple):
    """What of a file is no buffer."""

    name: str
    type: str  # what its elements are
    reason: str  # why it is none, for an error of the file
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    shape: tuple[int, ...] | None = None
    label: str = ""  # what its elements are, in words; "" for the type
    way_out: str = ""  # what can be done to make it one; "" for nothing
    # the group of its datatype if it is a buffer when it is chosen, None if it cannot be one
    group: Group | None = None
    nulls: int | None = None  # how many values are missing; None if that is not known
    keeps: bool = True  # results can carry it
    unit: str = ""
    storage: str = ""  # how the values of an array are stored, in a few words


class BufferModel(NamedTuple):
    """What one buffer of a result is like."""

    datatype: Datatype
    count: int  # type: ignore[assignment]  # tuples are not counted
    name: str = ""  # what a column is called; "" for a name by the datatype
    # the columns of the modelled file that it takes the place of; empty if there are none
    columns: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None  # the dimensions, for formats that have them; None for one dimension
    fortran_order: bool = False  # whether the first index of `shape` runs fastest
    # NumPy's form of a structure as the modelled file has it, with its names and gaps; None for that of the datatype
    form: np.dtype | None = None
    byte_order: Order = "="  # the byte order of the elements, for formats with any: "<", ">", or "=" for the native one
    # "external32" for raw elements in that; else "native", or None where the file has no say
    datarep: str | None = None
    nullable: bool = False  # elements may be null
    # the columns of the modelled file that its elements are made of; empty if it is that of its name
    read: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The column of the modelled file whose dimensions it has: that of its name, unless it got another."""
        return self.name if self.name in self.read else next(iter(self.read), self.name)


Kept: TypeAlias = "KeptArrays | KeptColumns"
"""Columns or arrays of any type that a result has as the modelled file has them."""


class Model(NamedTuple):
    """What a result is like: that of a rank's file is `RankFile.model`."""

    format: str  # the name of the format that the result has unless the user wants another
    buffers: tuple[BufferModel, ...]  # its buffers, one at least
    # a file of that format, from which the result has the schema and the compression, or the spelling of a header
    source: Source | None = None
    kept: Kept | None = None  # columns that the result has too
    note: Any = None  # its `text` says where the result comes from
    context: Context = NO_LIMITS

    def with_count(self, count: int) -> Model:
        """Return the model of a result with so many elements in one dimension."""
        buffers = (each._replace(count=count, shape=None, fortran_order=False) for each in self.buffers)
        return self._replace(buffers=tuple(buffers))
