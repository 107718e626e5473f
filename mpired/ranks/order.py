"""The ranks of a call: lists, globs, ranges and directories of files, their order, and the numbers in their names."""

from __future__ import annotations

import errno
import glob
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from mpired.context import NO_LIMITS, Context
from mpired.errors import MpiredError, RankNumberError, UsageError, escaped, raise_all
from mpired.files import calls
from mpired.files.urls import is_url, signed, with_query_of
from mpired.formats import InputOptions, RankObject, open_rank
from mpired.formats.memory import RankInFile
from mpired.sources.directory import is_one_rank, is_store, strange_files
from mpired.sources.open import open_source
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.options import Options

RankArgument: TypeAlias = str | RankObject
_W = TypeVar("_W")

_RANGE = r"\{(-?[0-9]{1,18})\.\.(-?[0-9]{1,18})(?:\.\.(-?[0-9]{1,18}))?\}"
_PLACE = r"%(0?[0-9]{0,2})d"
_AT = r"(.+):([0-9]{1,18})"
_MAGIC = frozenset("*?[")
_MOST_NAMES = 1 << 22
# More than a path can have, with an offset behind it.
_LONGEST = 8 << 10
_READ_BYTES = 64 << 10
_NUMBER = r"[0-9]+"
_DIGITS = str.maketrans("123456789", "0" * 9)
_SHOWN_NAMES = 3
_SHOWN_RANGES = 8


def rank_list(words: Sequence[_W], options: Options) -> list[_W | RankArgument]:
    """Return the ranks in order: `words`, and then those of a list that is named."""
    path = options["files_from"]
    found: Sequence[_W | RankArgument] = words
    if path is not None:
        if path == "-" and any(isinstance(word, str) and word == "-" for word in words):
            raise UsageError("-", "is a rank, and the list of ranks too; give one of them as a file")
        found = [*words, *_of_list(os.fspath(path), "", "\0" if options["null"] else "\n")]
    if options["sort"] == "given" and options["rank_regex"] is None and options["expect_ranks"] is None:
        return [*found]
    return ordered(found, options)


def expand(groups: Sequence[Sequence[str]], numbers: Sequence[int] | None = None) -> list[list[RankArgument]]:
    """Return the ranks that words of a command line mean: lists, quoted globs and ranges become files."""
    if numbers is not None and not any(re.search(_PLACE, word) for words in groups for word in words):
        raise UsageError("`rank_numbers`", "is for names with a %d, such as 'out.%04d'; there is none")
    return [[rank for word in words for rank in _expand(word, numbers)] for words in groups]


def _expand(word: str, numbers: Sequence[int] | None) -> Iterator[RankArgument]:
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
    elif numbers is not None and re.search(_PLACE, word):
        for number in numbers:
            yield re.sub(_PLACE, lambda match: f"%{match[1]}d" % number, word)  # noqa: B023 - called at once
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


def _of_list(path: str, folder: str | None = None, end: str = "\n") -> Iterator[RankArgument]:
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


def ordered(words: Sequence[_W], options: Options) -> list[_W]:
    """Return ranks in the order that is wanted, if their numbers are those that are expected."""
    sort, regex, expected = options["sort"], options["rank_regex"], options["expect_ranks"]
    if expected is not None:
        _check_expected(words, regex, cast("Sequence[int]", expected))
    if regex is not None:
        return _numbered(words, regex)
    if sort == "given":
        return [*words]
    nameless = next((number for number, word in enumerate(words) if path_of(word) is None), None)
    if nameless is not None:
        raise UsageError(f"`sort={sort!r}`", f"is for files, and rank {nameless} has no name")

    def key(word: _W) -> tuple[object, int]:
        path = path_of(word) or ""
        return _natural(path) if sort == "natural" else path, getattr(word, "start", 0)

    return sorted(words, key=key)


def paths(words: Iterable[RankArgument]) -> Iterator[str]:
    """Yield the paths of ranks that have one."""
    for word in words:
        path = word if isinstance(word, str) else word.path
        if path is not None:
            yield path


def path_of(word: object) -> str | None:
    """Return the path of a rank's file; None for a rank without one, such as standard input."""
    path = word.path if isinstance(word, RankObject) else word
    return os.fspath(path) if isinstance(path, str | os.PathLike) and path != "-" else None


def numbers_of(paths: Sequence[str | None], regex: str | None = None) -> list[int | None]:
    """Return the number of each path: that of the group of `regex`, else the one in its name that differs or is last.

    7 of member07.npy; a suffix such as .f32 has none. None without a number.
    """
    if regex is not None:
        found = [re.search(regex, path or "") for path in paths]
        return [int(each[1]) if each and re.fullmatch(_NUMBER, each[1] or "") else None for each in found]
    stems = []
    for path in paths:
        stem, suffix = os.path.splitext(os.path.basename(path or ""))
        stems.append(stem + suffix if suffix[1:].isdecimal() else stem)
    numbers = [[int(each) for each in re.findall(_NUMBER, stem)] for stem in stems]
    places: list[int] = []
    if len({re.sub(_NUMBER, "0", stem) for stem in stems}) == 1:
        values = [len(set(column)) for column in zip(*numbers, strict=True)]
        places = [place for place, each in enumerate(values) if each == len(set(stems)) > 1]
        places = places or [place for place, each in enumerate(values) if each > 1][-1:]  # the caller looks for doubles
    if len(places) > 1:
        reason = f"{len(places)} numbers of the name differ between the ranks"
        raise RankNumberError(str(paths[0]), f"{reason}; choose one, such as with {distinguishing(paths)}")
    place = places[0] if places else -1
    return [each[place] if each else None for each in numbers]


