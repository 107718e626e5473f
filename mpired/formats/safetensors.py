"""Safetensors: a header in JSON, and the bytes of the tensors one after another.

The header is read by a parser of our own with strict limits: the tensors are in the file, without gaps or overlaps, as
the format asks for. Elements of the short types of machine learning are combined as MPI_FLOAT, and rounded once when
the result is written; ml_dtypes knows these types, and is needed for them alone.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NoReturn

import numpy as np

from mpired.errors import BufferFileError, DatatypeError, UsageError, installation
from mpired.files import calls
from mpired.formats import arrays
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayHeader, KeptArrays, Library, PiecesFile, copy_pieces, digest_of, is_kept
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, write_elements
from mpired.formats.rank import Model, RankFile
from mpired.formats.sharded import NOTE, Header, divided, headers, read_index, without_doubles
from mpired.sources.directory import INDEX_SUFFIX
from mpired.sources.source import Source

__all__ = ["divided", "inspect", "note", "prepare", "rewrite"]
_MAX_HEADER = 100_000_000  # as the library of the format has it
_MAX_NDIM = 64
_LENGTH = 8
_ALIGNMENT = 8
_METADATA = "__metadata__"
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_SHORT = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_FORMS = _DTYPES | {"BOOL": "u1"}  # as truth values are written
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a safetensors file from its header."""
    parts = headers(source, inputs.context, _read_header)
    found = [_array(part, name, inputs.keep) for part in parts for name in part.tensors]
    shards = () if parts[0].source is source else tuple(part.source for part in parts)
    return arrays.inspect(source, inputs, found, Library(PiecesFile))._replace(shards=shards)


def _array(part: Header, name: str, keep: Sequence[str]) -> ArrayHeader:
    source, tensor, leaf = part.source, part.tensors[name], part.leaf(name)
    code, shape = tensor["dtype"], tuple(tensor["shape"])
    same = digest_of(source, leaf, (code, shape)) if is_kept(name, keep) else b""
    found = ArrayHeader(name, None, shape, label=code, leaf=leaf, digest=same, source=source)
    if code in _DTYPES:
        dtype = np.dtype(_DTYPES[code])
        return found._replace(dtype=dtype, offset=leaf.begin, label="", leaf=leaf.of_form(dtype))
    if code not in _SHORT:
        return found._replace(reason=f"tensor {name!r} is {code}, which mpired does not read")
    try:
        stored = _form(code)
    except ImportError:
        reason = f"has tensors of {_SHORT[code]}, for which mpired needs ml_dtypes"
        raise UsageError(source.name, f"{reason}; install it with {installation('mpired[ml]')}") from None
    found = found._replace(dtype=np.dtype("<f4"), offset=leaf.begin, stored=stored, label="", storage=code)
    return found._replace(leaf=leaf.of_form(stored))


@functools.cache
def _form(code: str) -> np.dtype:
    """Return the form of the elements of a type in the file."""
    return np.dtype(getattr(importlib.import_module("ml_dtypes"), _SHORT[code]) if code in _SHORT else _FORMS[code])


def _bad(source: Source, reason: str) -> NoReturn:
    raise BufferFileError(source.name, f"{reason}; not a valid safetensors file")


def _read_header(source: Source) -> Header:
    """Return the header of a file."""
    with closing(source.open()) as file, calls.blaming(source.name):
        first = file.read(_LENGTH, 0)
        if len(first) < _LENGTH:
            _bad(source, "the header is truncated" if first else "the file is empty")
        length = int.from_bytes(first, "little")
        if length > min(_MAX_HEADER, source.nbytes - _LENGTH):
            _bad(source, f"the header claims {length} bytes, more than there are, or than {_MAX_HEADER}")
        text = file.read(length, _LENGTH)
    try:
        header = json.loads(text, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        _bad(source, f"the header is not a JSON object ({' '.join(str(error).split())[:100]})")
    if not isinstance(header, dict):
        _bad(source, "the header is not an object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        _bad(source, "the metadata are not strings by name")
    for name, tensor in header.items():
        _check_tensor(source, name, tensor)
    tensors = dict(sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])))
    _check_dense(source, tensors, source.nbytes - _LENGTH - length)
    return Header(source, _LENGTH + length, tensors, metadata)


