"""Streams, read forward in blocks: pipes, FIFOs, devices, open files that cannot seek, and decompressed bytes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from mpired import interrupts
from mpired.codecs import Fill
from mpired.errors import BufferFileError, UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.sources.local import LocalSource, stamp_of
from mpired.sources.source import OpenSource, Source

if TYPE_CHECKING:
    import hashlib

_PATIENCE = 200  # milliseconds
_PIPE_NBYTES = 1 << 20
_HEAD_NBYTES = 128 << 10  # more than any header that is looked at before the elements are read
_COPIED_NBYTES = 1 << 20


class Forward(OpenSource):
    """Bytes that are read forward. The range that was read last can be read again, and a head until more is read."""

    def __init__(self, name: str, fill: Fill, limit: int | None = None) -> None:
        self._name, self._fill = name, fill
        self.limit = limit  # the most bytes that are taken
        self._buffer = bytearray()
        self._start = self.stop = 0  # of the bytes in the buffer; as many were read as it stops at
        self.ended = False
        self.digest: hashlib._Hash | None = None  # gets all bytes that are read

    def ahead(self, nbytes: int, offset: int) -> int:
        """Return how many of `nbytes` bytes from `offset` on there are before the end; they are read."""
        if offset < self._start:
            raise BufferFileError(self._name, f"is read forward, and byte {offset} is read already")
        stop = offset + nbytes if self.limit is None else min(offset + nbytes, self.limit)
        if stop > self.stop and not self.ended:
            self._go_on(offset, stop)
        return max(0, min(nbytes, self.stop - offset))

    def read_into(self, view: memoryview, offset: int) -> int:
        count = self.ahead(len(view), offset)
        at = offset - self._start
        view[:count] = memoryview(self._buffer)[at : at + count]
        return count

    def _go_on(self, start: int, stop: int) -> None:
        """Read until the bytes from `start` to `stop` are in the buffer; forget those before, except a head."""
        while start > self.stop + _COPIED_NBYTES and not self.ended:  # a long range may be skipped
            self._go_on(self.stop, self.stop + _COPIED_NBYTES)
        first = self._start if stop - self._start <= _HEAD_NBYTES else min(start, self.stop)
        kept = memoryview(self._buffer)[first - self._start : self.stop - self._start]
        if stop - first > len(self._buffer) or first > self._start:
            buffer = self._buffer if not kept and stop - first <= len(self._buffer) else bytearray(stop - first)
            buffer[: len(kept)] = kept
            self._buffer, self._start = buffer, first
        room = memoryview(self._buffer)
        while self.stop < stop and not self.ended:
            part = room[self.stop - first : stop - first]
            got = self._fill(part)
            if self.digest is not None:
                self.digest.update(part[:got])
            self.stop += got
            self.ended = not got


def copied(name: str, file: OpenSource) -> LocalSource:
    """Return a copy of the stream in a scratch file."""
    scratch, done = Scratch(), 0
    block = memoryview(bytearray(_COPIED_NBYTES))
    with calls.errors_name(name):
        while got := file.read_into(block, done):
            calls.pwrite_all(scratch.fd, block[:got], done)
            done += got
    return LocalSource(name, scratch.shared.path, stamp_of(os.fstat(scratch.fd)), keep=scratch)


class StreamSource(Source):
    """A stream, which is read once, as it arrives."""

    is_private = True
    is_forward = True
    nbytes = 0

    def __init__(self, name: str, fd: int, limit: int | None, *, digested: bool) -> None:
        """Set the stream of a descriptor, which is closed when the stream is forgotten."""
        self.name = name
        self._copy: Source | None = None
        ready = select.poll()
        ready.register(fd, select.POLLIN)
        with contextlib.suppress(OSError):  # no pipe, or more than a user may have
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _PIPE_NBYTES:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
        self.forward = Forward(name, partial(_read, fd, ready), limit)  # the one reader: bytes that were read are gone
        weakref.finalize(self.forward, calls.let_go, fd)
        status = os.fstat(fd)
        if limit is None and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise UsageError(name, "is a device, which has no end; say with `type` and `count` how much to read")
        # device and inode of a pipe
        self.pipe = (status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None
        if digested:
            import hashlib  # noqa: PLC0415 - with it comes OpenSSL

            self.forward.digest = hashlib.sha256()

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that is not forked from this one does not have the bytes that arrived here.
        return self.kept().__reduce__()  # type: ignore[return-value]

    def open(self) -> OpenSource:
        """Return the one reader."""
        return self.forward

    def kept(self) -> Source:
        """Return a copy, as long as nothing but a head is read."""
        self._copy = self._copy or copied(self.name, self.forward)
        return self._copy

    @property
    def passed(self) -> tuple[int | None, str | None]:
        """The number of bytes read by this process, and their SHA-256; None if unknown, or if not all were read."""
        forward = self.forward
        is_done = forward.ended or (forward.limit is not None and forward.stop >= forward.limit)
        return (forward.stop, forward.digest.hexdigest()) if forward.digest and is_done else (None, None)


def _read(fd: int, ready: select.poll, view: memoryview) -> int:
    """Fill a view with the next bytes of a stream, and return how many there were before the end."""
    done = 0
    while done < len(view):
        # One call never waits long, because a signal just before it shows only after it.
        while not interrupts.waited(ready.poll, _PATIENCE):
            pass
        got = os.readv(fd, [view[done:]])
        if not got:
            break
        done += got
    return done
