"""Objects of a store, by their URLs, which must not be replaced while they are read.

Many objects under one prefix may be a store of arrays, of which each chunk is an object.
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

from mpired.context import FEW_BYTES, STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError, UsageError
from mpired.files import stores, urls
from mpired.files.stores import Version
from mpired.sources.ahead import ReadAhead
from mpired.sources.source import STORE_DOCUMENTS, STORE_MARKS, STORE_SUFFIX, OpenBytes, OpenSource, OpenStore, Source

_PAGE_NBYTES = 64 << 10  # that are read at least: a request costs about as much
_LONGEST_PAGE_NBYTES = 1 << 20  # consecutive reads are made in longer and longer pages
_GAP_NBYTES = 512 << 10  # that arrive in the time of a request: a shorter gap is not worth another one
# Expected bytes are read in blocks, shorter ones if many objects are open, so that two of each are kept.
_BLOCK_NBYTES, _LEAST_BLOCK_NBYTES = 4 << 20, 256 << 10
_BLOCKS_NBYTES = 32 << 20
_KEPT_NBYTES = _BLOCKS_NBYTES + (8 << 20)  # of all pages and blocks
_WHOLE_NBYTES = 16 << 20  # objects up to here are read whole, if that can be kept
_MAGIC = frozenset("*?[")
_ANY_FOLDERS = "**"
_STORE = re.compile(rf"{re.escape(STORE_SUFFIX)}/")
_MOST_OBJECTS = 1_000_000
# Documents up to here are read when a store is looked at, and are sent to workers with the list of its objects.
_DOCUMENTS_NBYTES = 1 << 20
_DEPTH = 16
_AHEAD_NBYTES = 32 << 20  # of all stores that a process reads
_PART = 16  # of the memory within a limit, which several workers share with decoded elements


def object_or_store(url: str, context: Context) -> Source:
    """Return the source of a URL: an object, or a store of arrays whose objects it begins."""
    url = urls.signed(url)
    name, _, rest = url.partition("://")
    lists = name in urls.STORES
    if lists:
        url = f"{name}://{rest.rstrip('/')}"
    is_named = url.endswith(STORE_SUFFIX)
    found = _listed(url) if lists and is_named else {}
    if not STORE_MARKS.isdisjoint(found):
        return RemoteStore(url, found, context)
    try:
        return RemoteSource(url)
    except FileNotFoundError as error:
        if is_named and not lists:
            where = f"a Zarr store of many objects is read from {', '.join(urls.STORES)}, which list their objects"
            error.add_note(f"{where}: pack it into a zip archive (.zarr.zip)")
        if lists and not is_named:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # who may read need not be let list
                found = _listed(url)
        if not found:
            raise
    if STORE_MARKS.isdisjoint(found):
        reason = "is a folder, and no Zarr store: it has no zarr.json, .zgroup or .zarray"
        raise BufferFileError(url, f"{reason}; name the ranks in it, e.g. '{url}/*.npy'")
    return RemoteStore(url, found, context)


class RemoteSource(Source):
    """An object of a store."""

    depth, block_nbytes = 16, _BLOCK_NBYTES

    def __init__(self, url: str) -> None:
        """Set the source of an object as it is now: one request tells that, and its first bytes."""
        self.name = self.url = url
        self.inode = urls.identity(url)
        try:
            head, version = stores.get(url, 0, _PAGE_NBYTES)
        except stores.GoneError:  # an empty one has no first byte
            found = stores.version_of(url)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
            head, version = memoryview(b""), found
        self.version = version  # every answer is about this one, or an error
        self.nbytes = version.nbytes
        self.content: bytes | None = None  # its bytes, if they are few
        if version.nbytes <= FEW_BYTES:
            self.content = bytes(head)
        else:
            _kept.keep((url, version), 0, head)

    def open(self) -> OpenSource:
        """Open it for reading: nothing is asked for before bytes are."""
        return _OpenRemote(self) if self.content is None else OpenBytes(self.content)


class _OpenRemote(OpenSource):
    """An object that is read in ranges."""

    _expecting = 0
    """The number of open objects with expected ranges."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._expected: list[tuple[int, int]] = []

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take notice of what will be read: it is asked for in blocks, and so are short gaps and short objects."""
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
        """Expect nothing more."""
        _OpenRemote._expecting -= bool(self._expected)
        self._expected = []

    def read_into(self, view: memoryview, offset: int) -> int:
        at, stop = offset, min(offset + len(view), self._source.nbytes)
        while at < stop:
            piece = self._piece(at, stop - at)[: stop - at]
            view[at - offset :][: len(piece)] = piece
            at += len(piece)
        return at - offset

    def _piece(self, at: int, count: int) -> memoryview:
        """Return the bytes from `at` on that are kept, or else those of a request that is worth it."""
        source = self._source
        key = source.url, source.version
        number = bisect.bisect_right(self._expected, (at, math.inf)) - 1
        first, end = self._expected[number] if number >= 0 else (0, 0)
        if at >= end and count > _LONGEST_PAGE_NBYTES:
            return got(source, *key, at, count)
        start, piece = _kept.near(key, at)
        if at - start < len(piece):
            return piece[at - start :]
        if at < end:
            share = _BLOCKS_NBYTES // (2 * max(1, _OpenRemote._expecting))
            length = max(_LEAST_BLOCK_NBYTES, min(_BLOCK_NBYTES, share))
            start = at - (at - first) % length  # skipped bytes are often read next
            stop = min(start + length, end)
        elif count > _PAGE_NBYTES:
            start, stop = at, at + count
        else:  # a short read is followed by more, and one of the end by the bytes before it
            page = min(max(_PAGE_NBYTES, 2 * len(piece)), _LONGEST_PAGE_NBYTES)
            start, stop = min(at, max(0, source.nbytes - _PAGE_NBYTES)), min(at + page, source.nbytes)
        piece = got(source, *key, start, stop - start)
        _kept.keep(key, start, piece)
        return piece[at - start :]


def got(source: Source, url: str, version: Version, offset: int, count: int) -> memoryview:
    """Return bytes of an object of a source, which has to be the one that was looked at."""
    try:
        found, _ = stores.get(url, offset, offset + count, version)
    except (stores.GoneError, FileNotFoundError):
        raise source.changed() from None
    if len(found) < count:
        raise source.changed()
    return found


class _Pieces:
    """The pieces of objects that were read last, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Any, tuple[int, memoryview]] = OrderedDict()
        self._nbytes = 0

    def near(self, key: object, at: int) -> tuple[int, memoryview]:
        """Return the start and the bytes of the piece that holds a byte, or else of the longest one shortly before."""
        before = at, memoryview(b"")
        with self._lock:
            for place in reversed(self._known):
                start, piece = self._known[place]
                if place[0] != key or not start <= at <= start + len(piece) + _GAP_NBYTES:
                    continue
                if at < start + len(piece):
                    self._known.move_to_end(place)
                    return start, piece
                before = max(before, (start, piece), key=lambda each: len(each[1]))
        return before

    def keep(self, key: object, start: int, piece: memoryview) -> None:
        """Keep a piece, and forget those that were not used for the longest time."""
        with self._lock:
            _, old = self._known.pop((key, start), (0, b""))
            self._known[key, start] = start, piece
            self._nbytes += len(piece) - len(old)
            while self._nbytes > self._most:
                _, (_, old) = self._known.popitem(last=False)
                self._nbytes -= len(old)