def _check_tensor(source: Source, name: str, tensor: Any) -> None:
    """Check one entry of the header by itself."""
    if not isinstance(tensor, dict) or tensor.keys() != {"dtype", "shape", "data_offsets"}:
        _bad(source, f"tensor {name!r} has not exactly a dtype, a shape and data_offsets")
    shape, offsets = tensor["shape"], tensor["data_offsets"]
    if not isinstance(tensor["dtype"], str) or not _are_counts(shape) or not _are_counts(offsets):
        what = f"the dtype, the shape or the data_offsets of tensor {name!r}"
        _bad(source, f"{what} are not a string and lists of counts")
    if len(shape) > _MAX_NDIM or len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004 - start and end
        _bad(source, f"tensor {name!r} has {len(shape)} dimensions, or offsets in the wrong order")
    code = _DTYPES.get(tensor["dtype"])
    itemsize = np.dtype(code).itemsize if code else {"BF16": 2}.get(tensor["dtype"], tensor["dtype"].startswith("F8"))
    nbytes = math.prod(shape) * int(itemsize)
    if itemsize and nbytes != offsets[1] - offsets[0]:
        _bad(source, f"tensor {name!r} needs {nbytes} bytes, and has {offsets[1] - offsets[0]}")


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 63 for each in value)


def _check_dense(source: Source, tensors: dict[str, dict[str, Any]], nbytes: int) -> None:
    """Check that the tensors fill the rest of the file, one after another."""
    end = 0
    for name, tensor in tensors.items():
        if tensor["data_offsets"][0] != end:
            _bad(source, f"tensor {name!r} begins at byte {tensor['data_offsets'][0]} of the data, and not at {end}")
        end = tensor["data_offsets"][1]
    if end != nbytes:
        _bad(source, f"the tensors have {end} bytes, and the file has {nbytes} for them")


def prepare(model: Model) -> ArrayLayout:
    """Lay out results like `model`: the tensors with their types as far as they stay, and the metadata of its file."""
    parts = [] if model.source is None else headers(model.source, model.context, _read_header)
    old = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    kept = model.kept.carried if isinstance(model.kept, KeptArrays) else ()
    new, sizes, stored = dict[str, dict[str, Any]](), dict[str, int](), list[np.dtype]()
    for buffer in model.buffers:
        code, form = _type_of(buffer, old.get(buffer.name, {}).get("dtype", ""))
        name = buffer.name or "value"
        new[name], sizes[name] = {"dtype": code, "shape": list(buffer.dimensions)}, buffer.count * form.itemsize
        stored.append(form)
    names = list(new)
    for each in kept:
        new[each.name], sizes[each.name] = old[each.name], each.leaf.nbytes
    end = 0
    for name in [name for name in old if name in new] if kept else names:  # in the file each begins where its type may
        new[name] = {**new.pop(name), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    metadata = {key: value for part in parts for key, value in part.metadata.items() if key != NOTE}
    return ArrayLayout(functools.partial(_lay, new, metadata, model.note, names, kept), tuple(stored))


def _type_of(buffer: Array, old: str) -> tuple[str, np.dtype]:
    """Return the code and the form of a result: that of the file if its elements are as they were there."""
    if old in _SHORT and buffer.datatype.form == np.dtype(np.float32) and buffer.form is None:
        return old, _form(old)
    dtype = np.dtype(bool) if buffer.datatype.is_bool else buffer.datatype.form
    code = _NAMES.get(dtype.newbyteorder("<"))
    if code is None or buffer.fortran_order:
        what = "arrays in Fortran order" if code else buffer.datatype.label
        raise DatatypeError(what, "has no form in safetensors; use `to='npy'` or `to='npz'`")
    return code, _form(code)


def _lay(
    header: dict[str, Any], metadata: dict[str, str], note: Any, names: Sequence[str], kept: tuple[Any, ...], fd: int
) -> list[int]:
    """Write the header and the tensors that are carried, and return where the others begin."""
    said = metadata | ({NOTE: note.text} if note else {})
    text = json.dumps(({_METADATA: said} if said else {}) | header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH, "little") + text
    calls.allocate(fd, len(head) + max((each["data_offsets"][1] for each in header.values()), default=0))
    calls.pwrite_all(fd, head, 0)
    starts = {name: len(head) + each["data_offsets"][0] for name, each in header.items()}
    for each in kept:
        copy_pieces(each.source, each.leaf, fd, each.leaf._replace(begin=starts[each.name]))
    return [starts[name] for name in names]


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some tensors: a copy, in which these are changed."""
    arrays.copy_whole(source, fd)
    header = _read_header(source)
    for each in changed:
        write_elements(each, _form(header.tensors[each.name]["dtype"]), fd, header.leaf(each.name).begin)


def note(source: Source) -> str | None:
    """Return what a file says of where it comes from; None for nothing."""
    metadata = read_index(source)["metadata"] if source.name.endswith(INDEX_SUFFIX) else _read_header(source).metadata
    found: str | None = metadata.get(NOTE)
    return found
