"""NumPy's .npy: versions 1 to 3.

`np.load` accepts duplicate keys and trailing bytes, believes a length before it has looked at the
file, and answers a bad file with six kinds of exception. The header here is a Python literal of limited
length: one dictionary with exactly the keys descr, fortran_order and shape.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import re
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mpired.buffers.declared import Declared
from mpired.buffers.flat import UNKNOWN_COUNT, FlatBuffer, FlatLayout
from mpired.buffers.model import BufferModel, Model, Other
from mpired.buffers.rank import NO_DATATYPE, RankFile, check_declared, datatype_of, dtype_text
from mpired.datatypes import TIMES, Datatype, as_numbers, with_fields
from mpired.datatypes.times import is_of_numpy, numpy_form
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.sources.local import LocalSource, peek
from mpired.sources.source import Source

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 64 << 10
_MAX_NDIM = 64
_MAX_DIM = 2**63 - 1
_MAX_FIELD = 1 << 20
_MAX_FIELD_NDIM = 32
_MAX_ITEMSIZE = 2**31 - 1
_KEYS = {"descr", "fortran_order", "shape"}
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_TIME_UNIT = r"\[\d{0,9}(?:[YMWDhms]|[munpfa]s)\]"
_CODE = re.compile(rf"[<>|=]?(?:[biufc]\d{{1,2}}|\?|[mM]8(?:{_TIME_UNIT})?)", re.ASCII)
_WORDS = {"U": "strings", "S": "bytes", "O": "Python objects"}
_LONG = re.compile(r"""('[^']*'|"[^"]*")|(?<=\d)L\b""")  # a text, or the sign of an integer of Python 2
_PADDING = re.compile(r"\|?V\d{1,10}", re.ASCII)


class _Known(NamedTuple):
    """The meaning of the last header, which is mostly that of the next rank."""

    source: Source | None  # unless that keeps something open
    descr: Any
    head: bytes
    nbytes: int  # of the source: the meaning depends on it, and on what is declared
    declared: Declared
    buffer_of: Callable[[Source], FlatBuffer]


_last: _Known | None = None


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe an npy file from its header."""
    global _last  # noqa: PLW0603 - read and set at once: threads that meet understand a header again
    known = _last
    if known is not None and known.declared == declared and not source.is_forward and known.nbytes == source.nbytes:
        with closing(peek(source)) as file, calls.blaming(source.name):
            head = file.read(len(known.head), 0)
        if head == known.head:
            return RankFile(source, (known.buffer_of(source),))
    offset, fields = _read_header(source)
    try:
        dtype = dtype_in(source.name, fields["descr"])
        made = declared.datatype or datatype_of(dtype, source, f"holds {label_of(dtype)}")
    except DatatypeError as error:
        return _not_numbers(source, fields, offset, error)
    shape, fortran_order = _dims(source, fields, offset, dtype)
    datatype = with_fields(made, dtype.names if declared.named and declared.datatype is None else None)
    check_declared(source, declared, datatype, dtype, "holds")
    order = fortran_order and len(shape) > 1  # with one dimension both orders are the same
    array: dict[str, Any] = {"stored": as_numbers(dtype), "shape": shape, "fortran_order": order, "to_end": True}
    buffer_of: Callable[[Source], FlatBuffer] = functools.partial(
        FlatBuffer, datatype=datatype, count=math.prod(shape), offset=offset, **array
    )
    if not source.is_forward:
        with closing(peek(source)) as file, calls.blaming(source.name):
            head = file.read(offset, 0)
        kept = source if isinstance(source, LocalSource) and source.keep is None else None
        _last = _Known(kept, fields["descr"], head, source.nbytes, declared, buffer_of)
    return RankFile(source, (buffer_of(source),))


def _dims(source: Source, fields: dict[str, Any], offset: int, dtype: np.dtype) -> tuple[tuple[int, ...], bool]:
    """Return the shape and whether the order is Fortran's, if the file has as many bytes."""
    # The end of what is read forward shows when it is read.
    return dims_in(source.name, fields, dtype, None if source.is_forward else source.nbytes - offset)


def dims_in(subject: str, fields: dict[str, Any], dtype: np.dtype, found: int | None) -> tuple[tuple[int, ...], bool]:
    """Return the shape and whether the order is Fortran's, if as many bytes are `found`, unless these are objects."""
    shape, fortran_order = _shape(subject, fields["shape"]), fields["fortran_order"]
    if not isinstance(fortran_order, bool):
        _bad(subject, "fortran_order is neither True nor False")
    expected = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and (expected > _MAX_DIM or found not in (None, expected)):
        _bad(subject, f"expected {expected} data bytes for the shape {shape}, found {found}")
    return shape, fortran_order


