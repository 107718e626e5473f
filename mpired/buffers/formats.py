"""The table of formats: how a file is recognised, and which module reads and lays it out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias, cast

from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.rank import Declared, RankFile
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
        name = f"mpired.buffers.{'' if self.readable else 'to_'}{self.name}"
        if name in sys.modules:
            return sys.modules[name]
        calls.check_address_space(self.address_space)
        with interruptions.blocked():  # an exception within an import is taken for another error, or lost
            return importlib.import_module(name)

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


class _Stranger(NamedTuple):
    """Another kind of file that ends up among rank files."""

    magic: bytes
    suffixes: tuple[str, ...]
    text: str


_STRANGERS = (
    _Stranger(b"PK", (".npz", ".zip"), "a zip archive, as .npz; save each array with numpy.save"),
    _Stranger(b"\x1f\x8b", (".gz", ".tgz"), "gzip; decompress it first"),
    _Stranger(b"\x28\xb5\x2f\xfd", (".zst",), "zstd; decompress it first"),
    _Stranger(b"\x89HDF", (".h5", ".hdf5", ".nc"), "HDF5"),
    _Stranger(b"CDF", (".nc",), "netCDF"),
)


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

    With a declared datatype any bytes can be raw, unless the suffix says too that they are something else.

    Raises
    ------
    BufferFileError
        If content and suffix disagree, or are of a format that cannot be an input.
    """
    if declared.format:
        return FORMATS[declared.format]
    start = _first_bytes(source)
    by_content = next((row for row in _ROWS if row.magic and start.startswith(row.magic)), None)
    named = by_suffix(source.name)
    if named is not None and not named.readable:
        raise BufferFileError(
            source.name, f"{named.name} files cannot be inputs; --from raw reads the bytes as they are"
        )
    stranger = next((each for each in _STRANGERS if start.startswith(each.magic)), None)
    if stranger and by_content is None and not _may_be_raw(source, named, declared, stranger):
        raise BufferFileError(source.name, f"is {stranger.text}; or force it with --from raw")
    if named is not None and by_content is not None and named is not by_content:
        reason = f"holds {by_content.name} by its first bytes, but its suffix means {named.name}; say which with --from"
        raise BufferFileError(source.name, reason)
    return by_content or named or FORMATS["raw"]


def _may_be_raw(source: Source, named: Format | None, declared: Declared, stranger: _Stranger) -> bool:
    if named is not None:
        return not named.magic
    return declared.datatype is not None and _suffix(source.name) not in stranger.suffixes


def _first_bytes(source: Source) -> bytes:
    fd = source.open()
    try:
        with calls.blaming(source.name):
            return calls.pread_some(fd, 8, 0)
    finally:
        calls.let_go(fd)


def output_format(path: str, to: str | None, template: RankFile, *, terminal: bool) -> Format:
    """Return the format for a result: that of `--to`, of the suffix, or of the inputs; never binary to a terminal.

    Raises
    ------
    UsageError
        If `to` names no format.
    """
    if to is not None and to not in FORMATS:
        raise UsageError("--to", f"{to!r} is not a format; the formats are {', '.join(FORMATS)}")
    chosen = FORMATS[to] if to else by_suffix(path) or FORMATS[template.format]
    return FORMATS["table"] if terminal and chosen.readable else chosen
