"""A file format for mpired: a header of sixteen bytes with dtype and count, and the elements."""

from contextlib import closing

import numpy as np

from mpired.datatypes import from_dtype
from mpired.errors import BufferFileError, DatatypeError
from mpired.formats import Array, FlatLayout, Format, InputOptions, Model, RankFile, Source, check_declared

FORMAT = Format("mini", (".mini",), b"MINI", updatable=True, doc="a code, a count, the elements", place="mpired_mini")
_MAGIC_NBYTES, _CODE_NBYTES, _HEAD_NBYTES = 4, 4, 16


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a file from its header; a file that is cut is refused here, before anything is written."""
    with closing(source.open()) as file:
        head = file.read(_HEAD_NBYTES, 0)
    if len(head) < _HEAD_NBYTES or not head.startswith(FORMAT.magic):
        raise BufferFileError(source.name, "has no header; not a valid mini file")
    try:
        stored = np.dtype(head[_MAGIC_NBYTES:][:_CODE_NBYTES].decode("ascii").strip())
    except (TypeError, ValueError) as error:
        raise BufferFileError(source.name, f"its header cannot be read ({error}); not a valid mini file") from None
    count = int.from_bytes(head[_MAGIC_NBYTES + _CODE_NBYTES :], "little")
    if stored.kind not in "iuf" or source.nbytes != _HEAD_NBYTES + count * stored.itemsize:
        raise BufferFileError(source.name, "has another size than its header says; not a valid mini file")
    datatype = inputs.datatype or from_dtype(stored)
    check_declared(source, inputs, datatype, stored, "holds")
    return RankFile(source, [Array(source, datatype, count, stored, _HEAD_NBYTES, (count,))])


def prepare(model: Model) -> FlatLayout:
    """Lay out a result: mpired writes the header, and its workers write the elements behind it."""
    buffer = model.buffers[0]
    stored = buffer.datatype.form
    if stored.kind not in "iuf" or len(stored.str) > _CODE_NBYTES or buffer.fortran_order:
        raise DatatypeError(str(buffer.datatype), "has no form in mini files; use another format, such as `to='npy'`")
    head = FORMAT.magic + stored.str.encode().ljust(_CODE_NBYTES) + buffer.count.to_bytes(8, "little")
    return FlatLayout(stored, head)
