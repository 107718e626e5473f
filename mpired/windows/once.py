"""Exactly once: a target remembers the keys of what was combined into it, in an extended attribute.

The attribute changes in the same transaction as the data. A key is kept as a digest. None is forgotten: what a file
system has no room for is refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mpired.errors import CountError, UsageError
from mpired.storage import journal
from mpired.storage.lock import Target

_KEY_NBYTES = 10
# So many of them tell the content of an origin, the others its content and place.
_CONTENT_NBYTES = 4
# ext4 has a block of 4096 bytes for all attributes of a file.
MAX_KEYS = 384


class Key(NamedTuple):
    """What a target remembers of an origin, or of a command."""

    kept: bytes  # the bytes in the attribute
    # the digest of the content of an origin and of the request, which was the whole key in earlier versions; b"" of a
    # key that the user chose
    content: bytes = b""

    @classmethod
    def of_text(cls, text: str) -> Key:
        """Return a key that the user chose."""
        return cls(_digest(text.encode(errors="surrogateescape"), _KEY_NBYTES))

    @classmethod
    def of_origin(cls, content: bytes, place: str) -> Key:
        """Return the key of an origin with a content in a place: a path, or a number for what has none."""
        both = _digest(content + place.encode(errors="surrogateescape"), _KEY_NBYTES - _CONTENT_NBYTES)
        return cls(content[:_CONTENT_NBYTES] + both, content)

    def is_in(self, remembered: Sequence[bytes]) -> bool:
        """Return whether a target remembers the key."""
        return self.kept in remembered or self.content in remembered

    def has_known_content(self, remembered: Sequence[bytes]) -> bool:
        """Return whether a target remembers the content, from any place."""
        return bool(self.content) and any(self.content.startswith(key[:_CONTENT_NBYTES]) for key in remembered)


def _digest(data: bytes, nbytes: int) -> bytes:
    import hashlib  # noqa: PLC0415 - here and below: with it comes OpenSSL, and few commands remember keys

    return hashlib.blake2b(data, digest_size=nbytes).digest()


def content_of(buffers: Iterable[Iterable[np.ndarray]], request: str) -> bytes:
    """Return the digest of an origin, the blocks of its buffers, and of what is done with them."""
    import hashlib  # noqa: PLC0415

    digest = hashlib.blake2b(request.encode(errors="surrogateescape"), digest_size=_KEY_NBYTES, person=b"content")
    for blocks in buffers:
        for block in blocks:
            digest.update(block.view(np.uint8).data)
    return digest.digest()


def stored(target: Target) -> list[bytes]:
    """Return the keys that a target remembers, the oldest first."""
    try:
        kept = journal.stored_keys(target.fd)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            error.filename = target.name
            raise
        reason = f"its file system keeps no extended attributes ({error.strerror}), so `once` has no place for keys"
        raise UsageError(target.name, reason) from error
    return _keys(kept)


def of_file(path: str) -> list[bytes]:
    """Return the keys that a file remembers, the oldest first; none of what is no file, or cannot keep any."""
    try:
        kept = os.getxattr(path, journal.ONCE_ATTRIBUTE)
    except OSError:
        return []
    return _keys(kept)


def _keys(kept: bytes) -> list[bytes]:
    keys = [kept[at : at + _KEY_NBYTES] for at in range(0, len(kept), _KEY_NBYTES)]
    return [key for key in keys if any(key)]  # zeros hold a place for a key that did not come


def encoded(name: str, remembered: Sequence[bytes], new: Sequence[Key]) -> bytes:
    """Return the attribute for the keys of before and those of this command."""
    if len(remembered) + len(new) > MAX_KEYS:
        reason = f"remembers {len(remembered)} keys and has room for {MAX_KEYS}, and there are {len(new)} new ones"
        raise CountError(name, f"{reason}; `once_key='KEY'` is one for all origins, and a copy of the file has none")
    return b"".join([*remembered, *(key.kept for key in new)])
