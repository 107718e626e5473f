"""What a shell offers for the value of an option or of an argument: the names that there are, or files."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from click.shell_completion import CompletionItem

from mpired.values import Kind, OpName, Path, Ranks


class Begun(NamedTuple):
    """A value that is begun: its kind, the other words of the command, and the beginning."""

    kind: Kind
    words: Sequence[str]
    text: str


class Offer(NamedTuple):
    """The names for a value, how a shell adds one, and what else is offered if none fits: "file" or "directory"."""

    names: Callable[[Begun], Iterable[str]] = lambda _: ()
    how: str = "plain"
    otherwise: str = ""


def offered(begun: Begun) -> list[CompletionItem[str]]:
    """Return what can take the place of what is begun; no names, where an error keeps them from being found."""
    usual = Offer(otherwise="file" if isinstance(begun.kind, Path | Ranks) else "")
    predefined = isinstance(begun.kind, OpName) and not begun.kind.reduces
    names, how, otherwise = Offer(_ops) if predefined else OFFERS.get(begun.kind.metavar, usual)
    found: list[str] = []
    with contextlib.suppress(Exception):  # a shell has no place for a message in the middle of a line
        found = [name for name in names(begun) if name.startswith(begun.text)]
    if not found and otherwise:
        return [CompletionItem(begun.text, otherwise)]
    return [CompletionItem(name, how) for name in found]


def _ops(begun: Begun) -> Iterator[str]:
    from mpired.ops import OPS, Use, plugins  # noqa: PLC0415 - with it comes NumPy, here and below

    reduces = isinstance(begun.kind, OpName) and begun.kind.reduces
    uses = Use.REDUCE if reduces else Use.ACCUMULATE | Use.FETCH
    yield from _spelled((op.name for op in OPS if op.uses & uses), begun)
    yield from plugins.entry_points() if reduces else ()


def _datatypes(begun: Begun) -> Iterator[str]:
    from mpired.datatypes import DATATYPES  # noqa: PLC0415
    from mpired.datatypes.dtypes import BY_NUMPY_NAME  # noqa: PLC0415

    yield from _spelled((row.name for row in DATATYPES if row.dtype is not None), begun)
    yield from BY_NUMPY_NAME


def _spelled(names: Iterable[str], begun: Begun) -> Iterator[str]:
    """Yield names of MPI as they are written most often, or with the prefix if that is begun."""
    has_prefix = begun.text != "" and "MPI_".startswith(begun.text[:4])
    yield from (f"MPI_{name}" if has_prefix else name.lower() for name in names)


def _columns(begun: Begun, *, others: bool = False) -> Iterator[str]:
    """Yield the columns of the first file among the words that has any, behind those that are written already.

    These are the ones that are buffers, or with `others` all, those that are none first.
    """
    numbers, rest = next(filter(None, map(_columns_of, begun.words)), ((), ()))
    written = begun.text.split(",")[:-1]
    for name in (*(rest if others else ()), *numbers):
        if name not in written:
            yield ",".join([*written, name])


def _columns_of(word: str) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the columns that are buffers and the others, of the first file that a word means; None if it has none."""
    path = os.path.expanduser(os.path.expandvars(word))
    path = path if os.path.exists(path) else next(glob.iglob(path), "")
    if not os.path.isfile(path):
        return None
    from mpired.buffers import Declared, recognise  # noqa: PLC0415
    from mpired.buffers.source import LocalSource  # noqa: PLC0415
    from mpired.errors import MpiredError  # noqa: PLC0415

    with contextlib.suppress(MpiredError, OSError):
        source = LocalSource.of(path, path)  # not by the door of all commands, which finishes interrupted updates
        format_of = recognise(source, Declared())
        file = format_of.inspect(source, Declared()) if format_of.has_columns else None
        return file and ([each.name for each in file.buffers], [each.name for each in file.others])
    return None


_COLUMNS = Offer(_columns, "part")  # no space follows a part, because a comma may
OFFERS = {
    "OP": Offer(_ops, otherwise="file"),
    "TYPE": Offer(_datatypes),
    "NAME,...": _COLUMNS,
    "COLUMN,...": Offer(partial(_columns, others=True), "part"),
    "VALUE,INDEX": _COLUMNS,
    "FILE": Offer(otherwise="file"),
    "DIR": Offer(otherwise="directory"),
    "[COUNT|SHAPE]": Offer(otherwise="file"),  # it may be left out before a file
}
"""What is offered for a value, by what help calls it."""
