"""Completions of values of options and arguments: names or files."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from mpired.datatypes import DATATYPES
from mpired.datatypes.dtypes import BY_NUMPY_NAME
from mpired.errors import MpiredError
from mpired.formats import InputOptions, format_names, recognise
from mpired.ops import STATISTICS, Use, ops_for, plugins
from mpired.sources.local import LocalSource
from mpired.values import INPUT_FORMAT, Kind

if TYPE_CHECKING:
    from mpired.formats import RankFile

# The scripts of click insert a word as it is: a name that a shell would read otherwise is not offered.
_PLAIN = re.compile(r"[\w.,/+@%:-]+")


def offered(kind: Kind, words: Sequence[str], begun: str) -> list[CompletionItem[str]]:
    """Return the names for a value, else a wish for files; `words` are all words of the command."""
    # No names, where an error keeps them from being found.
    names: list[str] = []
    with contextlib.suppress(Exception):  # a shell has no place for a message in the middle of a line
        names = [name for name in _names(kind, words, begun) if name.startswith(begun) and _PLAIN.fullmatch(name)]
    if not names and (kind.offers in {"file", "dir"} or _may_be_a_function(kind)):
        return [CompletionItem(begun, type="dir" if kind.offers == "dir" else "file")]
    return [CompletionItem(name) for name in names]


def _may_be_a_function(kind: Kind) -> bool:
    return kind.use == "REDUCE" and not kind.names


def _names(kind: Kind, words: Sequence[str], begun: str) -> Iterable[str]:
    if kind.offers == "op":
        return _listed(_ops(kind, begun.rpartition(",")[2]), begun) if kind.use == "REDUCE" else _ops(kind, begun)
    if kind.offers == "datatype":
        return _datatypes(begun)
    if "format" in kind.offers:
        return format_names(readable=kind is INPUT_FORMAT)
    return _listed(_columns(words), begun) if kind.offers == "column" else ()


def _listed(names: Iterable[str], begun: str) -> Iterator[str]:
    """Yield names behind those of a list that are written already."""
    written, comma, _ = begun.rpartition(",")
    yield from (f"{written}{comma}{name}" for name in names if name not in written.split(","))


def _ops(kind: Kind, begun: str) -> Iterator[str]:
    yield from _spelled(kind.names or (op.name for op in ops_for(Use[kind.use])), begun)
    if _may_be_a_function(kind):
        yield from (op.name.lower() for op in STATISTICS)  # which have no names in MPI
        yield from plugins.entry_points()


def _datatypes(begun: str) -> Iterator[str]:
    yield from _spelled((row.name for row in DATATYPES if row.dtype is not None), begun)
    yield from BY_NUMPY_NAME


def _spelled(names: Iterable[str], begun: str) -> Iterator[str]:
    """Yield names of MPI as they are written most often, or with the prefix if that is begun."""
    has_prefix = begun != "" and "MPI_".startswith(begun[:4])
    yield from (f"MPI_{name.upper()}" if has_prefix else name.lower() for name in names)


def _columns(words: Sequence[str]) -> list[str]:
    """Return the columns of the first file among the words that has any."""
    file = next(filter(None, map(_file_of, words)), None)
    return [] if file is None else [each.name for each in file.buffers] + [each.name for each in file.others]


def _file_of(word: str) -> RankFile | None:
    """Return the header of the first file that a word means, if it has columns."""
    with contextlib.suppress(MpiredError, OSError, StopIteration):
        path = next(filter(os.path.isfile, glob.iglob(os.path.expanduser(word))))
        source = LocalSource.of(path, path)  # not by the door of all commands, which finishes interrupted updates
        format_of = recognise(source, InputOptions())
        return format_of.inspect(source, InputOptions()) if format_of.has_columns else None
    return None
