"""NumPy's .npy: versions 1 to 3, whose header NumPy reads.

Its length and its contents are checked against the file, because NumPy believes both.
"""

from __future__ import annotations

import functools
import io
import math
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from mpired.datatypes import TIMES, Group, as_numbers, from_dtype, value_type
from mpired.datatypes.times import is_of_numpy, numpy_form
from mpired.errors import BufferFileError, DatatypeError
from mpired.formats.array import NOWHERE, UNKNOWN_COUNT, Array
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import FlatLayout
from mpired.formats.rank import NO_DATATYPE, Model, RankFile, SkippedArray, declared, dtype_text
from mpired.sources.local import peek
from mpired.sources.source import Source

MAGIC = b"\x93NUMPY"
_NAME = "npy"
_MAX_HEADER = 64 << 10
_MAX_NDIM = 64
_MAX_DIM = 2**63 - 1
_MAX_FIELD = 1 << 20
_START_NBYTES = 12  # no header is shorter
_LENGTH_BYTES = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
_KEYS = re.compile(rb"""['"](?:descr|fortran_order|shape)['"]\s*:""")
_WORDS = {"U": "strings", "S": "bytes", "O": "Python objects"}


class NpyHeader(NamedTuple):
    """The header of an array."""

    head: bytes
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype


class _Known(NamedTuple):
    """The meaning of the last header, which is mostly that of the next rank."""

    dtype: np.dtype
    head: bytes
    nbytes: int  # of the source: the meaning depends on it, and on the options
    declared: tuple[object, ...]
    array: Array  # but for its source


_last: _Known | None = None


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an npy file from its header."""
    global _last  # noqa: PLW0603 - read and set at once: threads that meet understand a header again
    known, declarations = _last, (inputs.datatype, inputs.type_order, inputs.named, inputs.any_type)
    is_alike = known is not None and known.nbytes == source.nbytes and known.declared == declarations
    if known and is_alike and not source.is_sequential and peek(source, len(known.head)) == known.head:
        return RankFile(source, (known.array._replace(source=source),), format=_NAME)
    header = header_in(source.name, functools.partial(peek, source))
    dtype, shape = header.dtype, header.shape
    # The end of a stream shows when it is read.
    check_size(source.name, header, None if source.is_sequential else source.nbytes - len(header.head))
    try:
        check_datatype(source.name, dtype)
    except DatatypeError as error:
        if dtype.hasobject or not inputs.any_type:
            other = SkippedArray("", dtype_text(dtype), error.reason, math.prod(shape), shape, label_of(dtype))
            return RankFile(source, (), (other,))
        datatype, stored = value_type(label_of(dtype)), dtype
    else:
        datatype, stored = declared(source, inputs, dtype, "holds"), as_numbers(dtype)
    order = header.fortran_order and len(shape) > 1  # with one dimension both orders are the same
    array = Array(source, datatype, math.prod(shape), stored, len(header.head), shape, order, must_end=True)
    if not source.is_sequential:
        _last = _Known(dtype, header.head, source.nbytes, declarations, array._replace(source=NOWHERE))
    return RankFile(source, (array,), format=_NAME)


def check_datatype(subject: str, dtype: np.dtype) -> None:
    """Raise `DatatypeError` if elements have no datatype."""
    check_not_objects(subject, dtype)
    for name in dtype.names or ():
        if not 0 < math.prod(dtype[name].shape) <= _MAX_FIELD:
            raise DatatypeError(subject, f"the field {name!r} has no number, or more than {_MAX_FIELD}")
    try:
        from_dtype(dtype)
    except DatatypeError:
        raise DatatypeError(subject, f"holds {label_of(dtype)}{NO_DATATYPE}") from None


def check_not_objects(subject: str, dtype: np.dtype) -> None:
    """Raise `DatatypeError` if elements are objects of Python."""
    if dtype.hasobject:
        reason = "holds Python objects, which are pickled code and never loaded; convert them to numbers"
        raise DatatypeError(subject, reason)


def check_size(subject: str, header: NpyHeader, found: int | None) -> None:
    """Raise `BufferFileError` unless `found` bytes are those of the shape; of objects they are not known."""
    shape = header.shape
    if any(type(dim) is not int or not 0 <= dim <= _MAX_DIM for dim in shape):
        _bad(subject, "the shape is not a tuple of counts")
    if len(shape) > _MAX_NDIM:
        _bad(subject, f"the shape has {len(shape)} dimensions, more than {_MAX_NDIM}")
    expected = math.prod(shape) * header.dtype.itemsize
    if not header.dtype.hasobject and (expected > _MAX_DIM or found not in (None, expected)):
        _bad(subject, f"expected {expected} data bytes for the shape {shape}, found {found}")


def label_of(dtype: np.dtype) -> str:
    """Return a description of elements that are not numbers."""
    text = dtype_text(dtype)
    return f"{_WORDS[dtype.kind]} ({text})" if dtype.kind in _WORDS else text


def _bad(name: str, reason: str) -> NoReturn:
    raise BufferFileError(name, f"{reason}; not a valid npy file")


def header_in(name: str, read: Callable[[int, int], bytes]) -> NpyHeader:
    """Read the header of an array; `read` takes a number of bytes and an offset."""
    start = read(_START_NBYTES, 0)
    if not start:
        _bad(name, "the file is empty")
    if start[:6] != MAGIC:
        _bad(name, f"starts with {start[:6]!r}")
    width = _LENGTH_BYTES.get(start[6:8], 0)
    nbytes = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    head = read(min(nbytes, _MAX_HEADER), 0)
    if len(head) < nbytes:
        what = "truncated" if nbytes <= _MAX_HEADER else f"of {nbytes} bytes, more than {_MAX_HEADER}"
        _bad(name, f"the header is {what}")
    try:
        return NpyHeader(head, *_parsed(head[8 + width :], is_utf8=start[6] == 3))  # noqa: PLR2004 - version 3
    except Exception as error:  # noqa: BLE001 - of any kind
        _bad(name, f"the header cannot be read ({' '.join(str(error).split())[:100]})")


@functools.lru_cache(maxsize=64)
def _parsed(text: bytes, *, is_utf8: bool) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, the order and the form of elements that a header declares."""
    if is_utf8:  # which only a private function of NumPy reads
        text = text.decode().encode("ascii", "backslashreplace")
    if len(_KEYS.findall(text)) > 3:  # noqa: PLR2004 - NumPy would take the last of several
        raise ValueError("it has not each key once")
    file = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is Python 2's
        return np.lib.format.read_array_header_2_0(file, max_header_size=len(text))


