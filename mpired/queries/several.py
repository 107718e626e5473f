"""Directories and lists of files, which are compared file by file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from mpired.context import Context
from mpired.errors import MpiredError, NotReadError, UsageError
from mpired.formats import AtHand, InputOptions, look
from mpired.formats.decoding import decode_worker
from mpired.formats.recognise import RAW
from mpired.options import DIFF, EFFORT, INPUTS, Options, checked, part
from mpired.progress import track
from mpired.queries.diff import Difference, diff
from mpired.ranks.opening import is_of_rank
from mpired.sources.directory import is_one_rank

_Word: TypeAlias = str | AtHand
_Files: TypeAlias = dict[str | int, _Word]  # by their names in a directory, or their numbers in a list
_OF_BYTES = ("examples", "png", "overwrite", *EFFORT, "lock_timeout")  # the options of bytes


def compare(a: _Word | Sequence[_Word], b: _Word | Sequence[_Word], options: Options, context: Context) -> Difference:
    """Compare two files, or all files of two directories or lists."""
    if isinstance(a, str | AtHand) and isinstance(b, str | AtHand):
        if not all(isinstance(word, str) and os.path.isdir(word) and not is_one_rank(word) for word in (a, b)):
            return _of_two((a, b), options, context, typed=part(INPUTS, options) != part(INPUTS, checked(DIFF, {})))
    elif isinstance(alone := a, str | AtHand) or isinstance(alone := b, str | AtHand):
        raise UsageError(_name(alone), "is a file, and the other is a list; give two lists or files")
    if options["png"] is not None:
        raise UsageError("`png`", "is of two files, and these are several; draw one after another")
    left, right = (
        _Files(_within(each) if isinstance(each, str) else enumerate(each))  # type: ignore[arg-type]
        for each in (a, b)
    )
    pairs = {key: (word, right[key]) for key, word in left.items() if key in right}
    with decode_worker(context) as served:
        found = tuple(_one(key, pairs[key], options, served) for key in track(list(pairs)))
    only_in_a, only_in_b = (
        tuple(_title(key, word) for key, word in files.items() if key not in pairs) for files in (left, right)
    )
    equal = all(each.equal for each in found) and not (only_in_a or only_in_b)
    where = [each if isinstance(each, str) else name for each, name in ((a, "A"), (b, "B"))]
    return Difference(equal, where[0], where[1], noun="file", files=found, only_in_a=only_in_a, only_in_b=only_in_b)


def _name(word: _Word) -> str:
    return word if isinstance(word, str) else word.name


def _title(key: str | int, *words: _Word) -> str:
    """Return the name of a file in its directory, or of one or two in lists."""
    return key if isinstance(key, str) else " and ".join(dict.fromkeys(map(_name, words)))


def _within(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the files within a directory by their names there, in order; a link to a directory is not followed."""
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        if entry.is_file() or (entry.is_dir() and is_one_rank(entry.path)):
            yield entry.name, entry.path
        elif entry.is_dir(follow_symlinks=False):
            yield from ((os.path.join(entry.name, name), path) for name, path in _within(entry.path))


def _one(key: str | int, words: Sequence[_Word], options: Options, context: Context) -> Difference:
    """Compare two files of several, of which one that cannot be read does not keep the others from it."""
    a, b = map(_name, words)
    try:
        found = _of_two(words, options, context, typed=options["type"] is not None)
    except (MpiredError, OSError) as error:
        if not is_of_rank(error):
            raise
        found = Difference(equal=False, a=a, b=b, obstacle=str(error))
    return replace(found, name=_title(key, *words))


def _of_two(words: Sequence[_Word], options: Options, context: Context, *, typed: bool) -> Difference:
    """Compare two files; those that no format describes by their bytes, unless options describe them."""
    try:
        return diff(words, options, context)
    except (NotReadError, UsageError) as error:
        if typed or error.subject not in map(_name, words):
            raise
        inputs = InputOptions.of(options, context)
        if not all(look(word, inputs).obstacle for word in words):
            raise
    of_bytes = {key: options[key] for key in _OF_BYTES} | {"type": "byte", "format": RAW.name}
    return diff(words, checked(DIFF, of_bytes), context)
