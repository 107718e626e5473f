"""Lists, globs, ranges and directories of files, their order, and the numbers in their names.

An argument is a path, a URL, "-" or an object of a program. On the command line it may also stand for several files.
"""

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
_OFFSET = r"(.+):([0-9]{1,18})"
_MAGIC = frozenset("*?[")
_MAX_NAMES = 1 << 22  # of a range
_MAX_RECORD_NBYTES = 8 << 10  # of a list: longer than a path with an offset
_READ_BYTES = 64 << 10
_NUMBER = r"[0-9]+"
_DIGITS = str.maketrans("123456789", "0" * 9)
_SHOWN_NAMES = 3
_SHOWN_RANGES = 8


def rank_list(arguments: Sequence[_W], options: Options) -> list[_W | RankArgument]:
    """Return the ranks of the arguments and then those of the list `files_from`, in the order of `sort`."""
    path = options["files_from"]
    ranks: list[_W | RankArgument] = [*arguments]
    if path is not None:
        if path == "-" and any(isinstance(argument, str) and argument == "-" for argument in arguments):
            raise UsageError("-", "is a rank, and the list of ranks too; give one of them as a file")
        ranks += _read_list(os.fspath(path), "", "\0" if options["null"] else "\n")
    if options["sort"] == "given" and options["rank_regex"] is None and options["expect_ranks"] is None:
        return ranks
    return ordered(ranks, options)


def expand(groups: Sequence[Sequence[str]], numbers: Sequence[int] | None = None) -> list[list[RankArgument]]:
    """Expand the lists, quoted globs and ranges among the arguments of a command line to ranks."""
    if numbers is not None and not any(re.search(_PLACE, argument) for group in groups for argument in group):
        raise UsageError("`rank_numbers`", "is for names with a %d, such as 'out.%04d'; there is none")
    return [[rank for argument in group for rank in _expand(argument, numbers)] for group in groups]


def _expand(argument: str, numbers: Sequence[int] | None) -> Iterator[RankArgument]:
    argument = signed(argument)
    if argument.startswith("@"):
        yield from _read_list(with_query_of(argument, argument[1:]))
        return
    names: Iterable[str] = [argument]
    if ("%" in argument or "{" in argument) and not os.path.lexists(argument):
        if numbers is not None and re.search(_PLACE, argument):
            pattern = re.sub(_PLACE, r"{0:\1d}", argument.replace("{", "{{").replace("}", "}}"))
            names = map(pattern.format, numbers)
        else:
            names = _expand_ranges(argument)
    for name in (with_query_of(argument, name) for name in names):
        pattern = name.partition("://")[2].partition("/")[2] if is_url(name) else name  # a host may be `[::1]`
        if not _MAGIC.intersection(pattern) or os.path.lexists(name):
            yield name
        elif is_url(name):
            from mpired.sources import remote  # noqa: PLC0415 - most ranks are files

            yield from remote.matching(name)
        elif matches := sorted(path for path in glob.iglob(name, recursive=True) if not os.path.isdir(path)):
            yield from matches
        else:
            raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}, and no file matches", name)


def _expand_ranges(argument: str) -> Iterator[str]:
    """Yield the names of an argument with ranges such as {0..9}, in the order and with the zeros of bash."""
    between, *bounds = (re.split(_RANGE, argument)[part::4] for part in range(4))
    ranges = []  # numbers of each range, and the least width of each number
    for first, last, step in zip(*bounds, strict=True):
        start, stop, stride = int(first), int(last), abs(int(step or 1)) or 1
        numbers = range(start, stop + 1, stride) if start <= stop else range(start, stop - 1, -stride)
        is_padded = any(re.match(r"-?0\d", text) for text in (first, last))
        ranges.append((numbers, max(len(first), len(last)) if is_padded else 0))
    nnames = math.prod(len(numbers) for numbers, _ in ranges)
    if nnames > _MAX_NAMES:
        raise UsageError(argument, f"stands for {nnames} files, and {_MAX_NAMES} are the most")
    for combination in itertools.product(*(numbers for numbers, _ in ranges)):
        texts = (f"{number:0{width}d}" for number, (_, width) in zip(combination, ranges, strict=True))
        yield "".join(itertools.chain(*zip(between, [*texts, ""], strict=True)))


def _read_list(path: str, folder: str | None = None, separator: str = "\n") -> Iterator[RankArgument]:
    """Yield the ranks of a list; its names are relative to `folder`, or to the folder of the list."""
    source = open_source(path, NO_LIMITS)
    if folder is None:  # names in a stream are relative to the current folder
        folder = "" if source.inode is None else os.path.dirname(path)
    for number, record in enumerate(_records(source, separator.encode()), 1):
        name = os.fsdecode(record)
        if separator == "\n":
            name = name.removesuffix("\r")
            if number == 1:
                name = name.removeprefix("\ufeff")  # which some editors write at the beginning of a file
            if not name.strip() or name.lstrip().startswith("#"):
                continue
        if len(record) > _MAX_RECORD_NBYTES or "\0" in name or not name:
            reason = "is not the name of a file; a list has one a line, or with `null` one before each NUL"
            raise UsageError(source.name, f"{number}: {escaped(name[:40])!r} {reason}")
        name = signed(name if is_url(name) else os.path.join(folder, "./-" if name == "-" else name))
        match = re.fullmatch(_OFFSET, name, re.DOTALL)  # PATH:OFFSET is one of several ranks in a file
        yield name if match is None or os.path.lexists(name) else RankInFile(match[1], int(match[2]))


