"""Streams: pipes, FIFOs, devices, and open files of a program that cannot go back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
from collections.abc import Callable
from typing import Any

from mpired import interrupts
from mpired.errors import ChangedError, UsageError
from mpired.sources.forward import Forward, copied
from mpired.sources.source import OpenSource, Source
from mpired.storage import calls

_PATIENCE = 200  # milliseconds
_PIPE_NBYTES = 1 << 20


class StreamSource:
    """A stream, which is read once, as it arrives.

    Parameters
    ----------
    name
        What messages call it.
    fill
        Fills a view with the next bytes, and returns how many there were before the end.
    limit
        The most bytes that are wanted of it; None for all.
    digested
        Whether `passed` has the digest of the bytes that are read.
    """

    inode: tuple[int, int] | None = None
    is_private = True
    is_forward = True
    nbytes = 0

    def __init__(
        self, name: str, fill: Callable[[memoryview], int], limit: int | None = None, *, digested: bool = False
    ) -> None:
        self.name = name
        self.pipe: tuple[int, int] | None = None
        self._passing = _Passing(fill) if digested else None
        self._forward = Forward(name, self._passing.fill if self._passing else fill, limit)
        self._copy: Source | None = None

    @classmethod
    def of_descriptor(cls, name: str, fd: int, limit: int | None, *, digested: bool) -> StreamSource:
        """Return the stream of a descriptor, which it closes when it is forgotten."""
        stream, status = cls(name, _Descriptor(fd).fill, limit, digested=digested), os.fstat(fd)
        stream.pipe = (status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None
        return stream

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that is not forked from this one has not what has arrived here.
        return self.kept().__reduce__()  # type: ignore[return-value]

    def open(self) -> OpenSource:
        """Return the one reader: what it has read has gone."""
        return self._forward

    def kept(self) -> Source:
        """Return a copy, as long as nothing but a head is read."""
        self._copy = self._copy or copied(self.name, self._forward)
        return self._copy

    @property
    def passed(self) -> tuple[int | None, str | None]:
        """How many bytes this process has read, and their SHA-256; None if it does not tell, or has not read all."""
        if self._passing is None or not self._forward.is_done:
            return None, None
        return self._passing.nbytes, self._passing.digest.hexdigest()

    def unlimited(self) -> StreamSource:
        """Let all of it be read: what is wanted is not counted in its own bytes, because it is compressed."""
        self._forward.limit = None
        return self

    def check_unchanged(self) -> None:
        """Do nothing: what has arrived does not change."""

    def changed(self) -> ChangedError:
        """Return the error for bytes that are missing."""
        return ChangedError(self.name, "ended before its end")


class _Passing:
    """Digests the bytes of a stream as they arrive."""

    def __init__(self, fill: Callable[[memoryview], int]) -> None:
        import hashlib  # noqa: PLC0415 - only where a digest is wanted

        self._fill, self.nbytes, self.digest = fill, 0, hashlib.sha256()

    def fill(self, view: memoryview) -> int:
        """Fill a view with the next bytes."""
        got = self._fill(view)
        self.digest.update(view[:got])
        self.nbytes += got
        return got


class _Descriptor:
    """An open stream, which is closed when it is forgotten."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ready = select.poll()
        self._ready.register(fd, select.POLLIN)
        with contextlib.suppress(OSError):  # no pipe, or more than a user may have
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _PIPE_NBYTES:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)

    def fill(self, view: memoryview) -> int:
        """Fill a view with the next bytes."""
        done = 0
        while done < len(view):
            # One call never waits long, because a signal just before it shows only after it.
            while not interrupts.waited(self._ready.poll, _PATIENCE):
                pass
            got = os.readv(self._fd, [view[done:]])
            if not got:
                break
            done += got
        return done

    def __del__(self) -> None:
        calls.let_go(self._fd)


def check_has_end(name: str, status: os.stat_result, limit: int | None) -> None:
    """Raise `UsageError` if a file is a device, which has no end, and there is no limit to what is wanted of it."""
    if limit is None and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        raise UsageError(name, "is a device, which has no end; say with `type` and `count` how much to read")
