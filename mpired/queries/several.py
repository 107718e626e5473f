"""Directories and lists of files, which are compared file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

from mpired.context import Context
from mpired.errors import MpiredError, NotReadError, UsageError
from mpired.formats import AtHand
from mpired.formats.decoding import decode_worker
from mpired.formats.recognise import RAW
from mpired.options import Options
from mpired.progress import track
from mpired.queries.diff import Difference, diff
from mpired.ranks.opening import is_of_rank
from mpired.sources.directory import is_store

_Word: TypeAlias = str | AtHand
_OF_BYTES = ("examples", "jobs", "max_memory", "max_open_files", "lock_timeout")  # the options that bytes take


def compare(a: _Word | Sequence[_Word], b: _Word | Sequence[_Word], given: Options, context: Context) -> Difference:
    """Compare two files, or all files of two directories or lists."""
    if isinstance(a, str | AtHand) and isinstance(b, str | AtHand):
        if not (isinstance(a, str) and isinstance(b, str) and _is_directory(a) and _is_directory(b)):
            return diff((a, b), given, context)
        files, titles = [dict(_within(a)), dict(_within(b))], (a, b)
    else:
        if isinstance(a, str | AtHand) or isinstance(b, str | AtHand):
            alone = a if isinstance(a, str | AtHand) else b
            raise UsageError(_name(cast("_Word", alone)), "is a file, and the other is a list; give two lists or files")
        files, titles = _paired(a, b), ("A", "B")
    if given.get("png") is not None:
        raise UsageError("`png`", "is of two files, and these are several; draw one after another")
    names = [name for name in files[0] if name in files[1]]
    with decode_worker(context) as served:
        found = [_one(name, files, given, served) for name in track(names, "comparing files")]
    only = [tuple(name for name in each if name not in names) for each in files]
    equal = all(each.equal for each in found) and not any(only)
    return Difference(equal, *titles, noun="file", files=tuple(found), only_in_a=only[0], only_in_b=only[1])


def _name(word: _Word) -> str:
    return word if isinstance(word, str) else word.name


def _paired(a: Sequence[_Word], b: Sequence[_Word]) -> list[dict[str, _Word]]:
    """Return the files of two lists by names that the two of a line have in common."""
    names = [" and ".join(dict.fromkeys(map(_name, pair))) for pair in zip(a, b, strict=False)]
    return [dict(zip([*names, *map(_name, each[len(names) :])], each, strict=True)) for each in (a, b)]


def _is_directory(path: str) -> bool:
    """Return whether a path is that of a directory whose files are compared; a store of arrays is one file."""
    return os.path.isdir(path) and not is_store(path)


def _within(folder: str) -> Iterator[tuple[str, _Word]]:
    """Yield the files within a directory by their names there, in order."""
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if _is_directory(entry.path):
            yield from ((os.path.join(entry.name, name), path) for name, path in _within(entry.path))
        elif entry.is_file() or is_store(entry.path):
            yield entry.name, entry.path


def _one(name: str, files: Sequence[Mapping[str, _Word]], given: Options, context: Context) -> Difference:
    """Compare two files of a name; those of no format that is read by their bytes."""
    words = [each[name] for each in files]
    try:
        try:
            found = diff(words, given, context)
        except (NotReadError, UsageError) as error:
            if error.subject not in map(_name, words) or given.get("type") is not None:
                raise
            options = {key: given[key] for key in _OF_BYTES if key in given}
            found = diff(words, {**options, "type": "byte", "format": RAW.name}, context)
    except (MpiredError, OSError) as error:
        if not is_of_rank(error):
            raise
        a, b = map(_name, words)
        found = Difference(equal=False, a=a, b=b, obstacle=str(error))
    return replace(found, name=name)
