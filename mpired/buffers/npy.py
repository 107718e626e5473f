"""NumPy's .npy: versions 1 to 3, read by a strict parser of its own.

`np.load` accepts duplicate keys and trailing bytes, believes a length before it has looked at the
file, and answers a bad file with six kinds of exception. The header here is a small grammar: one
dictionary with exactly the keys descr, fortran_order and shape.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from contextlib import closing
from typing import Any, NoReturn

import numpy as np

from mpired.buffers.declared import ORDERS, Declared
from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.literal import Literal
from mpired.buffers.model import Model
from mpired.buffers.rank import Other, RankFile, dtype_text
from mpired.buffers.source import Source
from mpired.datatypes import agrees, from_dtype, with_fields
from mpired.errors import BufferFileError, DatatypeError
from mpired.storage import calls

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 64 << 10
_MAX_NDIM = 64
_MAX_DIM = 2**63 - 1
_MAX_FIELD = 1 << 20
_MAX_FIELD_NDIM = 32
_MAX_ITEMSIZE = 2**31 - 1
_KEYS = {"descr", "fortran_order", "shape"}
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_CODE = re.compile(r"[<>|=]?(?:[biufc]\d{1,2}|\?)", re.ASCII)
_PADDING = re.compile(r"\|?V\d{1,10}", re.ASCII)


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe an npy file from its header.

    Raises
    ------
    BufferFileError
        If the header is damaged or the size does not fit it.
    DatatypeError
        If no MPI datatype has the form of the elements, or the declared one has another.
    """
    offset, fields = _read_header(source)
    try:
        dtype = _dtype(source, fields["descr"])
        made = declared.datatype or _datatype(source, dtype)
    except DatatypeError as error:
        return _not_numbers(source, fields, offset, error)
    shape, fortran_order = _dims(source, fields, offset, dtype)
    count = math.prod(shape)
    datatype = with_fields(made, dtype.names if declared.named and declared.datatype is None else None)
    if not agrees(datatype, dtype):
        raise declared.refused(source, datatype, f"holds {dtype_text(dtype)}")
    if declared.type_order and dtype.newbyteorder(ORDERS[declared.type_order]) != dtype:
        raise DatatypeError(source.name, f"holds {dtype_text(dtype)}, which is not {declared.type_order}-endian")
    stored = _stored(dtype)
    order = fortran_order and len(shape) > 1  # with one dimension both orders are the same
    return RankFile(source, (FlatBuffer(source, datatype, count, stored, offset, shape, order),))


def _dims(source: Source, fields: dict[str, Any], offset: int, dtype: np.dtype) -> tuple[tuple[int, ...], bool]:
    """Return the shape and whether the order is Fortran's, if the file has as many bytes; objects have any number."""
    shape, fortran_order = _shape(source, fields["shape"]), fields["fortran_order"]
    if not isinstance(fortran_order, bool):
        _bad(source, "fortran_order is neither True nor False")
    expected = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and (expected > _MAX_DIM or source.nbytes - offset != expected):
        _bad(source, f"expected {expected} data bytes for the shape {shape}, found {source.nbytes - offset}")
    return shape, fortran_order


def _not_numbers(source: Source, fields: dict[str, Any], offset: int, error: DatatypeError) -> RankFile:
    """Describe an array of elements that are of no MPI datatype, as texts, times or objects.

    Raises
    ------
    DatatypeError
        The error, if NumPy does not know what they are either.
    """
    try:
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise error from None
    shape, _ = _dims(source, fields, offset, dtype)
    return RankFile(source, (), (Other("", dtype_text(dtype), error.reason, math.prod(shape), shape),))


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the form in which elements are read and written: truth values are bytes."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def _datatype(source: Source, dtype: np.dtype) -> Any:
    try:
        return from_dtype(dtype)
    except DatatypeError:
        raise DatatypeError(source.name, f"no predefined MPI datatype for elements of {dtype_text(dtype)}") from None


def _bad(source: Source, reason: str) -> NoReturn:
    raise BufferFileError(source.name, f"{reason}; not a valid npy file")


def _read_header(source: Source) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data in bytes, and the three fields of the header."""
    with closing(source.open()) as file, calls.blaming(source.name):
        start = file.read(12, 0)
        if not start:
            _bad(source, "the file is empty")
        if start[:6] != MAGIC[: len(start)]:
            _bad(source, f"starts with {start[:6]!r}")
        length_bytes = _LENGTH_BYTES.get((start[6], start[7])) if len(start) >= 8 else 0  # noqa: PLR2004 - magic and version
        if length_bytes is None:
            _bad(source, f"version {start[6]}.{start[7]} is not supported")
        if not length_bytes or len(start) < 8 + length_bytes:
            _bad(source, "the header is truncated")
        length = int.from_bytes(start[8 : 8 + length_bytes], "little")
        if length > _MAX_HEADER:
            _bad(source, f"the header claims {length} bytes, more than {_MAX_HEADER}")
        offset = 8 + length_bytes + length
        if offset > source.nbytes:
            _bad(source, "the header is truncated")
        text = file.read(length, 8 + length_bytes)
    return offset, _parse(source, text, "utf-8" if start[6] >= 3 else "latin-1")  # noqa: PLR2004 - UTF-8 from version 3


def _parse(source: Source, text: bytes, encoding: str) -> dict[str, Any]:
    try:
        value = _value(text, encoding)
    except ValueError as error:
        _bad(source, f"the header cannot be read ({error})")
    if not isinstance(value, dict) or value.keys() != _KEYS:
        _bad(source, "the header has not exactly the keys descr, fortran_order and shape")
    return value


@functools.lru_cache(maxsize=64)
def _value(text: bytes, encoding: str) -> Any:
    """Return the value of a header's text, which is mostly that of the rank before."""
    return Literal(text.decode(encoding)).whole()


