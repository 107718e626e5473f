"""Zarr stores of version 2 and 3 in directories, objects or zip archives, as zarr and xarray write them.

The library opens, decodes and encodes arrays in a worker, a row of chunks, or of shards, at a time. A chunk that does
not exist has the fill value. Results are zip archives.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import struct
import warnings
import zipfile
from base64 import standard_b64decode, standard_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.recfunctions import repack_fields

from mpired import installed
from mpired.context import NO_LIMITS
from mpired.datatypes import from_dtype, has_same_components, numeric_form
from mpired.errors import BufferFileError, DatatypeError, MpiredError
from mpired.formats import conventions
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayFile, ArrayHeader, Library, inspect_by
from mpired.formats.conventions import Attributes, Variable
from mpired.formats.decoding import call_in_worker, write_in_worker
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import Encoder, encoded
from mpired.formats.missing import Missing
from mpired.formats.npy import numpy_type
from mpired.formats.npz import new_member
from mpired.formats.rank import Cells, Model, RankFile, dtype_text
from mpired.formats.streamed import SourceFile, errors_of, too_large
from mpired.sources.directory import array_of_chunk
from mpired.sources.source import STORE_DOCUMENTS, OpenStore, Source

_ROOT = "/"  # the name of an array that is the whole store
_V2 = 2  # the older of the two versions
_V2_CONSOLIDATED, _V3_NODE = ".zmetadata", "zarr.json"
_NODES = {_V2: (".zarray", ".zgroup"), 3: (_V3_NODE,)}  # documents of a node by version
_MAX_DOCUMENT = 16 << 20  # bytes
_MAX_NDIM = 64
_DOUBLE = struct.Struct("<d")
_BLOSC_NBYTES = 16  # of a header, whose last four bytes are the length of the chunk
_CHUNK_NBYTES = 4 << 20  # of a chunk of a result without a model
_MODE = 0o644  # of the members of a result
_ERRORS = (Exception,)  # of the library
_PACKING = (conventions.SCALE, conventions.OFFSET, conventions.UNSIGNED)
_TYPE_FILTERS = frozenset({"delta", "fixedscaleoffset", "quantize", "astype", "packbits", "categorize"})


@functools.cache
def _library() -> Any:
    """Import zarr."""
    with installed.import_library("zarr"):
        zarr: Any = importlib.import_module("zarr")
    warnings.filterwarnings("ignore", module="zarr")
    warnings.filterwarnings("ignore", module="numcodecs")
    warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
    # Each worker has one core. zarr takes a chunk of -0.0 for a chunk of the fill value 0.0, so all chunks are written.
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1, "array.write_empty_chunks": True})
    importlib.import_module("numcodecs.registry").codec_registry.pop("pickle", None)  # it would run code of the file
    # Some writers name the codec of strings as if numcodecs had it.
    strings = type("VLenUTF8Codec", (zarr.codecs.VLenUTF8Codec,), {"from_dict": classmethod(lambda cls, _: cls())})
    zarr.registry.register_codec("numcodecs.vlen-utf8", strings)
    blosc = importlib.import_module("numcodecs.blosc").Blosc
    decode = blosc.decode

    def check_and_decode(self: Any, buf: Any, out: Any = None) -> Any:
        octets = memoryview(buf).cast("B")
        if len(octets) < _BLOSC_NBYTES or int.from_bytes(octets[12:_BLOSC_NBYTES], "little") > len(octets):
            raise ValueError("a chunk of Blosc is cut off")  # numcodecs would read beyond its end
        return decode(self, buf, out)

    blosc.decode = check_and_decode
    return zarr


class _Buffers(dict[str, Any]):
    """Buffers of the library by key: new buffers that the library writes, else the bytes of a store or mapping."""

    def __init__(self, content: Mapping[str, bytes] | Store) -> None:
        super().__init__()
        self._content = content
        self.store = _library().storage.MemoryStore(self)

    def __missing__(self, key: str) -> Any:
        return _library().core.buffer.default_buffer_prototype().buffer.from_bytes(self._content[key])

    def array(self, path: str) -> Any:
        """Open an array to change it."""
        return _library().open_array(self.store, path=path, mode="r+")


class Store(ArrayFile):
    """An open store: keys with bytes, and the nodes that its documents describe. The caller closes it."""

    def begin(self) -> None:
        """Read the keys."""
        self.buffers = _Buffers(self)
        if isinstance(self._bytes, OpenStore):
            names = self._bytes.names()
        else:
            self.file = zipfile.ZipFile(SourceFile(self._bytes, self._source.nbytes))
            # zarr appends another member of the same name for each change of a document: the last counts.
            names = [info.filename for info in self.file.infolist() if not info.is_dir()]
        self.names = dict.fromkeys(names)
        parts = [name.rpartition("/") for name in self.names]
        paths = {version: sorted({path for path, _, last in parts if last in _NODES[version]}) for version in _NODES}
        self.version = _V2 if paths[_V2] and _V3_NODE not in self.names else 3
        self.paths = paths[self.version]

    def __getitem__(self, key: str) -> bytes:
        """Return the bytes of a key."""
        if key not in self.names:
            raise KeyError(key)
        limit = _MAX_DOCUMENT if key.rpartition("/")[2] in STORE_DOCUMENTS else self._memory
        if isinstance(self._bytes, OpenStore):
            content = self._bytes.content(key, limit)
        else:
            with self.file.open(key) as member:
                content = member.read(limit + 1)
        if len(content) > limit:
            raise too_large(self._source.name, f"{key!r}", len(content), limit)
        return content

    def prefetch(self, keys: Iterable[str]) -> None:
        """Prefetch remote keys, some of which may not exist."""
        if isinstance(self._bytes, OpenStore):
            self._bytes.expect_names(keys, self._memory)

    def keys_of(self, path: str) -> list[str]:
        """Return the keys of the documents of a node."""
        return [key for name in sorted(STORE_DOCUMENTS) if (key := f"{path}/{name}".lstrip("/")) in self.names]

    def document(self, path: str) -> tuple[dict[str, Any], bool]:
        """Return the document of a node, and whether the node is an array."""
        key = next(key for key in self.keys_of(path) if key.rpartition("/")[2] in _NODES[self.version])
        document = json.loads(self[key])
        return document, key.endswith(".zarray") or document.get("node_type") == "array"

    def node(self, path: str) -> Any:
        """Open a group or an array."""
        zarr, (_, is_array) = _library(), self.document(path)
        open_node = zarr.open_array if is_array else functools.partial(zarr.open_group, use_consolidated=False)
        node = open_node(self.buffers.store, path=path, mode="r", zarr_format=self.version)
        dict(node.metadata.attributes)  # raises an error if they are not a JSON object
        _load_codecs(getattr(node.metadata, "codecs", ()))
        if is_array and (node.size >= 1 << 59 or node.ndim > _MAX_NDIM or 0 in _stored_chunk(node)):
            raise ValueError(f"{node.size} elements in chunks of {_stored_chunk(node)} make no sense")
        return node

    def blocks(self, location: str, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of an array from `start` on, in blocks of whole rows of chunks."""
        array = self.node(location.lstrip(_ROOT))
        chunk = _stored_chunk(array)
        self.prefetch(_chunk_keys(array, start // max(1, math.prod((*chunk[:1], *array.shape[1:])))))
        return self.rows(location, array, chunk, start, self._memory)

    def described(self, inputs: InputOptions) -> list[ArrayHeader]:
        """Return the headers of all arrays, including those that the library cannot open."""
        if not self.paths:
            raise BufferFileError(self._source.name, "has no documents of groups or arrays")
        self.prefetch(key for key in self.names if key.rpartition("/")[2] in STORE_DOCUMENTS)
        nodes, headers = {}, {}
        for path in self.paths:
            name = path or _ROOT
            try:
                nodes[name] = self.node(path)
            except MpiredError:
                raise
            except Exception as error:  # noqa: BLE001 - of any kind
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                label, reason = f"elements of unknown type ({reason})", f"array {name!r} cannot be opened ({reason})"
                headers[name] = ArrayHeader(name, None, None, label=label, reason=reason)
        variables = []
        for name, node in nodes.items():
            if not hasattr(node, "shape"):
                variables.append(Variable(f"{name.lstrip(_ROOT)}/", (), node.metadata.attributes))
                continue
            dims: Any = getattr(node.metadata, "dimension_names", None) or node.attrs.get(conventions.DIMENSIONS)
            if not isinstance(dims, list | tuple):
                dims = ("",) * node.ndim
            variables.append(Variable(name, tuple(dim or "" for dim in dims), node.metadata.attributes))
        auxiliary = conventions.auxiliary_names(variables)
        for variable, node in zip(variables, nodes.values(), strict=True):
            if hasattr(node, "shape"):
                headers[variable.name] = _array_header(variable, node, inputs, is_auxiliary=variable.name in auxiliary)
        return [headers[name] for name in (path or _ROOT for path in self.paths) if name in headers]


def _array_header(variable: Variable, node: Any, inputs: InputOptions, *, is_auxiliary: bool) -> ArrayHeader:
    """Describe an array, without the digest of its elements."""
    attributes, form = _attributes(node), None
    with contextlib.suppress(DatatypeError, TypeError):  # NumPy's strings of any length have no byte order
        from_dtype(node.dtype)
        attributes, form = conventions.with_sign(attributes, node.dtype)
    header = conventions.array_header(variable.name, node.shape, attributes, form, inputs, f"array {variable.name!r}")
    if header.packing is not None:
        missing = (header.packing.missing or Missing())._replace(nan=True)
        header = header._replace(packing=header.packing._replace(missing=missing))
    document, chunk, is_text = node.metadata.to_dict(), _stored_chunk(node), node.dtype.kind in "USTmMO"
    if form is None:
        stored = node.dtype if node.dtype.kind in "SUV" else None
        header = header._replace(label="strings" if is_text else dtype_text(node.dtype), stored=stored)
    codecs = [*(document.get("filters") or ()), *(document.get("codecs") or ()), document.get("compressor") or {}]
    codecs = [codec if isinstance(codec, dict) else codec.get_config() for codec in codecs]
    names = [codec.get("id", codec.get("name")) for codec in codecs]
    return header._replace(
        is_auxiliary=(is_text or is_auxiliary) and not inputs.any_type,
        chunk=tuple(min(step, max(1, length)) for step, length in zip(chunk, node.shape, strict=True)),
        dims=variable.dims,
        storage=", ".join([f"chunks of {chunk}", *(str(name) for name in names if name not in (None, "bytes"))]),
        unset=None,
    )


def _chunk_keys(array: Any, row: int) -> Iterator[str]:
    """Yield the keys of the chunks of an array in their order, from a row of chunks on; there may be very many."""
    counts = [-(-length // step) for length, step in zip(array.shape, _stored_chunk(array), strict=True)]
    prefix = f"{array.path}/" if array.path else ""
    for number in range(row * math.prod(counts[1:]), math.prod(counts)):
        indices = np.unravel_index(number, counts) if counts else ()
        yield prefix + array.metadata.encode_chunk_key(tuple(map(int, indices)))


def _attributes(array: Any) -> Attributes:
    """Return the attributes of an array in the form of netCDF."""
    return _from_json(array.metadata.attributes, array.fill_value, array.metadata.zarr_format)


def _from_json(attributes: Mapping[str, Any], fill: Any, version: int) -> Attributes:
    """Convert attributes in JSON to the form of netCDF: strings, and numbers in one dimension."""
    converted: dict[str, np.ndarray | str] = {}
    for name, value in attributes.items():
        plain = value
        if name in conventions.OF_THE_TYPE and isinstance(value, str):
            # JSON has no such number, or xarray wrote it in base64.
            with contextlib.suppress(ValueError, struct.error):
                is_name = value in {"NaN", "Infinity", "-Infinity"}
                plain = float(value) if is_name else _DOUBLE.unpack(standard_b64decode(value))[0]
        with contextlib.suppress(ValueError):  # lists of different lengths
            plain = plain if isinstance(plain, str) else np.asarray(plain).reshape(-1)
            if isinstance(plain, str) or plain.dtype.kind in "iuf":
                converted[name] = plain
    # xarray stores `_FillValue` as the fill value of version 2, and as an attribute of version 3.
    if fill is not None and version == _V2 and isinstance(attributes.get(conventions.DIMENSIONS), list):
        value, values = np.asarray(fill).reshape(-1), converted.get(conventions.FILL)
        converted[conventions.FILL] = np.append(value, values) if isinstance(values, np.ndarray) else value
    return converted


def _load_codecs(codecs: Iterable[Any]) -> None:
    """Load codecs of numcodecs, which are loaded at their first use; raises the library's error for a missing codec."""
    for codec in codecs:
        getattr(codec, "_codec", None)
        _load_codecs(getattr(codec, "codecs", ()))


def _stored_chunk(array: Any) -> tuple[int, ...]:
    """Return the shape of a value of the store: of a chunk, or of a shard of several chunks."""
    chunk: tuple[int, ...] = array.shards or array.chunks
    return chunk


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a store by its documents."""
    installed.check(source.name, "Zarr", "zarr", "zarr")
    return inspect_by(Library(Store, _ERRORS, inputs.context), source, inputs)


class _ZarrPlan(NamedTuple):
    """A new store without the chunks of results."""

    documents: Mapping[str, bytes]  # of all nodes by key, with the chunks of changed coordinates
    new: Mapping[str, Missing | None]  # the rules for missing elements of results, by path
    source: Source | None  # the model
    copied: Sequence[str]  # keys of the model: chunks of kept arrays, and in place the files of other programs


def prepare(model: Model) -> Encoder:
    """Lay out results like the arrays of the model's file, or in chunks that zstd compresses."""
    installed.check("`to='zarr'`", "Zarr", "zarr", "zarr")
    plan = call_in_worker(model.context, model.subject, _plan, model._replace(context=NO_LIMITS, provenance=None))
    write = functools.partial(write_in_worker, model.context, model.subject, _write, plan)
    return Encoder(write, tuple(plan.new.values()))


@contextlib.contextmanager
def _open_model(source: Source | None) -> Iterator[Store | None]:
    """Open the store that is the model of results, if there is one."""
    name = "the result" if source is None else source.name
    with errors_of(name, _ERRORS, writes=True), closing(Store(source)) if source else nullcontext() as store:
        yield store


def _plan(model: Model) -> _ZarrPlan:
    """Make the documents of a new store."""
    cells, kept = model.cells, [name.lstrip(_ROOT) for name in (model.kept.names if model.kept else ())]
    with _open_model(model.source) as old:
        documents = _Buffers({})
        if old is not None:
            arrays = {path for path in old.paths if old.document(path)[1]}
            paths = (path for path in old.paths if path in kept or path not in arrays)
            documents |= {key: old.buffers[key] for path in paths for key in old.keys_of(path)}
        new = dict(_create_array(documents, buffer, old, cells) for buffer in model.buffers)
        for path, values in cells.values.items():
            documents.array(path)[...] = values
        for path, changes in cells.attributes.items():
            attributes = {**documents.array(path).attrs, **changes}
            documents.array(path).attrs.put({key: value for key, value in attributes.items() if value != ""})
        # The document of the root may contain the documents of all nodes.
        root = old.document("")[0] if old is not None and "" in old.paths else {}
        if old is not None and (_V2_CONSOLIDATED in old.names or root.get("consolidated_metadata")):
            _library().consolidate_metadata(documents.store, zarr_format=old.version)
        keys = sorted(documents, key=lambda key: (key.count("/"), key))
        copied = []
        if old is not None:
            unchanged: set[str | None] = {*kept} - cells.values.keys()
            unchanged |= {None} if model.in_place else set()  # None is the array of the files of other programs
            names = (name for name in old.names if unchanged and name.rpartition("/")[2] not in STORE_DOCUMENTS)
            copied = [name for name in names if array_of_chunk(name, arrays) in unchanged]
        return _ZarrPlan({key: documents[key].to_bytes() for key in keys}, new, model.source, copied)


def _create_array(documents: _Buffers, buffer: Array, store: Store | None, cells: Cells) -> tuple[str, Missing | None]:
    """Make the document of a result; return its path, and its rule for missing elements."""
    dtype, shape = repack_fields(numpy_type(buffer, "zarr").newbyteorder("="), recurse=True), buffer.dimensions
    path, origin = (buffer.name or "value").lstrip(_ROOT), buffer.origin.lstrip(_ROOT)
    version = 3 if store is None else store.version
    old: Any = None
    if store is not None and buffer.origin and origin in store.paths and store.document(origin)[1]:
        old = store.node(origin)
    attributes, fill, has_same_type = _model_attributes(old, buffer, dtype)
    names = [name or None for name, _ in buffer.axes]
    if old is not None and old.shape != shape:  # a part that a rank gets
        names = [next(conventions.dimension_names("", length)) for length in shape if buffer.dims]
        attributes |= {conventions.DIMENSIONS: names} if names and version == _V2 else {}
        old, has_same_type = None, False
    stored, is_copy = old.dtype if has_same_type else dtype, has_same_type and old.path == path
    if buffer.nullable and dtype.kind == "b":
        raise DatatypeError(buffer.datatype.label, "has no value for missing elements in zarr; use `to='parquet'`")
    if not (is_copy or dtype.hasobject or _can_store(dtype, version)):
        raise DatatypeError(buffer.datatype.label, "has no form in zarr; use `to='npy'` or `to='npz'`")
    values = cells.remaining_attributes(
        buffer.name, conventions.with_sign(_from_json(attributes, fill, version), stored)[0]
    )
    default = conventions.default_fill(dtype) if buffer.nullable and dtype.kind in "iuf" else None
    if default is not None and not conventions.fill_values(values):
        values, is_copy = {**values, conventions.FILL: default.reshape(1)}, False
        mark = standard_b64encode(_DOUBLE.pack(default)).decode() if dtype.kind == "f" else int(default)
        attributes, fill = {**attributes, conventions.FILL: mark}, default[()]  # in the form of xarray
    if is_copy and store is not None:
        documents |= {key: store.buffers[key] for key in store.keys_of(path)}
    else:
        settings = _layout(old, shape, stored, version)
        if old is None and version > _V2 and any(names):
            settings["dimension_names"] = names
        settings |= {"zarr_format": version, "attributes": attributes, "fill_value": fill}
        form = str if dtype.hasobject else stored
        _library().create_array(documents.store, name=path or None, shape=shape, dtype=form, **settings)
    return path, conventions.missing(values, dtype)


@functools.cache
def _can_store(dtype: np.dtype, version: int) -> bool:
    """Return whether the library writes elements of a type, and reads them as the same type."""
    if dtype.kind in "biufc":
        return dtype.char not in "gG"
    store = _Buffers({}).store
    try:
        array = _library().create_array(store, name="x", shape=(1,), dtype=dtype, zarr_format=version)
        array[...] = np.zeros(1, dtype)
        return bool(_library().open_array(store, path="x", mode="r").dtype == dtype)
    except _ERRORS:
        return False


def _model_attributes(old: Any, buffer: Array, dtype: np.dtype) -> tuple[dict[str, Any], Any, bool]:
    """Return attributes and fill value of a result modelled on an array, and whether both have the same type."""
    if old is None:
        return {}, None, False
    values, form = conventions.with_sign(_attributes(old), old.dtype)
    has_same_shape, has_same_meaning = old.shape == buffer.dimensions, buffer.origin == buffer.own_name
    fill = old.fill_value
    attributes = {
        key: value
        for key, value in old.metadata.attributes.items()
        if conventions.keeps_attribute(key, same_shape=has_same_shape, same_meaning=has_same_meaning)
    }
    if not has_same_meaning:
        return attributes, None, False
    is_packed = conventions.packing(values, form) is not None
    is_specified = old.dtype.names is None or old.metadata.zarr_format == _V2  # version 3 does not specify structures
    if not is_packed and is_specified and has_same_components(buffer.datatype, form):
        return attributes, fill, True
    are_floats = dtype.kind == "f" and old.dtype.kind == "f" and not is_packed
    dropped = (*_PACKING, *(() if are_floats else conventions.OF_THE_TYPE))
    attributes = {key: value for key, value in attributes.items() if key not in dropped}
    number, converted = np.asarray(math.nan if is_packed else fill), None
    if number.dtype.kind in "iuf" and dtype.kind in "iuf":
        converted = number.astype(dtype) if dtype.kind == "f" else conventions.converted(number, dtype)
    return attributes, None if converted is None else converted[()], False


def _layout(old: Any, shape: tuple[int, ...], dtype: np.dtype, version: int) -> dict[str, Any]:
    """Return settings for a new array: those of an old array of another type, or chunks and zstd if it is None."""
    if old is None:
        chunk = [max(1, length) for length in shape]
        for axis in range(len(chunk)):
            row_nbytes = math.prod(chunk[axis + 1 :]) * dtype.itemsize
            chunk[axis] = max(1, min(chunk[axis], _CHUNK_NBYTES // row_nbytes))
        zstd = {"id": "zstd", "level": 0} if version == _V2 else {"name": "zstd", "configuration": {"level": 0}}
        return {"chunks": tuple(chunk), "compressors": zstd}
    filters = [codec for codec in old.filters if type(codec).__name__.lower() not in _TYPE_FILTERS]
    settings = {"chunks": old.chunks, "shards": old.shards, "filters": filters or None}
    if version == _V2:
        keys = {"name": "v2", "separator": old.metadata.dimension_separator}
        return {**settings, "compressors": old.compressors or None, "chunk_key_encoding": keys, "order": old.order}
    compressors = []
    for codec in old.compressors:
        configuration = codec.to_dict().get("configuration") or {}
        if "typesize" in configuration:
            codec = type(codec)(**{**configuration, "typesize": dtype.itemsize})  # noqa: PLW2901 - for the new type
        compressors.append(codec)
    keys, names = old.metadata.chunk_key_encoding, old.metadata.dimension_names
    return {**settings, "compressors": compressors or None, "chunk_key_encoding": keys, "dimension_names": names}


def _write(plan: _ZarrPlan, results: Sequence[Array], fd: int) -> None:
    """Write a new store."""
    with _open_model(plan.source) as old, os.fdopen(os.dup(fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        for key, content in plan.documents.items():
            archive.writestr(new_member(key, mode=_MODE), content)
        if old is not None:
            old.prefetch(plan.copied)
            for key in plan.copied:
                archive.writestr(new_member(key, mode=_MODE), old[key])
        for path, result in zip(plan.new, results, strict=True):
            _write_chunks(archive, plan.documents, path, result)


def _write_chunks(archive: zipfile.ZipFile, documents: Mapping[str, bytes], path: str, result: Array) -> None:
    """Write the chunks of an array, a row at a time."""
    chunks = _Buffers(documents)
    array = chunks.array(path)
    shape = array.shape or (1,)
    height, width = (_stored_chunk(array) or (1,))[0], math.prod(shape[1:])
    attributes, form = conventions.with_sign(_attributes(array), array.dtype)
    null = next(iter(conventions.fill_values(attributes)), math.nan if form.kind in "fc" else None)
    starts = range(0, shape[0] if width else 0, height)
    counts = [min(height, shape[0] - row) * width for row in starts]
    for row, block in zip(starts, encoded(result, numeric_form(form), counts, null), strict=True):
        if block.dtype.hasobject:  # strings, perhaps as bytes
            values = np.array([item.decode() if isinstance(item, bytes) else item for item in block], array.dtype)
        else:
            values = block.view(array.dtype)
        rows = slice(row, row + len(block) // width) if array.shape else ()
        array[rows] = values.reshape((-1, *shape[1:]) if array.shape else ())
        for key in sorted(chunks):
            archive.writestr(new_member(key, mode=_MODE), chunks.pop(key).to_bytes())


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of a store with new elements in some arrays."""
    with _open_model(source) as old, os.fdopen(os.dup(fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        assert old is not None  # noqa: S101 - there is a source
        paths = [array.name.lstrip(_ROOT) for array in changed]
        for key in old.names:
            if array_of_chunk(key, paths) is None:
                archive.writestr(new_member(key, mode=_MODE), old[key])
        for path, array in zip(paths, changed, strict=True):
            _write_chunks(archive, {key: old[key] for key in old.keys_of(path)}, path, array)
