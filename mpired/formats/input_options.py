"""Options that describe the inputs, beyond what the files say themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from mpired import datatypes
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import Datatype, Group
from mpired.errors import DatatypeError, UsageError
from mpired.formats.convert import Order
from mpired.ops import Op
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.options import Options

ORDERS: dict[str | None, Order] = {"little": "<", "big": ">", "native": "=", None: "="}


OF_ARRAYS = ("unpack", "follow_links", "check_coordinates", "ignore_coordinates", "coordinate_rtol")
"""The options of files of arrays."""


class InputOptions(NamedTuple):
    """Options that describe the inputs, beyond what the files say themselves."""

    datatype: Datatype | None = None  # the MPI datatype of an element; needed for raw, elsewhere it must agree
    byte_order: str | None = None  # "little", "big" or "native", of raw files
    datarep: str | None = None  # "native" or "external32", the data representation of raw files (MPI-4.1, 14.5)
    # the byte order that `datatype` was given with, "little", "big" or "native"; of every file
    type_order: str | None = None
    format: str | None = None  # the name of a format, instead of looking at the content
    columns: tuple[str, ...] = ()  # the columns that are buffers, in order; empty for all
    pair: tuple[str, str] | None = None  # two columns that are together one buffer of pairs, (value, index)
    keep: tuple[str, ...] = ()  # the columns that are carried into the result as they are
    offset: int = 0  # bytes before the first element, of raw files
    # number of elements, of raw files; None for all there are
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    packed: bool = False  # whether raw files have elements without any gaps, as MPI_Pack leaves them
    # whether the file is a window: of a raw one that ends within an element, it is the whole elements
    window: bool = False
    in_place: bool = False  # whether the result replaces one of the files, which keeps its other columns
    taken: Group | None = None  # the groups of datatypes that the op takes; None where there is no op
    op: Op | None = None  # the op, if it can compute in a wider datatype than that of the elements
    nullable: bool = False  # whether elements may be null
    any_type: bool = False  # whether arrays of any type are buffers, because they are only compared
    # whether a stream is read as it arrives; else a copy of it is read
    forward: bool = False
    unpack: bool = False  # whether packed values are unpacked before they are combined
    follow_links: bool = False  # whether a file may lead to arrays in other files
    check_coordinates: bool = True  # whether arrays that results carry have to be the same in all ranks
    ignore_coordinates: tuple[str, ...] = ()  # the names of those that may differ, or patterns of them
    coordinate_rtol: float | None = None  # the relative tolerance in which they are the same; None for none
    noun: str = "array"  # the word of the file's format for an array
    named: bool = False  # whether the fields of a structure keep their names, because a user-defined op sees them
    is_particular: bool = False  # whether options that have a meaning for some formats alone may be among them
    context: Context = NO_LIMITS  # the settings of the call

    @classmethod
    def of(cls, options: Options, context: Context) -> InputOptions:
        """Return those of a call, which are checked."""
        text, types = cast("str | None", options.get("type")), options.get("types")
        defined = None if types is None else datatypes.definitions(os.fspath(types))
        datatype, order = (None, None) if text is None else datatypes.parse(text, defined)
        byte_order, datarep = options.get("byte_order"), options.get("datarep")
        if order is not None and byte_order not in (None, order):
            raise UsageError("`byte_order`", f"{byte_order} contradicts `type={text!r}`")
        if datarep == "external32" and {byte_order, order} - {"big", None}:
            raise UsageError("`datarep`", f"external32 is big-endian, not {byte_order or order}")
        columns, pair = tuple(options.get("columns") or ()), tuple(options.get("pair") or ())
        if pair and (columns or len(pair) != 2 or pair[0] == pair[1]):  # noqa: PLR2004 - a pair
            raise UsageError("`pair`", "names two different columns, value and index, and takes the place of `columns`")
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise UsageError("`columns`", f"names {twice!r} twice")
        same = ("byte_order", "datarep", "format", "offset", "count", *OF_ARRAYS)
        found = cls(**{name: options[name] for name in same if options.get(name) is not None})
        is_particular = bool(columns or pair) or found != cls()
        return found._replace(
            is_particular=is_particular, datatype=datatype, type_order=order, columns=columns,
            pair=(pair[0], pair[1]) if pair else None, context=context,
        )  # fmt: skip

    @property
    def is_external(self) -> bool:
        """Whether raw files are in external32."""
        return self.datarep == "external32"

    @property
    def order(self) -> Order:
        """The byte order of raw files."""
        return ORDERS[self.byte_order or self.type_order]

    def stored(self, datatype: Datatype) -> np.dtype:
        """Return the NumPy form of elements of a datatype in a raw file."""
        if self.is_external:
            return datatype.external_form
        if self.packed:
            return datatype.packed_form.newbyteorder(self.order)
        return datatype.form.newbyteorder(self.order)

    def spreads(self, datatype: Datatype) -> bool:
        """Return whether elements of a datatype are spread over a raw file; packed and in external32 they are not."""
        return datatype.is_spread and not self.is_external and not self.packed

    def start(self, datatype: Datatype) -> int:
        """Return the bytes before the form of the first element in a raw file; its displacement 0 is at `offset`."""
        return self.offset - (0 if self.is_external or self.packed else datatype.origin)

    def refused(self, source: Source, datatype: Datatype, what: str) -> DatatypeError:
        """Return the error for a file that says of its elements that they are something else."""
        hint = "give a file that `mpired pack` has made with that type" if self.packed else "leave `type` out"
        return DatatypeError(source.name, f"{what}, which is not {datatype.label}; {hint}")

    @property
    def stream_limit(self) -> int | None:
        """The most bytes that a stream has to give, None if that is not known."""
        if self.count is None or self.datatype is None:
            return None
        if self.spreads(self.datatype):
            from mpired.formats.spread import Records  # noqa: PLC0415 - few elements are spread

            return Records(self.datatype, self.count, self.offset).reach[1]
        return self.start(self.datatype) + self.count * self.stored(self.datatype).itemsize
