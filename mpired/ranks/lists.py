"""The files of the ranks: lists, quoted globs, ranges of numbers, and all files of a directory."""

from __future__ import annotations

import errno
import glob
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from mpired.context import NO_LIMITS, Context
from mpired.errors import MpiredError, UsageError, escaped
from mpired.files import calls
from mpired.files.urls import is_url, signed, with_query_of
from mpired.formats import InputOptions, open_rank
from mpired.formats.memory import RankInFile
from mpired.ranks.order import RankWord, ordered
from mpired.sources.directory import is_one_rank, is_store, strange_files
from mpired.sources.open import open_source
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.options import Options

_W = TypeVar("_W")

_RANGE = r"\{(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?\}"
_NUMBER = r"%(0?[0-9]{0,2})d"
_AT = r"(.+):([0-9]{1,18})"
_MAGIC = frozenset("*?[")
_MOST_NAMES = 1 << 22
# More than a path can have, with an offset behind it.
_LONGEST = 8 << 10
_READ_BYTES = 64 << 10


def rank_list(words: Sequence[_W], options: Options) -> list[_W | RankWord]:
    """Return the ranks in order: `words`, and then those of a list that is named."""
    path = options["files_from"]
    found: Sequence[_W | RankWord] = words
    if path is not None:
        if path == "-" and any(isinstance(word, str) and word == "-" for word in words):
            raise UsageError("-", "is a rank, and the list of ranks too; give one of them as a file")
        found = [*words, *_of_list(os.fspath(path), "", "\0" if options["null"] else "\n")]
    if options["sort"] == "given" and options["rank_regex"] is None and options["expect_ranks"] is None:
        return [*found]
    return ordered(found, options)


def expand(groups: Sequence[Sequence[str]], numbers: Sequence[int] | None = None) -> list[list[RankWord]]:
    """Return the ranks that words of a command line mean: lists, quoted globs and ranges become files."""
    if numbers is not None and not any(re.search(_NUMBER, word) for words in groups for word in words):
        raise UsageError("`rank_numbers`", "is for names with a %d, such as 'out.%04d'; there is none")
    return [[rank for word in words for rank in _expand(word, numbers)] for words in groups]


def _expand(word: str, numbers: Sequence[int] | None) -> Iterator[RankWord]:
    word = signed(word)
    if word.startswith("@"):
        yield from _of_list(with_query_of(word, word[1:]))
        return
    for name in (with_query_of(word, name) for name in _named(word, numbers)):
        shown = name.partition("://")[2].partition("/")[2] if is_url(name) else name  # a host may be `[::1]`
        if not _MAGIC.intersection(shown) or os.path.lexists(name):
            yield name
        elif is_url(name):
            from mpired.sources import remote  # noqa: PLC0415 - most ranks are files

            yield from remote.matching(name)
        elif found := sorted(path for path in glob.iglob(name, recursive=True) if not os.path.isdir(path)):
            yield from found
        else:
            raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}, and no file matches", name)


def _named(word: str, numbers: Sequence[int] | None) -> Iterator[str]:
    """Yield the names that a word with a range, or with a place for numbers, stands for."""
    if ("%" not in word and "{" not in word) or os.path.lexists(word):
        yield word
    elif numbers is not None and re.search(_NUMBER, word):
        for number in numbers:
            yield re.sub(_NUMBER, lambda match: f"%{match[1]}d" % number, word)  # noqa: B023 - called at once
    else:
        yield from _ranged(word)


def _ranged(word: str) -> Iterator[str]:
    """Yield the names that a word with ranges stands for, in the order and with the zeros of bash."""
    between, *parts = (re.split(_RANGE, word)[part::4] for part in range(4))
    counted = []  # the numbers of each range, and how many characters each has at least, zeros before it
    for first, last, step in zip(*parts, strict=True):
        start, stop, by = int(first), int(last), abs(int(step or 1)) or 1
        numbers = range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)
        is_padded = any(re.match(r"-?0\d", text) for text in (first, last))
        counted.append((numbers, max(len(first), len(last)) if is_padded else 0))
    nnames = math.prod(len(numbers) for numbers, _ in counted)
    if nnames > _MOST_NAMES:
        raise UsageError(word, f"stands for {nnames} files, and {_MOST_NAMES} are the most")
    for chosen in itertools.product(*(numbers for numbers, _ in counted)):
        middle = (f"{number:0{width}d}" for number, (_, width) in zip(chosen, counted, strict=True))
        yield "".join(itertools.chain(*zip(between, [*middle, ""], strict=True)))


def _of_list(path: str, folder: str | None = None, end: str = "\n") -> Iterator[RankWord]:
    """Yield the ranks of a list; its names are relative to `folder`, else to the folder of the list."""
    source = open_source(path, NO_LIMITS)
    if folder is None:  # a stream is in no folder of the user's
        folder = "" if source.inode is None else os.path.dirname(path)
    by_line = end == "\n"
    for number, record in enumerate(_records(source, end.encode()), 1):
        name = os.fsdecode(record)
        if by_line:
            name = name.removesuffix("\r")
            if number == 1:
                name = name.removeprefix("\ufeff")  # what some editors write before a text
            if not name.strip() or name.lstrip().startswith("#"):
                continue
        if len(record) > _LONGEST or "\0" in name or not name:
            reason = "is not the name of a file; a list has one a line, or with `null` one before each NUL"
            raise UsageError(source.name, f"{number}: {escaped(name[:40])!r} {reason}")
        name = signed(name if is_url(name) else os.path.join(folder, "./-" if name == "-" else name))
        match = re.fullmatch(_AT, name, re.DOTALL)  # PATH:OFFSET is one of several in a file
        yield name if match is None or os.path.lexists(name) else RankInFile(match[1], int(match[2]))


def _records(source: Source, end: bytes) -> Iterator[bytes]:
    """Yield the records of a file, each before an `end`; the last one need not have any."""
    rest, at = b"", 0
    with closing(source.open()) as file, calls.errors_name(source.name):
        while block := file.read(_READ_BYTES, at):
            at += len(block)
            *records, rest = (rest + block).split(end)
            yield from records
            if len(rest) > _LONGEST:
                break
    if rest:
        yield rest


def files_within(folder: str, other: str, context: Context, *, linked: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the files within a directory by their names there, in order, and an empty one that another lacks.

    Stores and checkpoints are one file, and others in them are files, too. So are links that lead to no file.
    """
    entries = sorted(os.scandir(folder), key=lambda each: each.name)
    if not entries and not os.path.isdir(other):
        yield "", folder
    for entry in entries:
        is_rank, is_link, own = entry.is_dir() and is_one_rank(entry.path), entry.is_symlink(), set[str]()
        if is_rank or is_link or not entry.is_dir():
            yield entry.name, entry.path
        if is_link and (linked or not is_rank):  # links within a linked one may lead back to it
            continue
        within: Iterable[tuple[str, str]] = ()
        if is_rank and is_store(entry.path):
            within = ((name, os.path.join(entry.path, name)) for name in strange_files(entry.path))
        elif entry.is_dir():
            within = files_within(entry.path, os.path.join(other, entry.name), context, linked=linked or is_link)
            with suppress(MpiredError, OSError):  # of a damaged checkpoint each file is compared
                file = open_rank(entry.path, InputOptions(context=context)) if is_rank else None
                own = {each.name for each in file.sources} if file else own
        yield from ((os.path.join(entry.name, name), path) for name, path in within if path not in own)
