"""Safetensors: a header in JSON and the bytes of the tensors, in a file, or in shards with an index.

The header is checked strictly: as the format requires, the tensors fill the file without gaps or overlaps. Elements of
the short types of machine learning are combined as MPI_FLOAT, and rounded once when the result is written. Only these
types need the package ml_dtypes.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from mpired.context import NO_LIMITS, Context
from mpired.errors import BufferFileError, DatatypeError, UsageError, installation
from mpired.files import calls
from mpired.formats import arrays
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayHeader, KeptArrays, Library, Pieces, PiecesFile
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, write_elements
from mpired.formats.rank import Model, RankFile
from mpired.sources.directory import ShardsSource, index_of
from mpired.sources.open import open_source
from mpired.sources.source import Source

_MAX_HEADER = 100_000_000  # limit of the library of the format
_MAX_NDIM = 64
_LENGTH = 8
_ALIGNMENT = 8
_METADATA = "__metadata__"
_NOTE = "mpired"
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_SHORT = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_FORMS = _DTYPES | {"BOOL": "u1"}  # dtypes of the stored elements
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


class _Header(NamedTuple):
    """The header of a file or of a shard."""

    source: Source
    start: int  # bytes before the data
    tensors: dict[str, dict[str, Any]]  # entries of the tensors, in the order of their data
    metadata: dict[str, str]


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a safetensors file from its header, or an index from the headers of the shards."""
    headers = _headers(source, inputs.context)
    tensors = [_array(header, name) for header in headers for name in header.tensors]
    shards = () if headers[0].source is source else tuple(header.source for header in headers)
    return arrays.inspect(source, inputs, tensors, Library(PiecesFile))._replace(shards=shards)


def _array(header: _Header, name: str) -> ArrayHeader:
    """Describe a tensor."""
    tensor = header.tensors[name]
    code, shape, (begin, end) = tensor["dtype"], tuple(tensor["shape"]), tensor["data_offsets"]
    try:
        form = _form(code) if code in _SHORT else np.dtype(_DTYPES.get(code, "u1"))
    except ImportError:
        reason = f"has tensors of {_SHORT[code]}, for which mpired needs ml_dtypes"
        raise UsageError(header.source.name, f"{reason}; install it with {installation('mpired[ml]')}") from None
    pieces = Pieces(header.start + begin, form, (end - begin) // form.itemsize)
    array = ArrayHeader(name, form, shape, pieces.begin, pieces=pieces, source=header.source)
    if code in _SHORT:
        return array._replace(dtype=np.dtype("<f4"), stored=form, storage=code)
    reason = f"tensor {name!r} is {code}, which mpired does not read"
    return array if code in _DTYPES else array._replace(dtype=None, label=code, reason=reason)


@functools.cache
def _form(code: str) -> np.dtype:
    """Return the NumPy form of stored elements of a type."""
    return np.dtype(getattr(importlib.import_module("ml_dtypes"), _SHORT[code]) if code in _SHORT else _FORMS[code])


def _bad(source: Source, reason: str) -> NoReturn:
    raise BufferFileError(source.name, f"{reason}; not a valid safetensors file")


def _read_header(source: Source) -> _Header:
    """Read and check the header of a file."""
    with closing(source.open()) as file, calls.errors_name(source.name):
        prefix = file.read(_LENGTH, 0)
        if len(prefix) < _LENGTH:
            _bad(source, "the header is truncated" if prefix else "the file is empty")
        length = int.from_bytes(prefix, "little")
        if length > min(_MAX_HEADER, source.nbytes - _LENGTH):
            _bad(source, f"the header claims {length} bytes, more than there are, or than {_MAX_HEADER}")
        text = file.read(length, _LENGTH)
    header = _object(source, text, "the header")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        _bad(source, "the metadata are not strings by name")
    for name, tensor in header.items():
        _check_tensor(source, name, tensor)
    tensors = dict(sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])))
    end, nbytes = 0, source.nbytes - _LENGTH - length
    for name, tensor in tensors.items():
        if tensor["data_offsets"][0] != end:
            _bad(source, f"tensor {name!r} begins at byte {tensor['data_offsets'][0]} of the data, and not at {end}")
        end = tensor["data_offsets"][1]
    if end != nbytes:
        _bad(source, f"the tensors have {end} bytes, and the file has {nbytes} for them")
    return _Header(source, _LENGTH + length, tensors, metadata)