def prepare(model: Model) -> FlatLayout:
    """Lay out a result like `model`: its shape and order, and its form or at least its byte order."""
    buffer, dtype, known = model.buffers[0], None, _last
    if (source := model.source) is not None:
        is_known = known and peek(source, len(known.head)) == known.head
        dtype = known.dtype if known and is_known else header_in(source.name, functools.partial(peek, source)).dtype
    stored, head = laid_out(buffer, dtype)

    def head_of(count: int) -> bytes:
        counted = buffer._replace(count=count, shape=None, fortran_order=False)
        return laid_out(counted, dtype, nbytes=len(head))[1]

    return FlatLayout(stored, head, head_of=head_of if buffer.count == UNKNOWN_COUNT else None)


def laid_out(buffer: Array, dtype: np.dtype | None, nbytes: int = 0) -> tuple[np.dtype, bytes]:
    """Return the form of the elements of a result like `buffer`, and the header before them."""
    if dtype is None:
        if (dtype := numpy_type(buffer, "npy")).hasobject:
            raise DatatypeError(f"{buffer.datatype}", "has no form in npy; use `to='hdf5'`")
        dtype = dtype.newbyteorder(buffer.byte_order)
    return as_numbers(dtype), header_of(dtype, buffer.dimensions, fortran_order=buffer.fortran_order, nbytes=nbytes)


def numpy_type(buffer: Array, name: str) -> np.dtype:
    """Return NumPy's type of the elements of a result in the format of that name: of truth values and times too."""
    datatype = buffer.datatype
    if datatype.group is Group.VALUE:
        if datatype.form.metadata:  # of lists, or the names of an enumeration
            raise DatatypeError(f"{datatype}", f"has no form in {name}; use `to='hdf5'`")
        return np.lib.format.drop_metadata(datatype.form)
    if datatype.group not in TIMES:
        return buffer.form or (np.dtype(bool) if datatype.is_bool else datatype.form)
    if not is_of_numpy(datatype):
        raise DatatypeError(f"{datatype}", f"has no form in {name}; use `to='parquet'` or `to='arrow'`")
    return numpy_form(datatype)


def header_of(dtype: np.dtype, shape: tuple[int, ...], *, fortran_order: bool, nbytes: int = 0) -> bytes:
    """Return the header of an array, of `nbytes` at least."""
    descr = dtype.str if dtype.names is None else dtype.descr
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {shape!r}, }}"
    try:
        octets, version = text.encode("latin-1"), b"\x01\x00"
    except UnicodeEncodeError:
        octets, version = text.encode(), b"\x03\x00"
    prefix = len(MAGIC) + 2 + (2 if version[0] == 1 else 4)
    octets = octets.ljust(nbytes - prefix - 1)
    octets += b" " * (-(prefix + len(octets) + 1) % 64) + b"\n"  # the data is aligned to 64 bytes
    return MAGIC + version + len(octets).to_bytes(prefix - 8, "little") + octets
