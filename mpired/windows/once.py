"""Exactly once: the keys of the origins that were combined into a target, which `mpired.files.keys` records.

A key is a digest of the content of an origin, its path, the op and the place in the target; or the user's `--once-key`
for a whole command.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from mpired.files.keys import KEY_NBYTES, PREFIX_NBYTES, Keys
from mpired.files.places import digest
from mpired.files.urls import is_url
from mpired.formats.memory import RankInFile
from mpired.options import PLACES, Options, part
from mpired.ranks.order import path_of
from mpired.windows.origin import Origin

_CONTENT_NBYTES = 6  # of a key: digest of the content of an origin; the other bytes depend on its path too
_OLD_NBYTES, _OLD_CONTENT_NBYTES = 10, 4  # the lengths in version 0.1


class Key(NamedTuple):
    """The key of an origin or of a command."""

    value: bytes
    old_value: bytes  # in version 0.1
    text: str  # the user's key, or the path of the origin
    content: bytes = b""  # the digest of the content and of the call; b"" for a key of the user


def new_keys_of(keys: Collection[Key], recorded: Keys) -> tuple[list[Key], list[Key]]:
    """Return the keys that a target has not recorded, and those of them whose content is recorded from another path."""
    known = recorded.find({value[:PREFIX_NBYTES] for key in keys for value in (key.value, key.old_value)})
    new = [key for key in keys if key.value not in known and key.old_value not in known]
    contents = {value[:_CONTENT_NBYTES] for value in known}
    return new, [key for key in new if key.content[:_CONTENT_NBYTES] in contents]


def keys_of(
    origins: Sequence[Sequence[Origin]],
    files: Sequence[object],  # the file of each origin
    op: object,
    options: Options,
    indices: np.ndarray | None,  # of a map
) -> dict[Key, Sequence[int]]:
    """Return the keys for the target to record, each with the numbers of its origins."""
    if (key := options["once_key"]) is not None:
        data = key.encode(errors="surrogateescape")
        old_value = digest(data, _OLD_NBYTES).digest().ljust(KEY_NBYTES, b"\0")
        return {Key(digest(data, KEY_NBYTES).digest(), old_value, key): range(len(origins))}
    places = {name: str(value) for name, value in part(PLACES, options).items() if value is not None}
    if indices is not None:
        places["map"] = digest(indices.tobytes(), 64).hexdigest()
    if options["columns"]:
        places["columns"] = ",".join(options["columns"])
    call = f"{op} {sorted(places.items())}".encode(errors="surrogateescape")
    keys: dict[Key, Sequence[int]] = {}
    counts: Counter[bytes] = Counter()  # of equal contents without a path
    for number, (arrays, file) in enumerate(zip(origins, files, strict=True)):
        content_digest = digest(call, _OLD_NBYTES, b"content")
        for block in (block for origin in arrays for block in origin.blocks()):
            content_digest.update(block.view(np.uint8).data)
        path, content = _path(file, options["offset"]), content_digest.digest()
        if not path:
            path = str(counts[content])
            counts[content] += 1
        data = content + path.encode(errors="surrogateescape")
        value, old_value = (
            content[:nbytes] + digest(data, total - nbytes).digest()
            for nbytes, total in ((_CONTENT_NBYTES, KEY_NBYTES), (_OLD_CONTENT_NBYTES, _OLD_NBYTES))
        )
        keys.setdefault(Key(value, old_value.ljust(KEY_NBYTES, b"\0"), path, content), (number,))
    return keys


def _path(file: object, offset: int) -> str:
    """Return the real path, or the URL without its query, and the offset of an origin; "" if it has no path."""
    path = path_of(file)
    if path is None or isinstance(file, RankInFile):
        return ""
    real = path if is_url(path) else os.path.realpath(path)
    return f"{real}:{offset}" if is_url(path) or os.path.isfile(real) or os.path.isdir(real) else ""
