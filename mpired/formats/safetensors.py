"""Safetensors: a header in JSON and the bytes of the tensors one after another, in a file, or in shards with an index.

The header is read by a parser of our own with strict limits: the tensors are in the file, without gaps or overlaps, as
the format asks for. Elements of the short types of machine learning are combined as MPI_FLOAT, and rounded once when
the result is written; ml_dtypes knows these types, and is needed for them alone.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn

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

_MAX_HEADER = 100_000_000  # as the library of the format has it
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
_FORMS = _DTYPES | {"BOOL": "u1"}  # as truth values are written
_NAMES = {np.dtype(code): name for name, code in _DTYPES.items()}


class _Header(NamedTuple):
    """The header of a file."""

    source: Source
    start: int  # where the data begins
    tensors: dict[str, dict[str, Any]]  # in the order of their bytes
    metadata: dict[str, str]


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a safetensors file from its header."""
    parts = _headers(source, inputs.context)
    found = [_array(part, name) for part in parts for name in part.tensors]
    shards = () if parts[0].source is source else tuple(part.source for part in parts)
    return arrays.inspect(source, inputs, found, Library(PiecesFile))._replace(shards=shards)


def _array(part: _Header, name: str) -> ArrayHeader:
    tensor = part.tensors[name]
    code, shape, (begin, end) = tensor["dtype"], tuple(tensor["shape"]), tensor["data_offsets"]
    try:
        form = _form(code) if code in _SHORT else np.dtype(_DTYPES.get(code, "u1"))
    except ImportError:
        reason = f"has tensors of {_SHORT[code]}, for which mpired needs ml_dtypes"
        raise UsageError(part.source.name, f"{reason}; install it with {installation('mpired[ml]')}") from None
    pieces = Pieces(part.start + begin, form, (end - begin) // form.itemsize)
    found = ArrayHeader(name, form, shape, pieces.begin, pieces=pieces, source=part.source)
    if code in _SHORT:
        return found._replace(dtype=np.dtype("<f4"), stored=form, storage=code)
    reason = f"tensor {name!r} is {code}, which mpired does not read"
    return found if code in _DTYPES else found._replace(dtype=None, label=code, reason=reason)


@functools.cache
def _form(code: str) -> np.dtype:
    """Return the form of the elements of a type in the file."""
    return np.dtype(getattr(importlib.import_module("ml_dtypes"), _SHORT[code]) if code in _SHORT else _FORMS[code])


def _bad(source: Source, reason: str) -> NoReturn:
    raise BufferFileError(source.name, f"{reason}; not a valid safetensors file")


def _read_header(source: Source) -> _Header:
    """Return the header of a file."""
    with closing(source.open()) as file, calls.errors_name(source.name):
        first = file.read(_LENGTH, 0)
        if len(first) < _LENGTH:
            _bad(source, "the header is truncated" if first else "the file is empty")
        length = int.from_bytes(first, "little")
        if length > min(_MAX_HEADER, source.nbytes - _LENGTH):
            _bad(source, f"the header claims {length} bytes, more than there are, or than {_MAX_HEADER}")
        text = file.read(length, _LENGTH)
    header = _object(source, text, "the header")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        _bad(source, "the metadata are not strings by name")
    for name, tensor in header.items():
        _check_tensor(source, name, tensor)
    tensors = dict(sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])))
    end, nbytes = 0, source.nbytes - _LENGTH - length
    for name, tensor in tensors.items():  # which fill the rest of the file, one after another
        if tensor["data_offsets"][0] != end:
            _bad(source, f"tensor {name!r} begins at byte {tensor['data_offsets'][0]} of the data, and not at {end}")
        end = tensor["data_offsets"][1]
    if end != nbytes:
        _bad(source, f"the tensors have {end} bytes, and the file has {nbytes} for them")
    return _Header(source, _LENGTH + length, tensors, metadata)


