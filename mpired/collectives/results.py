"""The names of many results: a pattern with a field that tells the ranks apart."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from mpired.buffers import RankFile
from mpired.buffers.source import STANDARD_INPUT
from mpired.errors import UsageError
from mpired.storage import calls

# What may stand behind the colon of a field: for a number its digits, for texts nothing.
_FIELDS = {"rank": re.compile(r"(0?[1-9]\d?d?)?", re.ASCII), "stem": re.compile(""), "group": re.compile("")}
_TELLING = {"rank", "stem"}


class Named(NamedTuple):
    """A rank that gets a result: its group, "a" or "b", its number there, and its file."""

    group: str
    rank: int
    file: RankFile

    @property
    def stem(self) -> str:
        """The name of its file without folder and suffix."""
        if self.file.source.name == STANDARD_INPUT:
            raise UsageError("{stem}", f"rank {self.rank} is standard input, which has no name; use {{rank}}")
        return os.path.splitext(os.path.basename(self.file.source.name))[0]


def expand(pattern: str, ranks: Sequence[Named]) -> list[str]:
    """Return the name of each rank's result.

    Raises
    ------
    UsageError
        If the pattern has no field for that, or gives two ranks one name.
    """
    _check(pattern)
    stems = "{stem" in pattern
    names = [pattern.format(rank=each.rank, group=each.group, stem=each.stem if stems else "") for each in ranks]
    check_different(names, ranks)
    return names


def _check(pattern: str) -> None:
    try:
        parts = list(string.Formatter().parse(pattern))
    except ValueError as error:
        raise UsageError(pattern, f"is no pattern of names ({error}); a brace itself is written twice") from None
    fields = {field for _, field, _, _ in parts if field is not None}
    for _, field, form, conversion in parts:
        if field is None:
            continue
        known = _FIELDS.get(field)
        if known is None or conversion or not known.fullmatch(form or ""):
            text = f"{{{field}{'!' + conversion if conversion else ''}{':' + form if form else ''}}}"
            raise UsageError(
                pattern, f"has the field {text}; the fields are {{rank}}, {{rank:05d}}, {{stem}}, {{group}}"
            )
    if not fields & _TELLING:
        raise UsageError(pattern, "is one name for the results of all ranks; put {rank} or {stem} into it")


def check_different(names: Sequence[str], ranks: Sequence[Named]) -> None:
    """Raise `UsageError` if two names are one file."""
    first: dict[str, Named] = {}
    for name, path, each in zip(names, calls.real_paths(names), ranks, strict=True):
        other = first.setdefault(path, each)
        if other is not each:
            both = f"ranks {other.rank} and {each.rank}"
            if other.group != each.group:
                both = f"rank {other.rank} of group A and rank {each.rank} of group B"
            hint = "put {group} into the pattern" if other.group != each.group else "use {rank}, or other files"
            raise UsageError(name, f"would be the result of {both}; {hint}")
