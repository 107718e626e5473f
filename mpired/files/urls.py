"""URLs of objects: their parts, and the sizes of requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Self

from mpired.errors import UsageError

_DEVICE = -2  # of no file
_USER = re.compile(r"[^/?#]*@")


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


def is_url(path: str) -> bool:
    """Return whether a path is the URL of an object that can be read."""
    return "://" in path and path.partition("://")[0] in SCHEMES


def without_query(url: str) -> str:
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
            raise UsageError(without_query(path), f"{reason}; copy it to a file, and change that")


SINGLE_NBYTES = 64 << 20
"""The maximum size of an object that is sent by one request; larger objects are sent in parts."""
PART_NBYTES = 8 << 20
SIMULTANEOUS_PARTS = 4


def sending_nbytes(nbytes: int) -> int:
    """Return the memory needed to send a result with elements of `nbytes`, in bytes."""
    # A text format may need twice as many bytes.
    return min(2 * nbytes + PART_NBYTES, max(SINGLE_NBYTES, (SIMULTANEOUS_PARTS + 1) * PART_NBYTES))