def _not_numbers(source: Source, fields: dict[str, Any], offset: int, error: DatatypeError) -> RankFile:
    """Describe an array of elements that are of no datatype, as texts or objects."""
    dtype = any_dtype(fields["descr"])
    if dtype is None:
        raise error
    shape, _ = _dims(source, fields, offset, dtype)
    return RankFile(source, (), (Other("", dtype_text(dtype), error.reason, math.prod(shape), shape, label_of(dtype)),))


def any_dtype(descr: Any) -> np.dtype | None:
    """Return what NumPy makes of a descr, also if the elements are no numbers; None for nothing."""
    with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
        return np.lib.format.descr_to_dtype(descr)
    return None


def label_of(dtype: np.dtype) -> str:
    """Return what elements that are no numbers are, in words."""
    text = dtype_text(dtype)
    return f"{_WORDS[dtype.kind]} ({text})" if dtype.kind in _WORDS else text


def _bad(name: str, reason: str) -> NoReturn:
    raise BufferFileError(name, f"{reason}; not a valid npy file")


def _read_header(source: Source) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data in bytes, and the three fields of the header."""
    with closing(peek(source)) as file, calls.blaming(source.name):
        return header_in(source.name, file.read)


def header_in(name: str, read: Callable[[int, int], bytes]) -> tuple[int, dict[str, Any]]:
    """Return the offset of the data in bytes, and the three fields of the header."""
    start = read(12, 0)
    if not start:
        _bad(name, "the file is empty")
    if start[:6] != MAGIC[: len(start)]:
        _bad(name, f"starts with {start[:6]!r}")
    length_bytes = _LENGTH_BYTES.get((start[6], start[7])) if len(start) >= 8 else 0  # noqa: PLR2004 - magic and version
    if length_bytes is None:
        _bad(name, f"version {start[6]}.{start[7]} is not supported")
    if not length_bytes or len(start) < 8 + length_bytes:
        _bad(name, "the header is truncated")
    length = int.from_bytes(start[8 : 8 + length_bytes], "little")
    if length > _MAX_HEADER:
        _bad(name, f"the header claims {length} bytes, more than {_MAX_HEADER}")
    offset = 8 + length_bytes + length
    text = read(length, 8 + length_bytes)
    if len(text) < length:
        _bad(name, "the header is truncated")
    return offset, _parse(name, text, "utf-8" if start[6] >= 3 else "latin-1")  # noqa: PLR2004 - UTF-8 from version 3


def _parse(name: str, text: bytes, encoding: str) -> dict[str, Any]:
    try:
        value = _value(text, encoding)
    except KeyError:
        _bad(name, "the header is not a dictionary with each key once")
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        _bad(name, "the header cannot be read")
    if not isinstance(value, dict) or value.keys() != _KEYS:
        _bad(name, "the header has not exactly the keys descr, fortran_order and shape")
    return value


@functools.lru_cache(maxsize=64)
def _value(text: bytes, encoding: str) -> Any:
    """Return the value of a header's text, which is mostly that of the rank before."""
    source = text.decode(encoding).strip()
    if "\\" in source:  # no descr has an escape, of which Python may warn
        raise ValueError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source, mode="eval")
        except SyntaxError:
            tree = ast.parse(_LONG.sub(r"\1", source), mode="eval")
    value = ast.literal_eval(tree)
    if isinstance(tree.body, ast.Dict) and len(value) < len(tree.body.keys):
        raise KeyError
    return value


def _shape(name: str, value: Any) -> tuple[int, ...]:
    dims = value if isinstance(value, tuple) else None
    if dims is None or any(type(dim) is not int or not 0 <= dim <= _MAX_DIM for dim in dims):
        _bad(name, "the shape is not a tuple of counts")
    if len(dims) > _MAX_NDIM:
        _bad(name, f"the shape has {len(dims)} dimensions, more than {_MAX_NDIM}")
    return dims


def dtype_in(subject: str, descr: Any) -> np.dtype:
    """Return the NumPy form that a descr means: a plain code, or a structure of plain codes."""
    if isinstance(descr, str):
        return _plain(subject, descr)
    if not isinstance(descr, list) or not descr:
        _bad(subject, "the descr is neither a code nor a list of fields")
    names, formats, offsets, offset = [], [], [], 0
    for field in descr:
        name, code, shape = _field(subject, field)
        if not name and not shape and _PADDING.fullmatch(code):
            offset += int(code.lstrip("|")[1:])
            continue
        if not name:
            _bad(subject, "a field has no name")
        names.append(name)
        formats.append(np.dtype((_plain(subject, code), shape)))
        offsets.append(offset)
        offset += formats[-1].itemsize
    if offset > _MAX_ITEMSIZE:
        raise DatatypeError(subject, f"elements of {offset} bytes are more than NumPy can hold")
    if len(set(names)) < len(names):
        _bad(subject, "two fields have one name")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": offset})


