"""NumPy's .npy, versions 1 to 3. NumPy parses the header, whose length and shape are checked against the file."""

from __future__ import annotations

import functools
import io
import math
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import numpy as np

from mpired.datatypes import TIMES, Group, from_dtype, numeric_form, value_type
from mpired.datatypes.dtypes import has_numpy_type, numpy_form
from mpired.errors import BufferFileError, DatatypeError
from mpired.formats.array import NOWHERE, UNKNOWN_COUNT, Array
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import FlatLayout
from mpired.formats.rank import NO_DATATYPE, Model, RankFile, SkippedArray, declared_datatype, dtype_text
from mpired.sources.local import peek
from mpired.sources.source import Source

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 64 << 10
_MAX_NDIM = 64
_MAX_DIM = 2**63 - 1
_MAX_FIELD = 1 << 20
_START_NBYTES = 12  # minimum length of a header
_LENGTH_BYTES = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}  # by the version
_KEYS = re.compile(rb"""['"](?:descr|fortran_order|shape)['"]\s*:""")
_PLURALS = {"U": "strings", "S": "bytes", "O": "Python objects"}


class NpyHeader(NamedTuple):
    """The header of an array."""

    head: bytes
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype


class _CachedHeader(NamedTuple):
    """The last header, and the array that it describes: most ranks have the same header."""

    dtype: np.dtype
    head: bytes
    nbytes: int  # size of the source
    declarations: tuple[object, ...]  # options that `array` depends on
    array: Array  # has no source


_cached: _CachedHeader | None = None


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an npy file from its header."""
    global _cached  # noqa: PLW0603 - each thread reads and sets it at once; at worst a header is parsed twice
    cached, declarations = _cached, (inputs.datatype, inputs.type_order, inputs.named, inputs.any_type)
    is_alike = cached is not None and cached.nbytes == source.nbytes and cached.declarations == declarations
    if cached and is_alike and not source.is_sequential and peek(source, len(cached.head)) == cached.head:
        return RankFile(source, (cached.array._replace(source=source),))
    header = read_header(source.name, functools.partial(peek, source))
    dtype, shape = header.dtype, header.shape
    # The size of a stream is checked at its end.
    check_size(source.name, header, None if source.is_sequential else source.nbytes - len(header.head))
    try:
        check_datatype(source.name, dtype)
    except DatatypeError as error:
        if dtype.hasobject or not inputs.any_type:
            skipped = SkippedArray("", dtype_text(dtype), error.reason, math.prod(shape), shape, label_of(dtype))
            return RankFile(source, (), (skipped,))
        datatype, stored = value_type(label_of(dtype)), dtype
    else:
        datatype, stored = declared_datatype(source, inputs, dtype, "holds"), numeric_form(dtype)
    fortran_order = header.fortran_order and len(shape) > 1  # with one dimension both orders are the same
    array = Array(source, datatype, math.prod(shape), stored, len(header.head), shape, fortran_order, must_end=True)
    if not source.is_sequential:
        _cached = _CachedHeader(dtype, header.head, source.nbytes, declarations, array._replace(source=NOWHERE))
    return RankFile(source, (array,))


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


def check_size(subject: str, header: NpyHeader, nbytes: int | None) -> None:
    """Raise `BufferFileError` unless the shape has `nbytes` bytes of elements, which are None for a stream."""
    shape = header.shape
    if any(type(dim) is not int or not 0 <= dim <= _MAX_DIM for dim in shape):
        _bad(subject, "the shape is not a tuple of counts")
    if len(shape) > _MAX_NDIM:
        _bad(subject, f"the shape has {len(shape)} dimensions, more than {_MAX_NDIM}")
    expected = math.prod(shape) * header.dtype.itemsize  # pickled objects have any size
    if not header.dtype.hasobject and (expected > _MAX_DIM or nbytes not in (None, expected)):
        _bad(subject, f"expected {expected} data bytes for the shape {shape}, found {nbytes}")


def label_of(dtype: np.dtype) -> str:
    """Return a description of elements that are not numbers."""
    text = dtype_text(dtype)
    return f"{_PLURALS[dtype.kind]} ({text})" if dtype.kind in _PLURALS else text


def _bad(name: str, reason: str) -> NoReturn:
    raise BufferFileError(name, f"{reason}; not a valid npy file")


def read_header(name: str, read: Callable[[int, int], bytes]) -> NpyHeader:
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
        problem = "truncated" if nbytes <= _MAX_HEADER else f"of {nbytes} bytes, more than {_MAX_HEADER}"
        _bad(name, f"the header is {problem}")
    try:
        return NpyHeader(head, *_parse(head[8 + width :], is_utf8=start[6] == 3))  # noqa: PLR2004 - version 3
    except Exception as error:  # noqa: BLE001 - NumPy raises errors of many types
        _bad(name, f"the header cannot be read ({' '.join(str(error).split())[:100]})")


@functools.lru_cache(maxsize=64)
def _parse(text: bytes, *, is_utf8: bool) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether the order is Fortran's, and the dtype that a header declares."""
    if is_utf8:  # the public functions of NumPy cannot read it
        text = text.decode().encode("ascii", "backslashreplace")
    if len(_KEYS.findall(text)) > 3:  # noqa: PLR2004 - NumPy would use the last of several equal keys
        raise ValueError("it has not each key once")
    file = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers written by Python 2
        return np.lib.format.read_array_header_2_0(file, max_header_size=len(text))


