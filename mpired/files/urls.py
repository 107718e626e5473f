"""URLs of objects, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Self

from mpired.errors import UsageError

_DEVICE = -2
_USER = re.compile(r"[^/?#]*@")
# With other characters the library ends in the middle of a request, or asks another host.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~$-]+)(:[0-9]{1,5})?")


class SignedUrl(str):
    """A URL with a query, which may be a signature: anyone who has that can read the object."""

    # As a string it is the URL without the query, so that no message, record or file name has it.

    __slots__ = ("query",)
    query: str  # the part behind `?`

    def __new__(cls, path: str, query: str = "") -> Self:
        """Make a URL; without the query, which follows, where it is unpickled."""
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


def signed(word: str) -> str:
    """Return a word; it is `SignedUrl` if it is a URL with a query, or names a list by such a URL."""
    if not is_url(word.removeprefix("@")):
        return word
    name, _, rest = word.removeprefix("@").partition("://")
    if _USER.match(rest):
        hint = "write them into ~/.netrc" if name == "https" else "leave them out"
        raise UsageError(word, f"has a user or a password before `@`, which a record of the call would show; {hint}")
    if "?" not in word or name not in SERVERS:
        return word
    path, _, query = word.partition("?")
    if "#" in path:  # which is refused
        return word
    return SignedUrl(path, query) if query else path


def with_query_of(word: str, text: str) -> str:
    """Return a string with the query of a word."""
    query = query_of(word)
    return SignedUrl(text, query) if query else text


def query_of(word: object) -> str:
    """Return the query of a word, "" if it has none."""
    query: str = getattr(word, "query", "")
    return query


STORES = ("s3", "gs", "az")
"""Schemes of stores, which list the names of their objects, and take results: these appear whole or not at all."""
SERVERS = ("https", "http")
"""Schemes of servers, in whose URLs `%20` is a space, and `?` begins something else."""
SCHEMES = (*STORES, *SERVERS)


class ObjectPlace(NamedTuple):
    """The place of an object."""

    # With a query the store is the one object of that URL, whose name in it is empty.

    scheme: str  # the part before `://`
    root: str  # the URL of the store
    key: str  # the name in the store


def is_url(path: str) -> bool:
    """Return whether a path is the URL of an object that can be read."""
    return "://" in path and path.partition("://")[0] in SCHEMES


def place_of(url: str) -> ObjectPlace:
    """Return where the object of a URL is."""
    url = signed(url)
    query = query_of(url)
    name, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if name in SERVERS:
        if "#" in rest or "#" in query:
            reason = "has a part behind `#`, which no server gets"
            raise UsageError(_shown(url), f"{reason}; leave it out, or write %23 if it is of the name")
        from urllib.parse import unquote  # noqa: PLC0415 - for these schemes only

        key = key if query else unquote(key, errors="surrogateescape")
    if not host or not key or key.endswith("/"):
        raise UsageError(url, f"names no object; write {name}://{host or 'BUCKET'}/{key}NAME")
    if not _HOST.fullmatch(host):
        reason = f"has {host!r} in the place of a host or bucket, whose names have letters, digits and `.-_~$`"
        raise UsageError(url, f"{reason}; correct it")
    return ObjectPlace(name, f"{url}?{query}", "") if query else ObjectPlace(name, f"{name}://{host}", key)


def _shown(url: str) -> str:
    """Return a URL for a message, without its query, which may be a signature."""
    path, *query = re.split("[?#]", url, maxsplit=1) if url.partition("://")[0] in SERVERS else [url]
    return f"{path}?..." if query else path


def identity(url: str) -> tuple[int, int]:
    """Return a number for a URL in the place of device and inode, so that two equal URLs show."""
    # With the query, which may choose a version, or be all that names the object.
    whole = f"{url}?{query_of(url)}".encode(errors="surrogateescape")
    return _DEVICE, int.from_bytes(whole)


def check_are_files(paths: Iterable[object]) -> None:
    """Raise `UsageError` if a file that is changed is a URL."""
    for path in paths:
        if isinstance(path, str) and "://" in path and is_url(path):
            reason = "is an object of a store, of which no part can be changed, and which cannot be locked"
            raise UsageError(_shown(path), f"{reason}; copy it to a file, and change that")
