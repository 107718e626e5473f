"""What a result is modelled on: its elements and their form, without a file that it would be read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpired.buffers.flat import Order
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import Datatype, Group
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.buffers.arrays import KeptArrays
    from mpired.buffers.columns import KeptColumns


class Other(NamedTuple):
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
    label
        What its elements are, in words; "" for the type.
    way_out
        What can be done to make it one; "" for nothing.
    group
        The group of its datatype if it is a buffer when it is chosen, None if it cannot be one.
    nulls
        How many values are missing; None if that is not known.
    keeps
        Whether results can carry it.
    unit, storage
        The unit of the values of an array, and how they are stored, in a few words.
    """

    name: str
    type: str
    reason: str
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    shape: tuple[int, ...] | None = None
    label: str = ""
    way_out: str = ""
    group: Group | None = None
    nulls: int | None = None
    keeps: bool = True
    unit: str = ""
    storage: str = ""


class BufferModel(NamedTuple):
    """What one buffer of a result is like.

    Parameters
    ----------
    datatype
        What an element is.
    count
        Number of elements.
    name
        What a column is called; "" for a name by the datatype.
    columns
        The columns of the modelled file that it takes the place of; empty if there are none.
    shape
        The dimensions, for formats that have them; None for one dimension.
    fortran_order
        Whether the first index of `shape` runs fastest.
    form
        NumPy's form of a structure as the modelled file has it, with its names and gaps; None for that of the datatype.
    byte_order
        The byte order of the elements, for formats with any: "<", ">", or "=" for the native one.
    datarep
        "external32" for raw elements in that; else "native", or None where the file has no say.
    nullable
        Whether elements may be null.
    read
        The columns of the modelled file that its elements are made of; empty if it is that of its name.
    """

    datatype: Datatype
    count: int  # type: ignore[assignment]  # tuples are not counted
    name: str = ""
    columns: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    form: np.dtype | None = None
    byte_order: Order = "="
    datarep: str | None = None
    nullable: bool = False
    read: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The column of the modelled file whose dimensions it has: that of its name, unless it got another."""
        return self.name if self.name in self.read else next(iter(self.read), self.name)


Kept: TypeAlias = "KeptArrays | KeptColumns"
"""Columns or arrays of any type that a result has as the modelled file has them."""


class Model(NamedTuple):
    """What a result is like: that of a rank's file is `RankFile.model`.

    Parameters
    ----------
    format
        The name of the format that the result has unless the user wants another.
    buffers
        Its buffers, one at least.
    source
        A file of that format, from which the result has what a format keeps besides: the schema and the compression,
        or the spelling of a header. None if there is none.
    kept
        The columns that the result has too; None for none.
    note
        Its `text` says where the result comes from, when it is written, in a format that has a place for that; None
        for nothing.
    context
        The settings of the call.
    """

    format: str
    buffers: tuple[BufferModel, ...]
    source: Source | None = None
    kept: Kept | None = None
    note: Any = None
    context: Context = NO_LIMITS

    def with_count(self, count: int) -> Model:
        """Return the model of a result with so many elements in one dimension."""
        buffers = (each._replace(count=count, shape=None, fortran_order=False) for each in self.buffers)
        return self._replace(buffers=tuple(buffers))