def _object(source: Source, text: bytes, what: str) -> dict[str, Any]:
    """Return an object of JSON, whose keys differ."""
    try:
        found = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        _bad(source, f"{what} is not a JSON object ({' '.join(str(error).split())[:100]})")
    if not isinstance(found, dict):
        _bad(source, f"{what} is not an object")
    return found


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _read_index(source: Source, context: Context) -> dict[str, Any]:
    """Return an index: `weight_map`, the shard of each tensor, and `metadata`; of shards without one that of theirs."""
    if isinstance(source, ShardsSource):
        found: dict[str, str] = {}
        for each in source.names:
            names = _read_header(_shard(source, each, context)).tensors
            if twice := found.keys() & names:
                name = min(twice)
                _bad(source, f"the tensor {name!r} is in two shards, {found[name]} and {each}")
            found |= dict.fromkeys(names, each)
        return {"metadata": {}, "weight_map": found}
    with closing(source.open()) as file, calls.errors_name(source.name):
        index = _object(source, file.read(min(source.nbytes, _MAX_HEADER), 0), "the index")
    shards, metadata = index.get("weight_map"), index.setdefault("metadata", {})
    if not isinstance(shards, dict) or not shards or not isinstance(metadata, dict):
        _bad(source, "the index has no `weight_map` from tensors to shards, or its metadata are not an object")
    for shard in shards.values():
        if not isinstance(shard, str) or "/" in shard or shard in {"", ".", ".."}:
            _bad(source, f"the index names the shard {shard!r}, which is not a file of its directory")
    return index


def _shard(index: Source, name: str, context: Context) -> Source:
    """Return a shard, which is in the directory of its index."""
    return open_source(index.name[: index.name.rfind("/") + 1] + name, context)


def _headers(source: Source, context: Context) -> list[_Header]:
    """Return the header of a file, or those of all shards of an index, which agree with it."""
    if not index_of(source):
        return [_read_header(source)]
    shards: dict[str, str] = _read_index(source, context)["weight_map"]
    found: list[_Header] = []
    for shard in sorted({*shards.values()}):
        found.append(_read_header(_shard(source, shard, context)))
        own = {name for name, where in shards.items() if where == shard}
        if wrong := own ^ found[-1].tensors.keys():
            _bad(source, f"the index and the shard {shard} disagree on the tensor {min(wrong)!r}")
    return found


def _check_tensor(source: Source, name: str, tensor: Any) -> None:
    """Check one entry of the header by itself."""
    try:
        code, shape, (start, end) = (tensor[key] for key in ("dtype", "shape", "data_offsets"))
        counts = [*shape, end - start, start]
        is_valid = len(tensor) == 3 and isinstance(code, str) and len(shape) <= _MAX_NDIM  # noqa: PLR2004 - keys
    except (TypeError, LookupError, ValueError):
        is_valid = False
    if not is_valid or not all(type(each) is int and 0 <= each < 1 << 63 for each in counts):
        _bad(source, f"tensor {name!r} has not exactly a dtype, a shape and data_offsets, or they are not sizes")
    form = _DTYPES.get(code)
    itemsize = np.dtype(form).itemsize if form else {"BF16": 2}.get(code, code.startswith("F8"))
    nbytes = math.prod(shape) * int(itemsize)
    if itemsize and nbytes != end - start:
        _bad(source, f"tensor {name!r} needs {nbytes} bytes, and has {end - start}")


