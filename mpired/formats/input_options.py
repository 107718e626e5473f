"""`InputOptions`: options that describe the inputs, such as the combined arrays and the form of raw files."""

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
"""Keywords of the options for files with named arrays."""


class InputOptions(NamedTuple):
    """Options that describe the inputs."""

    datatype: Datatype | None = None  # datatype of an element; required for raw files, checked for others
    byte_order: str | None = None  # "little", "big" or "native" byte order of raw files
    datarep: str | None = None  # data representation of raw files, "native" or "external32" (MPI-4.1, 14.5)
    type_order: str | None = None  # byte order within the option `type`, for files of all formats
    format: str | None = None  # name of the format, or None to recognise it by the content
    columns: tuple[str, ...] = ()  # names or patterns of the columns that are combined, in order; () for all
    pair: tuple[str, str] | None = None  # columns of values and of indices that form a buffer of pairs
    keep: tuple[str, ...] = ()  # names or patterns of the columns that results keep unchanged
    offset: int = 0  # bytes before the first element of raw files
    # number of elements of raw files, or None for all
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    packed: bool = False  # the elements of raw files have no gaps, as after MPI_Pack
    window: bool = False  # the file is a window; bytes after the last whole element of a raw window are ignored
    in_place: bool = False  # the result replaces the file of a rank, which keeps its other columns
    op_groups: Group | None = None  # groups of datatypes that the op takes, or None without an op
    op: Op | None = None  # op, if it can compute in a wider datatype than that of the elements
    nullable: bool = False  # elements may be null
    any_type: bool = False  # arrays of any type are buffers, because they are only compared
    forward: bool = False  # streams are read while they arrive; else they are copied to scratch first
    unpack: bool = False  # packed values are unpacked before they are combined
    follow_links: bool = False  # links to arrays in other files are followed
    check_coordinates: bool = True  # kept arrays must be equal in all ranks
    ignore_coordinates: tuple[str, ...] = ()  # names or patterns of kept arrays that may differ
    coordinate_rtol: float | None = None  # relative tolerance of the comparison, or None
    noun: str = "array"  # word of the format for an array
    named: bool = False  # structures keep their field names, because a user-defined op sees them
    is_particular: bool = False  # the call has options that only some formats support
    context: Context = NO_LIMITS

    @classmethod
    def of(cls, options: Options, context: Context) -> InputOptions:
        """Check the options of a call and return them."""
        type_text, types = cast("str | None", options.get("type")), options.get("types")
        defined = None if types is None else datatypes.definitions(os.fspath(types))
        datatype, order = (None, None) if type_text is None else datatypes.parse(type_text, defined)
        byte_order, datarep = options.get("byte_order"), options.get("datarep")
        if order is not None and byte_order not in (None, order):
            raise UsageError("`byte_order`", f"{byte_order} contradicts `type={type_text!r}`")
        if datarep == "external32" and {byte_order, order} - {"big", None}:
            raise UsageError("`datarep`", f"external32 is big-endian, not {byte_order or order}")
        columns, pair = tuple(options.get("columns") or ()), tuple(options.get("pair") or ())
        if pair and (columns or len(pair) != 2 or pair[0] == pair[1]):  # noqa: PLR2004 - a pair
            raise UsageError("`pair`", "names two different columns, value and index, and takes the place of `columns`")
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise UsageError("`columns`", f"names {twice!r} twice")
        keywords = ("byte_order", "datarep", "format", "offset", "count", *OF_ARRAYS)
        inputs = cls(**{keyword: options[keyword] for keyword in keywords if options.get(keyword) is not None})
        is_particular = bool(columns or pair) or inputs != cls()
        return inputs._replace(
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
        """Return whether elements of a raw file interleave; packed and external32 elements never do."""
        return datatype.is_spread and not self.is_external and not self.packed

    def start(self, datatype: Datatype) -> int:
        """Return the bytes before the first element of a raw file, whose displacement 0 is at `offset`."""
        return self.offset - (0 if self.is_external or self.packed else datatype.origin)

    def datatype_error(self, source: Source, datatype: Datatype, elements: str) -> DatatypeError:
        """Return the error for a file whose header contradicts the declared datatype."""
        hint = "give a file that `mpired pack` has made with that type" if self.packed else "leave `type` out"
        return DatatypeError(source.name, f"{elements}, which is not {datatype.label}; {hint}")

    @property
    def stream_limit(self) -> int | None:
        """The maximum bytes that are read of a stream, or None if they are not known."""
        if self.count is None or self.datatype is None:
            return None
        if self.spreads(self.datatype):
            return self.datatype.typemap.reach(self.count, self.offset)[1]
        return self.start(self.datatype) + self.count * self.stored(self.datatype).itemsize
