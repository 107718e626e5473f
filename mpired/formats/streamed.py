"""The reader of arrays that a library decodes from start to end: columns of a table, or arrays in chunks.

Such a file (`ColumnFile`) has leaves, which are columns of plain values, and yields their values in blocks. Pairs and
structures have several leaves.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import resource
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mpired.datatypes import Datatype, Group, pair_fields
from mpired.errors import BufferFileError, MpiredError
from mpired.files import calls
from mpired.formats.array import Array
from mpired.sources.source import OpenSource, Source

_T = TypeVar("_T")
Values: TypeAlias = tuple[np.ndarray, np.ndarray | None]
"""A block of values, undefined for missing elements, and its mask, or None if all are valid."""
_SLACK_NBYTES = 16 << 20
_MAPPED_NBYTES = 1 << 20  # shorter files are read instead of mapped
_NOT_SUPPORTED = (
    r"(?i)not (yet |currently )?(supported|implemented|available|registered)|unsupported|unknown (codec|filter)|"
    r"decrypt|no NumPy equivalent|no appropriate function for conversion|insufficient precision"
)
DECODED_NBYTES = 64 << 20
"""The default limit in bytes for a page, a compressed record batch or a row of chunks, which is decoded at once."""


class DamageError(ValueError):
    """Raised if the bytes of a file are invalid."""


@contextlib.contextmanager
def errors_of(name: str, errors: tuple[type[Exception], ...] = (), *, writes: bool = False) -> Iterator[None]:
    """Convert the `errors` of a library that reads a file, or `writes` a result modelled on it, to ours."""
    # A `ValueError` is a mistake of this program, unless `errors` has it.
    kinds: tuple[type[Exception], ...] = (OSError, DamageError, UnicodeError, NotImplementedError, *errors)
    try:
        yield
    except (MpiredError, MemoryError):
        raise
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or (None if writes else name)
            raise
        text = " ".join(str(error).split())[:200]
        reason = "cannot be read, the file is damaged"
        if isinstance(error, NotImplementedError) or re.search(_NOT_SUPPORTED, text):
            reason = "cannot be read, the library does not support it"
        raise BufferFileError(name, f"{'no file like it can be written' if writes else reason} ({text})") from error


_DATA_LIMIT = resource.getrlimit(resource.RLIMIT_DATA)  # before it is narrowed


@contextlib.contextmanager
def limited_memory(nbytes: int, error: Exception) -> Iterator[None]:
    """Limit the memory that the block may add to this process to `nbytes`; raise the error beyond."""
    hard = _DATA_LIMIT[1]
    with open("/proc/self/statm", "rb") as status:
        limit = int(status.read().split()[5]) * resource.getpagesize() + nbytes
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
        yield
    except MemoryError:
        raise error from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, _DATA_LIMIT)


def limit_each(name: str, memory: int, items: Iterator[_T]) -> Iterator[_T]:
    """Yield the items of a decoding library, within memory for `memory` decompressed bytes and as many of values."""
    while True:
        with limited_memory(2 * memory + _SLACK_NBYTES, too_large(name, "a part of it", None, memory)):
            item = next(items, None)
        if item is None:
            return
        yield item


def too_large(name: str, subject: str, nbytes: int | None, limit: int) -> BufferFileError:
    """Return the error for a part of a file that decompresses to `nbytes`, or to an unknown size, above the limit."""
    size = f"more than {limit} bytes" if nbytes is None else f"{nbytes} bytes, more than {limit}"
    reason = f"{subject} unfolds to {size}; write it in smaller parts, or let `reduce` use more with `max_memory`"
    return BufferFileError(name, reason)


class SourceFile(io.RawIOBase):
    """A file object for libraries that reads an open source. Errors of the system keep their numbers."""

    def __init__(self, opened: OpenSource, nbytes: int) -> None:
        super().__init__()
        self.opened = opened
        self._nbytes = nbytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._position = offset + (0, self._position, self._nbytes)[whence]
        return self._position

    def read(self, nbytes: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        available = self._nbytes - self._position  # not `nbytes`: a damaged header could exhaust the memory
        data = self.opened.read(max(0, available if nbytes < 0 else min(nbytes, available)), self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, except at the end of the file."""
        nread = self.opened.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += nread
        return nread


class TableFile(SourceFile):
    """A file object for pyarrow, with a memory map of long local files."""

    def __init__(self, opened: OpenSource, nbytes: int) -> None:
        super().__init__(opened, nbytes)
        self.reopen(opened)

    def reopen(self, opened: OpenSource) -> None:
        """Replace the open source by another opening of the same source."""
        self.opened, is_long = opened, self._nbytes >= _MAPPED_NBYTES
        self.mapped = calls.map_file(opened.fd) if is_long and opened.fd is not None else None
        self.is_remote = is_long and self.mapped is None  # each read is a request

    def read(self, nbytes: int = -1) -> bytes | memoryview:  # type: ignore[override]  # pyarrow takes both
        """Return the next bytes, fewer at the end."""
        if self.mapped is None:
            return super().read(nbytes)
        start = self._position
        self._position = self._nbytes if nbytes < 0 else min(start + nbytes, self._nbytes)
        return memoryview(self.mapped)[start : self._position]

    def forget(self) -> None:
        """Remove the mapped pages that were read from the memory of this process."""
        if self.mapped is not None:
            self.mapped.madvise(calls.FORGET)


