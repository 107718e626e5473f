"""Objects of a store, by their URLs, which must not be replaced while they are read."""

from __future__ import annotations

import bisect
import errno
import fnmatch
import itertools
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from mpired.context import FEW_BYTES
from mpired.errors import UsageError
from mpired.files import stores, urls
from mpired.files.stores import Version
from mpired.sources.source import STORE_SUFFIX, OpenBytes, OpenSource, Source

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
            found = stores.look(url)
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
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
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


def matching(pattern: str) -> list[str]:
    """Return the URLs that a glob matches, by name; `*` stands for no slash, and `**` for any folders."""
    # A folder that is called as a store of arrays is matches as an object does, and then nothing in it.
    place = urls.place_of(pattern)
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
