"""Layouts of results in their files, and the encoding of elements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.datatypes import Group
from mpired.datatypes.pairs import FIELDS, field_type
from mpired.errors import UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.formats.array import Array, blocks
from mpired.formats.convert import as_in
from mpired.formats.decoding import Decoder
from mpired.formats.missing import Missing, of_parts
from mpired.formats.streamed import Values
from mpired.log import track
from mpired.sources.local import LocalSource


class FlatLayout(NamedTuple):
    """The layout of a result in a flat file."""

    stored: np.dtype  # the NumPy form of an element in the file
    head: bytes = b""  # the bytes before the first element
    # a buffer whose file gives the bytes before and after the result instead, for replacing it in place
    keeps_bytes_of: Array | None = None
    header_from: Array | None = None  # a buffer whose file gives the bytes before the result instead
    # returns the head, as long as it is, when the number of elements is known; None if that does not show in it
    head_of: Callable[[int], bytes] | None = None

    @property
    def offset(self) -> int:
        """Bytes before the first element."""
        like = self.keeps_bytes_of or self.header_from
        return len(self.head) if like is None else like.offset

    def end(self, count: int) -> int:
        """Return the bytes to the end of `count` elements; a file that is replaced may lack the last padding."""
        end, replaced = self.offset + count * self.stored.itemsize, self.keeps_bytes_of
        return min(end, replaced.source.nbytes) if replaced is not None and end == replaced.end else end


class ArrayLayout(NamedTuple):
    """The layout of results as arrays of a file, each in one piece. It also encodes results from a scratch file."""

    # writes all but the elements to an open file, and returns for each result the bytes before its first element
    lay: Callable[[int], Sequence[int]]
    stored: tuple[np.dtype, ...]  # the NumPy form of the elements of each in the file
    # completes the file when the elements are there; None if it is complete
    finish: Callable[[int], None] | None = None
    # which values of each mean to readers of the file that an element is missing; None if none does
    missing: tuple[Missing | None, ...] = ()
    # the arrays of an existing file that the results take the place of, where these lie; () in a new file
    replaces: tuple[Array, ...] = ()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Offset and number of bytes of the arrays of an existing file that results replace, ascending."""
        return sorted((each.offset, each.count * each.stored.itemsize) for each in self.replaces if each.count)

    def encode(self, results: Sequence[Array], fd: int) -> None:
        """Write results to an open file."""
        places = self.lay(fd)
        for result, stored, at in zip(results, self.stored, places, strict=True):
            write_elements(result, stored, fd, at)
        if self.finish is not None:
            self.finish(fd)


class Encoder(NamedTuple):
    """The layout of results in a file that is written when all elements are there."""

    # writes results, given as flat buffers of native elements, to an open file
    encode: Callable[[Sequence[Array], int], object]
    missing: tuple[Missing | None, ...] = ()  # see `ArrayLayout`
    left_out: tuple[str, ...] = ()  # the names of kept arrays of a file of another format that have no form here


Layout: TypeAlias = FlatLayout | ArrayLayout | Encoder  # how a result comes into its file
_BLOCK_NBYTES = 1 << 20


def in_two(array: Array) -> bool:
    """Return whether pairs of a result are two arrays: with a name for each part, or values that mean missing ones."""
    return array.datatype.group is Group.PAIR and (len(array.columns) == len(FIELDS) or array.nullable)


def check_names(names: Sequence[str], kept: Collection[str], form: str) -> None:
    """Raise `UsageError` if two arrays of a result, among them those that are kept, would have the same name."""
    every = [*names, *kept]
    if len({*every}) == len(every):
        return
    twice = next(name for name in every if every.count(name) > 1)
    if twice in kept:
        raise UsageError("`keep`", f"names {twice!r}, and results have another of that name; leave it out")
    reason = f"names two arrays that would both be {twice!r} in {form}; choose one of them, or rename it"
    raise UsageError("`columns`", reason)


def part_of(pairs: Array, field: str) -> Array:
    """Return the values or the indices of native pairs as an array."""
    return pairs._replace(datatype=field_type(pairs.datatype, field), stored=pairs.stored[[field]])


def paired(layout: Any, fields: Sequence[Sequence[str]]) -> Encoder:
    """Return the layout of results whose parts, which are `fields` of them, are written by another layout."""

    def encode(results: Sequence[Array], fd: int) -> None:
        both = zip(results, fields, strict=True)
        layout.encode([part_of(each, field) if field else each for each, own in both for field in own], fd)

    ends = np.cumsum([len(own) for own in fields])
    missing = (of_parts(own, layout.missing[end - len(own) : end]) for own, end in zip(fields, ends, strict=True))
    return Encoder(encode, tuple(missing))


def reads_back(array: Array, marked: Missing | None) -> bool:
    """Return whether valid elements are apart from those that are `marked` as missing, and strings text without NUL."""
    form = array.datatype.form
    are_texts = form.hasobject and not form.metadata
    if marked is None and not are_texts:
        return True
    with closing(Decoder()) as decoder, suppress(UnicodeError):
        for block, valid in blocks(decoder.decoding(array), max(1, _BLOCK_NBYTES // form.itemsize)):
            some = block if are_texts else ()
            texts = (each.encode() if isinstance(each, str) else each.decode().encode() for each in some)
            if any(b"\0" in text for text in texts) or (marked is not None and marked.hidden(block, valid)):
                return False
        return True
    return False


def in_scratch(array: Array, scratch: Scratch) -> Array:
    """Return the elements that a library decodes in a scratch file, and behind them which are valid."""
    form = array.datatype.form
    made = Array(array.source, array.datatype, array.count, form, shape=array.shape, name=array.name)
    made = made._replace(nullable=array.nullable, validity=made.end)
    with closing(Decoder()) as decoder:
        write_native(made, blocks(decoder.decoding(array), max(1, _BLOCK_NBYTES // form.itemsize)), scratch.fd)
    return made._replace(source=LocalSource(array.source.name, scratch.shared.path))


def write_native(array: Array, parts: Iterable[Values], fd: int) -> None:
    """Write native elements to their place in a scratch file, and to a place of their own which of them are valid."""
    at, mark = array.offset, array.validity
    with calls.errors_name(array.source.name):
        for block, valid in parts:
            calls.pwrite_all(fd, block.view(np.uint8).data, at)
            at += block.nbytes
            if mark is not None:
                marks = np.ones(len(block), np.bool_) if valid is None else valid
                calls.pwrite_all(fd, marks.view(np.uint8).data, mark)
                mark += len(block)


def encoded(
    array: Array, stored: np.dtype, counts: Sequence[int] = (), fill: float | np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield all elements of an array in another form, in blocks of these counts, with a value for missing elements."""
    step, start = max(1, _BLOCK_NBYTES // stored.itemsize), 0
    counts = counts or [min(step, array.count - start) for start in range(0, array.count, step)]
    with closing(array.open()) as reader:
        for count in track(counts):
            block = np.empty(count, array.datatype.form)
            valid = reader.read(start, block)
            if valid is not None and not valid.all():
                block[~valid] = fill
            yield as_in(stored, block, array.datatype, array.name, start)
            start += count


def write_elements(array: Array, stored: np.dtype, fd: int, start: int) -> None:
    """Write all elements of an array in another form to a place of an open file."""
    for block in encoded(array, stored):
        calls.pwrite_all(fd, block.view(np.uint8).data, start)
        start += block.nbytes
