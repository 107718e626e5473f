"""A file format for mpired with named arrays: a list of their names, dtypes and shapes, and their elements."""

import functools
import json
import math
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from mpired.buffers import ArrayLayout, Declared, FlatBuffer, Format, Model, RankFile, Source
from mpired.buffers.arrays import Array
from mpired.buffers.arrays import inspect as described
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls

FORMAT = Format(
    "bundle",
    (".bundle",),
    b"BUNDLE\0\0",
    has_columns=True,
    has_arrays=True,
    updatable=True,
    in_place=True,
    doc="named arrays, one after another",
    place="mpired_bundle",
)
_HEAD_NBYTES, _MAX_LIST = 16, 1 << 20


class Entry(NamedTuple):
    """An array of the list, and the bytes before its first element."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def _entries(source: Source) -> list[Entry]:
    """Return the list of a file, of which nothing is believed before it is checked."""
    with closing(source.open()) as file:
        head = file.read(_HEAD_NBYTES, 0)
        length = int.from_bytes(head[len(FORMAT.magic) :], "little")
        if not head.startswith(FORMAT.magic) or len(head) < _HEAD_NBYTES or length > _MAX_LIST:
            raise BufferFileError(source.name, "has no header; not a valid bundle")
        text = file.read(length, _HEAD_NBYTES)
    found, end = [], _HEAD_NBYTES + length
    try:
        for name, code, shape in json.loads(text):
            found.append(Entry(str(name), np.dtype(code), tuple(map(int, shape)), end))
            end += found[-1].nbytes
    except (ValueError, TypeError, RecursionError) as error:
        raise BufferFileError(source.name, f"its list cannot be read ({error}); not a valid bundle") from None
    if any(each.dtype.kind not in "iuf" or min(each.shape, default=0) < 0 for each in found):
        raise BufferFileError(source.name, "its list has a negative dimension or no numbers; not a valid bundle")
    if end != source.nbytes or len({each.name for each in found}) < len(found):
        raise BufferFileError(source.name, "has another size than its list says, or a name twice; not a valid bundle")
    return found


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a file by its list: mpired reads the elements where they lie."""
    return described(
        source, declared, [Array(each.name, each.dtype, each.shape, each.offset) for each in _entries(source)]
    )


def prepare(model: Model) -> ArrayLayout:
    """Lay out results: `_lay` writes all but the elements, and mpired's workers write these in parallel."""
    entries = []
    for buffer in model.buffers:
        dtype = buffer.datatype.form
        if dtype.kind not in "iuf" or buffer.fortran_order:
            raise DatatypeError(str(buffer.datatype), "has no form in bundles; use another format, as `to='npz'`")
        shape = (buffer.count,) if buffer.shape is None else buffer.shape
        entries.append(Entry(buffer.name or "value", dtype, shape, 0))
    return ArrayLayout(functools.partial(_lay, entries), tuple(each.dtype for each in entries))


def _lay(entries: Sequence[Entry], fd: int) -> list[int]:
    """Write the list, and return where the elements of each array begin."""
    text = json.dumps([(each.name, each.dtype.str, each.shape) for each in entries]).encode()
    head = FORMAT.magic + len(text).to_bytes(8, "little") + text
    ends = [len(head)]
    for each in entries:
        ends.append(ends[-1] + each.nbytes)
    calls.allocate(fd, ends[-1])
    calls.pwrite_all(fd, head, 0)
    return ends[:-1]


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some arrays; the others are copied."""
    new = {each.name: each for each in changed}
    entries = _entries(source)
    old = [
        FlatBuffer(source, array.datatype, array.count, array.stored, array.offset, name=array.name)
        for array in inspect(source, Declared()).buffers
    ]
    layout = ArrayLayout(functools.partial(_lay, entries), tuple(each.dtype for each in entries))
    layout([new.get(each.name, each) for each in old], fd)
