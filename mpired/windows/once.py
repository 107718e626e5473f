"""Exactly once: a target remembers the keys of what was combined into it, in an extended attribute.

The attribute changes in the same transaction as the data. A key is kept as a digest; the oldest are
forgotten when there are more than a file system has room for, but never one of the command that is running.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence

import numpy as np

from mpired.errors import UsageError
from mpired.storage import journal
from mpired.storage.lock import Target

_KEY_NBYTES = 10
# ext4 has a block of 4096 bytes for all attributes of a file.
MAX_KEYS = 384


def key_of(text: str) -> bytes:
    """Return what is kept of a key."""
    import hashlib  # noqa: PLC0415 - here and below: with it comes OpenSSL, and few commands remember keys

    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=_KEY_NBYTES).digest()


def key_of_content(buffers: Iterable[Iterable[np.ndarray]], request: str) -> bytes:
    """Return the key of a request with an origin: the blocks of its buffers, and what is done with them."""
    import hashlib  # noqa: PLC0415

    digest = hashlib.blake2b(request.encode(errors="surrogateescape"), digest_size=_KEY_NBYTES, person=b"content")
    for blocks in buffers:
        for block in blocks:
            digest.update(block.view(np.uint8).data)
    return digest.digest()


def stored(target: Target) -> list[bytes]:
    """Return the keys that a target remembers, the oldest first.

    Raises
    ------
    UsageError
        If its file system cannot keep any.
    """
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


def encoded(remembered: Sequence[bytes], used: Iterable[bytes]) -> bytes:
    """Return the attribute for the keys of before and those of this command.

    Those of this command come last, also the ones that are there: a repetition asks for all of them again, so none may
    be forgotten for the sake of another.
    """
    latest = list(used)
    return b"".join([*(key for key in remembered if key not in latest), *latest][-MAX_KEYS:])
