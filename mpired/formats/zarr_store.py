"""A Zarr store as its keys and their bytes, in files, objects or a zip archive; the library opens its nodes."""

from __future__ import annotations

import functools
import importlib
import json
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from mpired import installed
from mpired.errors import BufferFileError, MpiredError
from mpired.formats.local import SourceFile
from mpired.formats.streamed import ColumnFile, too_large
from mpired.sources.source import STORE_DOCUMENTS, OpenStore

ROOT = "/"  # the name of an array that is the whole store
_V2_ALL, _V3_NODE = ".zmetadata", "zarr.json"
_MARKS = {2: (".zarray", ".zgroup"), 3: (_V3_NODE,)}
_MAX_DOCUMENT = 16 << 20
_MAX_NDIM = 64
_BLOSC_NBYTES = 16  # of a header, whose last four bytes are the length of the chunk


@functools.cache
def library() -> Any:
    """Import zarr."""
    with installed.importing("zarr"):
        zarr: Any = importlib.import_module("zarr")
    warnings.filterwarnings("ignore", module="zarr")
    warnings.filterwarnings("ignore", module="numcodecs")
    warnings.filterwarnings("ignore", message="Consolidated metadata is currently not part")
    # Each worker has one core. A chunk of -0.0 is not one of the fill value 0.0, so every chunk is written.
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1, "array.write_empty_chunks": True})
    importlib.import_module("numcodecs.registry").codec_registry.pop("pickle", None)  # it would run code of the file
    # Some writers name the codec of strings as if numcodecs had it.
    strings = type("VLenUTF8Codec", (zarr.codecs.VLenUTF8Codec,), {"from_dict": classmethod(lambda cls, _: cls())})
    zarr.registry.register_codec("numcodecs.vlen-utf8", strings)
    blosc = importlib.import_module("numcodecs.blosc").Blosc
    blosc.decode = _checked_blosc(blosc.decode)
    return zarr


def _checked_blosc(decode: Any) -> Any:
    def checked(self: Any, buf: Any, out: Any = None) -> Any:
        octets = memoryview(buf).cast("B")
        if len(octets) < _BLOSC_NBYTES or int.from_bytes(octets[12:_BLOSC_NBYTES], "little") > len(octets):
            raise ValueError("a chunk of Blosc is cut off")  # numcodecs would read beyond its end
        return decode(self, buf, out)

    return checked


class Buffers(dict[str, Any]):
    """Buffers of the library by their keys: those that it writes, and else those of other bytes."""

    def __init__(self, others: Mapping[str, bytes] | Store) -> None:
        super().__init__()
        self._others = others
        self.store = library().storage.MemoryStore(self)

    def __missing__(self, key: str) -> Any:
        return library().core.buffer.default_buffer_prototype().buffer.from_bytes(self._others[key])


