"""Stores of arrays that are many objects of a store under one prefix, of which each chunk is an object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import ClassVar
from weakref import WeakSet

from mpired.context import STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError
from mpired.files import stores, urls
from mpired.files.stores import Version
from mpired.sources.ahead import ReadAhead
from mpired.sources.remote import RemoteSource, got
from mpired.sources.source import STORE_DOCUMENTS, STORE_MARKS, STORE_SUFFIX, OpenStore, Source

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
        """Return the names, in their order."""
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
            return stores.begun(self._got, name, version.nbytes)

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
    key = urls.place_of(url).key
    found = stores.versions_under(url, key, _MOST_OBJECTS)
    # Versions that are equal as long as the objects stay the same.
    versions = ((name, one if one.etag is None else one._replace(modified=0)) for name, one in found.items())
    return {name.removeprefix(f"{key}/"): version for name, version in versions}