def _records(source: Source, separator: bytes) -> Iterator[bytes]:
    """Yield the records of a file; the last one may lack its separator."""
    record, offset = b"", 0
    with closing(source.open()) as file, calls.errors_name(source.name):
        while block := file.read(_READ_BYTES, offset):
            offset += len(block)
            *records, record = (record + block).split(separator)
            yield from records
            if len(record) > _MAX_RECORD_NBYTES:
                break
    if record:
        yield record


def ordered(arguments: Sequence[_W], options: Options) -> list[_W]:
    """Return ranks in the order of `rank_regex` or `sort`, after a check of the numbers that `expect_ranks` names."""
    sort, regex, expected = options["sort"], options["rank_regex"], options["expect_ranks"]
    if expected is not None:
        _check_expected(arguments, regex, cast("Sequence[int]", expected))
    if regex is not None:
        return _by_number(arguments, regex)
    if sort == "given":
        return [*arguments]
    nameless = next((rank for rank, argument in enumerate(arguments) if path_of(argument) is None), None)
    if nameless is not None:
        raise UsageError(f"`sort={sort!r}`", f"is for files, and rank {nameless} has no name")

    def key(argument: _W) -> tuple[object, int]:
        path = path_of(argument) or ""
        return _natural_key(path) if sort == "natural" else path, getattr(argument, "start", 0)

    return sorted(arguments, key=key)


def paths(arguments: Iterable[RankArgument]) -> Iterator[str]:
    """Yield the paths of ranks; ranks without a path have none."""
    for argument in arguments:
        path = argument if isinstance(argument, str) else argument.path
        if path is not None:
            yield path


def path_of(argument: object) -> str | None:
    """Return the path of a rank's file; None for a rank without a file, such as standard input."""
    path = argument.path if isinstance(argument, RankObject) else argument
    return os.fspath(path) if isinstance(path, str | os.PathLike) and path != "-" else None


def numbers_of(paths: Sequence[str | None], regex: str | None = None) -> list[int | None]:
    """Return the number of each path, or None: 7 of member07.npy.

    It is the group of `regex`, or else the number in the name that differs between the paths, or the last one. A
    suffix such as .f32 has no number.
    """
    if regex is not None:
        matches = [re.search(regex, path or "") for path in paths]
        return [int(match[1]) if match and re.fullmatch(_NUMBER, match[1] or "") else None for match in matches]
    stems = []
    for path in paths:
        stem, suffix = os.path.splitext(os.path.basename(path or ""))
        stems.append(stem + suffix if suffix[1:].isdecimal() else stem)
    numbers = [[int(digits) for digits in re.findall(_NUMBER, stem)] for stem in stems]
    positions: list[int] = []
    if len({re.sub(_NUMBER, "0", stem) for stem in stems}) == 1:
        counts = [len(set(column)) for column in zip(*numbers, strict=True)]  # of distinct values at each position
        positions = [position for position, count in enumerate(counts) if count == len(set(stems)) > 1]
        # Without a number that is unique, the caller reports the doubles of the last one that differs.
        positions = positions or [position for position, count in enumerate(counts) if count > 1][-1:]
    if len(positions) > 1:
        reason = f"{len(positions)} numbers of the name differ between the ranks"
        raise RankNumberError(str(paths[0]), f"{reason}; choose one, such as with {distinguishing(paths)}")
    position = positions[0] if positions else -1
    return [values[position] if values else None for values in numbers]


def distinguishing(paths: Sequence[str | None]) -> str:
    """Return a simple `rank_regex` that finds another number in each path, for a hint; "" if there is none."""
    folder, name = os.path.split(paths[0] or "")
    for left, right in re.findall(r"([^0-9/]*)[0-9]+(?=([^0-9/]*))", f"{name}/{folder}"):
        for start, end in ((left[-1:], ""), (left[-1:], right[:1]), (left, right)):
            regex = f"{re.escape(start)}({_NUMBER}){re.escape(end)}"
            numbers = numbers_of(paths, regex)
            if None not in numbers and len({*numbers}) == len(paths):
                return f"`rank_regex={regex!r}`"
    return ""


def _label(argument: object) -> str:
    return argument.name if isinstance(argument, RankObject) else str(argument)


def _paths_of_files(arguments: Sequence[object]) -> list[str | None]:
    """Return the paths of ranks, and one of several ranks in one file."""
    return [path_of(argument) for argument in arguments if not getattr(argument, "start", 0)]