class Store(ColumnFile):
    """An open store: its keys, their bytes, and the nodes that they describe. The caller closes it."""

    def begin(self) -> None:
        """Read the keys."""
        self.buffers = Buffers(self)
        if isinstance(self._bytes, OpenStore):
            names = self._bytes.names()
        else:
            self._zip = zipfile.ZipFile(SourceFile(self._bytes, self._source.nbytes))
            # Of several members of one name the last counts, as zarr adds one for each change of a document.
            names = [info.filename for info in self._zip.infolist() if not info.is_dir()]
        self.names = dict.fromkeys(names)
        parts = [name.rpartition("/") for name in self.names]
        paths = {version: sorted({path for path, _, last in parts if last in _MARKS[version]}) for version in _MARKS}
        self.version = 2 if paths[2] and _V3_NODE not in self.names else 3
        self.paths = paths[self.version]

    def __getitem__(self, key: str) -> bytes:
        """Return the bytes of a key."""
        if key not in self.names:
            raise KeyError(key)
        most = _MAX_DOCUMENT if key.rpartition("/")[2] in STORE_DOCUMENTS else self._memory
        if isinstance(self._bytes, OpenStore):
            content = self._bytes.content(key, most)
        else:
            with self._zip.open(key) as member:
                content = member.read(most + 1)
        if len(content) > most:
            raise too_large(self._source.name, f"{key!r}", len(content), most)
        return content

    def expect(self, keys: Iterable[str]) -> None:
        """Prefetch keys, of which some may not exist, if they are remote."""
        if isinstance(self._bytes, OpenStore):
            self._bytes.expect_names(keys, self._memory)

    def keys_of(self, path: str) -> list[str]:
        """Return the keys of the documents of a node."""
        return [key for name in sorted(STORE_DOCUMENTS) if (key := f"{path}/{name}".lstrip("/")) in self.names]

    def _document(self, path: str) -> tuple[dict[str, Any], bool]:
        """Return the document of a node, and whether it is that of an array."""
        key = next(key for key in self.keys_of(path) if key.rpartition("/")[2] in _MARKS[self.version])
        document = json.loads(self[key])
        if document["zarr_format"] != self.version:
            raise ValueError(f"{key!r} is not a document of Zarr version {self.version}")
        return document, key.endswith(".zarray") or document.get("node_type") == "array"

    def is_array(self, path: str) -> bool:
        """Return whether a node is an array."""
        return path in self.paths and self._document(path)[1]

    def node(self, path: str) -> Any:
        """Open a group or an array."""
        zarr, (_, is_array) = library(), self._document(path)
        opened = zarr.open_array if is_array else functools.partial(zarr.open_group, use_consolidated=False)
        node = opened(self.buffers.store, path=path, mode="r", zarr_format=self.version)
        dict(node.metadata.attributes)  # else they are not an object
        _load_codecs(getattr(node.metadata, "codecs", ()))
        if is_array and (node.size >= 1 << 59 or node.ndim > _MAX_NDIM or 0 in chunk_of(node)):
            raise ValueError(f"{node.size} elements in chunks of {chunk_of(node)} make no sense")
        return node

    def nodes(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Open all groups and arrays; return them, and why other arrays cannot be opened."""
        self.expect(key for key in self.names if key.rpartition("/")[2] in STORE_DOCUMENTS)
        found, wrong = {}, {}
        for path in self.paths:
            try:
                found[path] = self.node(path)
            except MpiredError:
                raise
            except Exception as error:  # noqa: BLE001 - of any kind
                wrong[path] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            if path in wrong and any(other.startswith(f"{path}/".lstrip("/")) for other in self.paths if other != path):
                raise BufferFileError(
                    self._source.name, f"the document of group {f'{path}/'!r} is damaged: {wrong[path]}"
                )
        if not self.paths:
            raise BufferFileError(self._source.name, "has no documents of groups or arrays")
        if not wrong and self.is_consolidated:
            self._check_consolidated(found)
        return found, wrong

    @property
    def is_consolidated(self) -> bool:
        """Whether the root has the documents of all nodes, too."""
        return _V2_ALL in self.names or ("" in self.paths and bool(self._document("")[0].get("consolidated_metadata")))

    def _check_consolidated(self, found: Mapping[str, Any]) -> None:
        """Raise `BufferFileError` if the root, which other programs believe, contradicts the documents."""
        root = library().open_group(self.buffers.store, mode="r", zarr_format=self.version, use_consolidated=True)
        mine = {path: _text(node.metadata) for path, node in found.items() if path}
        theirs = {path: _text(each) for path, each in root.metadata.consolidated_metadata.flattened_metadata.items()}
        for path in sorted(mine.keys() | theirs.keys()):
            if mine.get(path) != theirs.get(path):
                reason = f"the consolidated metadata of the root is not what the documents say of {path!r}"
                raise BufferFileError(self._source.name, f"{reason}; write it again with `zarr.consolidate_metadata`")


def _load_codecs(codecs: Iterable[Any]) -> None:
    """Raise the error of the library for a codec that is not installed: those of numcodecs are loaded when needed."""
    for each in codecs:
        getattr(each, "_codec", None)
        _load_codecs(getattr(each, "codecs", ()))


def _text(metadata: Any) -> str:
    """Return the document of a node as text, because NaN is not equal to NaN."""
    document = {key: value for key, value in metadata.to_dict().items() if key != "consolidated_metadata"}
    return json.dumps(document, sort_keys=True, default=str)


def chunk_of(array: Any) -> tuple[int, ...]:
    """Return the dimensions of a value of the store: a chunk, or a shard of several."""
    chunk: tuple[int, ...] = array.shards or array.chunks
    return chunk


def codec_names(array: Any) -> list[str]:
    """Return the names of the filters and codecs of an array."""
    document = array.metadata.to_dict()
    codecs = [*(document.get("filters") or ()), *(document.get("codecs") or ()), document.get("compressor") or {}]
    found = [each if isinstance(each, dict) else each.get_config() for each in codecs]
    names = [each.get("id", each.get("name")) for each in found]
    return [str(name) for name in names if name not in (None, "bytes")]
