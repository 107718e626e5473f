"""What is decoded by a library, from its start to its end: a column of a table, or an array that lies in chunks.

A file of such a format gives the values of its leaves, which are its columns of plain values, in blocks.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from mpired.buffers.local import DamageError
from mpired.buffers.missing import Missing, NullsError, null_error
from mpired.buffers.rank import Values
from mpired.datatypes import Datatype, counterparts
from mpired.errors import BufferFileError, MpiredError
from mpired.sources.source import Source

_T = TypeVar("_T")
_SLACK_NBYTES = 16 << 20
DECODED_NBYTES = 64 << 20
"""The most bytes of a page, a compressed record batch or a row of chunks that are decoded at once unless more memory is
allowed."""


@contextlib.contextmanager
def explaining(name: str, *also: type[Exception]) -> Iterator[None]:
    """Turn exceptions about a file into ours, on one line; `also` are those that its library raises."""
    # A plain `ValueError` that the library does not raise is a mistake of this program.
    kinds: tuple[type[Exception], ...] = (OSError, DamageError, UnicodeError, NotImplementedError, *also)
    try:
        yield
    except (MpiredError, MemoryError):
        raise
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or name
            raise
        reason = " ".join(str(error).split())[:200]
        raise BufferFileError(name, f"cannot be read, the file is damaged or not supported ({reason})") from error


_DATA_LIMIT = resource.getrlimit(resource.RLIMIT_DATA)  # before it is narrowed


@contextlib.contextmanager
def limited_memory(nbytes: int, error: Exception) -> Iterator[None]:
    """Let a library take so many bytes more than this process has by then; the error is raised for more."""
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
    """Yield what a library decodes, each part within a limit: what is decompressed, and the values of it."""
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


class ColumnFile(Protocol):
    """An open file with columns of plain values, its leaves, which only the format knows; they can be pickled."""

    def arrays(self, leaf: Any, start: int) -> Iterator[Values]:
        """Yield the values of a leaf, perhaps `Nullable`, from the row `start` to the end; truth values as bytes."""

    def close(self) -> None:
        """Close the file."""


class Nullable(NamedTuple):
    """A leaf, as the format knows it, of whose values some may be missing."""

    leaf: Any


class ColumnBuffer(NamedTuple):
    """One rank's buffer as a column of a file, or as two columns of a pair."""

    source: Source  # the file
    datatype: Datatype  # what an element is
    # number of elements
    count: int  # type: ignore[assignment]  # tuples are not counted
    columns: tuple[str, ...]  # one column, or two for the values and the indices of pairs
    leaves: tuple[Any, ...]  # the plain columns that it consists of, as the format knows them
    opener: Callable[[Source, int], ColumnFile]  # opens the file, with the most bytes that are decompressed at once
    fields: tuple[str, ...] = ()  # the names of the fields, of a column of structures or of pairs
    memory: int = DECODED_NBYTES  # the most bytes that are decompressed at once
    nulls: int | None = None  # how many values are missing, as far as the header tells; None if it does not say
    nullable: bool = False  # whether they are read; else they are an error
    unit: str = ""  # the unit of the values, as the metadata of the column names it; "" if it does not
    # what the library raises, besides the usual exceptions, for a damaged file
    errors: tuple[type[Exception], ...] = ()
    missing: Missing | None = None  # which values mean that an element is missing; None if none does
    grain: int = 1  # the elements that are decoded together, if it is more than one
    storage: str = ""  # how the file stores the values, in a few words; "" if there is nothing to say
    shape: tuple[int, ...] | None = None  # the dimensions of an array; None of a column
    fortran_order: bool = False
    byte_order: Literal["<", ">", "="] = "="  # that of the stored values, where the format has any
    datarep: str | None = None
    # what each dimension is called along which elements are added, as "record dimension 'time'"; "" for one of a fixed
    # length; () if all are
    unlimited: tuple[str, ...] = ()
    packed: str = ""  # numPy's name for the elements that stand for these in the file; "" if they are not packed
    # what this rank and another one are called, if the count is of the other one: of a stream
    like: tuple[str, str] | None = None
    # the value of elements that were never written, if nothing declares it; None without one
    unset: float | None = None

    @property
    def isolated(self) -> bool:
        """True: a library decodes it."""
        return True

    @property
    def name(self) -> str:
        """The column, or both joined by a comma."""
        return ",".join(self.columns)

    @property
    def form(self) -> np.dtype | None:
        """The native form of a structure with the names of the file; None for other elements."""
        names = self.datatype.form.names
        if names is None:
            return None
        plain = [(field, self.datatype.form[name]) for field, name in counterparts(self.fields, names)]
        return np.dtype(plain, align=True)

    def open(self) -> ColumnReader:
        """Open the file for reading by element ranges."""
        return ColumnReader(self)


class ColumnReader:
    """Reads element ranges of a `ColumnBuffer`; cheapest in ascending order. The caller closes it."""

    def __init__(self, buffer: ColumnBuffer) -> None:
        self._buffer = buffer
        with explaining(buffer.source.name, *buffer.errors):
            self._file = buffer.opener(buffer.source, buffer.memory)
        may_lack = buffer.nullable and buffer.nulls != 0
        leaves = map(Nullable, buffer.leaves) if may_lack else buffer.leaves
        self._streams = [_Stream(self._file, leaf, buffer.source) for leaf in leaves]
        names = buffer.datatype.form.names
        # The leaves are in the order of the file.
        self._names = [name for _, name in counterparts(buffer.fields, names)] if names else []

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return which of them have all leaves; None for all."""
        source, there, parts = self._buffer.source, None, [block]
        if self._names:
            self._buffer.datatype.clear_padding(block)
            parts = [block[name] for name in self._names]
        with explaining(source.name, *self._buffer.errors):
            try:
                for stream, part in zip(self._streams, parts, strict=True):
                    mine = stream.read(start, part)
                    if mine is not None:
                        there = mine if there is None else there & mine
            except NullsError as found:
                if self._buffer.nullable:
                    raise DamageError("a column has nulls that its header does not tell of") from None
                raise null_error(source, self._buffer.columns, found.args[0]) from None
        missing = self._buffer.missing
        mine = None if missing is None else missing.there(block, source, self._buffer.columns)
        return there if mine is None else mine if there is None else there & mine

    def close(self) -> None:
        """Close the file."""
        for stream in self._streams:
            stream.close()
        self._file.close()


class _Stream:
    """The values of a leaf, one after another."""

    def __init__(self, file: ColumnFile, leaf: Any, source: Source) -> None:
        self._file = file
        self._leaf = leaf
        self._source = source
        self._at = -1
        self._arrays: Iterator[Values] = iter(())
        self._rest: Values = np.empty(0, np.uint8), None

    def read(self, start: int, part: np.ndarray) -> np.ndarray | None:
        """Fill an array with the values from `start` on, and return which of them are there; None for all."""
        if start != self._at:
            self.close()
            self._arrays = self._file.arrays(self._leaf, start)
        done, there = 0, None
        while done < len(part):
            values, valid = self._rest
            if not len(values):
                found = next(self._arrays, None)
                if found is None:
                    raise self._source.changed()
                self._rest = found
                continue
            count = min(len(part) - done, len(values))
            part[done : done + count] = values[:count]
            if valid is not None:
                there = np.ones(len(part), np.bool_) if there is None else there
                there[done : done + count] = valid[:count]
                valid = valid[count:]
            self._rest = values[count:], valid
            done += count
        self._at = start + done
        return there

    def close(self) -> None:
        self._rest = self._rest[0][:0], None
        if isinstance(self._arrays, Generator):
            self._arrays.close()
