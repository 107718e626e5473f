"""Arrays that a library decodes, from start to end: a column of a table, or an array in chunks.

A file of such a format gives the values of its leaves, which are its columns of plain values, in blocks.
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

from mpired.datatypes import Datatype, Group, counterparts
from mpired.errors import BufferFileError, MpiredError
from mpired.files import calls
from mpired.formats.array import Array
from mpired.formats.missing import NullsError, null_error
from mpired.sources.source import OpenSource, Source

_T = TypeVar("_T")
Values: TypeAlias = tuple[np.ndarray, np.ndarray | None]
"""Values of a column, and which of them are valid, with anything in the places of the others; None if all are."""
_SLACK_NBYTES = 16 << 20
_MAPPED_NBYTES = 1 << 20  # shorter files are read
_NOT_SUPPORTED = re.compile(
    r"not (yet |currently )?(supported|implemented|available|registered)|unsupported|unknown (codec|filter)|decrypt|"
    r"no NumPy equivalent|no appropriate function for conversion|insufficient precision",
    re.IGNORECASE,
)
DECODED_NBYTES = 64 << 20
"""The most bytes of a page, a compressed record batch or a row of chunks that are decoded at once unless more memory is
allowed."""


class DamageError(ValueError):
    """Raised if the bytes of a file are invalid."""


@contextlib.contextmanager
def errors_of(name: str, errors: tuple[type[Exception], ...] = (), *, writes: bool = False) -> Iterator[None]:
    """Turn exceptions about a file, or about a result like it, into ours; `errors` are those of its library."""
    # A plain `ValueError` that the library does not raise is a mistake of this program.
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
        what = "cannot be read, the file is damaged"
        if isinstance(error, NotImplementedError) or _NOT_SUPPORTED.search(text):
            what = "cannot be read, the library does not support it"
        raise BufferFileError(name, f"{'no file like it can be written' if writes else what} ({text})") from error


_DATA_LIMIT = resource.getrlimit(resource.RLIMIT_DATA)  # before it is narrowed


@contextlib.contextmanager
def limited_memory(nbytes: int, error: Exception) -> Iterator[None]:
    """Let a library take a number of bytes more than this process has by then; the error is raised for more."""
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


def limited(name: str, memory: int, items: Iterator[_T]) -> Iterator[_T]:
    """Yield the parts that a library decodes, each within a limit: the decompressed bytes, and their values."""
    while True:
        with limited_memory(2 * memory + _SLACK_NBYTES, too_large(name, "a part of it", None, memory)):
            item = next(items, None)
        if item is None:
            return
        yield item


def too_large(name: str, what: str, nbytes: int | None, limit: int) -> BufferFileError:
    """Return the error for what cannot be decoded within the memory; None if the size is not known."""
    size = f"more than {limit} bytes" if nbytes is None else f"{nbytes} bytes, more than {limit}"
    reason = f"{what} unfolds to {size}; write it in smaller parts, or let `reduce` use more with `max_memory`"
    return BufferFileError(name, reason)


class SourceFile(io.RawIOBase):
    """The bytes of an open source as a file of Python, for libraries: every error of the system keeps its number."""

    def __init__(self, opened: OpenSource, nbytes: int) -> None:
        super().__init__()
        self.opened = opened
        self._nbytes = nbytes
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + (0, self._at, self._nbytes)[whence]
        return self._at

    def read(self, nbytes: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        left = self._nbytes - self._at  # memory is taken for bytes that are there, not for the length in a header
        data = self.opened.read(max(0, left if nbytes < 0 else min(nbytes, left)), self._at)
        self._at += len(data)
        return data

    def readinto(self, room: Any, /) -> int:
        """Fill the room, except at the end."""
        done = self.opened.read_into(memoryview(room).cast("B"), self._at)
        self._at += done
        return done


class TableFile(SourceFile):
    """The bytes of an open source for pyarrow, which takes those of a local file from where they are mapped."""

    def __init__(self, opened: OpenSource, nbytes: int) -> None:
        super().__init__(opened, nbytes)
        self.open_again(opened)

    def open_again(self, opened: OpenSource) -> None:
        """Exchange the open source for the same that was opened again."""
        self.opened, is_long = opened, self._nbytes >= _MAPPED_NBYTES
        self.mapped = calls.mapped(opened.fd) if is_long and opened.fd is not None else None
        self.is_far = is_long and self.mapped is None  # whether each read is a request, and the whole too long for one

    def read(self, nbytes: int = -1) -> bytes | memoryview:  # type: ignore[override]  # pyarrow takes both
        """Return the next bytes, fewer at the end."""
        if self.mapped is None:
            return super().read(nbytes)
        start = self._at
        self._at = self._nbytes if nbytes < 0 else min(start + nbytes, self._nbytes)
        return memoryview(self.mapped)[start : self._at]

    def forget(self) -> None:
        """Release the bytes that were read to the cache of the system."""
        if self.mapped is not None:
            self.mapped.madvise(calls.FORGET)


class ColumnFile:
    """An open file with columns of plain values, its leaves, which only the format knows. The caller closes it.

    Its method `arrays(leaf, start, nullable=)` yields the values of a leaf from `start` on, truth values as bytes;
    missing ones are errors unless they are `nullable`.
    """

    def __init__(self, source: Source, memory: int = DECODED_NBYTES) -> None:
        self._source = source
        self._memory = memory  # the most bytes that are decoded at once
        self._bytes = source.open()
        self.file: Any = None  # as the library has opened it
        with calls.undoing(self._bytes.close):
            self.begin()

    def begin(self) -> None:
        """Read what describes the file."""

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
        self._bytes.close()


def form_of(datatype: Datatype, fields: Sequence[str]) -> np.dtype:
    """Return the native form of elements, that of structures with the names that the file has."""
    names = datatype.form.names
    if names is None or not fields:
        return datatype.form
    return np.dtype([(field, datatype.form[name]) for field, name in counterparts(fields, names)], align=True)


class ColumnReader:
    """Reads element ranges of an array that a library decodes; cheapest in ascending order. The caller closes it.

    The opener opens the file as `ColumnFile` does. Leaves are the plain columns that the array consists of, as the
    format knows them. Errors are those that the library raises for a damaged file, besides the usual exceptions.
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
        may_lack = array.nullable and array.nulls != 0
        self._streams = [Stream(array.source, self._file, leaf, nullable=may_lack) for leaf in leaves]
        names = () if array.datatype.group is Group.VALUE else array.datatype.form.names
        # The leaves are in the order of the file.
        self._names = [name for _, name in counterparts(array.stored.names or (), names)] if names else []

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return which of them have all leaves; None for all."""
        array, valid, parts = self._array, None, [block]
        if self._names:
            array.datatype.clear_padding(block)
            parts = [block[name] for name in self._names]
        with errors_of(array.source.name, self._errors):
            try:
                for stream, part in zip(self._streams, parts, strict=True):
                    if (mine := stream.fill(start, part)) is not None:
                        valid = mine if valid is None else valid & mine
            except NullsError as found:
                if array.nullable:
                    raise DamageError("a column has nulls that its header does not tell of") from None
                raise null_error(array.source, array.columns, found.args[0]) from None
        mine = array.valid(block)
        return valid if mine is None else mine if valid is None else valid & mine

    def close(self) -> None:
        """Close the file."""
        for stream in self._streams:
            stream.close()
        self._file.close()


class Stream:
    """The values of a leaf, one after another."""

    def __init__(self, source: Source, file: Any, leaf: Any, *, nullable: bool) -> None:
        self._source = source
        self._arrays_from = functools.partial(file.arrays, leaf, nullable=nullable)
        self._at = -1
        self._arrays: Iterator[Values] = iter(())
        self._rest: Values = np.empty(0, np.uint8), None

    def fill(self, start: int, part: np.ndarray) -> np.ndarray | None:
        """Fill an array with the values from `start` on, and return which are valid; None if all are."""
        if start != self._at:
            self.close()
            self._arrays = self._arrays_from(start)
        done, mask = 0, None
        while done < len(part):
            if not len(self._rest[0]):
                if (found := next(self._arrays, None)) is None:
                    raise self._source.changed()
                self._rest = found
            values, valid = self._rest
            count = min(len(part) - done, len(values))
            part[done : done + count] = values[:count]
            if valid is not None:
                mask = np.ones(len(part), np.bool_) if mask is None else mask
                mask[done : done + count] = valid[:count]
                valid = valid[count:]
            self._rest = values[count:], valid
            done += count
        self._at = start + done
        return mask

    def close(self) -> None:
        """Forget the decoded values."""
        self._rest = self._rest[0][:0], None
        if isinstance(self._arrays, Generator):
            self._arrays.close()
