"""Bytes that come one after another, read in blocks: those of a stream, and those that are decompressed."""

from __future__ import annotations

from collections.abc import Callable

from mpired.errors import BufferFileError
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource
from mpired.storage import calls
from mpired.storage.output import Scratch

_HEAD_NBYTES = 128 << 10  # more than any header that is looked at before the elements are read
_COPIED_NBYTES = 1 << 20


class Forward(OpenSource):
    """Bytes that are read forward. The range that was read last can be read again, and a head until more is read.

    Parameters
    ----------
    name
        What messages call the source.
    fill
        Fills a view with the next bytes, and returns how many there were before the end.
    limit
        The most bytes that are taken of it; None for all.
    """

    def __init__(self, name: str, fill: Callable[[memoryview], int], limit: int | None = None) -> None:
        self._name = name
        self._fill = fill
        self.limit = limit
        self._buffer = bytearray()
        self._start = self._stop = 0  # of what is in the buffer
        self._ended = False

    @property
    def is_done(self) -> bool:
        """Whether all is read of it that is wanted."""
        return self._ended or (self.limit is not None and self._stop >= self.limit)

    def ahead(self, nbytes: int, offset: int) -> int:
        """Return how many of `nbytes` bytes from `offset` on there are before the end; they are read."""
        if offset < self._start:
            raise BufferFileError(self._name, f"is read forward, and byte {offset} is read already")
        stop = offset + nbytes if self.limit is None else min(offset + nbytes, self.limit)
        if stop > self._stop and not self._ended:
            self._go_on(offset, stop)
        return max(0, min(nbytes, self._stop - offset))

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        count = self.ahead(len(view), offset)
        at = offset - self._start
        view[:count] = memoryview(self._buffer)[at : at + count]
        return count

    def _go_on(self, start: int, stop: int) -> None:
        """Read until the bytes from `start` to `stop` are in the buffer; forget what is before, but for a head."""
        while start > self._stop + _COPIED_NBYTES and not self._ended:  # what is skipped may be long
            self._go_on(self._stop, self._stop + _COPIED_NBYTES)
        first = self._start if stop - self._start <= _HEAD_NBYTES else min(start, self._stop)
        kept = memoryview(self._buffer)[first - self._start : self._stop - self._start]
        if stop - first > len(self._buffer) or first > self._start:
            buffer = self._buffer if not kept and stop - first <= len(self._buffer) else bytearray(stop - first)
            buffer[: len(kept)] = kept
            self._buffer, self._start = buffer, first
        room = memoryview(self._buffer)
        while self._stop < stop and not self._ended:
            got = self._fill(room[self._stop - first : stop - first])
            self._stop += got
            self._ended = not got


def copied(name: str, file: OpenSource) -> LocalSource:
    """Return a copy, in a scratch file, of what is read forward."""
    scratch, done = Scratch(), 0
    block = memoryview(bytearray(_COPIED_NBYTES))
    with calls.blaming(name):
        while got := file.read_into(block, done):
            calls.pwrite_all(scratch.fd, block[:got], done)
            done += got
    return LocalSource.of_scratch(name, scratch)
