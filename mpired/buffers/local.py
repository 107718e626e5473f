"""Parts of an open file as a file of their own, for pyarrow: every error of the system keeps its number."""

from __future__ import annotations

import bisect
import io
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired.sources.source import OpenSource, Source


class DamageError(ValueError):
    """Raised where the bytes of a file cannot be what they should be."""


class Extent(NamedTuple):
    """A range of bytes of a file."""

    start: int
    nbytes: int


class OpenBytes:
    """A file that is open for a library. The caller closes it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._bytes = source.open()

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


def read_all(file: OpenSource, nbytes: int, start: int) -> bytes:
    """Read so many bytes of a file."""
    data = file.read(nbytes, start) if start >= 0 else b""
    if len(data) < nbytes:
        raise DamageError(f"it has no {nbytes} bytes from {start} on, perhaps it is cut off")
    return data


def read_into(file: OpenSource, block: np.ndarray, start: int) -> None:
    """Fill an array that is contiguous with bytes of a file."""
    if file.read_into(block.view(np.uint8).data, start) < block.nbytes:
        raise DamageError(f"it has no {block.nbytes} bytes from {start} on, perhaps it is cut off")


class Spliced(io.RawIOBase):
    """Some bytes and some parts of an open file, one after another."""

    def __init__(self, file: OpenSource, parts: Sequence[Extent | bytes]) -> None:
        super().__init__()
        self._file = file
        self._parts = parts
        sizes = (len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
        self._starts = [0, *itertools.accumulate(sizes)]
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + (0, self._at, self._starts[-1])[whence]
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, room: Any, /) -> int:
        """Fill the room, except at the end of the file."""
        view = memoryview(room).cast("B")
        done = 0
        while done < len(view) and self._at < self._starts[-1]:
            number = bisect.bisect_right(self._starts, self._at) - 1
            within, part = self._at - self._starts[number], self._parts[number]
            count = min(len(view) - done, self._starts[number + 1] - self._at)
            if isinstance(part, bytes):
                view[done : done + count] = part[within : within + count]
            else:
                count = self._file.read_into(view[done : done + count], part.start + within)
            if not count:
                break
            done += count
            self._at += count
        return done
