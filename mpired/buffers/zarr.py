"""Zarr stores of version 2 and 3, as directories, objects or zip archives, as zarr and xarray write them.

The documents of a store are read here, and its chunks by the library, in a worker: a row of chunks, or of shards, at a
time. A chunk that is not there has the fill value. Results are zip archives.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
import warnings
import zipfile
from collections.abc import Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpired import installed
from mpired.buffers import arrays, conventions, zarr_codecs, zarr_store
from mpired.buffers.arrays import Array, Field, KeptArrays, Library, digest
from mpired.buffers.declared import Declared
from mpired.buffers.decoding import apart, look_apart
from mpired.buffers.flat import FlatBuffer, MarkingLayout, encoded
from mpired.buffers.missing import Missing
from mpired.buffers.model import BufferModel, Model
from mpired.buffers.rank import RankFile, Values, dtype_text
from mpired.buffers.streamed import Nullable, explaining, too_large
from mpired.buffers.zarr_store import ROOT, Keys, Node
from mpired.context import Context
from mpired.datatypes import agrees, as_numbers, from_dtype
from mpired.errors import BufferFileError, DatatypeError, UsageError, installation
from mpired.files import calls
from mpired.sources.source import Source

_EVERY_NBYTES = 64 << 20
_CHUNK_NBYTES = 4 << 20
_CARRIED_NBYTES = 1 << 30
_DATE = (1980, 1, 1, 0, 0, 0)
_FAILURES = (Exception,)  # of the library
_PLACES = (*conventions.PLACES, "_ARRAY_DIMENSIONS")
_TEXTS = frozenset({"vlen-utf8", "vlen-bytes"})


def _library() -> Any:
    """Import zarr; it warns of what is no one's concern who reads a file."""
    with installed.importing("zarr"):
        zarr: Any = importlib.import_module("zarr")
    warnings.filterwarnings("ignore", module="zarr")
    warnings.filterwarnings("ignore", module="numcodecs")
    # Each worker has one core. A chunk of -0.0 is not one of the fill value 0.0, so every chunk is written.
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1, "array.write_empty_chunks": True})
    zarr_codecs.guard()
    return zarr


def _check_there(source: Source | str) -> None:
    """Raise `UsageError` if zarr is not installed."""
    if importlib.util.find_spec("zarr") is None:
        name = source if isinstance(source, str) else source.name
        raise UsageError(name, f"is Zarr, for which mpired needs zarr; install it with {installation('mpired[zarr]')}")


