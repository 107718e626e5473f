"""Raw binary: elements of a declared datatype, after a header that is skipped."""

from __future__ import annotations

import numpy as np

from mpired.datatypes import Datatype
from mpired.errors import CountError, UsageError
from mpired.formats.array import UNKNOWN_COUNT, Array
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import Encoder, FlatLayout
from mpired.formats.rank import Model, RankFile
from mpired.formats.spread import Records, SpreadReader, spread_encoder
from mpired.sources.source import Source


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a raw file."""
    if inputs.datatype is None:
        raise UsageError(source.name, "is raw binary, which does not store the type of its elements; give `type`")
    if inputs.window and inputs.is_external:
        raise UsageError("`datarep='external32'`", "describes origins; a window is in the native form")
    datatype, stored = inputs.datatype, inputs.stored(inputs.datatype)
    if inputs.spreads(datatype):
        source = source.kept()
        count = Records.of(source, datatype, inputs.offset, inputs.count).count
        spread = Array(source, datatype, count, stored, inputs.offset, reader=SpreadReader, datarep="native")
        return RankFile(source, (spread,))
    count = _count(source, inputs, datatype, stored)
    buffer = Array(source, datatype, count, stored, inputs.start(datatype), datarep=inputs.datarep or "native")
    return RankFile(source, (buffer._replace(must_end=inputs.count is None),), format="raw")


def _count(source: Source, inputs: InputOptions, datatype: Datatype, stored: np.dtype) -> int:
    if inputs.count == 0:
        return 0
    start = inputs.start(datatype)
    if start < 0:
        reason = f"the first element of {datatype.label} starts {-start} bytes before the file; give an `offset`"
        raise CountError(source.name, reason)
    if source.is_sequential:  # its end shows when it is read
        return UNKNOWN_COUNT if inputs.count is None else inputs.count
    nbytes = source.nbytes - start
    if nbytes < 0:
        raise CountError(source.name, f"has {source.nbytes} bytes, fewer than `offset={inputs.offset}` skips")
    # The padding of the last element may be missing (MPI-4.1, 5.1.6); external32 has none.
    tail = 0 if inputs.is_external or inputs.packed else datatype.tail
    available, rest = divmod(nbytes + tail if nbytes else 0, stored.itemsize)
    if inputs.count is not None:
        if inputs.count > available:
            reason = f"has {available} elements of {datatype.label}, fewer than `count={inputs.count}`"
            raise CountError(source.name, reason)
        return inputs.count
    if rest > tail and not inputs.window:
        where = f" after the {start} skipped" if start else ""
        packed = "in external32" if inputs.is_external else "without gaps" if inputs.packed else None
        what = f"the bytes of {datatype.label} {packed}" if packed else f"the extent of {datatype.label}"
        reason = f"{nbytes} bytes{where} is not a multiple of {stored.itemsize}, {what}"
        raise CountError(source.name, reason)
    return available


def prepare(model: Model) -> FlatLayout | Encoder:
    """Lay out a result like `model`: no header, its byte order, or external32 as it is."""
    buffer = model.buffers[0]
    datatype = buffer.datatype
    if buffer.datarep == "external32":
        return FlatLayout(datatype.external_form)
    stored = datatype.form.newbyteorder(buffer.byte_order)
    if datatype.is_spread:
        Records(datatype, buffer.count, 0).check_apart("other formats take them one after another, e.g. `to='npy'`")
        return Encoder(spread_encoder(datatype, stored))
    # A first entry behind the start of its element is there in the result, too.
    offset = max(0, -datatype.origin)
    return FlatLayout(stored, bytes(offset))
