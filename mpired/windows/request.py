"""One request: what is combined into which elements of a window, opened and checked; and what became of it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired import ops
from mpired.cautions import of_kind
from mpired.context import Context
from mpired.datatypes import Datatype
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import (
    CountError,
    DatatypeError,
    MaskedWarning,
    MpiredWarning,
    OverflowWarning,
    SkippedWarning,
    UsageError,
)
from mpired.files.urls import is_url
from mpired.formats import Array, AtHand, InputOptions, Model, open_rank
from mpired.formats.array import within_budget
from mpired.formats.decoding import Decoder
from mpired.formats.memory import RankInFile
from mpired.formats.names import lacking
from mpired.options import PLACES, Options, PathLike, part
from mpired.ranks import Skipped
from mpired.ranks.order import path_of
from mpired.windows import once
from mpired.windows.apply import Share
from mpired.windows.once import Key
from mpired.windows.origin import ArrayOrigin, FileOrigin, Origin, ScatteredOrigin, check_inside, whole
from mpired.windows.placement import check_layout
from mpired.windows.runs import Runs
from mpired.windows.target import Filling
from mpired.windows.value import element_of_number, parse_value

Place = Callable[[int, Sequence[Array]], Sequence[Share | None]]
"""Given the number of a buffer and the windows, says which elements of which are meant, or why none can be."""


@dataclass(frozen=True)
class Request:
    """What is to be combined into which elements."""

    windows: Sequence[str]  # the files, one a rank of the window
    target_options: InputOptions  # what the user says of them
    op: ops.Op
    use: ops.Use  # the call that it is for
    origins: Sequence[Sequence[Origin]]  # of each its buffers, of which a file with columns has several
    place: Place
    # to remember; for each the numbers of the origins that it stands for
    keys: Mapping[Key, Sequence[int]] = field(default_factory=dict)
    fetch: bool = False  # whether the old elements are wanted
    create: Filling | None = None  # what a target that is missing is made of
    expected: np.ndarray | None = None  # the element that there has to be, or nothing is changed (MPI_Compare_and_swap)
    inputs: InputOptions = field(default_factory=InputOptions)  # what the user says of all files
    formats: frozenset[str] = frozenset()  # those of the origins: an option must concern one of them
    decoder: Decoder = field(default_factory=Decoder)
    # whether elements are combined that have the same index, so that arrays are read in the order of the window
    by_shape: bool = False
    # returns the request with its elements, when the datatype of the windows is known; None if it has them
    complete: Callable[[Request, Datatype], Request] | None = None
    doubts: Sequence[MpiredWarning] = ()


class Done(NamedTuple):
    """What became of a request."""

    protocols: tuple[str, ...]  # for each window how it was changed; "" if it was not
    datatypes: tuple[Datatype, ...]  # the datatype of the elements, of each buffer
    entries: tuple[int, ...]  # how many elements each origin gave, of each buffer
    skipped: tuple[str, ...] = ()  # the names of the origins that had been applied before
    recovered: tuple[str, ...] = ()  # the windows in which an interrupted update was finished first
    fetched: np.ndarray | None = None  # the old elements
    nbytes: tuple[int, ...] = ()  # for each window about how many bytes were read and written for its elements
    cautions: tuple[MpiredWarning, ...] = ()  # what was warned of, where somebody has collected it
    origins: tuple[str, ...] = ()  # the names of all origins that can be used

    @property
    def bad(self) -> list[Skipped]:
        """The origins that are left out because they cannot be used."""
        return [each for warning in of_kind(self.cautions, SkippedWarning) for each in warning.skipped]

    @property
    def overflow(self) -> list[OverflowWarning]:
        """The warnings of overflow."""
        return of_kind(self.cautions, OverflowWarning)

    @property
    def masked(self) -> list[MaskedWarning]:
        """The warnings of elements that readers take as missing."""
        return of_kind(self.cautions, MaskedWarning)

    @property
    def notes(self) -> list[MpiredWarning]:
        """All other warnings."""
        return [each for each in self.cautions if not isinstance(each, OverflowWarning | MaskedWarning)]


Keep = Callable[[np.ndarray, Model], None]
"""Takes the fetched elements and what they are like, before the windows change."""


OriginLike: TypeAlias = PathLike | np.ndarray | AtHand


def open_origin(
    origin: OriginLike, inputs: InputOptions, options: Options, derived: Datatype | None, decoder: Decoder
) -> list[Origin]:
    """Open an origin: a buffer, or of a file with columns one for each."""
    first, count = options["origin_disp"], options["origin_count"]
    for name, number in (("`origin_disp`", first), ("`origin_count`", count or 0)):
        if number < 0:
            raise CountError(f"{name} {number}", "is negative; give 0 or more")
    if derived is not None and isinstance(origin, np.ndarray):
        raise UsageError("`origin_type`", "is for files; choose the elements of an array with NumPy")
    if isinstance(origin, np.ndarray):
        return [ArrayOrigin.of(origin, inputs.datatype, first, count)]
    # Of a raw file with too few bytes for an element none can be asked for (MPI-4.1, 12.3.4).
    word = origin if isinstance(origin, AtHand) else os.fspath(origin)
    inputs = inputs._replace(count=0) if count == 0 and not first else inputs
    # What a derived type means need not be whole elements of the basic one.
    file = open_rank(word, inputs if derived is None or inputs.is_external else inputs._replace(window=True))
    file.check_some(inputs.taken)
    if derived is not None:
        return [_scattered(file.only_buffer(), derived, first, count, inputs.context)]
    origins: list[Origin] = []
    for buffer in file.buffers:
        wanted = max(buffer.count - first, 0) if count is None else count
        decoded = decoder.decoding(within_budget(buffer, inputs.context))
        origins.append(FileOrigin(decoded, first, wanted, inputs.context))
        origins[-1].format = file.format
    return origins


def _scattered(buffer: Array, derived: Datatype, first: int, count: int | None, context: Context) -> Origin:
    """Return the components of elements of a derived datatype, the first of them `first` components in."""
    if not buffer.is_flat:
        raise UsageError("`origin_type`", f"is for raw and npy files, and {buffer.source.name} is none")
    check_layout(buffer, "`origin_type`")
    itemsize, typemap = buffer.stored.itemsize, derived.typemap
    if count is None and not typemap.entries:
        count = 0
    if count is None:
        rest = buffer.nbytes - first * itemsize - typemap.true_ub
        if typemap.extent <= 0:
            raise UsageError("`origin_count`", f"is needed, because {derived} has extent {typemap.extent}")
        count = rest // typemap.extent + 1 if rest >= 0 else min(buffer.nbytes, 1)
    # Before they are laid out, of which there may be any number.
    check_inside(buffer, Run(typemap, first * itemsize, count, typemap.extent))
    runs = Runs.of(typemap, itemsize).repeated(count, typemap.extent, context).moved(first * itemsize)
    return ScatteredOrigin(buffer, runs, context)


def is_whole(options: Mapping[str, object]) -> bool:
    """Tell whether origins are whole files, whose shapes matter then."""
    return not any(options.get(name) for name in ("origin_disp", "origin_type")) and options.get("origin_count") is None


def check_like(origin: Sequence[Origin], other: Sequence[Origin], *, datatypes: bool = False) -> None:
    """Raise an error if the buffers of an origin have not the count and shape of those of another."""
    # Their `datatypes` are compared with those of the target too, when that is locked.
    if len(origin) != len(other):
        reason = f"has {len(origin)} arrays, but {other[0].name!r} has {len(other)}"
        names = [each.column for each in origin], "the other", [each.column for each in other]
        raise CountError(origin[0].name, f"{reason}{lacking('it', *names)}")
    own = {each.column: each for each in origin}
    for number, theirs in enumerate(other):  # those of the same names may stand in another order
        mine = own.get(theirs.column, origin[number])
        if datatypes and mine.datatype != theirs.datatype:
            reason = f"has datatype {mine.datatype.label}, but {theirs.name!r} has {theirs.datatype.label}"
            raise DatatypeError(mine.name, reason)
        if mine.count != theirs.count:
            raise CountError(mine.name, f"has {mine.count} elements, but {theirs.name!r} has {theirs.count}")
        if None not in (mine.shape, theirs.shape) and mine.shape != theirs.shape:
            raise CountError(mine.name, f"has shape {mine.shape}, but {theirs.name!r} has {theirs.shape}")


def element_of(value: object, datatype: Datatype, what: str, inputs: InputOptions) -> np.ndarray:
    """Return an array of one element, from text, from a file with the chosen column, or from a Python number."""
    if isinstance(value, str):
        try:
            return parse_value(value, datatype)
        except UsageError:
            if not os.path.exists(value):
                raise
    if isinstance(value, str | os.PathLike):
        own = InputOptions(datatype, columns=inputs.columns, context=inputs.context)
        buffer = open_rank(os.fspath(value), own).only_buffer()
        if buffer.count != 1:
            raise CountError(str(value), f"has {buffer.count} elements, and {what} is one")
        return whole(buffer, inputs.context)
    return element_of_number(value, datatype, what)


def keys_of(request: Request, words: Sequence[object], options: Options) -> dict[Key, Sequence[int]]:
    """Return the keys that the target is to remember, and the origins that each stands for; none without --once."""
    # A key of the user stands for the whole command, whatever its origins are; else each origin, for which `words`
    # stand, has its own, of its place, its content, and what is done with it.
    if (key := options["once_key"]) is not None:
        return {Key.of_text(key): range(len(request.origins))}
    if not options["once"]:
        return {}
    where = {name: str(value) for name, value in part(PLACES, options).items() if value is not None}
    if (indices := options["map"]) is not None:
        where["map"] = hashlib.blake2b(np.asarray(indices).tobytes()).hexdigest()
    if request.target_options.columns:
        where["columns"] = ",".join(request.target_options.columns)
    said = f"{request.op} {sorted(where.items())}"
    keys: dict[Key, Sequence[int]] = {}
    met: Counter[bytes] = Counter()  # those of a content that have no place of their own
    for number, (buffers, word) in enumerate(zip(request.origins, words, strict=True)):
        content = once.content_of([origin.blocks() for origin in buffers], said)
        place = _place(word, request.inputs.offset)
        if not place:
            place = str(met[content])
            met[content] += 1
        keys.setdefault(Key.of_origin(content, place), (number,))
    return keys


def _place(word: object, offset: int) -> str:
    """Return where an origin is: its real path, or its URL without a query, which may be a signature; "" if nowhere."""
    path = path_of(word)
    if path is None or isinstance(word, RankInFile):
        return ""
    real = path if is_url(path) else os.path.realpath(path)
    return f"{real}:{offset}" if is_url(path) or os.path.isfile(real) or os.path.isdir(real) else ""
