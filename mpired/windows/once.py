"""Exactly once: by which keys a target remembers what was combined into it; `mpired.files.keys` records them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np

from mpired.files.keys import KEY_NBYTES, PREFIX_NBYTES

_CONTENT_NBYTES = 6
"""So many bytes of a key tell the content of an origin, the others its content and place."""
_OLD_NBYTES, _OLD_CONTENT_NBYTES = 10, 4
"""The same in version 0.1."""


class Key(NamedTuple):
    """What a target remembers of an origin, or of a command."""

    kept: bytes  # the key
    old: bytes  # that of version 0.1
    text: str  # what the user gave, or the place of the origin
    # the digest of the content of an origin and of the request, which was the whole key before version 0.1; b"" of a
    # key that the user chose
    content: bytes = b""

    @classmethod
    def of_text(cls, text: str) -> Key:
        """Return a key that the user chose."""
        data = text.encode(errors="surrogateescape")
        return cls(_digest(data, KEY_NBYTES), _padded(_digest(data, _OLD_NBYTES)), text)

    @classmethod
    def of_origin(cls, content: bytes, place: str) -> Key:
        """Return the key of an origin with a content in a place: a path, or a number for what has none."""
        data = content + place.encode(errors="surrogateescape")
        kept, old = (
            content[:nbytes] + _digest(data, whole - nbytes)
            for nbytes, whole in ((_CONTENT_NBYTES, KEY_NBYTES), (_OLD_CONTENT_NBYTES, _OLD_NBYTES))
        )
        return cls(kept, _padded(old), place, content)

    @property
    def prefixes(self) -> set[bytes]:
        """How keys begin that may be this one, or have its content."""
        return {self.kept[:PREFIX_NBYTES], self.old[:PREFIX_NBYTES]}

    def is_in(self, remembered: Collection[bytes]) -> bool:
        """Return whether a target remembers the key."""
        return any(each in remembered for each in (self.kept, self.old, _padded(self.content)))

    def has_known_content(self, remembered: Collection[bytes]) -> bool:
        """Return whether a target remembers the content, from any place."""
        begins = self.content[:_CONTENT_NBYTES], self.content[:_OLD_CONTENT_NBYTES]
        return bool(self.content) and any(
            key.startswith(begins[key.endswith(bytes(KEY_NBYTES - _OLD_NBYTES))]) for key in remembered
        )


def _padded(old: bytes) -> bytes:
    """Return a shorter key as it is recorded."""
    return old.ljust(KEY_NBYTES, b"\0")


def _digest(data: bytes, nbytes: int) -> bytes:
    import hashlib  # noqa: PLC0415 - here and below: with it comes OpenSSL, and few commands remember keys

    return hashlib.blake2b(data, digest_size=nbytes).digest()


def content_of(buffers: Iterable[Iterable[np.ndarray]], request: str) -> bytes:
    """Return the digest of an origin, the blocks of its buffers, and of what is done with them."""
    import hashlib  # noqa: PLC0415

    digest = hashlib.blake2b(request.encode(errors="surrogateescape"), digest_size=_OLD_NBYTES, person=b"content")
    for blocks in buffers:
        for block in blocks:
            digest.update(block.view(np.uint8).data)
    return digest.digest()