def _by_number(arguments: Sequence[_W], regex: str) -> list[_W]:
    """Return ranks in the order of the numbers in their names."""
    numbers = numbers_of([*map(path_of, arguments)], regex)
    firsts: dict[int, int] = {}  # the first rank with each number
    reasons: list[tuple[str, str]] = []
    for rank, (argument, number) in enumerate(zip(arguments, numbers, strict=True)):
        if number is None:
            reasons.append((_label(argument), f"does not match `rank_regex={regex!r}`"))
            continue
        first = arguments[firsts.setdefault(number, rank)]
        # Ranks in one file have the number of the file.
        if firsts[number] < rank and not (isinstance(argument, RankInFile) and path_of(argument) == path_of(first)):
            reasons.append((_label(argument), f"has the same number ({number}) in its name as {_label(first)}"))
    better = distinguishing(_paths_of_files(arguments)) if reasons else ""
    ambiguous = ", and no one number tells all ranks apart; leave `rank_regex` out"
    hint = f"; tell all apart with {better}" if better else ambiguous
    raise_all([RankNumberError(name, f"{reason}{hint}") for name, reason in reasons], len(arguments))
    order = sorted(range(len(arguments)), key=lambda rank: (numbers[rank], getattr(arguments[rank], "start", 0)))
    return [arguments[rank] for rank in order]


def _check_expected(arguments: Sequence[object], regex: str | None, expected: Sequence[int]) -> None:
    """Raise `RankNumberError` unless the numbers of the ranks are the expected ones, each once."""
    names: dict[int, list[str]] = {number: [] for number in expected}
    unexpected: list[str] = []
    for argument, number in zip(arguments, numbers_of([*map(path_of, arguments)], regex), strict=True):
        names.get(cast("int", number), unexpected).append(_label(argument))
    missing = [number for number in sorted(names) if not names[number]]
    doubles = [f"{number} ({_first_of(names[number])})" for number in sorted(names) if len(names[number]) > 1]
    # Consecutive numbers as a range: 3 and 7-9.
    runs = itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0])
    spans = ([number for _, number in run] for _, run in runs)
    ranges = [f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans]
    faults = [
        ("missing", _first_of(ranges, _SHOWN_RANGES), len(missing)),
        ("more than once", _first_of(doubles), len(doubles)),
        ("not expected", _first_of(unexpected), len(unexpected)),
    ]
    if reasons := [f"{count} {fault}: {labels}" for fault, labels, count in faults if count]:
        if doubles and (better := distinguishing(_paths_of_files(arguments))):
            reasons.append(f"tell all apart with {better}")
        raise RankNumberError("`expect_ranks`", "; ".join(reasons))


def _first_of(names: Sequence[str], limit: int = _SHOWN_NAMES) -> str:
    """Return the first names, separated by commas."""
    return ", ".join([*names[:limit], *(["..."] if len(names) > limit else [])])


def unnatural(names: Sequence[str]) -> tuple[str, str] | None:
    """Return two neighbours that are sorted by letters but not by numbers, such as rank10, rank2; None without any."""
    if list(names) != sorted(names):  # the user chose the order
        return None
    shapes = {name.translate(_DIGITS) for name in names}
    if len(shapes) == 1 or not any(map(str.isdecimal, "".join(shapes))):  # no numbers, or all of the same width
        return None
    return next((pair for pair in itertools.pairwise(names) if _natural_key(pair[0]) > _natural_key(pair[1])), None)


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts the numbers in a name by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def files_within(folder: str, other: str, context: Context, *, linked: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the relative names and the paths of the files within a directory, in order.

    A store or checkpoint is one file. Files in it that it does not use, links without a target, and an empty directory
    that `other` lacks are files, too.
    """
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    if not entries and not os.path.isdir(other):
        yield "", folder
    for entry in entries:
        is_rank, is_link = entry.is_dir() and is_one_rank(entry.path), entry.is_symlink()
        if is_rank or is_link or not entry.is_dir():
            yield entry.name, entry.path
        if is_link and (linked or not is_rank):  # links within a linked directory may lead back to it
            continue
        files: Iterable[tuple[str, str]] = ()
        if entry.is_dir():
            files = (files_beside if is_rank else files_within)(
                entry.path, os.path.join(other, entry.name), context, linked=linked or is_link
            )
        yield from ((os.path.join(entry.name, name), path) for name, path in files)


def files_beside(folder: str, other: str, context: Context, *, linked: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the files that a store or checkpoint does not use, with the names and rules of `files_within`."""
    if is_store(folder):
        yield from ((name, os.path.join(folder, name)) for name in strange_files(folder))
        return
    parts = set[str]()
    with suppress(MpiredError, OSError):  # of a damaged checkpoint each file is compared
        parts = {source.name for source in open_rank(folder, InputOptions(context=context)).sources}
    files = files_within(folder, other, context, linked=linked)
    yield from ((name, path) for name, path in files if path not in parts)