class _Buffers(MutableMapping[str, Any]):
    """The keys of a store as the library reads them, and what it writes, which nothing has before."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys
        self.new: dict[str, bytes] = {}
        self._buffer = _library().core.buffer.default_buffer_prototype().buffer

    def __getitem__(self, key: str) -> Any:
        return self._buffer.from_bytes(self._keys[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self.new[key] = value.to_bytes()

    def __delitem__(self, key: str) -> None:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def check_group(self, node: Node) -> None:
        """Raise `ValueError` if the library opens no group there, so that it would open no result with it either."""
        zarr = _library()
        try:
            store = zarr.storage.MemoryStore(self, read_only=True)
            zarr.open_group(store, path=node.path, mode="r", zarr_format=node.version)
        except _FAILURES as error:
            reason = str(error) or type(error).__name__
            raise ValueError(f"the document of group {node.name!r} is damaged: {reason}") from None

    def array(self, node: Node, mode: str) -> Any:
        """Open an array with the library."""
        zarr = _library()
        store = zarr.storage.MemoryStore(self, read_only=mode == "r")
        return zarr.open_array(store, path=node.path, mode=mode, zarr_format=node.version)


class _Store:
    """An open store, whose arrays are decoded a row of chunks at a time."""

    def __init__(self, source: Source, memory: int, *, unpack: bool = False, window: bool = False) -> None:
        self._name, self._memory, self._unpack, self._window = source.name, memory, unpack, window
        self._keys = Keys(source, memory)
        self._buffers = _Buffers(self._keys)
        self._nodes = {node.name: node for node in zarr_store.nodes(self._keys)}

    def rows(self, node: Node, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the elements of an array from one on."""
        array = self._buffers.array(node, "r")
        width, height = math.prod(node.shape[1:]), node.chunk[0] if node.chunk else 1
        count = max(math.prod(node.chunk), min(height, node.shape[0] if node.shape else 1) * width)
        nbytes = max(1, array.dtype.itemsize) * count
        if nbytes > self._memory:
            raise too_large(self._name, f"a row of chunks of array {node.name!r}", nbytes, self._memory)
        # What is stored of a chunk is hardly longer than its elements.
        self._keys.most = min(self._memory, 2 * nbytes + (1 << 16)) if not array.dtype.hasobject else self._memory
        most = self._memory if array.dtype.hasobject else node.most_nbytes(array.dtype.itemsize)
        self._keys.expect(_chunks(node, array, start // (height * width) if width else 0))
        if not node.shape:
            zarr_codecs.limit(node.name, most)
            yield np.asarray(array[()]).reshape(-1)[start:]
            return
        first, skipped = divmod(start, height * width) if width else (0, 0)
        for row in range(first * height, node.shape[0] if width else 0, height):
            zarr_codecs.limit(node.name, most)  # another array may have been read meanwhile
            yield np.asarray(array[row : row + height]).reshape(-1)[skipped:]
            skipped = 0

    def arrays(self, leaf: Any, start: int) -> Generator[Values, None, None]:
        """Yield the values of a leaf from an element on, in rows of chunks."""
        nullable, leaf = isinstance(leaf, Nullable), leaf.leaf if isinstance(leaf, Nullable) else leaf
        name, field = (leaf.array, leaf.field) if isinstance(leaf, Field) else (leaf, None)
        node = self._nodes[name]
        packed, form = node.packed if self._unpack else None, node.form
        if packed is not None:
            packed = packed._replace(missing=(node.missing() or Missing())._replace(nan=True))
        for block in self.rows(node, start):
            values = block.view(np.uint8) if block.dtype == np.bool_ else block if field is None else block[field]
            if node.values and form is not None:
                values = values.astype(form, copy=False)
            yield (values, None) if packed is None else packed.unpacked(values, nullable=nullable)

    def described(self) -> list[Array]:
        for node in self._nodes.values():
            if not node.is_array:
                self._buffers.check_group(node)
        carried = conventions.carried([node.variable for node in self._nodes.values()])
        return [self._array(node, node.name in carried) for node in self._nodes.values() if node.is_array]

    def _array(self, node: Node, is_carried: bool) -> Array:  # noqa: FBT001 - within
        node.check(self._name)
        if node.uses_pickle():
            reason = f"array {node.name!r} is stored by pickle, which is never loaded"
            return Array(node.name, None, node.shape, label="objects", reason=reason)
        dtype = self._buffers.array(node, "r").dtype
        meaning, missing = conventions.NO_NUMBERS, node.missing()
        with contextlib.suppress(DatatypeError, TypeError):  # NumPy's texts of any length have no byte order
            from_dtype(dtype)
            what, form = f"array {node.name!r}", conventions.viewed(node.values, dtype)[1]
            said = conventions.meaning(what, node.name, node.values, form, unpack=self._unpack, window=self._window)
            lacks = Missing() if said.packed is not None and missing else missing
            meaning = said._replace(missing=None if said.dtype is None else lacks, leaf=None)
        is_text = dtype.kind in "USTmM" or (dtype.kind == "O" and not _TEXTS.isdisjoint(node.codecs))
        carried = is_carried or is_text
        label = "strings" if is_text else dtype_text(dtype)
        unit = node.attributes.get("units")
        return Array(
            node.name,
            shape=node.shape,
            label="" if meaning.dtype is not None else label,
            carried=carried,
            digest=self._digest(node, dtype) if carried else b"",
            chunk=tuple(min(one, max(1, all_)) for one, all_ in zip(node.chunk, node.shape, strict=True)),
            dims=node.variable.dims,
            unit=unit if isinstance(unit, str) else "",
            storage=_storage(node),
            **meaning._asdict(),
        )

    def _digest(self, node: Node, dtype: np.dtype) -> bytes:
        """Return the digest of an array that is carried, by its values whatever their compression."""
        nbytes = node.shape and math.prod(node.shape) * dtype.itemsize
        if nbytes and nbytes > _CARRIED_NBYTES:
            reason = f"array {node.name!r} has {nbytes} bytes, more than {_CARRIED_NBYTES} of a coordinate or text"
            raise BufferFileError(self._name, f"{reason} that a result carries")
        parts = (
            repr(block.tolist()) if block.dtype.kind in "OT" else np.ascontiguousarray(block).tobytes()
            for block in self.rows(node)
        )
        return digest(dtype_text(dtype), node.shape, node.attributes.get("units"), *parts)

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        found = {}
        for name in names:
            node = self._nodes[name]
            parts = list(self.rows(node)) or [np.empty(0, self._buffers.array(node, "r").dtype)]
            found[name] = np.concatenate(parts).reshape(node.shape)
        return found

    def close(self) -> None:
        self._keys.close()


def _chunks(node: Node, array: Any, row: int) -> Iterator[str]:
    """Yield the keys of the chunks of an array in their order, from a row of them on; it may declare any number."""
    counts = [-(-length // step) for length, step in zip(node.shape, node.chunk, strict=True)]
    prefix = f"{node.path}/" if node.path else ""
    for number in range(row * math.prod(counts[1:]), math.prod(counts)):
        place = np.unravel_index(number, counts) if counts else ()
        yield prefix + array.metadata.encode_chunk_key(tuple(map(int, place)))


def _storage(node: Node) -> str:
    """Return how an array is stored, in a few words."""
    document = node.document
    if node.version == 2:  # noqa: PLR2004 - the first of two versions
        codecs = [each.get("id") for each in (*(document.get("filters") or ()), document.get("compressor") or {})]
    else:
        codecs = [each.get("name") for each in document.get("codecs", ()) if each.get("name") != "bytes"]
    words = ", ".join(str(each) for each in codecs if each)
    return f"chunks of {node.chunk}{f', {words}' if words else ''}"


def _described(source: Source, unpack: bool, window: bool) -> list[Array]:  # noqa: FBT001 - called by its position
    with (
        explaining(source.name, *_FAILURES),
        closing(_Store(source, _EVERY_NBYTES, unpack=unpack, window=window)) as store,
    ):
        return store.described()


def _values(source: Source, names: Sequence[str]) -> dict[str, np.ndarray]:
    with explaining(source.name, *_FAILURES), closing(_Store(source, _EVERY_NBYTES)) as store:
        return store.read(names)


def _read(context: Context, source: Source, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    return apart(context, source.name, _values, source, list(names))


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a store by its documents."""
    _check_there(source)
    found = look_apart(declared.context, _described, source, declared.unpack, declared.window)
    library = Library(
        functools.partial(_Store, unpack=declared.unpack), _FAILURES, functools.partial(_read, declared.context)
    )
    return arrays.inspect(source, declared, found, library)


class _New(NamedTuple):
    """An array of a result: what describes it, and the value of elements that are not there."""

    node: Node
    null: float | None


class _Plan(NamedTuple):
    """What a new store has: its nodes, those that are written, and the keys of the model that it takes over."""

    nodes: list[Node]
    new: list[_New]
    source: Source | None
    kept: tuple[str, ...]


def prepare(model: Model) -> MarkingLayout:
    """Say how results like `model` are written: as the arrays of its file, or in chunks compressed by zstd."""
    _check_there("`to='zarr'`")
    if any(buffer.fortran_order for buffer in model.buffers):
        raise DatatypeError("arrays in Fortran order", "have no form in Zarr; use `to='npy'` or `to='npz'`")
    old: list[Node] = []
    if model.source is not None:
        with explaining(model.source.name, *zarr_store.ERRORS), closing(Keys(model.source, _EVERY_NBYTES)) as keys:
            old = zarr_store.nodes(keys)
    by_name = {node.name: node for node in old if node.is_array}
    version = old[0].version if old else 3
    new = [_new(buffer, by_name.get(buffer.origin), version) for buffer in model.buffers]
    kept = [by_name[name] for name in model.kept.names] if isinstance(model.kept, KeptArrays) else []
    groups = {node.path: node for node in old if not node.is_array}
    document = {"zarr_format": version, **({} if version == 2 else {"node_type": "group"})}  # noqa: PLR2004
    for path in (each.node.path for each in new if each.node.path):
        parts = path.split("/")
        for parent in ("/".join(parts[:number]) for number in range(len(parts))):
            groups.setdefault(parent, Node(parent, version, document, {}))
    every = sorted([*groups.values(), *kept, *(each.node for each in new)], key=lambda node: node.path)
    plan = _Plan(every, new, model.source, tuple(node.path for node in kept))
    return MarkingLayout(functools.partial(_encode, plan, model.context), tuple(each.node.missing() for each in new))


def _new(buffer: BufferModel, old: Node | None, version: int) -> _New:
    """Describe the array of a result."""
    shape = (buffer.count,) if buffer.shape is None else buffer.shape
    dtype = np.dtype(np.bool_) if buffer.datatype.is_bool else buffer.datatype.form
    path = (buffer.name or "value").lstrip(ROOT)
    is_own = old is None or old.path == path
    same = old is not None and old.form is not None and agrees(buffer.datatype, old.form) and old.packed is None
    same = same and is_own
    if not same and dtype.kind not in "biufc":
        raise DatatypeError(buffer.datatype.label, "has no form in zarr; use `to='npy'` or `to='npz'`")
    if old is not None and not is_own:  # it has other values
        attributes = {key: value for key, value in old.attributes.items() if key in _PLACES}
        old = replace(old, path=path, attributes=attributes, document={**old.document, "fill_value": None})
    if old is None:
        node = Node(path, version, _document(shape, dtype, version), {})
    elif same:
        node = replace(old, document={**old.document, "shape": list(shape)})
    else:
        node = _retyped(old, shape, dtype)
    if old is not None and len(old.shape) != len(shape):
        attributes = {key: value for key, value in node.attributes.items() if key != "_ARRAY_DIMENSIONS"}
        fresh = _document(shape, dtype, node.version, node.document["fill_value"])
        node = replace(node, document=fresh, attributes=attributes)
    values = node.missing_values
    null = values[0] if values else math.nan if dtype.kind in "fc" else None
    if buffer.nullable and null is None:
        reason = f"of {buffer.datatype.label} has no fill value for elements that are missing"
        raise DatatypeError(f"array {node.name!r}", f"{reason}; use `to='parquet'`")
    return _New(node, null if buffer.nullable else None)


def _document(shape: Sequence[int], dtype: np.dtype, version: int, fill: Any = None) -> dict[str, Any]:
    """Describe an array of plain values that has no model."""
    chunk = [max(1, each) for each in shape]
    for number in range(len(chunk)):
        rest = math.prod(chunk[number + 1 :]) * dtype.itemsize
        chunk[number] = max(1, min(chunk[number], _CHUNK_NBYTES // rest))
    if version == 2:  # noqa: PLR2004
        return {
            "zarr_format": 2, "shape": list(shape), "chunks": chunk, "dtype": dtype.str, "fill_value": fill,
            "order": "C", "filters": None, "compressor": {"id": "zstd", "level": 0, "checksum": False},
        }  # fmt: skip
    zero = [0.0, 0.0] if dtype.kind == "c" else dtype.type(0).item()
    little = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    return {
        "zarr_format": 3, "node_type": "array", "shape": list(shape), "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": zero if fill is None else fill,
        "codecs": [{"name": "bytes", **little}, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}],
        "storage_transformers": [],
    }  # fmt: skip


_OF_TYPE = frozenset({"delta", "fixedscaleoffset", "quantize", "astype", "packbits", "categorize"})


def _retyped(old: Node, shape: Sequence[int], dtype: np.dtype) -> Node:
    """Describe an array as another is, for elements of another type; nothing of it is packed."""
    attributes = {key: value for key, value in old.attributes.items() if key not in old.values}
    fill: Any = None if old.dtype is None else _converted(old.document.get("fill_value"), dtype)
    if old.packed is not None or dtype.kind != "f" or (old.dtype is not None and old.dtype.kind != "f"):
        attributes = {key: value for key, value in attributes.items() if key not in conventions.OF_THE_TYPE}
        if old.packed is not None:
            fill = "NaN" if dtype.kind == "f" else None
    plain = _document(shape, dtype, old.version, fill)
    document = {**old.document, **{key: plain[key] for key in ("shape", "fill_value")}}
    if old.version == 2:  # noqa: PLR2004
        filters = [each for each in old.document.get("filters") or () if each.get("id") not in _OF_TYPE]
        document |= {"dtype": dtype.str, "filters": filters or None}
    else:
        document |= {"data_type": dtype.name, "codecs": _codecs(old.document["codecs"], dtype)}
    return replace(old, document=document, attributes=attributes)


def _codecs(old: Sequence[dict[str, Any]], dtype: np.dtype) -> list[dict[str, Any]]:
    """Return codecs for elements of another type."""
    found = []
    for each in old:
        settings = dict(each.get("configuration") or {})
        if each["name"] == "bytes" and dtype.itemsize > 1:
            settings = {"endian": settings.get("endian", "little")}
        elif each["name"] == "blosc" and "typesize" in settings:
            settings["typesize"] = dtype.itemsize
        elif each["name"] == "sharding_indexed":
            settings["codecs"] = _codecs(settings["codecs"], dtype)
        if each["name"].removeprefix("numcodecs.") not in _OF_TYPE:
            found.append({**each, "configuration": settings} if settings else {"name": each["name"]})
    return found


def _converted(fill: Any, dtype: np.dtype) -> Any:
    """Return a fill value for another type, None if that cannot have it."""
    if isinstance(fill, bool) or not isinstance(fill, int | float):
        return fill if isinstance(fill, str) and dtype.kind == "f" else None
    if dtype.kind == "f":
        return float(fill)
    fits = dtype.kind in "iu" and fill == int(fill) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max
    return int(fill) if fits else None


def _encode(plan: _Plan, context: Context, results: Sequence[FlatBuffer], fd: int) -> None:
    """Write a store, in a worker."""
    name = results[0].source.name
    apart(context, name, _write, plan, list(results), calls.SharedPath(f"/proc/{os.getpid()}/fd/{fd}"))


def _write(plan: _Plan, results: Sequence[FlatBuffer], file: calls.SharedPath) -> None:
    """Write a store."""
    documents = {key: octets for node in plan.nodes for key, octets in zarr_store.documents_of(node).items()}
    with (
        os.fdopen(file.open(), "w+b") as to,
        zipfile.ZipFile(to, "w") as archive,
        closing(Keys(plan.source, _EVERY_NBYTES)) if plan.source is not None else nullcontext() as keys,
    ):
        if keys is not None:
            documents |= zarr_store.consolidated(keys, plan.nodes)
        for key in sorted(documents, key=lambda key: (key.count("/"), key)):
            archive.writestr(_info(key), documents[key])
        if keys is not None:
            carried = [key for key in keys if any(_is_of(key, path) for path in plan.kept)]
            keys.expect(carried)
            for key in carried:
                archive.writestr(_info(key), keys[key])
        for each, result in zip(plan.new, results, strict=True):
            _write_chunks(archive, documents, each, result)


def _is_of(key: str, path: str) -> bool:
    """Tell whether a key is of a chunk of an array."""
    return (not path or key.startswith(f"{path}/")) and key.rpartition("/")[2] not in zarr_store.DOCUMENTS


def _write_chunks(archive: zipfile.ZipFile, documents: Mapping[str, bytes], new: _New, result: FlatBuffer) -> None:
    """Write the chunks of an array, a row at a time."""
    buffers = _Buffers(documents)
    array = buffers.array(new.node, "r+")
    shape = new.node.shape
    height, width = (new.node.chunk[0], math.prod(shape[1:])) if shape else (1, 1)
    stored = as_numbers(conventions.viewed(new.node.values, array.dtype)[1])
    starts = range(0, (shape[0] if width else 0) if shape else 1, height)
    counts = [(min(height, shape[0] - row) if shape else 1) * width for row in starts]
    for row, block in zip(starts, encoded(result, stored, counts, new.null), strict=True):
        where = (slice(row, row + len(block) // width),) if shape else ()
        array[where] = block.view(array.dtype).reshape((-1, *shape[1:]) if shape else ())
        for key in sorted(buffers.new):
            archive.writestr(_info(key), buffers.new.pop(key))


def _info(key: str) -> zipfile.ZipInfo:
    """Return a member that is the same whenever it is written."""
    info = zipfile.ZipInfo(key, _DATE)
    info.external_attr = 0o644 << 16
    return info


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a store again with new elements in some arrays."""
    with (
        explaining(source.name, *_FAILURES),
        closing(Keys(source, _EVERY_NBYTES)) as keys,
        os.fdopen(os.dup(fd), "w+b") as to,
        zipfile.ZipFile(to, "w") as archive,
    ):
        by_name = {node.name: node for node in zarr_store.nodes(keys) if node.is_array}
        written = [by_name[each.name].path for each in changed]
        for key in keys:
            if not any(_is_of(key, path) for path in written):
                archive.writestr(_info(key), keys[key])
        for each in changed:
            node = by_name[each.name]
            _write_chunks(archive, keys, _New(node, next(iter(node.missing_values), math.nan)), each)
