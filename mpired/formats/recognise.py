"""The table of formats: how a file is recognised, and in which format a result is written.

Installed formats, the entry points of the group `mpired.formats`, are looked for only where no row of mpired's own has
a name, a suffix or the first bytes of a file, so that no package takes one of these over. A package that cannot be
loaded is an error of its own files: those whose format is named, and those with the suffix `.NAME`.
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
_ANY_NBYTES = 1 << 62  # of a stream
# What the formats of one kind have in common.
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
        doc="every numeric column a buffer", decoding=64 << 20, encoding=112 << 20),
    _COLUMNS._replace(name="arrow", suffixes=(".arrow", ".feather"), magic=b"ARROW1", updatable=True,
        doc="Arrow IPC file; otherwise like parquet", decoding=8 << 20, encoding=16 << 20),
    _COLUMNS._replace(name="arrows", suffixes=(".arrows",), module_name="arrow", kinds=(foreign.ARROW_STREAM,),
        doc="Arrow IPC stream; otherwise like parquet", decoding=8 << 20, encoding=16 << 20),
    _ARRAYS._replace(name="npz", suffixes=(".npz",), kinds=(foreign.NPZ,), has_times=True, c_order=False,
        unnamed="arr_{}",
        doc="NumPy's archive of arrays, each a buffer"),
    _ARRAYS._replace(name="safetensors", suffixes=(".safetensors", INDEX_SUFFIX), magic=SHARDS_HEAD,
        kinds=(foreign.SAFETENSORS,), has_provenance=True, in_place=True, noun="tensor", doc="tensors, each a buffer"),
    _ARRAYS._replace(name="hdf5", suffixes=(".h5", ".hdf5", ".he5"), kinds=(foreign.HDF5, foreign.NETCDF4),
        has_nulls=True, has_strings=True, in_place=True, noun="dataset", doc="groups of arrays, each a buffer",
        decoding=64 << 20, encoding=64 << 20),
    _ARRAYS._replace(name="netcdf", suffixes=(".nc", ".nc4", ".cdf"),
        kinds=(foreign.NETCDF, foreign.NETCDF4, foreign.HDF5), has_nulls=True, in_place=True, noun="variable",
        doc="variables, each a buffer: classic, CDF-5 and netCDF-4", decoding=16 << 20, encoding=24 << 20),
    _ARRAYS._replace(name="zarr", suffixes=(".zarr.zip",), magic=STORE_HEAD, kinds=(foreign.ZARR,), has_nulls=True,
        has_strings=True, has_times=True, streamed=True, directories=(".zarr",), doc="Zarr store, each array a buffer",
        decoding=64 << 20, encoding=96 << 20),
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
_FOR_TERMINALS = FORMATS["table"]


def format_named(name: str, option: str = "format", *, readable: bool = False) -> Format:
    """Return the row of that name, for an option that names a format, perhaps one that can be an input."""
    row = FORMATS.get(name) or (_installed(name) if name in installed_names() else None)
    if isinstance(row, str):
        raise BufferFileError(f"format {name!r}", row)
    if row is None or (readable and not row.readable):
        names = ", ".join(format_names(readable=readable))
        what = f"is none of {names}" if readable else f"is not a format; the formats are {names}"
        raise UsageError(f"`{option}`", f"{name!r} {what}")
    return row


def format_names(*, readable: bool = False) -> list[str]:
    """Return the names of all formats, perhaps of those that can be an input; installed ones are not loaded for it."""
    own = [row.name for row in _ROWS if row.readable or not readable]
    return [*own, *(name for name in installed_names() if name not in FORMATS)]


@functools.cache
def installed_names() -> dict[str, list[Any]]:
    """Return the entry points of the installed formats by their names, in order; no package's code runs."""
    return dict(sorted(installed.entry_points("mpired.formats").items()))


