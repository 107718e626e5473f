"""What a result is modelled on: its elements and their form, without a file that it would be read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mpired.buffers.flat import Order
from mpired.buffers.source import Source
from mpired.datatypes import Datatype


@dataclass(frozen=True, eq=False)
class BufferModel:
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
    byte_order
        The byte order of the elements, for formats with any: "<", ">", or "=" for the native one.
    datarep
        "external32" for raw elements in that; else "native", or None where the file has no say.
    """

    datatype: Datatype
    count: int
    name: str = ""
    columns: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    byte_order: Order = "="
    datarep: str | None = None


class Kept(Protocol):
    """Columns of any type that a result has as the modelled file has them."""

    @property
    def source(self) -> Source:
        """The file."""

    @property
    def names(self) -> Sequence[str]:
        """Their names, in the order of the file."""

    def check_same(self, other: Any, this: str, like: str) -> None:
        """Raise `BufferFileError` unless another file, `this`, has in them what this one has, which is `like`."""


@dataclass(frozen=True, eq=False)
class Model:
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
    """

    format: str
    buffers: tuple[BufferModel, ...]
    source: Source | None = None
    kept: Kept | None = None

    def with_count(self, count: int) -> Model:
        """Return the model of a result with so many elements in one dimension."""
        buffers = (replace(each, count=count, shape=None, fortran_order=False) for each in self.buffers)
        return replace(self, buffers=tuple(buffers))
