"""Raw binary: elements of a declared datatype, after a header that is skipped."""

from __future__ import annotations

import numpy as np

from mpired.buffers.declared import Declared
from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.rank import RankBuffer, RankFile
from mpired.buffers.source import Source
from mpired.buffers.spread import Records, SpreadBuffer, SpreadLayout
from mpired.datatypes import Datatype
from mpired.errors import CountError, UsageError


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a raw file.

    Raises
    ------
    UsageError
        If no datatype is declared.
    CountError
        If the bytes are not a whole number of elements, or fewer than declared.
    """
    if declared.datatype is None:
        raise UsageError(source.name, "is raw binary, which says nothing of its elements; give `type`")
    stored = declared.stored(declared.datatype)
    if declared.spreads(declared.datatype):
        records = Records.of(source, declared.datatype, declared.offset, declared.count)
        return RankFile(
            source, "raw", (SpreadBuffer(source, declared.datatype, records.count, stored, declared.offset),)
        )
    count = _count(source, declared, declared.datatype, stored)
    buffer = FlatBuffer(
        source,
        declared.datatype,
        count,
        stored,
        declared.start(declared.datatype),
        datarep=declared.datarep or "native",
    )
    return RankFile(source, "raw", (buffer,))


def _count(source: Source, declared: Declared, datatype: Datatype, stored: np.dtype) -> int:
    if declared.count == 0:
        return 0
    start = declared.start(datatype)
    if start < 0:
        reason = f"the first element of {datatype} starts {-start} bytes before the file; give an `offset`"
        raise CountError(source.name, reason)
    nbytes = source.nbytes - start
    if nbytes < 0:
        raise CountError(source.name, f"has {source.nbytes} bytes, fewer than `offset={declared.offset}` skips")
    # The padding of the last element may be missing (MPI-4.1, 5.1.6); external32 has none.
    tail = 0 if declared.is_external or declared.packed else datatype.tail
    available, rest = divmod(nbytes + tail if nbytes else 0, stored.itemsize)
    if declared.count is not None:
        if declared.count > available:
            raise CountError(
                source.name, f"has {available} elements of {datatype}, fewer than `count={declared.count}`"
            )
        return declared.count
    if rest > tail:
        where = f" after the {start} skipped" if start else ""
        packed = "in external32" if declared.is_external else "without gaps" if declared.packed else None
        what = f"the bytes of {datatype} {packed}" if packed else f"the extent of {datatype}"
        reason = f"{nbytes} bytes{where} is not a multiple of {stored.itemsize}, {what}"
        raise CountError(source.name, reason)
    return available


def prepare(template: RankFile) -> FlatLayout | SpreadLayout:
    """Lay out a result like `template`: no header, its byte order, or external32 as it is."""
    root = template.only_buffer("raw")
    is_external = root.datarep == "external32"
    stored = root.datatype.external_form if is_external else root.datatype.form.newbyteorder(root.byte_order)
    return layout(root, stored, is_external=is_external)


def layout(model: RankBuffer, stored: np.dtype, *, is_external: bool) -> FlatLayout | SpreadLayout:
    """Lay out elements of the form `stored`, as many as a buffer has.

    Raises
    ------
    DatatypeError
        If they would overlap.
    """
    if is_external:
        return FlatLayout(stored)
    if model.datatype.is_spread:
        return SpreadLayout.of(model.datatype, stored, model.count)
    # A first entry that lies behind the start of its element does so in the result.
    return FlatLayout(stored, bytes(max(0, -model.datatype.origin)))