@functools.cache
def _installed(name: str) -> Format | str:
    """Return the row of an entry point, or the reason why there is none."""
    own = installed_names()[name]
    if len(own) > 1:
        return f"is the format of {len(own)} entry points ({installed.homes(own)}); remove all but one"
    whose = f"is an installed format, and {installed.homes(own)}"
    try:
        with interrupts.defer_signals(), installed.loading():
            row = own[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of another package
        return f"{whose} cannot be loaded ({type(error).__name__}: {error}); repair or remove the package"
    if not isinstance(row, Format) or row.name != name or not row.place:
        return f"{whose} is not an mpired.formats.Format with this name and a `place`; repair or remove the package"
    return row


def _only_installed(path: str, how: str, test: Callable[[Format], bool]) -> Format | None:
    """Return the only installed format for which a test holds, None if there is none."""
    found = [row for row in map(_installed, installed_names()) if isinstance(row, Format) and test(row)]
    if len(found) > 1:
        texts = " and ".join(row.name for row in found)
        hint = "say which with `format`, or with `to` for a result"
        raise BufferFileError(path, f"is {texts} {how}, which are installed formats; {hint}")
    return found[0] if found else None


def by_suffix(path: str) -> Format | None:
    """Return the format that the ending of `path` means, None if it means none."""
    suffix = _suffix(path)
    if suffix in _BY_SUFFIX or not suffix:
        return _BY_SUFFIX.get(suffix)
    row = _only_installed(path, "by its suffix", lambda row: suffix in row.suffixes)
    if row is None and suffix[1:] in installed_names() and isinstance(reason := _installed(suffix[1:]), str):
        raise BufferFileError(path, f"{suffix[1:]}, by its suffix, {reason}")
    return row


def _suffix(path: str) -> str:
    """Return the ending of a name that may mean a format, without that of compressed bytes behind it."""
    name = path.rpartition(os.sep)[2].lower()
    if name.endswith(codecs.SUFFIXES):
        name = codecs.stripped(name)
    if name.endswith(_LONG_SUFFIXES):
        return next(each for each in _LONG_SUFFIXES if name.endswith(each))
    suffix = os.path.splitext(name)[1]
    return "" if suffix[1:].isdecimal() else suffix  # a number, such as in `out.0`, means none


def open_rank(word: str | RankObject, inputs: InputOptions, *, any_kind: bool = False) -> RankFile:
    """Look at one rank's file: the one door from a word of the command line, or what a program has, to buffers.

    A file of `any_kind` is described, also of one that is not read, or without a description.
    """
    if isinstance(word, str):
        source = open_source(word, inputs.context, None if inputs.count is None else inputs.stream_limit)
    else:
        source, inputs = word.opened(inputs)
    if isinstance(word, ArrayRank):  # it has its own type, whatever the format of the files beside it
        return word.with_masks(ARRAY.inspect(source, inputs), nullable=inputs.nullable)
    start, form = peek(source), _BY_SUFFIX.get(f".{source.name.rpartition('.')[2]}")
    if form is None or not form.magic or inputs.format is not None or not start.startswith(form.magic):
        packed, source = source, _decompressed(source, inputs, start)
        try:
            form = recognise(source, inputs, start if source is packed else None)
        except NotReadError as error:
            if not any_kind:
                raise
            return RankFile(packed.kept(), (), format=error.kind, obstacle=error.reason)
    if isinstance(word, RankInFile):
        if not form.needs_type or source.is_sequential:
            what = "compressed" if source.is_sequential else form.name
            raise BufferFileError(word.name, f"is {what}, and only raw files hold several ranks; name the file alone")
        source = source.named(word.name)
    if source.is_sequential and not (inputs.forward and form.forward):
        source = source.kept()
    if any_kind and form.needs_type and inputs.datatype is None:
        reason = "does not store the type of its elements; give it with `type`"
        return RankFile(source, (), format=form.name, obstacle=reason)
    return form.inspect(source, inputs)


def _decompressed(source: Source, inputs: InputOptions, start: bytes) -> Source:
    """Return the bytes of a file that begins so, decompressed if they are compressed."""
    named, codec = codecs.by_suffix(source.name), codecs.by_content(start)
    if codec is not named:
        if inputs.format and format_named(inputs.format, readable=True).needs_type:
            return source  # the bytes as they are
        if named is not None:
            what = f"holds {codec.name} by its first bytes" if codec else f"does not begin as {named.name}"
            raise BufferFileError(source.name, f"{what}, but its suffix means {named.name}; rename it")
    if codec is None:
        return source
    if named is None and not inputs.format and (plain := by_suffix(source.name)):
        reason = f"holds {codec.name} by its first bytes, but its suffix means {plain.name}"
        raise BufferFileError(source.name, f"{reason}; rename it, for example to {source.name}{codec.suffix}")
    return CompressedSource(source, codec.name, codec.unpacking_of(start), inputs.context, inputs.stream_limit)


def unpacked(source: Source, inputs: InputOptions) -> Source:
    """Return the bytes of one file to be read in any order, decompressed if they are compressed."""
    return _decompressed(source, inputs._replace(count=None), peek(source)).kept()


def recognise(source: Source, inputs: InputOptions, start: bytes | None = None) -> Format:
    """Return the format of a file: the declared one, or that of its content, which must agree with its suffix."""
    if inputs.format:
        return format_named(inputs.format, readable=True)
    start = peek(source) if start is None else start
    form = _BY_SUFFIX.get(f".{source.name.rpartition('.')[2]}")
    if form is not None and form.magic and start.startswith(form.magic):
        return form
    named = by_suffix(source.name)
    by_content, kind = _by_content(source, start, named)
    # Raw bytes of a declared datatype have any name: only if they seem to be a file, packages are asked for it.
    if by_content is None and named is None and (kind or inputs.datatype is None or _suffix(source.name)):
        by_content = _only_installed(
            source.name, "by its first bytes", lambda row: bool(row.magic) and start.startswith(row.magic)
        )
    if by_content is None and kind and (named is None or not named.place):
        raise NotReadError(source.name, f"is {kind.name}; {kind.hint}", kind.name)
    path = source.name if source.packed is None else codecs.stripped(source.name)
    if by_content is None and not (named and named.readable) and (kind := foreign.by_suffix(path)):
        raise NotReadError(source.name, f"is {kind.name} by its suffix; {kind.hint}", kind.name)
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
) -> tuple[Format | None, foreign.Foreign | None]:
    """Return the format, or the kind of another program, that the first bytes of a file show, if any."""
    if row := next((row for row in _ROWS if row.magic and start.startswith(row.magic)), None):
        return row, None
    if source.is_sequential:
        kind = foreign.by_content(start, len(start) if len(start) < HEAD_NBYTES else _ANY_NBYTES)
    else:
        kind = foreign.by_content(start, source.nbytes, functools.partial(peek, source))
    if kind is None:
        return None, None
    rows = [row for row in reversed(_ROWS) if kind in row.kinds]
    row = named if named in rows else min(rows, key=lambda each: each.kinds.index(kind), default=None)
    return row, None if row else kind