def _shape(source: Source, value: Any) -> tuple[int, ...]:
    dims = value if isinstance(value, tuple) else None
    if dims is None or any(type(dim) is not int or dim > _MAX_DIM for dim in dims):
        _bad(source, "the shape is not a tuple of counts")
    if len(dims) > _MAX_NDIM:
        _bad(source, f"the shape has {len(dims)} dimensions, more than {_MAX_NDIM}")
    return dims


def _dtype(source: Source, descr: Any) -> np.dtype:
    """Return the NumPy form that a descr means: a plain code, or a structure of plain codes."""
    if isinstance(descr, str):
        return _plain(source, descr)
    if not isinstance(descr, list) or not descr:
        _bad(source, "the descr is neither a code nor a list of fields")
    names, formats, offsets, offset = [], [], [], 0
    for field in descr:
        name, code, shape = _field(source, field)
        if not name and not shape and _PADDING.fullmatch(code):
            offset += int(code.lstrip("|")[1:])
            continue
        if not name:
            _bad(source, "a field has no name")
        names.append(name)
        formats.append(np.dtype((_plain(source, code), shape)))
        offsets.append(offset)
        offset += formats[-1].itemsize
    if offset > _MAX_ITEMSIZE:
        raise DatatypeError(source.name, f"elements of {offset} bytes are more than NumPy can hold")
    if len(set(names)) < len(names):
        _bad(source, "two fields have one name")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": offset})


def _field(source: Source, field: Any) -> tuple[str, str, tuple[int, ...]]:
    """Return the name, the code and the shape, () for one number, of a field of a structure."""
    name, code, shape = (*field, ())[:3] if isinstance(field, tuple) and len(field) in (2, 3) else (None, None, ())
    if not isinstance(name, str) or not isinstance(code, str):
        raise DatatypeError(source.name, "structures with fields of their own are no predefined MPI datatype")
    dims = shape if isinstance(shape, tuple) else None
    if dims is None or len(dims) > _MAX_FIELD_NDIM or any(type(dim) is not int or dim < 1 for dim in dims):
        _bad(source, f"the shape of the field {name!r} is not a tuple of counts from 1 on")
    if math.prod(dims) > _MAX_FIELD:
        raise DatatypeError(source.name, f"the field {name!r} has more than {_MAX_FIELD} numbers")
    return name, code, dims


def _plain(source: Source, code: str) -> np.dtype:
    if code in ("O", "|O", "O8", "|O8"):
        raise DatatypeError(source.name, "holds Python objects, which are pickled code and never loaded")
    if _CODE.fullmatch(code):
        with contextlib.suppress(TypeError):
            return np.dtype(code)
    raise DatatypeError(source.name, f"no predefined MPI datatype for elements of {code[:40]}")


def prepare(model: Model) -> FlatLayout:
    """Lay out a result like `model`: its shape and order, and its descr or at least its byte order."""
    buffer = model.buffers[0]
    shape = (buffer.count,) if buffer.shape is None else buffer.shape
    if model.source:
        descr = _read_header(model.source)[1]["descr"]
        stored = _stored(_dtype(model.source, descr))
    else:
        stored = buffer.datatype.form.newbyteorder(buffer.byte_order)
        descr = "|b1" if buffer.datatype.is_bool else np.lib.format.dtype_to_descr(stored)
    return FlatLayout(stored, _format_header(descr, shape, fortran_order=buffer.fortran_order))


def header_of(dtype: np.dtype, shape: tuple[int, ...], *, fortran_order: bool) -> bytes:
    """Return the header of a file with such an array, whether `inspect` takes one or not.

    Raises
    ------
    ValueError
        If no header describes its structure.
    """
    descr = dtype.str if dtype.names is None else dtype.descr
    return _format_header(descr, shape, fortran_order=fortran_order)


def _format_header(descr: Any, shape: tuple[int, ...], *, fortran_order: bool) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {shape!r}, }}"
    try:
        octets, version = text.encode("latin-1"), b"\x01\x00"
    except UnicodeEncodeError:
        octets, version = text.encode(), b"\x03\x00"
    prefix = len(MAGIC) + 2 + (2 if version[0] == 1 else 4)
    octets += b" " * (-(prefix + len(octets) + 1) % 64) + b"\n"  # the data is aligned to 64 bytes
    return MAGIC + version + len(octets).to_bytes(prefix - 8, "little") + octets
