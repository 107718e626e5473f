"""Exactly once: the keys of origins that were combined into a target; `mpired.files.keys` records them."""

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

_CONTENT_NBYTES = 6  # of a key, which tell the content of an origin; the others tell its content and place
_OLD_NBYTES, _OLD_CONTENT_NBYTES = 10, 4  # the same in version 0.1


class Key(NamedTuple):
    """A key by which a target remembers an origin, or a command."""

    kept: bytes  # the key
    old: bytes  # that of version 0.1
    text: str  # what the user gave, or the place of the origin
    content: bytes = b""  # the digest of the content of an origin and of the request; b"" of a key that the user chose


def not_applied(keys: Collection[Key], recorded: Keys) -> tuple[list[Key], list[Key]]:
    """Return the keys that a target does not remember, and those of them whose content it has from another place."""
    remembered = recorded.find({each[:PREFIX_NBYTES] for key in keys for each in (key.kept, key.old)})
    new = [key for key in keys if key.kept not in remembered and key.old not in remembered]
    contents = {kept[:_CONTENT_NBYTES] for kept in remembered}
    return new, [key for key in new if key.content[:_CONTENT_NBYTES] in contents]


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
        data = key.encode(errors="surrogateescape")
        old = digest(data, _OLD_NBYTES).digest().ljust(KEY_NBYTES, b"\0")
        return {Key(digest(data, KEY_NBYTES).digest(), old, key): range(len(origins))}
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
        data = content + place.encode(errors="surrogateescape")
        kept, old = (
            content[:nbytes] + digest(data, whole - nbytes).digest()
            for nbytes, whole in ((_CONTENT_NBYTES, KEY_NBYTES), (_OLD_CONTENT_NBYTES, _OLD_NBYTES))
        )
        keys.setdefault(Key(kept, old.ljust(KEY_NBYTES, b"\0"), place, content), (number,))
    return keys


def _place(word: object, offset: int) -> str:
    """Return the real path of an origin, or its URL without a query, which may be a signature; "" if it has none."""
    path = path_of(word)
    if path is None or isinstance(word, RankInFile):
        return ""
    real = path if is_url(path) else os.path.realpath(path)
    return f"{real}:{offset}" if is_url(path) or os.path.isfile(real) or os.path.isdir(real) else ""