def check_records(source: Source, offset: int) -> None:
    """Raise `BufferFileError` if a file that is taken for raw records is something else by its content."""
    row, kind = _by_content(source, peek(source))
    # Bytes behind the header of a format of mpired itself, which an `offset` leaves out, may be records.
    what = f"{row.name} by its first bytes" if row and not offset else kind.name if kind else ""
    if what:
        hint = "save their bytes alone, as numpy.ndarray.tofile does"
        raise BufferFileError(source.name, f"is {what}, and a file of records is raw binary; {hint}")


def output_format(path: str, to: str | None, like: str, *, terminal: bool = False) -> Format:
    """Return the format of a result: by `--to`, the suffix, or `like` the inputs; never binary to a terminal."""
    row = by_suffix(path) if to is None else format_named(to, "to")
    chosen = row or format_named(like)
    if row is None:  # no program may take the result for its own
        if kind := foreign.by_suffix(codecs.stripped(path)):
            reason = f"would be {kind.name} by its suffix, which mpired does not write"
            raise UsageError(path, f"{reason}; choose another name, or say the format with `to`")
        if (suffix := _suffix(path)) and not chosen.needs_type:
            raise UsageError(path, f"no format has the suffix {suffix}; choose one with `to`, e.g. `to={like!r}`")
    if chosen.directories and _suffix(path) in chosen.directories:
        reason = f"would be a directory by its suffix, and results in {chosen.name} are single files"
        raise UsageError(path, f"{reason}; name it {os.path.splitext(path)[0]}{chosen.suffixes[0]}")
    return _FOR_TERMINALS if terminal and chosen.readable else chosen


def format_to_create(path: str, *, like: str = "", declared: bool) -> Format:
    """Return the format of a file that `--create` makes: one that can be changed in place, or one `like` another."""
    row = by_suffix(path)
    is_fit = row is not None and row.updatable and (row.is_flat or row.name == like)
    if (kind := codecs.by_suffix(path) or row or foreign.by_suffix(path)) and not (kind is row and is_fit):
        names = " and ".join(sorted(each.name for each in _ROWS if each.updatable and each.is_flat))
        name = kind.name
        reason = f"makes {names} files, and {path} would be {name} by its suffix; choose another name"
        if row and kind is row and row.updatable:
            reason += f", or give it no value and a whole {name} file as the first origin"
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
    """Raise `UsageError` if the suffix of a result that is always raw binary means something else."""
    kind = by_suffix(path) or foreign.by_suffix(codecs.stripped(path))
    if kind is not None and kind is not RAW:
        raise UsageError(path, f"would be {kind.name} by its suffix, but records are raw binary; choose another name")


def arrays_in_place(file: RankFile) -> list[Array]:
    """Return the buffers of a file if they are changed where they lie; none if it is written again."""
    row = format_named(file.format)
    found = [each for each in file.buffers if each.reader is None]
    # What may be missing is looked for first, which nothing does that changes elements where they lie.
    in_place = row.in_place and all(each.missing is None for each in found)
    if len(found) < len(file.buffers) or not (row.is_flat or in_place):
        return []
    for one, other in pairwise(sorted((each for each in found if each.count), key=lambda each: each.offset)):
        if one.end > other.offset:
            reason = f"arrays {one.name!r} and {other.name!r} have bytes in common; the file is damaged"
            raise BufferFileError(file.source.name, reason)
    return found
