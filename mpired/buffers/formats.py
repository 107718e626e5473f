"""The table of formats: how a file is recognised, and in which format a result is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from mpired.buffers import foreign, plugins
from mpired.buffers.declared import Declared
from mpired.buffers.format import Format
from mpired.buffers.memory import ArrayRank, AtHand
from mpired.buffers.rank import RankFile
from mpired.buffers.source import Source, open_source
from mpired.errors import BufferFileError, NotReadError, UsageError
from mpired.storage import calls

_ARROW = 192 << 20
_ROWS: tuple[Format, ...] = (
    Format(
        "raw",
        (".bin", ".raw"),
        needs_type=True,
        updatable=True,
        doc="elements of a declared datatype, nothing else",
    ),
    Format("npy", (".npy",), b"\x93NUMPY", updatable=True, doc="NumPy's array file"),
    Format(
        "parquet",
        (".parquet", ".pq"),
        b"PAR1",
        has_columns=True,
        keeps=True,
        streamed=True,
        updatable=True,
        doc="every numeric column a buffer",
        address_space=_ARROW,
    ),
    Format(
        "arrow",
        (".arrow", ".feather"),
        b"ARROW1",
        has_columns=True,
        keeps=True,
        streamed=True,
        updatable=True,
        doc="Arrow IPC file, as parquet",
        address_space=_ARROW,
    ),
    Format("text", (".txt",), readable=False, doc="an element a line"),
    Format("csv", (".csv",), readable=False, has_columns=True, doc="a column a buffer, with a header line"),
    Format("json", (".json",), readable=False, has_columns=True, doc="one object with all elements"),
    Format("table", (), readable=False, has_columns=True, doc="the first and last elements, for a person"),
)
FORMATS = {row.name: row for row in _ROWS}
_BY_SUFFIX = {suffix: row for row in _ROWS for suffix in row.suffixes}

RAW = FORMATS["raw"]
"""The format of bytes that say nothing of themselves."""
ARRAY = FORMATS["npy"]
"""The format of an array in memory."""
LINES = FORMATS["text"]
"""The format of the few elements that a command prints."""
_FOR_TERMINALS = FORMATS["table"]


def format_named(name: str, option: str = "format", *, readable: bool = False) -> Format:
    """Return the row of that name, for an option that names a format, perhaps one that can be an input.

    Raises
    ------
    UsageError
        If there is none.
    BufferFileError
        If it is of an installed package that cannot be used.
    """
    row = FORMATS.get(name) or plugins.named(name)
    if row is None or (readable and not row.readable):
        names = ", ".join(format_names(readable=readable))
        what = f"is none of {names}" if readable else f"is not a format; the formats are {names}"
        raise UsageError(f"`{option}`", f"{name!r} {what}")
    return row


def format_names(*, readable: bool = False) -> list[str]:
    """Return the names of all formats, perhaps of those that can be an input; installed ones are not loaded for it."""
    own = [row.name for row in _ROWS if row.readable or not readable]
    return [*own, *(name for name in plugins.names() if name not in FORMATS)]


def by_suffix(path: str) -> Format | None:
    """Return the format that the ending of `path` means, None if it means none.

    Raises
    ------
    BufferFileError
        If it means several installed formats, or one that cannot be used.
    """
    suffix = _suffix(path)
    return _BY_SUFFIX.get(suffix) or (plugins.by_suffix(path, suffix) if _is_word(suffix) else None)


def _is_word(suffix: str) -> bool:
    """Tell whether a suffix may mean a format: a number, as in `out.0`, means none."""
    return suffix != "" and not suffix[1:].isdecimal()


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def open_rank(word: str | AtHand, declared: Declared) -> RankFile:
    """Look at one rank's file: the one door from a word of the command line, or what a program has, to buffers.

    Raises
    ------
    MpiredError, OSError
        If the file cannot be used; the error names it.
    """
    limit = declared.stream_limit
    source = open_source(word, limit) if isinstance(word, str) else word.source(limit)
    # An array says itself what it is, whatever the format of the files beside it.
    form = ARRAY if isinstance(word, ArrayRank) else recognise(source, declared)
    return form.inspect(source, declared)


def look(word: str, declared: Declared) -> RankFile:
    """Describe one file as far as that is possible, also if it is of a kind that is not read, or says nothing.

    Raises
    ------
    MpiredError, OSError
        If the file is damaged or cannot be opened.
    """
    source = open_source(word, declared.stream_limit)
    try:
        row = recognise(source, declared)
    except NotReadError as error:
        return RankFile.not_read(source, error.kind, error.reason)
    if row.needs_type and declared.datatype is None:
        return RankFile.not_read(source, row.name, "says nothing of its elements; `type` says what they are")
    return row.inspect(source, declared)


def recognise(source: Source, declared: Declared) -> Format:
    """Return the format of a file: the declared one, or that of its content, which must agree with its suffix.

    With a declared datatype any bytes can be raw, unless content or suffix say that they are something else.

    Raises
    ------
    BufferFileError
        If content and suffix disagree, or are of a format that cannot be an input.
    """
    if declared.format:
        return format_named(declared.format, readable=True)
    start, by_content, kind = _by_content(source)
    named = by_suffix(source.name)
    # Raw bytes of a declared datatype have any name: only if they seem to be a file, packages are asked for it.
    if by_content is None and named is None and (kind or declared.datatype is None or _is_word(_suffix(source.name))):
        by_content = plugins.by_content(source.name, start)
    if by_content is None and kind and (named is None or not named.place):
        raise NotReadError(source.name, f"is {kind.name}; {kind.way_out}", kind.name)
    if by_content is None and named is None and (kind := foreign.by_suffix(source.name)):
        raise NotReadError(source.name, f"is {kind.name} by its suffix; {kind.way_out}", kind.name)
    if named is not None and not named.readable:
        reason = f"is {named.name} by its suffix, which cannot be an input; `format='raw'` reads the bytes as they are"
        raise NotReadError(source.name, reason, named.name)
    if named is not None and by_content is not None and named is not by_content:
        reason = (
            f"holds {by_content.name} by its first bytes, but its suffix means {named.name}; say which with `format`"
        )
        raise BufferFileError(source.name, reason)
    return by_content or named or RAW


def _by_content(source: Source) -> tuple[bytes, Format | None, foreign.Foreign | None]:
    """Return the first bytes of a file, and what it is by them: a format, a kind of another program, or neither."""
    with closing(source.open()) as file, calls.blaming(source.name):
        start = file.read(foreign.HEAD_NBYTES, 0)
        row = next((row for row in _ROWS if row.magic and start.startswith(row.magic)), None)
        return start, row, None if row else foreign.by_content(start, source.nbytes, file.read)


def check_records(source: Source, offset: int) -> None:
    """Raise `BufferFileError` if a file that is taken for raw records is something else by its content.

    Behind the header of a format of mpired's own, whose bytes an `offset` leaves out, they may be.
    """
    _, row, kind = _by_content(source)
    what = f"{row.name} by its first bytes" if row and not offset else kind.name if kind else ""
    if what:
        way_out = "save their bytes alone, as numpy.ndarray.tofile does"
        raise BufferFileError(source.name, f"is {what}, and a file of records is raw binary; {way_out}")


def output_format(path: str, to: str | None, like: str, *, terminal: bool = False) -> Format:
    """Return the format for a result: that of `--to`, of the suffix, or `like` the inputs; never binary to a terminal.

    Raises
    ------
    UsageError
        If `to` names no format, or there is none and the suffix is that of another.
    """
    chosen = format_named(to, "to") if to is not None else by_suffix(path) or _as_the_inputs(path, like)
    return _FOR_TERMINALS if terminal and chosen.readable else chosen


def _as_the_inputs(path: str, like: str) -> Format:
    """Return the format of the inputs for a result whose suffix means none, so that no program takes it for its own.

    Raw binary may have any name that is no other format's; a number, as in `out.0`, is no suffix.
    """
    row = format_named(like)
    if kind := foreign.by_suffix(path):
        reason = f"would be {kind.name} by its suffix, which mpired does not write"
        raise UsageError(path, f"{reason}; choose another name, or say the format with `to`")
    if not row.needs_type and (suffix := _unknown_suffix(path)):
        raise UsageError(path, f"no format has the suffix {suffix}; say it with `to`, as `to={row.name!r}`")
    return row


def _unknown_suffix(path: str) -> str:
    """Return the suffix of a name if no format has it, else ""; a number, as in `out.0`, is none."""
    suffix = _suffix(path)
    return suffix if _is_word(suffix) and not by_suffix(path) else ""


def _other_format(path: str, fits: Callable[[Format], bool]) -> str | None:
    """Return what the suffix of a name means, unless that is nothing or a format that fits."""
    if row := by_suffix(path):
        return None if fits(row) else row.name
    kind = foreign.by_suffix(path)
    return kind.name if kind else None


def format_to_create(path: str, *, declared: bool) -> Format:
    """Return the format of a file that `--create` makes: one that is changed where its elements lie.

    Parameters
    ----------
    path
        The file, of whose name only the suffix matters.
    declared
        Whether the datatype is declared, so that raw binary may have any suffix.

    Raises
    ------
    UsageError
        If the suffix is that of another format, or of none.
    """

    def is_made(row: Format) -> bool:
        return row.updatable and not row.streamed

    if other := _other_format(path, is_made):
        names = " and ".join(sorted(row.name for row in filter(is_made, _ROWS)))
        reason = f"makes {names} files, and {path} would be {other} by its suffix; choose another name"
        if (row := by_suffix(path)) and row.updatable:
            reason += ", or make it of the first origin with `mpired reduce`"
        raise UsageError("`create`", reason)
    if not declared and (suffix := _unknown_suffix(path)):
        reason = f"no format has the suffix {suffix} of {path}; write .npy, or with `type` any suffix for raw binary"
        raise UsageError("`create`", reason)
    row = by_suffix(path) or RAW
    if row.needs_type and not declared:
        raise UsageError("`create`", f"{path} would be {row.name}, which says nothing of its elements; give `type`")
    return row


def check_raw_suffix(path: str) -> None:
    """Raise `UsageError` if the suffix of a result that is always raw binary means something else."""
    if other := _other_format(path, lambda row: row is RAW):
        raise UsageError(path, f"would be {other} by its suffix, but records are raw binary; choose another name")
