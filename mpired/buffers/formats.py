"""The table of formats: how a file is recognised, and which module reads and lays it out."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias, cast

from mpired.buffers import foreign
from mpired.buffers.declared import Declared
from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.rank import RankFile
from mpired.buffers.source import Source, open_source
from mpired.errors import BufferFileError, UsageError
from mpired.storage import calls, interruptions

Encoder: TypeAlias = Callable[[Sequence[FlatBuffer], int], None]
"""Writes results, given as flat buffers of native elements, to an open file in some other form."""


class InputModule(Protocol):
    """What the module of a format that can be read supplies."""

    def inspect(self, source: Source, declared: Declared) -> RankFile: ...


class OutputModule(Protocol):
    """What the module of every format supplies; all that can be refused is refused here."""

    def prepare(self, template: RankFile) -> FlatLayout | Encoder: ...


class ColumnModule(Protocol):
    """What the module of a format with columns supplies besides."""

    def rewrite(self, source: Source, changed: Sequence[FlatBuffer], fd: int) -> None: ...


class Format(NamedTuple):
    """A file format: a row of the table.

    Parameters
    ----------
    name
        The word for `--from` and `--to`.
    suffixes
        File name endings that mean it.
    magic
        The first bytes of every such file, empty if there are none.
    readable
        Whether it can be an input.
    streamed
        Whether its elements can only be decoded in sequence; it is then read in larger blocks.
    address_space
        Bytes that its libraries need to be loaded; some crash where they cannot be mapped.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: bytes = b""
    readable: bool = True
    streamed: bool = False
    doc: str = ""
    address_space: int = 0

    @property
    def module(self) -> ModuleType:
        """The module that knows the format; imported only where the format is used."""
        return _imported(f"mpired.buffers.{'' if self.readable else 'to_'}{self.name}", self.address_space)

    def inspect(self, source: Source, declared: Declared) -> RankFile:
        """Describe a file of this format, from its header."""
        return cast("InputModule", self.module).inspect(source, declared)

    def prepare(self, template: RankFile) -> FlatLayout | Encoder:
        """Say how a result like `template` is written in this format, or why it cannot be."""
        return cast("OutputModule", self.module).prepare(template)

    def rewrite(self, source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
        """Write a file with columns again, some of them with new elements.

        Parameters
        ----------
        source
            The old file.
        changed
            The new elements, each buffer named as its column.
        fd
            The new file.
        """
        cast("ColumnModule", self.module).rewrite(source, changed, fd)


@functools.cache
def _imported(name: str, address_space: int) -> ModuleType:
    """Import a module; not out of `sys.modules`, where it stands already while another thread imports it."""
    calls.check_address_space(address_space)
    with interruptions.blocked():  # an exception within an import is taken for another error, or lost
        return importlib.import_module(name)


_ARROW = 192 << 20
_ROWS: tuple[Format, ...] = (
    Format("raw", (".bin", ".raw"), doc="elements of a declared datatype, nothing else"),
    Format("npy", (".npy",), b"\x93NUMPY", doc="NumPy's array file"),
    Format(
        "parquet",
        (".parquet", ".pq"),
        b"PAR1",
        streamed=True,
        doc="every numeric column a buffer",
        address_space=_ARROW,
    ),
    Format(
        "arrow",
        (".arrow", ".feather"),
        b"ARROW1",
        streamed=True,
        doc="Arrow IPC file, as parquet",
        address_space=_ARROW,
    ),
    Format("text", (".txt",), readable=False, doc="an element a line"),
    Format("csv", (".csv",), readable=False, doc="a column a buffer, with a header line"),
    Format("json", (".json",), readable=False, doc="one object with all elements"),
    Format("table", (), readable=False, doc="the first and last elements, for a person"),
)
FORMATS = {row.name: row for row in _ROWS}
_BY_SUFFIX = {suffix: row for row in _ROWS for suffix in row.suffixes}


def by_suffix(path: str) -> Format | None:
    """Return the format that the ending of `path` means, None if it means none."""
    return _BY_SUFFIX.get(_suffix(path))


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def open_rank(word: str, declared: Declared) -> RankFile:
    """Look at one rank's file: the one door from a word of the command line to buffers.

    Raises
    ------
    MpiredError, OSError
        If the file cannot be used; the error names it.
    """
    source = open_source(word, declared.stream_limit)
    return recognise(source, declared).inspect(source, declared)


def recognise(source: Source, declared: Declared) -> Format:
    """Return the format of a file: the declared one, or that of its content, which must agree with its suffix.

    With a declared datatype any bytes can be raw, unless content or suffix say that they are something else.

    Raises
    ------
    BufferFileError
        If content and suffix disagree, or are of a format that cannot be an input.
    """
    if declared.format:
        return _readable(declared.format)
    by_content, kind = _by_content(source)
    if kind is not None:
        raise BufferFileError(source.name, f"is {kind.name}; {kind.way_out}")
    named = by_suffix(source.name)
    other = named.name if named is not None and not named.readable else None
    if by_content is None and named is None and (kind := foreign.by_suffix(source.name)):
        raise BufferFileError(source.name, f"is {kind.name} by its suffix; {kind.way_out}")
    if other is not None:
        reason = f"is {other} by its suffix, which cannot be an input; `format='raw'` reads the bytes as they are"
        raise BufferFileError(source.name, reason)
    if named is not None and by_content is not None and named is not by_content:
        reason = (
            f"holds {by_content.name} by its first bytes, but its suffix means {named.name}; say which with `format`"
        )
        raise BufferFileError(source.name, reason)
    return by_content or named or FORMATS["raw"]


def _readable(name: str) -> Format:
    readable = {row.name: row for row in _ROWS if row.readable}
    if name not in readable:
        raise UsageError("`format`", f"{name!r} is none of {', '.join(readable)}")
    return readable[name]


def _by_content(source: Source) -> tuple[Format | None, foreign.Foreign | None]:
    """Return what a file is by its content: a format, a kind of another program, or neither."""
    with closing(source.open()) as file, calls.blaming(source.name):
        start = file.read(foreign.HEAD_NBYTES, 0)
        row = next((row for row in _ROWS if row.magic and start.startswith(row.magic)), None)
        return row, None if row else foreign.by_content(start, source.nbytes, file.read)


def check_records(source: Source) -> None:
    """Raise `BufferFileError` if a file that is taken for raw records is something else by its content."""
    row, kind = _by_content(source)
    what = f"{row.name} by its first bytes" if row else kind.name if kind else ""
    if what:
        way_out = "save their bytes alone, as numpy.ndarray.tofile does"
        raise BufferFileError(source.name, f"is {what}, and a file of records is raw binary; {way_out}")


def output_format(path: str, to: str | None, template: RankFile, *, terminal: bool) -> Format:
    """Return the format for a result: that of `--to`, of the suffix, or of the inputs; never binary to a terminal.

    Raises
    ------
    UsageError
        If `to` names no format, or there is none and the suffix is that of another.
    """
    if to is not None and to not in FORMATS:
        raise UsageError("`to`", f"{to!r} is not a format; the formats are {', '.join(FORMATS)}")
    chosen = FORMATS[to] if to else by_suffix(path) or _as_the_inputs(path, template)
    return FORMATS["table"] if terminal and chosen.readable else chosen


def _as_the_inputs(path: str, template: RankFile) -> Format:
    """Return the format of the inputs for a result whose suffix means none, so that no program takes it for its own.

    Raw binary may have any name that is no other format's; a number, as in `out.0`, is no suffix.
    """
    if kind := foreign.by_suffix(path):
        reason = f"would be {kind.name} by its suffix, which mpired does not write"
        raise UsageError(path, f"{reason}; choose another name, or say the format with `to`")
    if template.format != "raw" and (suffix := _unknown_suffix(path)):
        raise UsageError(path, f"no format has the suffix {suffix}; say it with `to`, as `to={template.format!r}`")
    return FORMATS[template.format]


def _unknown_suffix(path: str) -> str:
    """Return the suffix of a name if no format has it, else ""; a number, as in `out.0`, is none."""
    suffix = _suffix(path)
    return "" if by_suffix(path) or suffix[1:].isdecimal() else suffix


def _other_format(path: str, *own: str) -> str | None:
    """Return what the suffix of a name means, unless that is nothing or one of mpired's `own` formats."""
    row, kind = by_suffix(path), foreign.by_suffix(path)
    return kind.name if kind else row.name if row and row.name not in own else None


def format_to_create(path: str, *, raw: bool) -> Format:
    """Return the format of a file that `--create` makes: npy, or raw binary.

    Parameters
    ----------
    path
        The file, of whose name only the suffix matters.
    raw
        Whether raw binary may have any suffix, because its datatype is declared.

    Raises
    ------
    UsageError
        If the suffix is that of another format, or of none.
    """
    if other := _other_format(path, "npy", "raw"):
        reason = f"makes npy and raw files, and {path} would be {other} by its suffix; choose another name"
        raise UsageError("`create`", reason)
    if not raw and (suffix := _unknown_suffix(path)):
        reason = f"no format has the suffix {suffix} of {path}; write .npy, or with `type` any suffix for raw binary"
        raise UsageError("`create`", reason)
    return by_suffix(path) or FORMATS["raw"]


def check_raw_suffix(path: str) -> None:
    """Raise `UsageError` if the suffix of a result that is always raw binary means something else."""
    if other := _other_format(path, "raw"):
        raise UsageError(path, f"would be {other} by its suffix, but records are raw binary; choose another name")
