"""A Zarr store as its keys and their bytes, in files, objects or a zip archive, and the documents that describe it."""

from __future__ import annotations

import functools
import json
import math
import struct
import zipfile
import zlib
from base64 import standard_b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpired.buffers import conventions
from mpired.buffers.conventions import Attributes, Packed, Variable
from mpired.buffers.local import Extent, Spliced
from mpired.buffers.missing import Missing
from mpired.buffers.streamed import too_large
from mpired.errors import BufferFileError
from mpired.sources.source import STORE_DOCUMENTS, OpenStore, Source

ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError, struct.error, RuntimeError)
"""What the documents and the archive raise where they are damaged."""
ROOT = "/"  # what an array is called that is the whole store
V2_GROUP, V2_ARRAY, V2_ATTRIBUTES, V2_ALL, V3_NODE = ".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json"
DOCUMENTS = STORE_DOCUMENTS
_MAX_DOCUMENT = 16 << 20
_MAX_NDIM = 64
_SAME_TYPE = frozenset(
    {"bytes", "transpose", "blosc", "gzip", "zstd", "lz4", "zlib", "bz2", "lzma", "shuffle", "crc32c", "crc32"}
)
_LONGEST_NBYTES = 16
_BESIDE_NBYTES = 64 << 10  # what a checksum and the like take
_NAMES_OF_TYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class Keys(Mapping[str, bytes]):
    """The keys of a store, and their bytes. The caller closes it."""

    def __init__(self, source: Source, most: int) -> None:
        self.name, self.most = source.name, most
        self._file = source.open()
        try:
            if isinstance(self._file, OpenStore):
                self._names = dict.fromkeys(self._file.names())
            else:
                self._zip = zipfile.ZipFile(Spliced(self._file, [Extent(0, source.nbytes)]))
                # Of several members of one name the last counts, as zarr adds one for each change of a document.
                infos = (info for info in self._zip.infolist() if not info.is_dir())
                self._names = dict.fromkeys(info.filename for info in infos)
        except BaseException:
            self._file.close()
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __getitem__(self, key: str) -> bytes:
        if key not in self._names:
            raise KeyError(key)
        if isinstance(self._file, OpenStore):
            content = self._file.content(key, self.most)
        else:
            self._check(key, self._zip.getinfo(key).file_size)
            with self._zip.open(key) as member:  # one that is longer than it says is cut off
                content = member.read(self.most + 1)
        self._check(key, len(content))
        return content

    def expect(self, keys: Iterable[str]) -> None:
        """Take notice of what is read next: what is far asks for several at once. Some may not be there."""
        if isinstance(self._file, OpenStore):
            self._file.expect_names(keys, self.most)

    def _check(self, key: str, nbytes: int) -> None:
        if nbytes > self.most:
            raise too_large(self.name, f"{key!r}", nbytes, self.most)

    def document(self, key: str) -> dict[str, Any]:
        """Return a document."""
        try:
            found = json.loads(self[key])
        except (ValueError, RecursionError) as error:
            reason = f"{key!r} is not JSON ({' '.join(str(error).split())[:100]})"
            raise BufferFileError(self.name, f"{reason}; not a valid Zarr store") from None
        if not isinstance(found, dict):
            raise BufferFileError(self.name, f"{key!r} is not an object; not a valid Zarr store")
        return found

    def close(self) -> None:
        """Close it."""
        self._file.close()


