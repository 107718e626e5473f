"""Raw binary: elements of a declared datatype, after a header that is skipped."""

from __future__ import annotations

import numpy as np

from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.rank import Declared, Order, RankFile
from mpired.buffers.source import Source
from mpired.datatypes import Datatype
from mpired.errors import CountError, UsageError

_ORDERS: dict[str | None, Order] = {"little": "<", "big": ">", "native": "=", None: "="}


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
        raise UsageError(source.name, "is raw binary, which says nothing of its elements; give --type")
    count = _count(source, declared, declared.datatype)
    return RankFile(
        source, "raw", (FlatBuffer(source, declared.datatype, count, stored_form(declared), declared.offset),)
    )


def stored_form(declared: Declared) -> np.dtype:
    """Return the form of the elements of a raw file: the declared datatype in the declared byte order."""
    assert declared.datatype is not None  # noqa: S101 - the caller has refused that
    return declared.datatype.form.newbyteorder(_ORDERS[declared.byte_order or declared.type_order])


def _count(source: Source, declared: Declared, datatype: Datatype) -> int:
    nbytes = source.nbytes - declared.offset
    if nbytes < 0:
        raise CountError(source.name, f"has {source.nbytes} bytes, fewer than --offset {declared.offset} skips")
    # The padding of the last element may be missing (MPI-4.1, 5.1.6).
    tail = datatype.extent - datatype.true_extent
    available, rest = divmod(nbytes + tail if nbytes else 0, datatype.extent)
    if declared.count is not None:
        if declared.count > available:
            raise CountError(
                source.name, f"has {available} elements of {datatype}, fewer than --count {declared.count}"
            )
        return declared.count
    if rest > tail:
        where = f" after the {declared.offset} skipped" if declared.offset else ""
        reason = f"{nbytes} bytes{where} is not a multiple of {datatype.extent}, the extent of {datatype}"
        raise CountError(source.name, reason)
    return available


def prepare(template: RankFile) -> FlatLayout:
    """Lay out a result like `template`: no header, its byte order."""
    root = template.only_buffer("raw")
    return FlatLayout(root.datatype.form.newbyteorder(root.byte_order))
