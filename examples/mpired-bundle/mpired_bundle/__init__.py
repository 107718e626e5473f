"""A file format for mpired with named arrays: a list of their names, dtypes and shapes, and their elements."""

import functools
import json
from contextlib import closing

import numpy as np

from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.formats import ArrayLayout, Format, InputOptions, Model, RankFile, Source
from mpired.formats.arrays import ArrayHeader
from mpired.formats.arrays import inspect as described

FORMAT = Format("bundle", (".bundle",), b"BUNDLE\0\0", has_columns=True, has_arrays=True, updatable=True, in_place=True,
    doc="named arrays, one after another", place="mpired_bundle")  # fmt: skip
_HEAD_NBYTES, _MAX_LIST = 16, 1 << 20


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a file by its list, of which nothing is believed before it is checked; mpired reads the elements."""
    with closing(source.open()) as file:
        head = file.read(_HEAD_NBYTES, 0)
        length = int.from_bytes(head[len(FORMAT.magic) :], "little")
        if not head.startswith(FORMAT.magic) or len(head) < _HEAD_NBYTES or length > _MAX_LIST:
            raise BufferFileError(source.name, "has no header; not a valid bundle")
        text = file.read(length, _HEAD_NBYTES)
    found, end = [], _HEAD_NBYTES + length
    try:
        for name, code, shape in json.loads(text):
            found.append(ArrayHeader(str(name), np.dtype(code), tuple(map(int, shape)), end))
            end += found[-1].count * found[-1].dtype.itemsize
    except (ValueError, TypeError, RecursionError) as error:
        raise BufferFileError(source.name, f"its list cannot be read ({error}); not a valid bundle") from None
    if any(each.dtype.kind not in "iuf" or min(each.shape, default=0) < 0 for each in found):
        raise BufferFileError(source.name, "its list has a negative dimension or no numbers; not a valid bundle")
    if end != source.nbytes or len({each.name for each in found}) < len(found):
        raise BufferFileError(source.name, "has another size than its list says, or a name twice; not a valid bundle")
    return described(source, inputs, found)


def prepare(model: Model) -> ArrayLayout:
    """Lay out results: `_lay` writes all but the elements, and mpired's workers write these in parallel."""
    for buffer in model.buffers:
        if buffer.datatype.form.kind not in "iuf" or buffer.fortran_order:
            raise DatatypeError(str(buffer.datatype), "has no form in bundles; use another format, such as `to='npz'`")
    return ArrayLayout(functools.partial(_lay, model), tuple(buffer.datatype.form for buffer in model.buffers))


def _lay(model: Model, fd: int) -> list[int]:
    """Write the list, and return where the elements of each array begin."""
    every = [(each, each.datatype.form, (each.count,) if each.shape is None else each.shape) for each in model.buffers]
    text = json.dumps([(each.name or "value", form.str, shape) for each, form, shape in every]).encode()
    ends = [_HEAD_NBYTES + len(text)]
    for each, form, _ in every:
        ends.append(ends[-1] + each.count * form.itemsize)
    calls.allocate(fd, ends[-1])
    calls.pwrite_all(fd, FORMAT.magic + len(text).to_bytes(8, "little") + text, 0)
    return ends[:-1]