def _object(source: Source, text: bytes, subject: str) -> dict[str, Any]:
    """Parse a JSON object with unique keys."""
    try:
        value = json.loads(text, object_pairs_hook=_with_unique_keys)
    except (ValueError, RecursionError) as error:
        _bad(source, f"{subject} is not a JSON object ({' '.join(str(error).split())[:100]})")
    if not isinstance(value, dict):
        _bad(source, f"{subject} is not an object")
    return value


def _with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key is there twice")
    return members


def _read_index(source: Source, context: Context) -> dict[str, Any]:
    """Return an index with `metadata` and `weight_map`, the shard of each tensor; make it if the shards have none."""
    if isinstance(source, ShardsSource):
        shards: dict[str, str] = {}
        for shard in source.names:
            names = _read_header(_shard(source, shard, context)).tensors
            if twice := shards.keys() & names:
                name = min(twice)
                _bad(source, f"the tensor {name!r} is in two shards, {shards[name]} and {shard}")
            shards |= dict.fromkeys(names, shard)
        return {"metadata": {}, "weight_map": shards}
    with closing(source.open()) as file, calls.errors_name(source.name):
        index = _object(source, file.read(min(source.nbytes, _MAX_HEADER), 0), "the index")
    weight_map, metadata = index.get("weight_map"), index.setdefault("metadata", {})
    if not isinstance(weight_map, dict) or not weight_map or not isinstance(metadata, dict):
        _bad(source, "the index has no `weight_map` from tensors to shards, or its metadata are not an object")
    for shard in weight_map.values():
        if not isinstance(shard, str) or "/" in shard or shard in {"", ".", ".."}:
            _bad(source, f"the index names the shard {shard!r}, which is not a file of its directory")
    return index


def _shard(index: Source, name: str, context: Context) -> Source:
    """Return the source of a shard in the directory of its index."""
    return open_source(index.name[: index.name.rfind("/") + 1] + name, context)


def _headers(source: Source, context: Context) -> list[_Header]:
    """Return the header of a file, or the headers of the shards of an index, which must agree with the index."""
    if not index_of(source):
        return [_read_header(source)]
    weight_map: dict[str, str] = _read_index(source, context)["weight_map"]
    headers: list[_Header] = []
    for shard in sorted({*weight_map.values()}):
        headers.append(_read_header(_shard(source, shard, context)))
        names = {name for name, shard_of_name in weight_map.items() if shard_of_name == shard}
        if wrong := names ^ headers[-1].tensors.keys():
            _bad(source, f"the index and the shard {shard} disagree on the tensor {min(wrong)!r}")
    return headers


def _check_tensor(source: Source, name: str, tensor: Any) -> None:
    """Check the entry of a tensor without the other entries."""
    try:
        code, shape, (start, end) = (tensor[key] for key in ("dtype", "shape", "data_offsets"))
        sizes = [*shape, end - start, start]
        is_valid = len(tensor) == 3 and isinstance(code, str) and len(shape) <= _MAX_NDIM  # noqa: PLR2004 - keys
    except (TypeError, LookupError, ValueError):
        is_valid = False
    if not is_valid or not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        _bad(source, f"tensor {name!r} has not exactly a dtype, a shape and data_offsets, or they are not sizes")
    form = _DTYPES.get(code)
    itemsize = np.dtype(form).itemsize if form else {"BF16": 2}.get(code, code.startswith("F8"))
    nbytes = math.prod(shape) * int(itemsize)
    if itemsize and nbytes != end - start:
        _bad(source, f"tensor {name!r} needs {nbytes} bytes, and has {end - start}")


