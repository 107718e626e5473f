"""Layouts: the positions of elements in the file of a result, or the function that encodes them.

Workers write the elements of a `FlatLayout` or `ArrayLayout` to their positions. For an `Encoder` they write native
elements to a scratch file, from which the encoder writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.datatypes.predefined import field_type
from mpired.errors import UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.formats.array import Array, blocks
from mpired.formats.convert import as_in
from mpired.formats.decoding import Decoder
from mpired.formats.missing import Missing, join_rules
from mpired.formats.streamed import Values
from mpired.log import track
from mpired.sources.local import LocalSource


class FlatLayout(NamedTuple):
    """The layout of a result in a flat file."""

    stored: np.dtype  # NumPy form of an element in the file
    head: bytes = b""  # bytes before the first element
    keeps_bytes_of: Array | None = None  # array that is replaced in place; the other bytes of its file stay
    header_from: Array | None = None  # array whose file provides the bytes before the result, in place of `head`
    # returns a head of the same length for the final number of elements; None if the head does not depend on it
    head_of: Callable[[int], bytes] | None = None

    @property
    def offset(self) -> int:
        """Bytes before the first element."""
        model = self.keeps_bytes_of or self.header_from
        return len(self.head) if model is None else model.offset

    def end(self, count: int) -> int:
        """Return the bytes to the end of `count` elements; a replaced file may lack the last padding."""
        end, replaced = self.offset + count * self.stored.itemsize, self.keeps_bytes_of
        return min(end, replaced.source.nbytes) if replaced is not None and end == replaced.end else end


class ArrayLayout(NamedTuple):
    """The layout of results as contiguous arrays of a file. It also encodes results from a scratch file."""

    write_headers: Callable[
        [int], Sequence[int]
    ]  # writes all but the elements to a descriptor, returns the offset of each array
    stored: tuple[np.dtype, ...]  # NumPy form of the elements of each array in the file
    finish: Callable[[int], None] | None = None  # completes the file after the elements, or None
    missing: tuple[Missing | None, ...] = ()  # rule for missing elements of each array, or None
    replaces: tuple[Array, ...] = ()  # arrays of an existing file that are overwritten in place; () in a new file

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Offset and number of bytes of the arrays that are overwritten in place, ascending."""
        return sorted((array.offset, array.count * array.stored.itemsize) for array in self.replaces if array.count)

    def encode(self, results: Sequence[Array], fd: int) -> None:
        """Write results to an open file."""
        offsets = self.write_headers(fd)
        for result, stored, offset in zip(results, self.stored, offsets, strict=True):
            write_elements(result, stored, fd, offset)
        if self.finish is not None:
            self.finish(fd)


class Encoder(NamedTuple):
    """The layout of results that are encoded when all elements have been computed."""

    encode: Callable[[Sequence[Array], int], object]  # writes results, flat arrays of native elements, to a descriptor
    missing: tuple[Missing | None, ...] = ()  # see `ArrayLayout`
    left_out: tuple[str, ...] = ()  # names of kept arrays of another format that this format cannot store


Layout: TypeAlias = FlatLayout | ArrayLayout | Encoder
_BLOCK_NBYTES = 1 << 20


def check_names(names: Sequence[str], kept: Collection[str], form: str) -> None:
    """Raise `UsageError` if two arrays of a result, combined or kept, would have the same name."""
    all_names = [*names, *kept]
    if len({*all_names}) == len(all_names):
        return
    twice = next(name for name in all_names if all_names.count(name) > 1)
    if twice in kept:
        raise UsageError("`keep`", f"names {twice!r}, and results have another of that name; leave it out")
    reason = f"names two arrays that would both be {twice!r} in {form}; choose one of them, or rename it"
    raise UsageError("`columns`", reason)


def field_of(pairs: Array, field: str) -> Array:
    """Return the values or the indices of native pairs as an array."""
    return pairs._replace(datatype=field_type(pairs.datatype, field), stored=pairs.stored[[field]])


def join_fields(layout: Any, fields: Sequence[Sequence[str]]) -> Encoder:
    """Return the layout of results, of which `layout` writes each field as an array; "" is the only field of values."""

    def encode(results: Sequence[Array], fd: int) -> None:
        pairs = zip(results, fields, strict=True)
        layout.encode([field_of(result, field) if field else result for result, names in pairs for field in names], fd)

    rules = iter(layout.missing)
    missing = (join_rules(names, [*islice(rules, len(names))]) for names in fields)
    return Encoder(encode, tuple(missing))


def reads_back(array: Array, marked: Missing | None) -> bool:
    """Return whether no valid element has a value that is `marked` as missing, and strings are text without NUL."""
    form = array.datatype.form
    are_strings = form.hasobject and not form.metadata
    if marked is None and not are_strings:
        return True
    with closing(Decoder()) as decoder, suppress(UnicodeError):
        for block, valid in blocks(decoder.decoding(array), max(1, _BLOCK_NBYTES // form.itemsize)):
            strings = block if are_strings else ()
            texts = (text.encode() if isinstance(text, str) else text.decode().encode() for text in strings)
            if any(b"\0" in text for text in texts) or (marked is not None and marked.count_masked(block, valid)):
                return False
        return True
    return False


def in_scratch(array: Array, scratch: Scratch) -> Array:
    """Return a flat copy of a decoded array in a scratch file, with its mask after the elements."""
    form = array.datatype.form
    copy = Array(array.source, array.datatype, array.count, form, shape=array.shape, name=array.name)
    copy = copy._replace(nullable=array.nullable, mask_offset=copy.end)
    with closing(Decoder()) as decoder:
        write_native(copy, blocks(decoder.decoding(array), max(1, _BLOCK_NBYTES // form.itemsize)), scratch.fd)
    return copy._replace(source=LocalSource(array.source.name, scratch.shared.path))


def write_native(array: Array, blocks_and_masks: Iterable[Values], fd: int) -> None:
    """Write native elements, and their mask if it has an offset, to a scratch file."""
    offset, mask_offset = array.offset, array.mask_offset
    with calls.errors_name(array.source.name):
        for block, valid in blocks_and_masks:
            calls.pwrite_all(fd, block.view(np.uint8).data, offset)
            offset += block.nbytes
            if mask_offset is not None:
                mask = np.ones(len(block), np.bool_) if valid is None else valid
                calls.pwrite_all(fd, mask.view(np.uint8).data, mask_offset)
                mask_offset += len(block)


def encoded(
    array: Array, stored: np.dtype, counts: Sequence[int] = (), fill: float | np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield all elements in the form `stored`, in blocks of `counts` elements, with `fill` for missing elements."""
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
    """Write all elements of an array in the form `stored` to an open file from the byte `start` on."""
    for block in encoded(array, stored):
        calls.pwrite_all(fd, block.view(np.uint8).data, start)
        start += block.nbytes