_kept = _Pieces(_KEPT_NBYTES)


class RemoteStore(Source):
    """The objects under a prefix that are together a store of arrays."""

    # Each is read as listed, or not at all. Objects that are added meanwhile show at the end, in another list.

    documents: tuple[tuple[str, bytes], ...] = ()  # names and bytes of the documents, unless they are long

    def __init__(self, url: str, found: dict[str, Version], context: Context) -> None:
        """Set the source of the objects that were found under a URL, and read its documents."""
        self.name = self.url = url
        self.inode = urls.identity(url)
        self.versions = found  # of the objects, by their names, when they were looked at
        self.nbytes = sum(each.nbytes for each in found.values())
        spare = context.spare_memory(STREAMED_BASE_NBYTES)
        # how many bytes of all stores a process asks for before they are read
        self.ahead = _AHEAD_NBYTES if spare is None else min(_AHEAD_NBYTES, spare // _PART)
        names = [name for name in sorted(found) if name.rpartition("/")[2] in STORE_DOCUMENTS]
        if sum(found[name].nbytes for name in names) > _DOCUMENTS_NBYTES:
            return
        with contextlib.closing(_OpenRemoteStore(self)) as file:
            file.expect_names(names, _DOCUMENTS_NBYTES)
            self.documents = tuple((name, file.content(name, _DOCUMENTS_NBYTES)) for name in names)

    def open(self) -> OpenStore:
        """Open it for reading: nothing is asked for before bytes are."""
        return _OpenRemoteStore(self)

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if there are other objects under the prefix: one that was not there was not read."""
        if _listed(self.url) != self.versions:
            raise self.changed()


class _OpenRemoteStore(OpenStore):
    """The objects under a prefix, by their names behind it, of which those that are expected are read ahead."""

    source: RemoteStore
    _expecting: ClassVar[WeakSet[_OpenRemoteStore]] = WeakSet()  # those that expect something

    def __init__(self, source: RemoteStore) -> None:
        super().__init__(source)
        self._versions = source.versions
        self._documents = dict(source.documents)
        self._ahead: ReadAhead[str, bytes] = ReadAhead((), lambda _: None, bool)
        self._last = "", b""  # an unfinished shard is asked for once for each chunk in it

    def names(self) -> list[str]:
        return sorted(self._versions)

    def content(self, name: str, most: int) -> bytes:
        """Return the bytes of an object, see `OpenStore.content`."""
        if name in self._documents:
            return self._documents[name][: most + 1]
        if self._last[0] != name:
            coming = self._ahead.take(name)
            self._last = name, coming.result() if coming else self._got(name, most)
        return self._last[1]

    def expect_names(self, names: Iterable[str], most: int) -> None:
        """Ask for some of these, and for more when they are taken; earlier ones that were not taken are dropped."""

        def begin(name: str) -> Future[bytes] | None:
            version = self._versions.get(name)
            if version is None or name in self._documents or version.nbytes > most:
                return None
            return stores.submit(self._got, name, version.nbytes)

        def has_room(begun: Sequence[str]) -> bool:
            share = self.source.ahead // max(1, len(self._expecting))
            waiting = sum(self._versions[name].nbytes for name in begun)
            return not begun or (len(begun) < _DEPTH and waiting < share)

        self._ahead.close()
        self._expecting.add(self)
        self._ahead = ReadAhead(names, begin, has_room)

    def _got(self, name: str, most: int) -> bytes:
        version = self._versions[name]
        count = min(version.nbytes, most + 1)
        return bytes(got(self.source, f"{self.source.url}/{name}", version, 0, count)) if count else b""

    def close(self) -> None:
        """Expect nothing more."""
        self._ahead.close()
        self._expecting.discard(self)


def _listed(url: str) -> dict[str, Version]:
    """Return the objects under a prefix, by their names behind it."""
    key = urls.object_of(url).key
    found = stores.versions_under(url, key, _MOST_OBJECTS)
    # Versions that are equal as long as the objects stay the same.
    versions = ((name, one if one.etag is None else one._replace(modified=0)) for name, one in found.items())
    return {name.removeprefix(f"{key}/"): version for name, version in versions}


def matching(pattern: str) -> list[str]:
    """Return the URLs that a glob matches, by name; `*` stands for no slash, and `**` for any folders."""
    # A folder that is called as a store of arrays is matches as an object does, and then nothing in it.
    place = urls.object_of(pattern)
    if place.scheme not in urls.STORES:
        reason = f"is a glob, and a server of {place.scheme} does not list its files"
        raise UsageError(pattern, f"{reason}; write a range, such as {{0..9}}, or a list of URLs")
    pattern_parts = place.key.split("/")
    within = list(itertools.takewhile(lambda part: not _MAGIC.intersection(part), pattern_parts[:-1]))
    is_deep = len(within) + 1 < len(pattern_parts) or pattern_parts[-1] == _ANY_FOLDERS
    found = set((stores.versions_under if is_deep else stores.names_in)(pattern, "/".join(within)))
    if place.key in found:  # a name with such a character
        return [pattern]
    found.update(*map(_stores_around, found))
    names = {name for name in found if not name.endswith("/") and _fits(name.split("/"), pattern_parts)}
    names = {name for name in names if names.isdisjoint(_stores_around(name))}
    if not names:
        raise FileNotFoundError(errno.ENOENT, "no object matches", pattern)
    return [f"{place.root}/{name}" for name in sorted(names)]


def _stores_around(name: str) -> list[str]:
    """Return the folders around an object that are called as stores of arrays are: such a one is a rank."""
    return [name[: each.end() - 1] for each in _STORE.finditer(name)]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a name match a glob; as for files, `*` matches no dot at the start."""
    if not pattern or not parts:
        return not pattern and not parts
    first, *rest = pattern
    if first == _ANY_FOLDERS:
        hidden = (number for number, part in enumerate(parts) if part.startswith("."))
        visible = next(hidden, len(parts))
        return any(_fits(parts[number:], rest) for number in range(visible + 1)) if rest else visible == len(parts)
    if parts[0].startswith(".") and not first.startswith("."):
        return False
    return fnmatch.fnmatchcase(parts[0], first) and _fits(parts[1:], rest)
