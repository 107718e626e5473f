"""The table of formats, and the choice of the format of an input or a result.

Installed formats, the entry points of the group `mpired.formats`, are used only for names, suffixes and first bytes
that no row of mpired has, so that no package can replace these. A package that cannot be loaded is an error only for
files of its format, which is named by an option or by the suffix `.NAME`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from mpired import codecs, installed, interrupts
from mpired.errors import BufferFileError, NotReadError, UsageError
from mpired.formats import foreign
from mpired.formats.array import Array
from mpired.formats.format import Format
from mpired.formats.input_options import InputOptions
from mpired.formats.memory import ArrayRank, RankInFile, RankObject
from mpired.formats.rank import RankFile
from mpired.sources.directory import INDEX_SUFFIX, SHARDS_HEAD
from mpired.sources.local import HEAD_NBYTES, peek
from mpired.sources.open import open_source
from mpired.sources.source import STORE_HEAD, Source
from mpired.sources.stream import CompressedSource

_ARROW = 192 << 20
_STREAM_NBYTES = 1 << 62  # in place of the unknown size of a stream
# Fields that several formats have in common.
_COLUMNS = Format("", has_columns=True, has_provenance=True, keeps="columns", has_nulls=True, has_strings=True,
    has_times=True, streamed=True, noun="column", address_space=_ARROW)  # fmt: skip
_ARRAYS = Format("", has_columns=True, has_arrays=True, c_order=True, keeps="arrays", updatable=True)
_TEXT = Format("", module_name="textual", readable=False, keeps="columns", has_nulls=True, has_times=True)
_TEXT_COLUMNS = _TEXT._replace(has_columns=True, noun="column")
_ROWS: tuple[Format, ...] = (
    Format("raw", (".bin", ".raw"), needs_type=True, updatable=True, forward=True,
        doc="elements of a declared datatype, nothing else"),
    Format("npy", (".npy",), b"\x93NUMPY", has_times=True, updatable=True, forward=True, doc="NumPy's array file"),
    _COLUMNS._replace(name="parquet", suffixes=(".parquet", ".pq"), magic=b"PAR1", updatable=True,
        doc="every numeric column a buffer", decoding_nbytes=64 << 20, encoding_nbytes=112 << 20),
    _COLUMNS._replace(name="arrow", suffixes=(".arrow", ".feather"), magic=b"ARROW1", updatable=True,
        doc="Arrow IPC file; otherwise like parquet", decoding_nbytes=8 << 20, encoding_nbytes=16 << 20),
    _COLUMNS._replace(name="arrows", suffixes=(".arrows",), module_name="arrow", kinds=(foreign.ARROW_STREAM,),
        doc="Arrow IPC stream; otherwise like parquet", decoding_nbytes=8 << 20, encoding_nbytes=16 << 20),
    _ARRAYS._replace(name="npz", suffixes=(".npz",), kinds=(foreign.NPZ,), has_times=True, c_order=False,
        unnamed="arr_{}",
        doc="NumPy's archive of arrays, each a buffer"),
    _ARRAYS._replace(name="safetensors", suffixes=(".safetensors", INDEX_SUFFIX), magic=SHARDS_HEAD,
        kinds=(foreign.SAFETENSORS,), has_provenance=True, in_place=True, noun="tensor", doc="tensors, each a buffer"),
    _ARRAYS._replace(name="hdf5", suffixes=(".h5", ".hdf5", ".he5"), kinds=(foreign.HDF5, foreign.NETCDF4),
        has_nulls=True, has_strings=True, in_place=True, noun="dataset", doc="groups of arrays, each a buffer",
        decoding_nbytes=64 << 20, encoding_nbytes=64 << 20),
    _ARRAYS._replace(name="netcdf", suffixes=(".nc", ".nc4", ".cdf"),
        kinds=(foreign.NETCDF, foreign.NETCDF4, foreign.HDF5), has_nulls=True, in_place=True, noun="variable",
        doc="variables, each a buffer: classic, CDF-5 and netCDF-4", decoding_nbytes=16 << 20,
        encoding_nbytes=24 << 20),
    _ARRAYS._replace(name="zarr", suffixes=(".zarr.zip",), magic=STORE_HEAD, kinds=(foreign.ZARR,), has_nulls=True,
        has_strings=True, has_times=True, streamed=True, directories=(".zarr",), doc="Zarr store, each array a buffer",
        decoding_nbytes=64 << 20, encoding_nbytes=96 << 20),
    _TEXT._replace(name="text", suffixes=(".txt",), doc="an element a line"),
    _TEXT_COLUMNS._replace(name="csv", suffixes=(".csv",), doc="a column a buffer, with a header line"),
    _TEXT_COLUMNS._replace(name="json", suffixes=(".json",), doc="one object with all elements"),
    _TEXT_COLUMNS._replace(name="table", doc="the first and last elements, for a person"),
)  # fmt: skip
FORMATS = {row.name: row for row in _ROWS}
_BY_SUFFIX = {suffix: row for row in _ROWS for suffix in (*row.suffixes, *row.directories)}
_LONG_SUFFIXES = tuple(suffix for suffix in _BY_SUFFIX if suffix.count(".") > 1)

RAW = FORMATS["raw"]  # the format of bytes without a description
ARRAY = FORMATS["npy"]  # the format of an array in memory
LINES = FORMATS["text"]  # the format of the few elements that a command prints
_TABLE = FORMATS["table"]  # the format of results on a terminal


def format_named(name: str, option: str = "format", *, readable: bool = False) -> Format:
    """Return the format with this name, which is the value of an option; raise an error unless it is usable there."""
    row = FORMATS.get(name) or (_load_installed(name) if name in installed_names() else None)
    if isinstance(row, str):
        raise BufferFileError(f"format {name!r}", row)
    if row is None or (readable and not row.readable):
        names = ", ".join(format_names(readable=readable))
        reason = f"is none of {names}" if readable else f"is not a format; the formats are {names}"
        raise UsageError(f"`{option}`", f"{name!r} {reason}")
    return row


def format_names(*, readable: bool = False) -> list[str]:
    """Return the names of all formats, or of all `readable` formats; installed formats are not loaded."""
    names = [row.name for row in _ROWS if row.readable or not readable]
    return [*names, *(name for name in installed_names() if name not in FORMATS)]


@functools.cache
def installed_names() -> dict[str, list[Any]]:
    """Return the entry points of the installed formats by their names, sorted, without running code of packages."""
    return dict(sorted(installed.entry_points("mpired.formats").items()))


@functools.cache
def _load_installed(name: str) -> Format | str:
    """Return the row of an entry point, or the reason why it cannot be used."""
    entry_points = installed_names()[name]
    points = installed.describe_points(entry_points)
    if len(entry_points) > 1:
        return f"is the format of {len(entry_points)} entry points ({points}); remove all but one"
    try:
        with interrupts.defer_signals(), installed.redirect_output():
            row = entry_points[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of another package
        reason = f"cannot be loaded ({type(error).__name__}: {error})"
    else:
        if isinstance(row, Format) and row.name == name and row.place:
            return row
        reason = "is not an mpired.formats.Format with this name and a `place`"
    return f"is an installed format, and {points} {reason}; repair or remove the package"


def _only_installed(path: str, clue: str, matches: Callable[[Format], bool]) -> Format | None:
    """Return the installed format that matches, or None; raise an error, which names the clue, if several match."""
    rows = [row for row in map(_load_installed, installed_names()) if isinstance(row, Format) and matches(row)]
    if len(rows) > 1:
        names = " and ".join(row.name for row in rows)
        hint = "say which with `format`, or with `to` for a result"
        raise BufferFileError(path, f"is {names} {clue}, which are installed formats; {hint}")
    return rows[0] if rows else None


def by_suffix(path: str) -> Format | None:
    """Return the format of the suffix of `path`, or None."""
    suffix = _suffix(path)
    if suffix in _BY_SUFFIX or not suffix:
        return _BY_SUFFIX.get(suffix)
    row = _only_installed(path, "by its suffix", lambda row: suffix in row.suffixes)
    if row is None and suffix[1:] in installed_names() and isinstance(reason := _load_installed(suffix[1:]), str):
        raise BufferFileError(path, f"{suffix[1:]}, by its suffix, {reason}")
    return row


def _suffix(path: str) -> str:
    """Return the suffix of a path in lower case, without the suffix of a codec; "" if it is a number."""
    name = path.rpartition(os.sep)[2].lower()
    if name.endswith(codecs.SUFFIXES):
        name = codecs.strip_suffix(name)
    if name.endswith(_LONG_SUFFIXES):
        return next(suffix for suffix in _LONG_SUFFIXES if name.endswith(suffix))
    suffix = os.path.splitext(name)[1]
    return "" if suffix[1:].isdecimal() else suffix


def open_rank(argument: str | RankObject, inputs: InputOptions, *, any_kind: bool = False) -> RankFile:
    """Describe a rank, which is a path, a URL or an object of a program: recognise its format, and read its header.

    With `any_kind`, files that cannot be read, and raw files without a type, get a description instead of an error.
    """
    if isinstance(argument, str):
        source = open_source(argument, inputs.context, None if inputs.count is None else inputs.stream_limit)
    else:
        source, inputs = argument.opened(inputs)
    if isinstance(argument, ArrayRank):  # the option `format` is for files
        return argument.with_masks(ARRAY.inspect(source, inputs), nullable=inputs.nullable)
    start, form = peek(source), _BY_SUFFIX.get(f".{source.name.rpartition('.')[2]}")
    if form is None or not form.magic or inputs.format is not None or not start.startswith(form.magic):
        packed, source = source, _decompress(source, inputs, start)
        try:
            form = recognise(source, inputs, start if source is packed else None)
        except NotReadError as error:
            if not any_kind:
                raise
            return RankFile(packed.seekable(), (), format=Format(error.kind), obstacle=error.reason)
    if isinstance(argument, RankInFile):
        if not form.needs_type or source.is_sequential:
            kind = "compressed" if source.is_sequential else form.name
            reason = f"is {kind}, and only raw files hold several ranks; name the file alone"
            raise BufferFileError(argument.name, reason)
        source = source.named(argument.name)
    if source.is_sequential and not (inputs.forward and form.forward):
        source = source.seekable()
    if any_kind and form.needs_type and inputs.datatype is None:
        reason = "does not store the type of its elements; give it with `type`"
        return RankFile(source, (), format=form, obstacle=reason)
    return form.inspect(source, inputs)


def _decompress(source: Source, inputs: InputOptions, start: bytes) -> Source:
    """Return a source of decompressed bytes if the file is compressed; `start` has its first bytes."""
    named, codec = codecs.by_suffix(source.name), codecs.by_content(start)
    if codec is not named:
        if inputs.format and format_named(inputs.format, readable=True).needs_type:
            return source  # raw: the compressed bytes are the elements
        if named is not None:
            content = f"holds {codec.name} by its first bytes" if codec else f"does not begin as {named.name}"
            raise BufferFileError(source.name, f"{content}, but its suffix means {named.name}; rename it")
    if codec is None:
        return source
    if named is None and not inputs.format and (plain := by_suffix(source.name)):
        reason = f"holds {codec.name} by its first bytes, but its suffix means {plain.name}"
        raise BufferFileError(source.name, f"{reason}; rename it, for example to {source.name}{codec.suffix}")
    return CompressedSource(source, codec.name, codec.unpacking_nbytes_of(start), inputs.context, inputs.stream_limit)


def decompressed(source: Source, inputs: InputOptions) -> Source:
    """Return a seekable source of the decompressed bytes of a file."""
    return _decompress(source, inputs._replace(count=None), peek(source)).seekable()


def recognise(source: Source, inputs: InputOptions, start: bytes | None = None) -> Format:
    """Return the format of a file: the declared format, or that of its content, which must agree with its suffix."""
    if inputs.format:
        return format_named(inputs.format, readable=True)
    start = peek(source) if start is None else start
    form = _BY_SUFFIX.get(f".{source.name.rpartition('.')[2]}")
    if form is not None and form.magic and start.startswith(form.magic):
        return form
    named = by_suffix(source.name)
    by_content, known = _by_content(source, start, named)
    # A raw file of a declared type may have any bytes: packages are loaded only if its name or content hints at them.
    if by_content is None and named is None and (known or inputs.datatype is None or _suffix(source.name)):
        by_content = _only_installed(
            source.name, "by its first bytes", lambda row: bool(row.magic) and start.startswith(row.magic)
        )
    if by_content is None and known and (named is None or not named.place):
        raise NotReadError(source.name, f"is {known.name}; {known.hint}", known.name)
    path = source.name if source.packed is None else codecs.strip_suffix(source.name)
    if by_content is None and not (named and named.readable) and (known := foreign.by_suffix(path)):
        raise NotReadError(source.name, f"is {known.name} by its suffix; {known.hint}", known.name)
    if named is not None and not named.readable:
        declared = "" if inputs.datatype is not None else " and `type='uint8_t'`"
        hint = "" if inputs.window else f", or read its bytes with `format='raw'`{declared}"
        reason = f"is {named.name} by its suffix, which mpired does not read; convert it to npy{hint}"
        raise NotReadError(source.name, reason, named.name)
    if named is not None and by_content is not None and named is not by_content:
        hint = "rename it" if inputs.window else "say which with `format`"
        reason = f"holds {by_content.name} by its first bytes, but its suffix means {named.name}; {hint}"
        raise BufferFileError(source.name, reason)
    return by_content or named or RAW


def _by_content(
    source: Source, start: bytes, named: Format | None = None
) -> tuple[Format | None, foreign.KnownFormat | None]:
    """Return the format that the first bytes of a file show, or the known format that mpired does not read."""
    if row := next((row for row in _ROWS if row.magic and start.startswith(row.magic)), None):
        return row, None
    if source.is_sequential:
        known = foreign.by_content(start, len(start) if len(start) < HEAD_NBYTES else _STREAM_NBYTES)
    else:
        known = foreign.by_content(start, source.nbytes, functools.partial(peek, source))
    if known is None:
        return None, None
    rows = [row for row in reversed(_ROWS) if known in row.kinds]
    row = named if named in rows else min(rows, key=lambda row: row.kinds.index(known), default=None)
    return row, None if row else known


def check_records(source: Source, offset: int) -> None:
    """Raise `BufferFileError` if the content of a file of raw records shows that it has another format."""
    row, known = _by_content(source, peek(source))
    # With an `offset`, the records may follow the header of a format of mpired.
    name = f"{row.name} by its first bytes" if row and not offset else known.name if known else ""
    if name:
        hint = "save their bytes alone, as numpy.ndarray.tofile does"
        raise BufferFileError(source.name, f"is {name}, and a file of records is raw binary; {hint}")


def output_format(path: str, to: str | None, like: Format, *, terminal: bool = False) -> Format:
    """Return the format of a result: that of `to`, of the suffix, or of the inputs (`like`); a table on a terminal."""
    row = by_suffix(path) if to is None else format_named(to, "to")
    chosen = row or like
    if row is None:  # another program could misread the result
        if kind := foreign.by_suffix(codecs.strip_suffix(path)):
            reason = f"would be {kind.name} by its suffix, which mpired does not write"
            raise UsageError(path, f"{reason}; choose another name, or say the format with `to`")
        if (suffix := _suffix(path)) and not chosen.needs_type:
            raise UsageError(path, f"no format has the suffix {suffix}; choose one with `to`, e.g. `to={like.name!r}`")
    if chosen.directories and _suffix(path) in chosen.directories:
        reason = f"would be a directory by its suffix, and results in {chosen.name} are single files"
        raise UsageError(path, f"{reason}; name it {os.path.splitext(path)[0]}{chosen.suffixes[0]}")
    return _TABLE if terminal and chosen.readable else chosen


def format_to_create(path: str, *, like: Format | None = None, declared: bool) -> Format:
    """Return the format of a new window: an updatable flat format, or the format `like` of the first origin."""
    row = by_suffix(path)
    is_fit = row is not None and row.updatable and (row.is_flat or row == like)
    if (kind := codecs.by_suffix(path) or row or foreign.by_suffix(path)) and not (kind is row and is_fit):
        names = " and ".join(sorted(flat.name for flat in _ROWS if flat.updatable and flat.is_flat))
        reason = f"makes {names} files, and {path} would be {kind.name} by its suffix; choose another name"
        if row and kind is row and row.updatable:
            reason += f", or give it no value and a whole {kind.name} file as the first origin"
        raise UsageError("`create`", reason)
    if row is None and (suffix := _suffix(path)) and not declared:
        reason = f"no format has the suffix {suffix} of {path}; write .npy, or with `type` any suffix for raw binary"
        raise UsageError("`create`", reason)
    row = row or RAW
    if row.needs_type and not declared:
        reason = f"{path} would be {row.name}, which does not store the type of its elements; give `type`"
        raise UsageError("`create`", reason)
    return row


def check_raw_suffix(path: str) -> None:
    """Raise `UsageError` if a raw result has the suffix of another format."""
    kind = by_suffix(path) or foreign.by_suffix(codecs.strip_suffix(path))
    if kind is not None and kind is not RAW:
        raise UsageError(path, f"would be {kind.name} by its suffix, but records are raw binary; choose another name")


def arrays_in_place(file: RankFile) -> list[Array]:
    """Return the buffers of a file if all of them can be changed in place, else []."""
    row, arrays = file.format, list(file.buffers)
    # Updates in place do not look for missing elements.
    in_place = row.in_place and all(array.missing is None for array in arrays)
    if any(array.reader is not None for array in arrays) or not (row.is_flat or in_place):
        return []
    not_empty = sorted((array for array in arrays if array.count), key=lambda array: array.offset)
    for array, successor in pairwise(not_empty):
        if array.end > successor.offset:
            reason = f"arrays {array.name!r} and {successor.name!r} have bytes in common; the file is damaged"
            raise BufferFileError(file.source.name, reason)
    return arrays