@dataclass(frozen=True)
class Node:
    """A group or an array of a store."""

    path: str  # its path, "" for the root
    version: int  # the version of the format, 2 or 3
    document: dict[str, Any]  # what describes it
    attributes: dict[str, Any]  # its attributes

    @property
    def name(self) -> str:
        """What an array is called."""
        return self.path or ROOT

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return "shape" in self.document

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of an array."""
        return tuple(self.document["shape"])

    @property
    def chunk(self) -> tuple[int, ...]:
        """The dimensions of what is one value of the store: a chunk, or a shard of several."""
        if self.version == 2:  # noqa: PLR2004 - the first of two versions
            return tuple(self.document["chunks"])
        return tuple(self.document["chunk_grid"]["configuration"]["chunk_shape"])

    @property
    def codecs(self) -> list[str]:
        """The names of its filters and codecs."""
        codecs = [*(self.document.get("filters") or ()), *(self.document.get("codecs") or ())]
        return [str(each.get("id", each.get("name"))) for each in codecs]

    def most_nbytes(self, itemsize: int) -> int:
        """Return how many bytes a chunk, or the index of a shard, unfolds to at most, in any step of its codecs."""
        names = {each.removeprefix("numcodecs.") for each in self.codecs}
        # Filters may give elements of another type, the longest of which are complex numbers; so long is what an index
        # has for each chunk.
        widest = itemsize if names <= _SAME_TYPE else max(itemsize, _LONGEST_NBYTES)
        return math.prod(self.chunk) * widest + _BESIDE_NBYTES

    @property
    def dtype(self) -> np.dtype | None:
        """NumPy's form of the elements, None if that does not have them or they are no plain values."""
        found = self.document["dtype" if self.version == 2 else "data_type"]  # noqa: PLR2004
        if isinstance(found, list):
            found = [(str(field[0]), *field[1:]) for field in found]
        elif self.version != 2 and str(found) not in _NAMES_OF_TYPES:  # noqa: PLR2004
            return None
        dtype = np.dtype(found)
        return None if dtype.hasobject else dtype

    @property
    def dimensions(self) -> tuple[str | None, ...] | None:
        """The names of the dimensions, as xarray writes them; None if there are none."""
        found = self.attributes.get("_ARRAY_DIMENSIONS") if self.version == 2 else self.document.get("dimension_names")  # noqa: PLR2004
        return tuple(found) if isinstance(found, list) else None

    @property
    def variable(self) -> Variable:
        """The array, or the group, and its attributes."""
        if not self.is_array:
            return Variable(f"{self.path}/", (), None, self.attributes)
        dims = self.dimensions or (None,) * len(self.shape)
        return Variable(self.name, tuple(each or "" for each in dims), None, self.attributes)

    @property
    def values(self) -> Attributes:
        """What its attributes say of how elements are stored."""
        names = (conventions.SCALE, conventions.OFFSET, conventions.UNSIGNED)
        found = {name: self.attributes[name] for name in names if name in self.attributes}
        return {name: value if isinstance(value, str) else np.asarray(value) for name, value in found.items()}

    @property
    def form(self) -> np.dtype | None:
        """The form that elements are read in, as that of those that the store has."""
        return None if self.dtype is None else conventions.viewed(self.values, self.dtype)[1]

    @property
    def packed(self) -> Packed | None:
        """How values are packed; None if they are not."""
        return None if self.form is None else conventions.packing(self.name, self.values, self.form)

    def _number(self, value: Any) -> float | None:
        """Return a value of an attribute as a number of the form that elements are read in."""
        found, form = _number(value), self.form
        if found is None or form is None or form == self.dtype or found % 1:
            return found
        viewed: float = np.asarray(found).astype(form).item()
        return viewed

    @property
    def missing_values(self) -> tuple[float, ...]:
        """Which values mean that an element is missing, as xarray takes them; NaN is among them."""
        attributes, found = self.attributes, []
        if self.version == 2 and self.dimensions is not None:  # noqa: PLR2004 - in version 3 xarray has an attribute
            found.append(self.document.get("fill_value"))
        for name in ("_FillValue", "missing_value"):
            value = attributes.get(name)
            found += value if isinstance(value, list) else [value]
        return tuple(dict.fromkeys(each for each in map(self._number, found) if each is not None))

    def missing(self) -> Missing | None:
        """Return the rule for missing values; None if there is none."""
        low, high = (self._number(self.attributes.get(name)) for name in ("valid_min", "valid_max"))
        limits = self.attributes.get("valid_range")
        if isinstance(limits, list) and len(limits) == 2:  # noqa: PLR2004 - the least and the greatest
            low, high = map(self._number, limits)
        values = tuple(each for each in self.missing_values if not math.isnan(each))
        return Missing(values, low, high) if values or low is not None or high is not None else None

    def check(self, name: str) -> None:
        """Raise `BufferFileError` if the shape and the chunks of an array make no sense."""
        shape, chunk = self.document["shape"], list(self.chunk)
        counts = [*shape, *chunk]
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in counts) or 0 in chunk:
            raise BufferFileError(name, f"array {self.name!r} has a shape or chunks that are not counts")
        if len(shape) != len(chunk) or len(shape) > _MAX_NDIM or math.prod(shape) >= 1 << 59:
            reason = f"array {self.name!r} has {len(shape)} dimensions and {math.prod(shape)} elements"
            raise BufferFileError(name, f"{reason} in chunks of {len(chunk)} dimensions; not a valid Zarr store")

    def uses_pickle(self) -> bool:
        """Tell whether a codec of the array would run what is in the file."""
        return "pickle" in json.dumps([self.document.get(key) for key in ("filters", "compressor", "codecs")])


