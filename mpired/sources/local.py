"""Regular files of this machine, which must not change while they are read."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from mpired.context import Context
from mpired.files import calls, mounts
from mpired.files.access import recover_for_reading
from mpired.files.calls import ANY_DEVICE
from mpired.files.names import has_log
from mpired.files.scratch import Scratch
from mpired.sources.source import OpenBytes, OpenSource, Source

_COARSEST = 2_000_000_000  # nanoseconds


class LocalFile(OpenSource):
    """An open file of this machine."""

    def __init__(self, fd: int) -> None:
        self.fd: int = fd

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        return calls.pread_into(self.fd, view, offset)

    def close(self) -> None:
        """Close it."""
        calls.let_go(self.fd)


class _LocalContent(OpenBytes):
    """A file whose bytes have been read; it is opened for its descriptor alone."""

    def __init__(self, source: LocalSource, content: bytes) -> None:
        self._source, self._parts, self._fd = source, (content,), -1

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor."""
        if self._fd < 0:
            self._fd = self._source.descriptor()
        return self._fd

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._fd >= 0:
            calls.let_go(self._fd)


class LocalSource(Source):
    """A regular file of this machine."""

    def __init__(
        self, name: str, path: str, stamp: tuple[int, int, int, int], keep: Any = None, content: bytes | None = None
    ) -> None:
        self.name = name  # the path as given, for messages
        self.path = path  # the path to open
        # Device, inode, size in bytes and modification time in nanoseconds when it was checked. Where it was sent to
        # another process the device is `ANY_DEVICE`: its number is another one on each machine.
        self.stamp = stamp
        self.keep = keep  # what must stay open as long as `path` is to work
        self.content = content  # its bytes, if they are so few that they are kept when it is looked at
        self.nbytes = stamp[2]

    @classmethod
    def of(cls, name: str, path: str) -> LocalSource:
        """Return the source of a regular file as it is now."""
        with calls.errors_name(name):
            return cls.of_status(name, path, os.stat(path))

    @classmethod
    def of_status(cls, name: str, path: str, status: os.stat_result) -> LocalSource:
        """Return the source of a regular file as it was when its status was taken."""
        return cls(name, path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))

    @classmethod
    def inspected(
        cls, name: str, path: str, own: str | None, context: Context, status: os.stat_result | None = None
    ) -> LocalSource:
        """Inspect a regular file: a change of it that was interrupted is finished first, and its next one will show."""
        # `own` is its own path, without links; None if it has none. First the stamp, then the look for a log: what
        # begins after that shows in the stamp.
        with calls.errors_name(name):
            status = status or os.stat(path)
            if own is not None and has_log(own, status):
                recover_for_reading(name, context)
                status = os.stat(path)
            if has_waited(status):
                status = os.stat(path)
            source = cls.of_status(name, path, status)
            if 0 < source.nbytes <= context.few_bytes:  # of many small ranks each is then opened once
                fd = source.descriptor()
                try:
                    source.content = calls.pread_some(fd, source.nbytes, 0)
                finally:
                    calls.let_go(fd)
                if len(source.content) < source.nbytes:
                    raise source.changed()
        return source

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode; None of what came by a stream."""
        return None if isinstance(self.keep, Scratch) else self.stamp[:2]

    @property
    def is_private(self) -> bool:
        """Whether its path is of a descriptor of this process."""
        return self.path.startswith(("/proc/", "/dev/")) and not self.path.startswith("/dev/shm/")  # noqa: S108 - no name of ours

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker keeps nothing, and may have another working directory.
        return LocalSource, (self.name, calls.absolute(self.path), (ANY_DEVICE, *self.stamp[1:]))

    def open(self) -> OpenSource:
        """Open the file for reading, if it is the one that was checked."""
        return LocalFile(self.descriptor()) if self.content is None else _LocalContent(self, self.content)

    def descriptor(self) -> int:
        """Open the file, if it is the one that was checked, and return its descriptor."""
        with calls.errors_name(self.name):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if not self.is_unchanged(os.fstat(fd)):
            calls.let_go(fd)
            raise self.changed()
        return fd

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the file has changed since it was checked."""
        with calls.errors_name(self.name):
            if not self.is_unchanged(os.stat(self.path)):
                raise self.changed()

    def is_unchanged(self, status: os.stat_result) -> bool:
        """Return whether a status is that of the file when it was checked."""
        stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return stamp == self.stamp or (self.stamp[0] == ANY_DEVICE and stamp[1:] == self.stamp[1:])


HEAD_NBYTES = 4096
"""The bytes at the start of a file by which its format is recognised; most headers are within them."""

_last_looked_at: tuple[Source | None, bytes] = (None, b"")


def peek(source: Source, nbytes: int = HEAD_NBYTES, offset: int = 0) -> bytes:
    """Return bytes of a source, by default the first ones; those of a file are read once for several looks in a row."""
    global _last_looked_at  # noqa: PLW0603 - where threads meet, one reads again
    if not isinstance(source, LocalSource) or source.keep is not None:
        return _read(source, nbytes, offset)  # what must stay open is not kept longer than its source
    known, head = _last_looked_at
    if known is not source:
        head = source.content or _read(source, HEAD_NBYTES, 0)
        _last_looked_at = source, head
    if offset + nbytes <= len(head) or len(head) == source.nbytes:
        return head[offset : offset + nbytes]
    return _read(source, nbytes, offset)


def _read(source: Source, nbytes: int, offset: int) -> bytes:
    with contextlib.closing(source.open()) as file, calls.errors_name(source.name):
        return file.read(nbytes, offset)


def has_waited(status: os.stat_result) -> bool:
    """Wait until the next change of a file shows in its time, as it may not for a while after a change."""
    # Times in the future tell nothing of that.
    age = time.time_ns() - status.st_mtime_ns
    granule = mounts.time_granule(status) if 0 <= age < _COARSEST else 0
    if waits := 0 <= age < granule:
        time.sleep((granule - age) / 1e9)
    return waits
