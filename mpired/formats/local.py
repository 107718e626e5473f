"""An open source as a file of Python, for libraries: every error of the system keeps its number."""

from __future__ import annotations

import io
import os
from typing import Any

from mpired.files import calls
from mpired.sources.source import OpenSource

_MAPPED_NBYTES = 1 << 20  # shorter files are read


class DamageError(ValueError):
    """Raised if the bytes of a file are invalid."""


class SourceFile(io.RawIOBase):
    """The bytes of an open source."""

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