class ColumnFile:
    """An open file with leaves, which the subclass defines. The caller closes it.

    The method `arrays(leaf, start)` of the subclass yields the values of a leaf from `start` on, truth values as bytes.
    """

    def __init__(self, source: Source, memory: int = DECODED_NBYTES) -> None:
        self._source = source
        self._memory = memory  # maximum bytes that are decoded at once
        self._bytes = source.open()
        self.file: Any = None  # the file object of the library
        with calls.undoing(self._bytes.close):
            self.begin()

    def begin(self) -> None:
        """Read the header."""

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
        self._bytes.close()


def form_of(datatype: Datatype, fields: Sequence[str]) -> np.dtype:
    """Return the native form of elements; structures have the field names of the file."""
    names = datatype.form.names
    if names is None or not fields:
        return datatype.form
    return np.dtype([(field, datatype.form[name]) for field, name in pair_fields(fields, names)], align=True)


class ColumnReader:
    """Reads ranges of elements that a library decodes; ascending order is cheapest. The caller closes it.

    The opener returns a `ColumnFile`, and the array consists of its `leaves`. The `errors` are the exceptions of the
    library for damaged files.
    """

    def __init__(
        self,
        array: Array,
        opener: Callable[[Source, int], Any],
        leaves: Sequence[Any],
        errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._array, self._errors = array, errors
        with errors_of(array.source.name, errors):
            self._file = opener(array.source, array.memory)
        self._streams = [Stream(array.source, self._file, leaf) for leaf in leaves]
        names = () if array.datatype.group is Group.VALUE else array.datatype.form.names
        # The order of the leaves is that of the file.
        self._names = [name for _, name in pair_fields(array.stored.names or (), names)] if names else []

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return the mask, or None if all are valid."""
        array, valid, parts = self._array, None, [block]
        if self._names:
            array.datatype.clear_padding(block)
            parts = [block[name] for name in self._names]
        with errors_of(array.source.name, self._errors):
            for stream, part in zip(self._streams, parts, strict=True):
                valid = _combine_masks(valid, stream.fill(start, part))
            if valid is not None and (array.nulls == 0 or not array.nullable) and not valid.all():
                if array.nullable:
                    raise DamageError("a column has nulls that its header does not tell of")
                raise array.null_error(max(stream.count_missing() for stream in self._streams))
        return _combine_masks(valid, array.mask_of(block))

    def close(self) -> None:
        """Close the file."""
        for stream in self._streams:
            stream.close()
        self._file.close()


def _combine_masks(left: np.ndarray | None, right: np.ndarray | None) -> np.ndarray | None:
    """Return the mask of the elements that are valid in both masks."""
    return right if left is None else left if right is None else left & right


class Stream:
    """The values of a leaf in sequence."""

    def __init__(self, source: Source, file: Any, leaf: Any) -> None:
        self._source = source
        self._open_blocks: Callable[[int], Iterator[Values]] = functools.partial(file.arrays, leaf)
        self._position = -1  # next element
        self._blocks: Iterator[Values] = iter(())
        self._decoded: Values = np.empty(0, np.uint8), None  # values from `_position` on

    def fill(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the values from `start` on, and return the mask, or None if all are valid."""
        if start != self._position:
            self.close()
            self._blocks = self._open_blocks(start)
        nfilled, mask = 0, None
        while nfilled < len(block):
            if not len(self._decoded[0]):
                if (decoded := next(self._blocks, None)) is None:
                    raise self._source.changed()
                self._decoded = decoded
            values, valid = self._decoded
            count = min(len(block) - nfilled, len(values))
            block[nfilled : nfilled + count] = values[:count]
            if valid is not None:
                mask = np.ones(len(block), np.bool_) if mask is None else mask
                mask[nfilled : nfilled + count] = valid[:count]
                valid = valid[count:]
            self._decoded = values[count:], valid
            nfilled += count
        self._position = start + nfilled
        return mask

    def count_missing(self) -> int:
        """Return the number of missing values of the leaf."""
        return sum(int(np.count_nonzero(~valid)) for _, valid in self._open_blocks(0) if valid is not None)

    def close(self) -> None:
        """Discard the decoded values."""
        self._decoded = self._decoded[0][:0], None
        if isinstance(self._blocks, Generator):
            self._blocks.close()
