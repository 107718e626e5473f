"""Exactly once: the keys of origins that were combined into a target; `mpired.files.keys` records them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from mpired.files.keys import KEY_NBYTES, PREFIX_NBYTES
from mpired.files.names import digest
from mpired.files.urls import is_url
from mpired.formats.memory import RankInFile
from mpired.options import PLACES, Options, part
from mpired.ranks.order import path_of
from mpired.windows.origin import Origin

_CONTENT_NBYTES = 6  # of a key, which tell the content of an origin; the others tell its content and place
_OLD_NBYTES, _OLD_CONTENT_NBYTES = 10, 4  # the same in version 0.1


class Key(NamedTuple):
    """A key by which a target remembers an origin, or a command."""

    kept: bytes  # the key
    old: bytes  # that of version 0.1
    text: str  # what the user gave, or the place of the origin
    content: bytes = b""  # the digest of the content of an origin and of the request; b"" of a key that the user chose

    @classmethod
    def of_text(cls, text: str) -> Key:
        """Return a key that the user chose."""
        data = text.encode(errors="surrogateescape")
        return cls(digest(data, KEY_NBYTES).digest(), _padded(digest(data, _OLD_NBYTES).digest()), text)

    @classmethod
    def of_origin(cls, content: bytes, place: str) -> Key:
        """Return the key of an origin with a content in a place: a path, or a number for an origin without one."""
        data = content + place.encode(errors="surrogateescape")
        kept, old = (
            content[:nbytes] + digest(data, whole - nbytes).digest()
            for nbytes, whole in ((_CONTENT_NBYTES, KEY_NBYTES), (_OLD_CONTENT_NBYTES, _OLD_NBYTES))
        )
        return cls(kept, _padded(old), place, content)

    @property
    def prefixes(self) -> set[bytes]:
        """The prefixes of keys that may be this key, or have its content."""
        return {self.kept[:PREFIX_NBYTES], self.old[:PREFIX_NBYTES]}

    def is_in(self, remembered: Collection[bytes]) -> bool:
        """Return whether a target remembers the key."""
        return self.kept in remembered or self.old in remembered

    def has_known_content(self, remembered: Collection[bytes]) -> bool:
        """Return whether a target remembers the content, from any place."""
        return bool(self.content) and any(key.startswith(self.content[:_CONTENT_NBYTES]) for key in remembered)


def _padded(old: bytes) -> bytes:
    """Return a shorter key as it is recorded."""
    return old.ljust(KEY_NBYTES, b"\0")


def keys_of(
    origins: Sequence[Sequence[Origin]],
    words: Sequence[object],
    op: object,
    options: Options,
    indices: np.ndarray | None,
) -> dict[Key, Sequence[int]]:
    """Return the keys for the target to remember, and the numbers of the origins of each."""
    # A key of the user stands for the whole command, whatever its origins are; else each origin, named by one of
    # `words`, has its own, of its place, its content, and the op and its place in the target.
    if (key := options["once_key"]) is not None:
        return {Key.of_text(key): range(len(origins))}
    where = {name: str(value) for name, value in part(PLACES, options).items() if value is not None}
    if indices is not None:
        where["map"] = digest(indices.tobytes(), 64).hexdigest()
    if options["columns"]:
        where["columns"] = ",".join(options["columns"])
    request = f"{op} {sorted(where.items())}".encode(errors="surrogateescape")
    keys: dict[Key, Sequence[int]] = {}
    met: Counter[bytes] = Counter()  # contents that have no place
    for number, (arrays, word) in enumerate(zip(origins, words, strict=True)):
        found = digest(request, _OLD_NBYTES, b"content")
        for block in (block for origin in arrays for block in origin.blocks()):
            found.update(block.view(np.uint8).data)
        place, content = _place(word, options["offset"]), found.digest()
        if not place:
            place = str(met[content])
            met[content] += 1
        keys.setdefault(Key.of_origin(content, place), (number,))
    return keys


def _place(word: object, offset: int) -> str:
    """Return the real path of an origin, or its URL without a query, which may be a signature; "" if it has none."""
    path = path_of(word)
    if path is None or isinstance(word, RankInFile):
        return ""
    real = path if is_url(path) else os.path.realpath(path)
    return f"{real}:{offset}" if is_url(path) or os.path.isfile(real) or os.path.isdir(real) else ""
