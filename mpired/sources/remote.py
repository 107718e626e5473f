"""Ranks that are objects of a store; an object that is replaced during the call is an error.

The objects under a prefix may be a store of arrays, with an object for each chunk.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import fnmatch
import itertools
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar
from weakref import WeakSet

from mpired.context import SMALL_NBYTES, STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError, UsageError
from mpired.files import stores, urls
from mpired.files.stores import Version, object_of
from mpired.sources.source import (
    STORE_DOCUMENTS,
    STORE_MARKS,
    STORE_SUFFIX,
    OpenBytes,
    OpenSource,
    OpenStore,
    ReadAhead,
    Source,
)

_PAGE_NBYTES = 64 << 10  # minimum size of a request, which transfers about as long as it waits
_MAX_PAGE_NBYTES = 1 << 20  # consecutive reads request longer and longer pages
_GAP_NBYTES = 512 << 10  # transferred in the time of a request: shorter gaps are read too
# Expected ranges are read in blocks, which are shorter if many objects are open, so that two blocks of each are cached.
_BLOCK_NBYTES, _MIN_BLOCK_NBYTES = 4 << 20, 256 << 10
_BLOCKS_NBYTES = 32 << 20
_CACHE_NBYTES = _BLOCKS_NBYTES + (8 << 20)  # all pages and blocks
_WHOLE_NBYTES = 16 << 20  # maximum size of an object that is read by one request
_MAGIC = frozenset("*?[")
_ANY_FOLDERS = "**"
_STORE = re.compile(rf"{re.escape(STORE_SUFFIX)}/")
_MAX_OBJECTS = 1_000_000
_DOCUMENTS_NBYTES = 1 << 20  # maximum size of the documents of a store that are read at the inspection
_DEPTH = 16  # simultaneous requests
_AHEAD_NBYTES = 32 << 20  # read ahead from all stores in a process
_MEMORY_SHARE = 16  # at most 1/16 of a memory limit is read ahead, because workers need the rest


def object_or_store(url: str, context: Context) -> Source:
    """Return the source of a URL: an object, or a store of arrays."""
    url = urls.signed(url)
    scheme, _, address = url.partition("://")
    can_list = scheme in urls.STORES
    if can_list:
        url = f"{scheme}://{address.rstrip('/')}"
    has_store_suffix = url.endswith(STORE_SUFFIX)
    versions = _objects_under(url) if can_list and has_store_suffix else {}
    if not STORE_MARKS.isdisjoint(versions):
        return RemoteStore(url, versions, context)
    try:
        return RemoteSource(url)
    except FileNotFoundError as error:
        if has_store_suffix and not can_list:
            where = f"a Zarr store of many objects is read from {', '.join(urls.STORES)}, which list their objects"
            error.add_note(f"{where}: pack it into a zip archive (.zarr.zip)")
        if can_list and not has_store_suffix:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # a user may read objects, but not list them
                versions = _objects_under(url)
        if not versions:
            raise
    if STORE_MARKS.isdisjoint(versions):
        reason = "is a folder, and no Zarr store: it has no zarr.json, .zgroup or .zarray"
        raise BufferFileError(url, f"{reason}; name the ranks in it, e.g. '{url}/*.npy'")
    return RemoteStore(url, versions, context)


class RemoteSource(Source):
    """An object of a store."""

    depth, block_nbytes = _DEPTH, _BLOCK_NBYTES

    def __init__(self, url: str) -> None:
        """Request the version and the first bytes of the object."""
        self.name = self.url = url
        self.inode = urls.identity(url)
        try:
            head, version = stores.get(url, 0, _PAGE_NBYTES)
        except stores.GoneError:  # an empty object has no bytes in the range
            empty = stores.version_of(url)
            if empty is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
            head, version = memoryview(b""), empty
        self.version = version  # of all later answers; another version is an error
        self.nbytes = version.nbytes
        self.content: bytes | None = None  # of a small object
        if version.nbytes <= SMALL_NBYTES:
            self.content = bytes(head)
        else:
            _cache.add((url, version), 0, head)

    def open(self) -> OpenSource:
        """Open the object without a request."""
        return _OpenRemote(self) if self.content is None else OpenBytes(self.content)


class _OpenRemote(OpenSource):
    """An object that is read in ranges."""

    _expecting = 0  # number of open objects with expected ranges

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._expected: list[tuple[int, int]] = []

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note ranges (offset, number of bytes) that will be read; ranges with short gaps are merged."""
        _OpenRemote._expecting += not self._expected
        nbytes = self._source.nbytes
        if nbytes <= min(_WHOLE_NBYTES, _BLOCKS_NBYTES // _OpenRemote._expecting):
            ranges = [(0, nbytes)]
        merged: list[tuple[int, int]] = []
        for start, stop in sorted((start, min(start + count, nbytes)) for start, count in ranges):
            if merged and start <= merged[-1][1] + _GAP_NBYTES:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        self._expected = merged or [(0, 0)]

    def close(self) -> None:
        """Forget the expected ranges."""
        _OpenRemote._expecting -= bool(self._expected)
        self._expected = []

    def read_into(self, view: memoryview, offset: int) -> int:
        position, stop = offset, min(offset + len(view), self._source.nbytes)
        while position < stop:
            piece = self._piece(position, stop - position)[: stop - position]
            view[position - offset :][: len(piece)] = piece
            position += len(piece)
        return position - offset

    def _piece(self, offset: int, count: int) -> memoryview:
        """Return bytes from `offset` on, from the cache or by a request, whose size depends on the expected ranges."""
        source = self._source
        key = source.url, source.version
        number = bisect.bisect_right(self._expected, (offset, math.inf)) - 1
        first, end = self._expected[number] if number >= 0 else (0, 0)
        if offset >= end and count > _MAX_PAGE_NBYTES:
            return _read_object(source, *key, offset, count)
        start, piece = _cache.find(key, offset)
        if offset - start < len(piece):
            return piece[offset - start :]
        if offset < end:
            share = _BLOCKS_NBYTES // (2 * max(1, _OpenRemote._expecting))
            length = max(_MIN_BLOCK_NBYTES, min(_BLOCK_NBYTES, share))
            start = offset - (offset - first) % length  # skipped bytes are often read next
            stop = min(start + length, end)
        elif count > _PAGE_NBYTES:
            start, stop = offset, offset + count
        else:  # more short reads will follow, after a read at the end of the object perhaps before it
            page_nbytes = min(max(_PAGE_NBYTES, 2 * len(piece)), _MAX_PAGE_NBYTES)
            start, stop = min(offset, max(0, source.nbytes - _PAGE_NBYTES)), min(offset + page_nbytes, source.nbytes)
        piece = _read_object(source, *key, start, stop - start)
        _cache.add(key, start, piece)
        return piece[offset - start :]


def _read_object(source: Source, url: str, version: Version, offset: int, count: int) -> memoryview:
    """Return `count` bytes of an object of a source; raise `ChangedError` if it has another version."""
    try:
        content, _ = stores.get(url, offset, offset + count, version)
    except (stores.GoneError, FileNotFoundError):
        raise source.changed() from None
    if len(content) < count:
        raise source.changed()
    return content


class _Cache:
    """Recently used pieces of objects."""

    def __init__(self, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._lock = threading.Lock()
        self._pieces: OrderedDict[Any, tuple[int, memoryview]] = OrderedDict()
        self._nbytes = 0

    def find(self, key: object, offset: int) -> tuple[int, memoryview]:
        """Return the start and bytes of the piece with the byte at `offset`, or of the longest piece shortly before."""
        nearest = offset, memoryview(b"")
        with self._lock:
            for piece_key in reversed(self._pieces):
                start, piece = self._pieces[piece_key]
                if piece_key[0] != key or not start <= offset <= start + len(piece) + _GAP_NBYTES:
                    continue
                if offset < start + len(piece):
                    self._pieces.move_to_end(piece_key)
                    return start, piece
                if len(piece) > len(nearest[1]):
                    nearest = start, piece
        return nearest

    def add(self, key: object, start: int, piece: memoryview) -> None:
        """Add a piece, and remove the least recently used pieces."""
        with self._lock:
            _, old = self._pieces.pop((key, start), (0, b""))
            self._pieces[key, start] = start, piece
            self._nbytes += len(piece) - len(old)
            while self._nbytes > self._max_nbytes:
                _, (_, old) = self._pieces.popitem(last=False)
                self._nbytes -= len(old)


_cache = _Cache(_CACHE_NBYTES)


class RemoteStore(Source):
    """The objects under a prefix that are together a store of arrays."""

    # Each object must have the listed version. At the end of the call a second list shows new objects.

    documents: tuple[tuple[str, bytes], ...] = ()  # names and contents; () if the documents are long

    def __init__(self, url: str, versions: dict[str, Version], context: Context) -> None:
        """Read the documents of the objects under a URL, which have these versions by relative name."""
        self.name = self.url = url
        self.inode = urls.identity(url)
        self.versions = versions
        self.nbytes = sum(version.nbytes for version in versions.values())
        spare = context.spare_memory(STREAMED_BASE_NBYTES)
        # Bytes that a process reads ahead from all stores.
        self.ahead_nbytes = _AHEAD_NBYTES if spare is None else min(_AHEAD_NBYTES, spare // _MEMORY_SHARE)
        names = [name for name in sorted(versions) if name.rpartition("/")[2] in STORE_DOCUMENTS]
        if sum(versions[name].nbytes for name in names) > _DOCUMENTS_NBYTES:
            return
        with contextlib.closing(_OpenRemoteStore(self)) as file:
            file.expect_names(names, _DOCUMENTS_NBYTES)
            self.documents = tuple((name, file.content(name, _DOCUMENTS_NBYTES)) for name in names)

    def open(self) -> OpenStore:
        """Open the store without a request."""
        return _OpenRemoteStore(self)

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if objects under the prefix were added, removed or replaced."""
        if _objects_under(self.url) != self.versions:
            raise self.changed()


class _OpenRemoteStore(OpenStore):
    """An open store of objects, which reads announced objects ahead."""

    source: RemoteStore
    _expecting: ClassVar[WeakSet[_OpenRemoteStore]] = WeakSet()  # stores with announced names

    def __init__(self, source: RemoteStore) -> None:
        super().__init__(source)
        self._versions = source.versions
        self._documents = dict(source.documents)
        self._reads: ReadAhead[str, bytes] = ReadAhead((), lambda _: None, bool)
        self._last = "", b""  # name and content: a shard is read again for each of its chunks

    def names(self) -> list[str]:
        return sorted(self._versions)

    def content(self, name: str, limit: int) -> bytes:
        """Return the first bytes of an object, at most `limit + 1`."""
        if name in self._documents:
            return self._documents[name][: limit + 1]
        if self._last[0] != name:
            future = self._reads.take(name)
            self._last = name, future.result() if future else self._read(name, limit)
        return self._last[1]

    def expect_names(self, names: Iterable[str], limit: int) -> None:
        """Read these objects ahead, in place of objects that were announced before."""

        def start(name: str) -> Future[bytes] | None:
            version = self._versions.get(name)
            if version is None or name in self._documents or version.nbytes > limit:
                return None
            return stores.submit(self._read, name, version.nbytes)

        def has_room(started: Sequence[str]) -> bool:
            share = self.source.ahead_nbytes // max(1, len(self._expecting))
            nbytes = sum(self._versions[name].nbytes for name in started)
            return not started or (len(started) < _DEPTH and nbytes < share)

        self._reads.close()
        self._expecting.add(self)
        self._reads = ReadAhead(names, start, has_room)

    def _read(self, name: str, limit: int) -> bytes:
        version = self._versions[name]
        count = min(version.nbytes, limit + 1)
        return bytes(_read_object(self.source, f"{self.source.url}/{name}", version, 0, count)) if count else b""

    def close(self) -> None:
        """Cancel all reads."""
        self._reads.close()
        self._expecting.discard(self)


def _objects_under(url: str) -> dict[str, Version]:
    """Return the versions of the objects under a prefix, by relative name."""
    key = object_of(url).key
    versions = stores.versions_under(url, key, _MAX_OBJECTS)
    # The time of an unchanged object may differ between lists, so it is ignored if there is an ETag.
    return {
        name.removeprefix(f"{key}/"): version if version.etag is None else version._replace(modified=0)
        for name, version in versions.items()
    }


def matching(pattern: str) -> list[str]:
    """Return the sorted URLs that match a glob; `*` matches no slash, and `**` any folders."""
    # A folder with the suffix of a store of arrays matches like an object, and then hides the objects in it.
    place = object_of(pattern)
    if place.scheme not in urls.STORES:
        reason = f"is a glob, and a server of {place.scheme} does not list its files"
        raise UsageError(pattern, f"{reason}; write a range, such as {{0..9}}, or a list of URLs")
    pattern_parts = place.key.split("/")
    folders = list(itertools.takewhile(lambda part: not _MAGIC.intersection(part), pattern_parts[:-1]))
    is_deep = len(folders) + 1 < len(pattern_parts) or pattern_parts[-1] == _ANY_FOLDERS
    listed = set((stores.versions_under if is_deep else stores.names_in)(pattern, "/".join(folders)))
    if place.key in listed:  # the name of an object with such characters
        return [pattern]
    listed.update(*map(_enclosing_stores, listed))
    names = {name for name in listed if not name.endswith("/") and _fits(name.split("/"), pattern_parts)}
    names = {name for name in names if names.isdisjoint(_enclosing_stores(name))}
    if not names:
        raise FileNotFoundError(errno.ENOENT, "no object matches", pattern)
    return [f"{place.root}/{name}" for name in sorted(names)]


def _enclosing_stores(name: str) -> list[str]:
    """Return the folders of an object that have the suffix of a store of arrays."""
    return [name[: match.end() - 1] for match in _STORE.finditer(name)]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a name match a glob; `*` does not match a dot at the start."""
    if not pattern or not parts:
        return not pattern and not parts
    first, *rest = pattern
    if first == _ANY_FOLDERS:
        visible = next((number for number, part in enumerate(parts) if part.startswith(".")), len(parts))
        return any(_fits(parts[number:], rest) for number in range(visible + 1)) if rest else visible == len(parts)
    if parts[0].startswith(".") and not first.startswith("."):
        return False
    return fnmatch.fnmatchcase(parts[0], first) and _fits(parts[1:], rest)
