"""URLs of objects, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Self

from mpired.errors import UsageError

_DEVICE = -2  # of no file
_USER = re.compile(r"[^/?#]*@")
# With other characters the library crashes during a request, or sends the request to another host.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~$-]+)(:[0-9]{1,5})?")


class SignedUrl(str):
    """A URL with a query, which may be a secret signature."""

    # The string is the URL without the query, so that messages, records and file names do not show the query.

    __slots__ = ("query",)
    query: str  # the part after `?`

    def __new__(cls, path: str, query: str = "") -> Self:
        """Make a URL; unpickling sets the query afterwards."""
        self = super().__new__(cls, path)
        self.query = query
        return self

    def __str__(self) -> SignedUrl:
        return self

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) and self.query == query_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def signed(argument: str) -> str:
    """Return an argument, as a `SignedUrl` if it is a URL with a query, also after `@`; refuse users and passwords."""
    if not is_url(argument.removeprefix("@")):
        return argument
    scheme, _, address = argument.removeprefix("@").partition("://")
    if _USER.match(address):
        hint = "write them into ~/.netrc" if scheme == "https" else "leave them out"
        reason = "has a user or a password before `@`, which a record of the call would show"
        raise UsageError(argument, f"{reason}; {hint}")
    path, _, query = argument.partition("?")
    if "?" not in argument or scheme not in SERVERS or "#" in path:  # `object_of` refuses `#`
        return argument
    return SignedUrl(path, query) if query else path


def with_query_of(url: str, path: str) -> str:
    """Return a path with the query of a URL."""
    query = query_of(url)
    return SignedUrl(path, query) if query else path


def query_of(argument: object) -> str:
    """Return the query of a URL; "" for other arguments."""
    query: str = getattr(argument, "query", "")
    return query


STORES = ("s3", "gs", "az")
"""Schemes of object stores, which list their objects and write an object completely or not at all."""
SERVERS = ("https", "http")
"""Schemes of servers, in whose URLs `%20` is a space and `?` begins a query."""
SCHEMES = (*STORES, *SERVERS)


class StoreObject(NamedTuple):
    """An object of a store. If the URL has a query, the store has this object only, and its key is empty."""

    scheme: str  # the part before `://`
    root: str  # URL of the store
    key: str  # name in the store


def is_url(path: str) -> bool:
    """Return whether a path is the URL of an object that can be read."""
    return "://" in path and path.partition("://")[0] in SCHEMES


def object_of(url: str) -> StoreObject:
    """Return the object of a URL, or raise `UsageError`."""
    url = signed(url)
    query = query_of(url)
    scheme, _, address = url.partition("://")
    host, _, key = address.partition("/")
    if scheme in SERVERS:
        if "#" in address or "#" in query:
            reason = "has a part behind `#`, which no server gets"
            raise UsageError(_without_query(url), f"{reason}; leave it out, or write %23 if it is of the name")
        from urllib.parse import unquote  # noqa: PLC0415 - for these schemes only

        key = key if query else unquote(key, errors="surrogateescape")
    if not host or not key or key.endswith("/"):
        raise UsageError(url, f"names no object; write {scheme}://{host or 'BUCKET'}/{key}NAME")
    if not _HOST.fullmatch(host):
        reason = f"has {host!r} in the place of a host or bucket, whose names have letters, digits and `.-_~$`"
        raise UsageError(url, f"{reason}; correct it")
    return StoreObject(scheme, f"{url}?{query}", "") if query else StoreObject(scheme, f"{scheme}://{host}", key)


def _without_query(url: str) -> str:
    """Return a URL for a message, without its query, which may be a signature."""
    path, *query = re.split("[?#]", url, maxsplit=1) if url.partition("://")[0] in SERVERS else [url]
    return f"{path}?..." if query else path


def identity(url: str) -> tuple[int, int]:
    """Return the identity of a URL, in place of device and inode of a file."""
    # The query is included: it may select a version or the object itself.
    return _DEVICE, int.from_bytes(f"{url}?{query_of(url)}".encode(errors="surrogateescape"))


def check_are_files(paths: Iterable[object]) -> None:
    """Raise `UsageError` if the path of a file to change is a URL."""
    for path in paths:
        if isinstance(path, str) and "://" in path and is_url(path):
            reason = "is an object of a store, of which no part can be changed, and which cannot be locked"
            raise UsageError(_without_query(path), f"{reason}; copy it to a file, and change that")