def prepare(model: Model) -> FlatLayout:
    """Return the layout of a result like `model`, with the dtype of the model's file, or its byte order."""
    result, dtype, cached = model.buffers[0], None, _cached
    if (source := model.source) is not None:
        cached = cached if cached and peek(source, len(cached.head)) == cached.head else None
        dtype = (cached or read_header(source.name, functools.partial(peek, source))).dtype
    stored, head = form_and_header(result, dtype)

    def head_of(count: int) -> bytes:
        counted = result._replace(count=count, shape=None, fortran_order=False)
        return form_and_header(counted, dtype, nbytes=len(head))[1]

    return FlatLayout(stored, head, head_of=head_of if result.count == UNKNOWN_COUNT else None)


def form_and_header(result: Array, dtype: np.dtype | None, nbytes: int = 0) -> tuple[np.dtype, bytes]:
    """Return the form of the elements of a result, and its header of at least `nbytes` bytes."""
    if dtype is None:
        if (dtype := numpy_type(result, "npy")).hasobject:
            raise DatatypeError(f"{result.datatype}", "has no form in npy; use `to='hdf5'`")
        dtype = dtype.newbyteorder(result.byte_order)
    return numeric_form(dtype), header_of(dtype, result.dimensions, fortran_order=result.fortran_order, nbytes=nbytes)


def numpy_type(result: Array, form: str) -> np.dtype:
    """Return the dtype of the elements of a result in a format of that name, with booleans and times of NumPy."""
    datatype = result.datatype
    if datatype.group is Group.VALUE:
        if datatype.form.metadata:  # lists, or an enumeration with names
            raise DatatypeError(f"{datatype}", f"has no form in {form}; use `to='hdf5'`")
        return np.lib.format.drop_metadata(datatype.form)
    if datatype.group not in TIMES:
        return result.form or (np.dtype(bool) if datatype.is_bool else datatype.form)
    if not has_numpy_type(datatype):
        raise DatatypeError(f"{datatype}", f"has no form in {form}; use `to='parquet'` or `to='arrow'`")
    return numpy_form(datatype)


def header_of(dtype: np.dtype, shape: tuple[int, ...], *, fortran_order: bool, nbytes: int = 0) -> bytes:
    """Return the header of an array, of at least `nbytes` bytes."""
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