def distinguishing(paths: Sequence[str | None]) -> str:
    """Return a `rank_regex` that finds a number of its own in each path, for a hint; "" if no simple one does."""
    folder, name = os.path.split(paths[0] or "")
    for before, after in re.findall(r"([^0-9/]*)[0-9]+(?=([^0-9/]*))", f"{name}/{folder}"):
        for start, end in ((before[-1:], ""), (before[-1:], after[:1]), (before, after)):
            regex = f"{re.escape(start)}({_NUMBER}){re.escape(end)}"
            numbers = numbers_of(paths, regex)
            if None not in numbers and len({*numbers}) == len(paths):
                return f"`rank_regex={regex!r}`"
    return ""


def _name(word: object) -> str:
    return word.name if isinstance(word, RankObject) else str(word)


def _files(words: Sequence[object]) -> list[str | None]:
    """Return the paths of ranks, and of several in one file one."""
    return [path_of(word) for word in words if not getattr(word, "start", 0)]


def _numbered(words: Sequence[_W], regex: str) -> list[_W]:
    """Return ranks in the order of their numbers."""
    numbers = numbers_of([*map(path_of, words)], regex)
    firsts: dict[int, int] = {}
    faults: list[tuple[str, str]] = []
    for rank, (word, number) in enumerate(zip(words, numbers, strict=True)):
        if number is None:
            faults.append((_name(word), f"does not match `rank_regex={regex!r}`"))
            continue
        other = words[firsts.setdefault(number, rank)]
        # Of several ranks in one file each has the number of the file.
        if firsts[number] < rank and not (isinstance(word, RankInFile) and path_of(word) == path_of(other)):
            faults.append((_name(word), f"has the same number ({number}) in its name as {_name(other)}"))
    better = distinguishing(_files(words)) if faults else ""
    alone = ", and no one number tells all ranks apart; leave `rank_regex` out"
    way_out = f"; tell all apart with {better}" if better else alone
    raise_all([RankNumberError(name, f"{reason}{way_out}") for name, reason in faults], len(words))
    order = sorted(range(len(words)), key=lambda rank: (numbers[rank], getattr(words[rank], "start", 0)))
    return [words[rank] for rank in order]


def _check_expected(words: Sequence[object], regex: str | None, expected: Sequence[int]) -> None:
    """Raise `RankNumberError` unless the numbers of ranks are those that are expected, each once."""
    wanted = set(expected)
    known: dict[int, list[str]] = {}
    others: list[str] = []
    for word, number in zip(words, numbers_of([*map(path_of, words)], regex), strict=True):
        if number is not None and number in wanted:
            known.setdefault(number, []).append(_name(word))
        else:
            others.append(_name(word))
    missing = wanted - known.keys()
    doubles = [f"{each} ({_few(known[each])})" for each in sorted(known) if len(known[each]) > 1]
    # Consecutive numbers as a range: 3 and 7-9.
    runs = itertools.groupby(enumerate(sorted(missing)), lambda each: each[1] - each[0])
    spans = ([number for _, number in run] for _, run in runs)
    ranges = [f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans]
    faults = [
        ("missing", _few(ranges, _SHOWN_RANGES), len(missing)),
        ("more than once", _few(doubles), len(doubles)),
        ("not expected", _few(others), len(others)),
    ]
    if reasons := [f"{count} {what}: {which}" for what, which, count in faults if count]:
        if doubles and (better := distinguishing(_files(words))):
            reasons.append(f"tell all apart with {better}")
        raise RankNumberError("`expect_ranks`", "; ".join(reasons))


def _few(names: Sequence[str], most: int = _SHOWN_NAMES) -> str:
    """Return the first of some names in words."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def unnatural(words: Sequence[str]) -> tuple[str, str] | None:
    """Return two neighbours in the order of their letters but not of their numbers, such as rank10, rank2."""
    # None if there are none, or if the words are not sorted by letters either: then the user chose the order.
    if list(words) != sorted(words):
        return None
    shapes = {word.translate(_DIGITS) for word in words}
    if len(shapes) == 1 or not any(map(str.isdecimal, "".join(shapes))):  # numbers of one width at one place, or none
        return None
    return next((pair for pair in itertools.pairwise(words) if _natural(pair[0]) > _natural(pair[1])), None)


def _natural(word: str) -> list[tuple[int, str]]:
    """Return a key that sorts the numbers in a name by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", word)]


def files_within(folder: str, other: str, context: Context, *, linked: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the files within a directory by their names there, in order; also an empty directory that `other` lacks.

    A store or checkpoint is one file. Files in it that it does not use, and links that lead nowhere, are files, too.
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
                if is_rank:
                    own = {each.name for each in open_rank(entry.path, InputOptions(context=context)).sources}
        yield from ((os.path.join(entry.name, name), path) for name, path in within if path not in own)