def _number(value: Any) -> float | None:
    """Return a value of an attribute as a number; xarray writes those of floating point in base64."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        if value in {"NaN", "Infinity", "-Infinity"}:
            return float(value.replace("Infinity", "inf"))
        try:
            octets = standard_b64decode(value)
        except ValueError:
            return None
        return float(struct.unpack("<d", octets)[0]) if len(octets) == 8 else None  # noqa: PLR2004 - as xarray does
    return None


def nodes(keys: Keys) -> list[Node]:
    """Return the groups and arrays of a store, in the order of their paths."""
    keys.most, most = _MAX_DOCUMENT, keys.most
    found: dict[str, Node] = {}
    is_v3 = V3_NODE in keys
    keys.expect(key for key in keys if key.rpartition("/")[2] in DOCUMENTS)
    for key in keys:
        path, _, last = key.rpartition("/")
        if last == V3_NODE:
            document = _of_version(3, keys, key)
            attributes = document.get("attributes", {})
            if document.get("node_type") != "array":
                document.pop("shape", None)
            found[path] = Node(path, 3, document, attributes)
        elif last in {V2_GROUP, V2_ARRAY} and not is_v3:
            beside = f"{path}/{V2_ATTRIBUTES}".lstrip("/")
            attributes = keys.document(beside) if beside in keys else {}
            found[path] = Node(path, 2, _of_version(2, keys, key), attributes)
    keys.most = most
    if not found:
        raise BufferFileError("", "has no documents of groups or arrays")
    _check_consolidated(keys, found)
    return [found[path] for path in sorted(found)]


def _of_version(version: int, keys: Keys, key: str) -> dict[str, Any]:
    """Return a document, which has to be of a version."""
    document = keys.document(key)
    if document.get("zarr_format") != version:
        raise BufferFileError(keys.name, f"{key!r} is not a document of Zarr version {version}; not a valid Zarr store")
    return document


def _check_consolidated(keys: Keys, found: Mapping[str, Node]) -> None:
    """Raise `BufferFileError` if the root has documents of all nodes, which zarr reads, that are not theirs."""
    root = found.get("")
    if V2_ALL in keys:
        listed = keys.document(V2_ALL).get("metadata", {})
        real = {f"{path}/".lstrip("/"): node for path, node in found.items()}
        theirs = {f"{prefix}{V2_ARRAY if node.is_array else V2_GROUP}": node.document for prefix, node in real.items()}
        theirs |= {f"{prefix}{V2_ATTRIBUTES}": {"all": node.attributes} for prefix, node in real.items()}
        mine: dict[str, Any] = {key: {"all": {}} for key in theirs if key.endswith(V2_ATTRIBUTES)}
        mine |= {key: {"all": value} if key.endswith(V2_ATTRIBUTES) else value for key, value in listed.items()}
    elif root is not None and (whole := root.document.get("consolidated_metadata")):
        mine = {path: {"attributes": {}, **value} for path, value in whole["metadata"].items()}
        theirs = {path: {**node.document, "attributes": node.attributes} for path, node in found.items() if path}
    else:
        return
    canonical = functools.partial(json.dumps, sort_keys=True)
    for key in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(key), theirs.get(key)
        names = one.keys() & other.keys() if one is not None and other is not None else ()
        # As text, because NaN is equal to NaN.
        if one is None or other is None or any(canonical(one[name]) != canonical(other[name]) for name in names):
            reason = f"the consolidated metadata of the root is not what the documents say of {key!r}"
            raise BufferFileError(keys.name, f"{reason}; write it again with `zarr.consolidate_metadata`")


def documents_of(node: Node) -> dict[str, bytes]:
    """Return the keys of a node that describe it, and their bytes."""
    prefix = f"{node.path}/" if node.path else ""
    if node.version == 3:  # noqa: PLR2004
        return {f"{prefix}{V3_NODE}": dumped({**node.document, "attributes": node.attributes})}
    found = {f"{prefix}{V2_ARRAY if node.is_array else V2_GROUP}": dumped(node.document)}
    return found | ({f"{prefix}{V2_ATTRIBUTES}": dumped(node.attributes)} if node.attributes else {})


def consolidated(keys: Keys, new: list[Node]) -> dict[str, bytes]:
    """Return the documents of the root for new nodes, if the old store has all in one document."""
    if V2_ALL in keys:
        all_of = {key: json.loads(text) for node in new for key, text in documents_of(node).items()}
        return {V2_ALL: dumped({"metadata": all_of, "zarr_consolidated_format": 1})}
    for root in (node for node in new if not node.path and node.document.get("consolidated_metadata")):
        inner = {node.path: {**node.document, "attributes": node.attributes} for node in new if node is not root}
        all_of = {"kind": "inline", "must_understand": False, "metadata": inner}
        return {V3_NODE: dumped({**root.document, "attributes": root.attributes, "consolidated_metadata": all_of})}
    return {}


def dumped(document: dict[str, Any]) -> bytes:
    """Return a document as bytes."""
    return json.dumps(document, indent=2).encode()