def prepare(model: Model) -> ArrayLayout:
    """Lay out results like `model`: the tensors with their types as far as they stay, and the metadata of its file."""
    parts = [] if model.source is None else _headers(model.source, model.context)
    old = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    kept = model.kept.carried if isinstance(model.kept, KeptArrays) else ()
    new, sizes, stored = dict[str, dict[str, Any]](), dict[str, int](), list[np.dtype]()
    for buffer in model.buffers:
        code = old.get(buffer.own_name, {}).get("dtype", "")
        # A short type stays if its elements are as they were.
        if code not in _SHORT or buffer.datatype.form != np.dtype(np.float32) or buffer.form is not None:
            dtype = np.dtype(bool) if buffer.datatype.is_bool else buffer.datatype.form
            code = _NAMES.get(dtype.newbyteorder("<"))
        if code is None:
            raise DatatypeError(buffer.datatype.label, "has no form in safetensors; use `to='npy'` or `to='npz'`")
        form = _form(code)
        name = buffer.name or "value"
        new[name], sizes[name] = {"dtype": code, "shape": list(buffer.dimensions)}, buffer.count * form.itemsize
        stored.append(form)
    names = list(new)
    for each in kept:
        begin, end = old[each.name]["data_offsets"]
        new[each.name], sizes[each.name] = old[each.name], end - begin
    end = 0
    places = {name: place for place, name in enumerate(old)}  # where each begins where its type may
    origins = {name: places.get(buffer.origin, 0) for name, buffer in zip(names, model.buffers, strict=True)}
    for name in sorted(new, key=lambda name: origins.get(name, places.get(name, 0))) if kept else names:
        new[name] = {**new.pop(name), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    metadata = {key: value for part in parts for key, value in part.metadata.items() if key != _NOTE}
    return ArrayLayout(functools.partial(_lay, new, metadata, model.provenance, names, kept), tuple(stored))


def _lay(
    header: dict[str, Any],
    metadata: dict[str, str],
    provenance: Any,
    names: Sequence[str],
    kept: tuple[Any, ...],
    fd: int,
) -> list[int]:
    """Write the header and the tensors that are carried, and return where the others begin."""
    metadata = metadata | ({_NOTE: provenance.text} if provenance else {})
    text = json.dumps(({_METADATA: metadata} if metadata else {}) | header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH, "little") + text
    calls.allocate(fd, len(head) + max((each["data_offsets"][1] for each in header.values()), default=0))
    calls.pwrite_all(fd, head, 0)
    starts = {name: len(head) + each["data_offsets"][0] for name, each in header.items()}
    for each in kept:
        arrays.copy_pieces(each.source, each.pieces, fd, each.pieces._replace(begin=starts[each.name]))
    return [starts[name] for name in names]


def divided(
    model: Model, name: str, prepare: Callable[[Model], ArrayLayout]
) -> Iterator[tuple[str, Sequence[int], ArrayLayout]]:
    """Lay out results in shards like those of the model, and in an index: yield name, arrays and layout of each."""
    assert model.source is not None  # noqa: S101 - an index
    index, nbytes = _read_index(model.source, model.context), 0
    kept = model.kept if isinstance(model.kept, KeptArrays) else KeptArrays(model.source, (), Library(PiecesFile))
    origins = {each.name: each.origin for each in model.buffers} | {name: name for name in kept.names}
    shards = {
        name: shard for old, shard in index["weight_map"].items() for name, origin in origins.items() if origin == old
    }
    for shard in sorted({*shards.values()}):
        own = [number for number, each in enumerate(model.buffers) if shards[each.name] == shard]
        carried = tuple(each for each in kept.carried if shards[each.name] == shard)
        part = model._replace(
            buffers=tuple(model.buffers[number] for number in own),
            source=_shard(model.source, shard, model.context),
            kept=kept._replace(carried=carried),
        )
        layout = prepare(part)
        nbytes += sum(each.count * form.itemsize for each, form in zip(part.buffers, layout.stored, strict=True))
        nbytes += sum(each.pieces.nbytes for each in carried if each.pieces)
        yield shard, own, layout
    index |= {"metadata": index["metadata"] | {"total_size": nbytes}, "weight_map": shards}
    yield name, (), ArrayLayout(functools.partial(_lay_index, index, model.provenance), ())


def _lay_index(index: dict[str, Any], provenance: Any, fd: int) -> Sequence[int]:
    """Write an index."""
    metadata = {key: value for key, value in index["metadata"].items() if key != _NOTE}
    metadata |= {_NOTE: provenance.text} if provenance else {}
    calls.pwrite_all(fd, f"{json.dumps(index | {'metadata': metadata}, indent=2)}\n".encode(), 0)
    return ()


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some tensors: a copy, in which these are changed."""
    arrays.copy_whole(source, fd)
    header = _read_header(source)
    for each in changed:
        tensor = header.tensors[each.name]
        write_elements(each, _form(tensor["dtype"]), fd, header.start + tensor["data_offsets"][0])


def provenance(source: Source) -> str | None:
    """Return what a file says of where it comes from; None for nothing."""
    metadata = _read_index(source, NO_LIMITS)["metadata"] if index_of(source) else _read_header(source).metadata
    found: str | None = metadata.get(_NOTE)
    return found