def prepare(model: Model) -> ArrayLayout:
    """Return the layout of results like `model`, with the metadata of its file and the short types of its tensors."""
    headers = [] if model.source is None else _headers(model.source, model.context)
    old = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    kept = model.kept.headers if model.kept else ()
    new, sizes, stored = dict[str, dict[str, Any]](), dict[str, int](), list[np.dtype]()
    for result in model.buffers:
        code = old.get(result.own_name, {}).get("dtype", "")
        # The op may have changed the datatype of a tensor of a short type.
        if code not in _SHORT or result.datatype.form != np.dtype(np.float32) or result.form is not None:
            dtype = np.dtype(bool) if result.datatype.is_bool else result.datatype.form
            code = _NAMES.get(dtype.newbyteorder("<"))
        if code is None:
            raise DatatypeError(result.datatype.label, "has no form in safetensors; use `to='npy'` or `to='npz'`")
        form = _form(code)
        name = result.name or "value"
        new[name], sizes[name] = {"dtype": code, "shape": list(result.dimensions)}, result.count * form.itemsize
        stored.append(form)
    names = list(new)
    for tensor in kept:
        begin, end = old[tensor.name]["data_offsets"]
        new[tensor.name], sizes[tensor.name] = old[tensor.name], end - begin
    end = 0
    # The old order of the tensors aligns the elements of each.
    places = {name: place for place, name in enumerate(old)}
    origins = {name: places.get(result.origin, 0) for name, result in zip(names, model.buffers, strict=True)}
    for name in sorted(new, key=lambda name: origins.get(name, places.get(name, 0))) if kept else names:
        new[name] = {**new.pop(name), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    metadata = {key: value for header in headers for key, value in header.metadata.items() if key != _NOTE}
    return ArrayLayout(functools.partial(_write_header, new, metadata, names, model), tuple(stored))


def _write_header(
    tensors: dict[str, Any], metadata: dict[str, str], names: Sequence[str], model: Model, fd: int
) -> list[int]:
    """Write the header and the kept tensors, and return the offsets of the named tensors."""
    metadata = metadata | ({_NOTE: model.provenance.text} if model.provenance else {})
    text = json.dumps(({_METADATA: metadata} if metadata else {}) | tensors, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH, "little") + text
    calls.allocate(fd, len(head) + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0))
    calls.pwrite_all(fd, head, 0)
    starts = {name: len(head) + tensor["data_offsets"][0] for name, tensor in tensors.items()}
    for array in model.kept.headers if model.kept else ():
        arrays.copy_pieces(array.source, array.pieces, fd, array.pieces._replace(begin=starts[array.name]))
    return [starts[name] for name in names]


def shard_layouts(
    model: Model, name: str, prepare: Callable[[Model], ArrayLayout]
) -> Iterator[tuple[str, Sequence[int], ArrayLayout]]:
    """Yield the name, the numbers of the results and the layout of each shard, like those of the model, and the index.

    `name` is the name of the index.
    """
    assert model.source is not None  # noqa: S101 - an index
    index, nbytes = _read_index(model.source, model.context), 0
    kept = model.kept or KeptArrays(model.source, (), Library(PiecesFile))
    origins = {result.name: result.origin for result in model.buffers} | {name: name for name in kept.names}
    shards = {
        name: shard for old, shard in index["weight_map"].items() for name, origin in origins.items() if origin == old
    }
    for shard in sorted({*shards.values()}):
        numbers = [number for number, result in enumerate(model.buffers) if shards[result.name] == shard]
        headers = tuple(array for array in kept.headers if shards[array.name] == shard)
        part = model._replace(
            buffers=tuple(model.buffers[number] for number in numbers),
            source=_shard(model.source, shard, model.context),
            kept=kept._replace(headers=headers),
        )
        layout = prepare(part)
        nbytes += sum(result.count * form.itemsize for result, form in zip(part.buffers, layout.stored, strict=True))
        nbytes += sum(array.pieces.nbytes for array in headers if array.pieces)
        yield shard, numbers, layout
    index |= {"metadata": index["metadata"] | {"total_size": nbytes}, "weight_map": shards}
    yield name, (), ArrayLayout(functools.partial(_write_index, index, model.provenance), ())


def _write_index(index: dict[str, Any], provenance: Any, fd: int) -> Sequence[int]:
    """Write an index, which has no elements."""
    metadata = {key: value for key, value in index["metadata"].items() if key != _NOTE}
    metadata |= {_NOTE: provenance.text} if provenance else {}
    calls.pwrite_all(fd, f"{json.dumps(index | {'metadata': metadata}, indent=2)}\n".encode(), 0)
    return ()


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of a file with new elements in the changed tensors."""
    arrays.copy_whole(source, fd)
    header = _read_header(source)
    for array in changed:
        tensor = header.tensors[array.name]
        write_elements(array, _form(tensor["dtype"]), fd, header.start + tensor["data_offsets"][0])


def provenance(source: Source) -> str | None:
    """Return the provenance in a file or an index, or None."""
    metadata = _read_index(source, NO_LIMITS)["metadata"] if index_of(source) else _read_header(source).metadata
    return cast("str | None", metadata.get(_NOTE))