def _field(subject: str, field: Any) -> tuple[str, str, tuple[int, ...]]:
    """Return the name, the code and the shape, () for one number, of a field of a structure."""
    name, code, shape = (*field, ())[:3] if isinstance(field, tuple) and len(field) in (2, 3) else (None, None, ())
    if not isinstance(name, str) or not isinstance(code, str):
        raise DatatypeError(subject, "no predefined MPI datatype has fields with fields of their own; flatten them")
    dims = shape if isinstance(shape, tuple) else None
    if dims is None or len(dims) > _MAX_FIELD_NDIM or any(type(dim) is not int or dim < 1 for dim in dims):
        _bad(subject, f"the shape of the field {name!r} is not a tuple of counts from 1 on")
    if math.prod(dims) > _MAX_FIELD:
        raise DatatypeError(subject, f"the field {name!r} has more than {_MAX_FIELD} numbers")
    return name, code, dims


def _plain(name: str, code: str) -> np.dtype:
    if code in ("O", "|O", "O8", "|O8"):
        reason = "holds Python objects, which are pickled code and never loaded; convert them to numbers"
        raise DatatypeError(name, reason)
    if (dtype := _number(code)) is not None:
        return dtype
    dtype = any_dtype(code)
    what = f"elements of {code[:40]}" if dtype is None else label_of(dtype)
    raise DatatypeError(name, f"holds {what}{NO_DATATYPE}")


@functools.lru_cache(maxsize=64)
def _number(code: str) -> np.dtype | None:
    """Return the form of a number that has a code, None if none has it."""
    if _CODE.fullmatch(code):
        with contextlib.suppress(TypeError):
            return np.dtype(code)
    return None


def prepare(model: Model) -> FlatLayout:
    """Lay out a result like `model`: its shape and order, and its descr or at least its byte order."""
    buffer = model.buffers[0]
    descr = None
    if model.source is not None:  # mostly that of the first rank, which is known
        known = _last
        is_known = known is not None and known.source is model.source
        descr = known.descr if known and is_known else _read_header(model.source)[1]["descr"]
    stored, head = laid_out(buffer, descr)

    def head_of(count: int) -> bytes:
        return laid_out(buffer, descr, count=count, nbytes=len(head))[1]

    return FlatLayout(stored, head, head_of=head_of if buffer.count == UNKNOWN_COUNT else None)


def laid_out(buffer: BufferModel, descr: Any, *, count: int | None = None, nbytes: int = 0) -> tuple[np.dtype, bytes]:
    """Return the form of the elements of a result like `buffer`, and the header before them."""
    if descr is None:
        dtype = (buffer.form or _form_of(buffer.datatype)).newbyteorder(buffer.byte_order)
        descr, stored = np.lib.format.dtype_to_descr(dtype), as_numbers(dtype)
    else:
        stored = as_numbers(dtype_in(buffer.name, descr))
    shape = (buffer.count if count is None else count,) if buffer.shape is None or count is not None else buffer.shape
    order = buffer.fortran_order and count is None
    return stored, _format_header(descr, shape, fortran_order=order, nbytes=nbytes)


def _form_of(datatype: Datatype) -> np.dtype:
    """Return what NumPy calls elements of a datatype."""
    if datatype.group not in TIMES:
        return np.dtype(bool) if datatype.is_bool else datatype.form
    if not is_of_numpy(datatype):
        raise DatatypeError(f"{datatype}", "has no form in npy; use `to='parquet'` or `to='arrow'`")
    return numpy_form(datatype)


def header_of(dtype: np.dtype, shape: tuple[int, ...], *, fortran_order: bool) -> bytes:
    """Return the header of a file with such an array, whether `inspect` takes one or not."""
    descr = dtype.str if dtype.names is None else dtype.descr
    return _format_header(descr, shape, fortran_order=fortran_order)


def _format_header(descr: Any, shape: tuple[int, ...], *, fortran_order: bool, nbytes: int = 0) -> bytes:
    """Return a header, of so many bytes at least."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {shape!r}, }}"
    try:
        octets, version = text.encode("latin-1"), b"\x01\x00"
    except UnicodeEncodeError:
        octets, version = text.encode(), b"\x03\x00"
    prefix = len(MAGIC) + 2 + (2 if version[0] == 1 else 4)
    octets = octets.ljust(nbytes - prefix - 1)
    octets += b" " * (-(prefix + len(octets) + 1) % 64) + b"\n"  # the data is aligned to 64 bytes
    return MAGIC + version + len(octets).to_bytes(prefix - 8, "little") + octets
