"""What a shell offers for the value of an option or of an argument: the names that there are, or files."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from click.shell_completion import CompletionItem

from mpired.values import Kind, Names, OpName, Path, Ranks, listed

if TYPE_CHECKING:
    from mpired.buffers import RankFile
    from mpired.datatypes import Group


class Begun(NamedTuple):
    """A value that is begun: its kind, the other words of the command, the beginning, and the other options."""

    kind: Kind
    words: Sequence[str]
    text: str
    options: Mapping[str, Any]


class Offer(NamedTuple):
    """The names for a value, how a shell adds one, and what else is offered if none fits: "file" or "directory"."""

    names: Callable[[Begun], Iterable[str]] = lambda _: ()
    how: str = "plain"
    otherwise: str = ""


def offered(begun: Begun) -> list[CompletionItem[str]]:
    """Return what can take the place of what is begun; no names, where an error keeps them from being found."""
    usual = Offer(otherwise="file" if isinstance(begun.kind, Path | Ranks) else "")
    predefined = isinstance(begun.kind, OpName) and (begun.kind.use != "REDUCE" or begun.kind.names)
    names, how, otherwise = Offer(_ops) if predefined else OFFERS.get(begun.kind.metavar, usual)
    found: list[str] = []
    with contextlib.suppress(Exception):  # a shell has no place for a message in the middle of a line
        found = [name for name in names(begun) if name.startswith(begun.text)]
    if not found and otherwise:
        return [CompletionItem(begun.text, otherwise)]
    return [CompletionItem(name, "part" if _PARENTHESIS.match(name) else how) for name in found]


_PARENTHESIS = re.compile(r"\w+\(")  # of a datatype, which has to be closed


def _ops(begun: Begun) -> Iterator[str]:
    from mpired.ops import STATISTICS, Use, ops_for, plugins  # noqa: PLC0415 - with it comes NumPy, here and below

    assert isinstance(begun.kind, OpName)  # noqa: S101 - the kind of this offer
    use = Use[begun.kind.use]
    if begun.kind.names:
        yield from _spelled((name.upper() for name in begun.kind.names), begun)
    elif use is Use.REDUCE:
        yield from _spelled((op.name for op in ops_for(use)), begun)
        yield from (op.name.lower() for op in STATISTICS)  # which have no names in MPI
        yield from plugins.entry_points()
    else:
        yield from _spelled((op.name for op in ops_for(use)), begun)


def _datatypes(begun: Begun) -> Iterator[str]:
    """Yield the datatypes, and the constructors with their parenthesis; within that of one, behind what is written."""
    from mpired.datatypes import DATATYPES  # noqa: PLC0415
    from mpired.datatypes.derived import CONSTRUCTORS  # noqa: PLC0415
    from mpired.datatypes.dtypes import BY_NUMPY_NAME  # noqa: PLC0415

    inside = re.match(r".*[(\[,]", begun.text)
    before = inside[0] if inside else ""
    name = begun._replace(text=begun.text.removeprefix(before))
    yield from (before + each for each in _spelled((row.name for row in DATATYPES if row.dtype is not None), name))
    yield from (before + each for each in (*BY_NUMPY_NAME, *(f"{constructor}(" for constructor in CONSTRUCTORS)))


def _spelled(names: Iterable[str], begun: Begun) -> Iterator[str]:
    """Yield names of MPI as they are written most often, or with the prefix if that is begun."""
    has_prefix = begun.text != "" and "MPI_".startswith(begun.text[:4])
    yield from (f"MPI_{name}" if has_prefix else name.lower() for name in names)


def _columns(begun: Begun, *, columns: Callable[[RankFile, Begun], Iterable[str]]) -> Iterator[str]:
    """Yield columns of the first file among the words that has any, behind those that are written already."""
    file = next(filter(None, map(_file_of, begun.words)), None)
    behind = _WRITTEN.match(begun.text)
    before = behind[0] if behind else ""
    written = Names().parse(before[:-1]) if before else ()
    for name in () if file is None else columns(file, begun):
        if name not in written:
            yield before + listed([name])


_WRITTEN = re.compile(r'(?:(?:"(?:[^"]|"")*"|[^",][^,]*),)*', re.DOTALL)


def _buffers(file: RankFile, _: Begun) -> Iterator[str]:
    """Yield the columns that are buffers."""
    yield from (each.name for each in file.buffers)


def _all(file: RankFile, begun: Begun) -> Iterator[str]:
    """Yield all columns, those that are no buffers first."""
    yield from (each.name for each in file.others)
    yield from _buffers(file, begun)


def _combinable(file: RankFile, begun: Begun) -> Iterator[str]:
    """Yield the columns that the op of the command takes, if it has one yet, times among them; else the buffers."""
    groups = _groups_of(begun.options)
    if groups is None:
        yield from _buffers(file, begun)
        return
    nullable = begun.options.get("nulls", "error") != "error"
    buffers = ((each.name, each.datatype.group, getattr(each, "nulls", None)) for each in file.buffers)
    others = ((each.name, each.group, each.nulls) for each in file.others)
    for name, group, nulls in (*buffers, *others):
        if group is not None and group in groups and (nullable or not nulls):
            yield name


def _groups_of(options: Mapping[str, Any]) -> Group | None:
    """Return what the op of a command takes, None if that is not known; values, where it makes pairs of them."""
    from mpired.datatypes.pairs import VALUES  # noqa: PLC0415
    from mpired.errors import MpiredError  # noqa: PLC0415
    from mpired.ops import resolve  # noqa: PLC0415

    op = options.get("op") or ""
    if options.get("index"):
        return VALUES
    if "top" in options:  # of `locate`, which looks for an extreme of the elements themselves
        op = op.lower().removesuffix("loc")
    with contextlib.suppress(MpiredError):
        return resolve(op).groups if op else None
    return None


def _file_of(word: str) -> RankFile | None:
    """Return the first file that a word means, looked at, if it has columns."""
    path = os.path.expanduser(os.path.expandvars(word))
    path = path if os.path.exists(path) else next(glob.iglob(path), "")
    if not os.path.isfile(path):
        return None
    from mpired.buffers import Declared, recognise  # noqa: PLC0415
    from mpired.errors import MpiredError  # noqa: PLC0415
    from mpired.sources.local import LocalSource  # noqa: PLC0415

    with contextlib.suppress(MpiredError, OSError):
        source = LocalSource.of(path, path)  # not by the door of all commands, which finishes interrupted updates
        format_of = recognise(source, Declared())
        return format_of.inspect(source, Declared()) if format_of.has_columns else None
    return None


def _files(begun: Begun) -> Iterator[str]:
    """Yield the files and folders for the last of some paths, behind those that are written already."""
    written, comma, last = begun.text.rpartition(",")
    for path in sorted(glob.glob(f"{glob.escape(last)}*")):
        yield f"{written}{comma}{path}{'/' if os.path.isdir(path) else ''}"


# No space follows a part, because a comma may.
_COLUMNS = {each: Offer(partial(_columns, columns=each), "part") for each in (_combinable, _all, _buffers)}
OFFERS = {
    "OP": Offer(_ops, otherwise="file"),
    "TYPE": Offer(_datatypes),
    "NAME,...": _COLUMNS[_combinable],
    "COLUMN,...": _COLUMNS[_all],
    "VALUE,INDEX": _COLUMNS[_buffers],
    "VALUES,INDICES": Offer(_files, "part"),
    "FILE": Offer(otherwise="file"),
    "DIR": Offer(otherwise="directory"),
    "[COUNT|SHAPE]": Offer(otherwise="file"),  # it may be left out before a file
}
"""What is offered for a value, by what help calls it."""
