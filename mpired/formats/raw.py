"""Raw binary: elements of a declared datatype after `offset` bytes."""

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
        source = source.seekable()
        count = Records.of(source, datatype, inputs.offset, inputs.count).count
        spread = Array(source, datatype, count, stored, inputs.offset, reader=SpreadReader, datarep="native")
        return RankFile(source, (spread,))
    count = _count(source, inputs, datatype, stored)
    array = Array(source, datatype, count, stored, inputs.start(datatype), must_end=inputs.count is None)
    return RankFile(source, (array._replace(datarep=inputs.datarep or "native"),))


def _count(source: Source, inputs: InputOptions, datatype: Datatype, stored: np.dtype) -> int:
    """Return the number of elements, from the options or from the size of the source."""
    if inputs.count == 0:
        return 0
    start = inputs.start(datatype)
    if start < 0:
        reason = f"the first element of {datatype.label} starts {-start} bytes before the file; give an `offset`"
        raise CountError(source.name, reason)
    if source.is_sequential:
        return UNKNOWN_COUNT if inputs.count is None else inputs.count
    nbytes = source.nbytes - start
    if nbytes < 0:
        raise CountError(source.name, f"has {source.nbytes} bytes, fewer than `offset={inputs.offset}` skips")
    # The padding of the last element may be missing (MPI-4.1, 5.1.6); external32 has none.
    tail = 0 if inputs.is_external or inputs.packed else datatype.tail
    available, remainder = divmod(nbytes + tail if nbytes else 0, stored.itemsize)
    if inputs.count is not None:
        if inputs.count > available:
            reason = f"has {available} elements of {datatype.label}, fewer than `count={inputs.count}`"
            raise CountError(source.name, reason)
        return inputs.count
    if remainder > tail and not inputs.window:
        skipped = f" after the {start} skipped" if start else ""
        packing = "in external32" if inputs.is_external else "without gaps" if inputs.packed else None
        unit = f"the bytes of {datatype.label} {packing}" if packing else f"the extent of {datatype.label}"
        reason = f"{nbytes} bytes{skipped} is not a multiple of {stored.itemsize}, {unit}"
        raise CountError(source.name, reason)
    return available


def prepare(model: Model) -> FlatLayout | Encoder:
    """Return the layout of a result with the byte order of the model, or in external32 if the model is."""
    result = model.buffers[0]
    datatype = result.datatype
    if result.datarep == "external32":
        return FlatLayout(datatype.external_form)
    stored = datatype.form.newbyteorder(result.byte_order)
    if datatype.is_spread:
        Records(datatype, result.count, 0).check_disjoint("other formats take them one after another, e.g. `to='npy'`")
        return Encoder(spread_encoder(datatype, stored))
    # The displacement of the first entry stays, so that the file can be read with the same type.
    return FlatLayout(stored, bytes(max(0, -datatype.origin)))
