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
from mpired.errors import ChangedError, UsageError
from mpired.files import stores, urls
from mpired.files.stores import Version
from mpired.sources.source import STORE_SUFFIX, Distance, OpenBytes, OpenSource, Source

# Bytes that are read at least: a request costs about as much.
_PAGE_NBYTES = 64 << 10
# Consecutive reads are made in longer and longer pages.
_LONGEST_PAGE_NBYTES = 1 << 20
# These bytes arrive in the time of a request: a shorter gap is not worth another request.
_GAP_NBYTES = 512 << 10
_KEPT_NBYTES = 8 << 20
# Announced bytes are read in blocks, shorter ones if many objects are open, so that two of each are kept.
_BLOCK_NBYTES, _LEAST_BLOCK_NBYTES = 4 << 20, 256 << 10
_KEPT_BLOCKS_NBYTES = 32 << 20
# Objects up to here are read whole, if that can be kept.
_WHOLE_NBYTES = 16 << 20
_MAGIC = frozenset("*?[")
_ANY_FOLDERS = "**"
_STORE = re.compile(rf"{re.escape(STORE_SUFFIX)}/")


class RemoteSource(Source):
    """An object of a store."""

    distance = Distance(16, _BLOCK_NBYTES)

    def __init__(self, name: str, url: str, version: Version, content: bytes | None = None) -> None:
        self.name = name  # what messages call it
        self.url = url  # where it is
        self.version = version  # its version when it was inspected: every answer is about this one, or an error
        self.content = content  # its bytes, if they are so few that they are kept when it is looked at
        self.nbytes = version.nbytes

    @classmethod
    def of(cls, url: str) -> RemoteSource:
        """Return the source of an object as it is now: one request tells that, and its first bytes."""
        url = urls.signed(url)
        head, version = _head(url)
        if version.nbytes <= FEW_BYTES:
            return cls(url, url, version, bytes(head))
        _pages.keep((url, version), 0, head)
        return cls(url, url, version)

    @property
    def inode(self) -> tuple[int, int]:
        """The identity of the object, in the place of device and inode."""
        return urls.identity(self.url)

    def open(self) -> OpenSource:
        """Open it for reading: nothing is asked for before bytes are."""
        return _OpenRemote(self) if self.content is None else OpenBytes(self.content)

    def changed(self) -> ChangedError:
        """Return the error for an object that was replaced."""
        return ChangedError(self.name, "was replaced while being read; run again when its writer has finished")


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
        if nbytes <= min(_WHOLE_NBYTES, _KEPT_BLOCKS_NBYTES // _OpenRemote._expecting):
            ranges = [(0, nbytes)]
        merged: list[tuple[int, int]] = []
        for start, stop in sorted((start, min(start + count, nbytes)) for start, count in ranges):
            if merged and start <= merged[-1][1] + _GAP_NBYTES:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        self._expected = merged or [(0, 0)]

    def _range_of(self, offset: int) -> tuple[int, int]:
        """Return the range that is expected and holds an offset; one without bytes if there is none."""
        number = bisect.bisect_right(self._expected, (offset, math.inf)) - 1
        start, stop = self._expected[number] if number >= 0 else (0, 0)
        return (start, stop) if offset < stop else (0, 0)

    def close(self) -> None:
        """Expect nothing more."""
        _OpenRemote._expecting -= bool(self._expected)
        self._expected = []

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        source = self._source
        count = max(0, min(len(view), source.nbytes - offset))
        if not count:
            return 0
        if offset + count <= self._range_of(offset)[1]:
            return self._fill_from_blocks(view[:count], offset)
        found = (self._paged if count <= _LONGEST_PAGE_NBYTES else self._got)(offset, count)
        view[: len(found)] = found
        return len(found)

    def _fill_from_blocks(self, view: memoryview, offset: int) -> int:
        """Fill a view with bytes that are expected."""
        key, done, (first, end) = (self._source.url, self._source.version), 0, self._range_of(offset)
        while done < len(view):
            at, count = offset + done, len(view) - done
            share = _KEPT_BLOCKS_NBYTES // (2 * max(1, _OpenRemote._expecting))
            length = max(_LEAST_BLOCK_NBYTES, min(_BLOCK_NBYTES, share))
            block, _ = _blocks.holding(key, at, 1)
            if block is None:
                start = at - (at - first) % length  # skipped bytes are often read next
                block = self._got(start, min(start + length, end) - start)
                _blocks.keep(key, start, block)
                block = block[at - start :]
            count = min(count, len(block))
            view[done : done + count] = block[:count]
            done += count
        return done

    def _paged(self, offset: int, count: int) -> memoryview:
        """Return a few bytes, of a page that is kept for the next requests."""
        source = self._source
        key = source.url, source.version
        page, wanted = _pages.holding(key, offset, count)
        if page is None:
            start, stop = offset, offset + count
            if count <= _PAGE_NBYTES:  # a short read is followed by more, and one of the end by the bytes before it
                start, stop = min(offset, max(0, source.nbytes - _PAGE_NBYTES)), max(stop, offset + wanted)
            page = self._got(start, min(stop, source.nbytes) - start)
            _pages.keep(key, start, page)
            page = page[offset - start :]
        return page[:count]

    def _got(self, offset: int, count: int) -> memoryview:
        return got(self._source, self._source.url, self._source.version, offset, count)


def got(source: Source, url: str, version: Version, offset: int, count: int) -> memoryview:
    """Return bytes of an object of a source, which has to be the one that was looked at."""
    try:
        found, _ = stores.get(url, offset, offset + count, version)
    except (stores.GoneError, FileNotFoundError):
        raise source.changed() from None
    if len(found) < count:
        raise source.changed()
    return found


class _Pages:
    """The pieces of objects that were read last, up to a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Any, tuple[int, memoryview]] = OrderedDict()
        self._nbytes = 0

    def holding(self, key: object, offset: int, count: int) -> tuple[memoryview | None, int]:
        """Return the bytes from `offset` on of a page that has them, or None and the length of the next page."""
        wanted = _PAGE_NBYTES
        with self._lock:
            for place in reversed(self._known):
                if place[0] != key:
                    continue
                start, page = self._known[place]
                if start <= offset and offset + count <= start + len(page):
                    self._known.move_to_end(place)
                    return page[offset - start :], 0
                if start <= offset <= start + len(page) + _GAP_NBYTES:
                    wanted = max(wanted, min(2 * len(page), _LONGEST_PAGE_NBYTES))
        return None, wanted

    def keep(self, key: object, start: int, page: memoryview) -> None:
        """Keep a page, and forget those that were not used for the longest time."""
        with self._lock:
            _, old = self._known.pop((key, start), (0, b""))
            self._known[key, start] = start, page
            self._nbytes += len(page) - len(old)
            while self._nbytes > self._most:
                _, (_, old) = self._known.popitem(last=False)
                self._nbytes -= len(old)


_pages, _blocks = _Pages(_KEPT_NBYTES), _Pages(_KEPT_BLOCKS_NBYTES)


def _head(url: str) -> tuple[memoryview, Version]:
    """Return the first bytes of an object, and its version."""
    try:
        return stores.get(url, 0, _PAGE_NBYTES)
    except stores.GoneError:  # an empty one has no first byte
        version = stores.look(url)
        if version is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
        return memoryview(b""), version


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
