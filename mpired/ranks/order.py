"""The order of ranks, and the numbers in their names."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from mpired.errors import MpiredError, RankNumberError, UsageError, raise_all
from mpired.formats import AtHand
from mpired.formats.memory import RankInFile

if TYPE_CHECKING:
    from mpired.options import Options

RankWord: TypeAlias = str | AtHand
_W = TypeVar("_W")
_NUMBER = r"[0-9]+"
EXAMPLE = "`rank_regex='r([0-9]+)'`"
"""An option that names the number of a rank."""
_DIGITS = str.maketrans("123456789", "0" * 9)
_SHOWN_NAMES = 3
_SHOWN_RANGES = 8


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


def path_of(word: object) -> str | None:
    """Return the path of a rank's file; None for a rank without one, such as standard input."""
    path = word.path if isinstance(word, AtHand) else word
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
        raise RankNumberError(str(paths[0]), f"{reason}; choose one, such as with {EXAMPLE}")
    place = places[0] if places else -1
    return [each[place] if each else None for each in numbers]


def _name(word: object) -> str:
    return word.name if isinstance(word, AtHand) else str(word)


def _numbered(words: Sequence[_W], regex: str) -> list[_W]:
    """Return ranks in the order of their numbers."""
    numbers = numbers_of([*map(path_of, words)], regex)
    firsts: dict[int, int] = {}
    errors: list[MpiredError | OSError] = []
    for rank, (word, number) in enumerate(zip(words, numbers, strict=True)):
        if number is None:
            errors.append(RankNumberError(_name(word), f"does not match `rank_regex={regex!r}`"))
            continue
        other = words[firsts.setdefault(number, rank)]
        # Of several ranks in one file each has the number of the file.
        if firsts[number] < rank and not (isinstance(word, RankInFile) and path_of(word) == path_of(other)):
            reason = f"has the same number ({number}) in its name as {_name(other)}"
            errors.append(RankNumberError(_name(word), reason))
    raise_all(errors, len(words))
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
