"""Regular files of this machine, which must not change while they are read."""

from __future__ import annotations

import contextlib
import operator
import os
import time
from typing import Any

from mpired.context import Context
from mpired.errors import ChangedError
from mpired.files import calls
from mpired.files.access import recover_for_reading
from mpired.files.calls import ANY_DEVICE
from mpired.files.places import has_log
from mpired.sources.source import OpenSource, Source

# Nanoseconds within which two changes of a file may leave the same time of modification: the kernel takes fine times
# from a clock that moves once a tick, and some file systems know even seconds only.
_TICK, _EVEN_SECONDS = 10_000_000, 2_000_000_000


class LocalFile(OpenSource):
    """An open file of this machine; if its bytes were read when it was inspected, opened for its descriptor alone."""

    def __init__(self, source: LocalSource) -> None:
        self._source, self._fd = source, -1
        if source.content is None:
            self._fd = self.fd

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor, of the file that was checked."""
        if self._fd < 0:
            with calls.errors_name(self._source.name):
                self._fd = os.open(self._source.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._source.check_unchanged(self._fd)
            except ChangedError:
                self.close()
                raise
        return self._fd

    def read_into(self, view: memoryview, offset: int) -> int:
        if self._source.content is None:
            return calls.pread_into(self._fd, view, offset)
        known = self._source.content[offset : offset + len(view)]
        view[: len(known)] = known
        return len(known)

    def close(self) -> None:
        """Close it, if it was opened."""
        if self._fd >= 0:
            calls.close_quietly(self._fd)
            self._fd = -1


stamp_of = operator.attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns")
"""The stamp of a file by its status: device, inode, size in bytes, and modification time in nanoseconds."""


class LocalSource(Source):
    """A regular file of this machine, by default as it is now."""

    content: bytes | None = None  # its bytes, if they are so few that they are kept when it is looked at

    def __init__(self, name: str, path: str, stamp: tuple[int, int, int, int] | None = None, keep: Any = None) -> None:
        self.name = name  # the path as given, for messages
        self.path = path  # the path to open
        if stamp is None:
            with calls.errors_name(name):
                stamp = stamp_of(os.stat(path))
        # The stamp when it was checked. Where it was sent to another process the device is `ANY_DEVICE`: its number is
        # another one on each machine.
        self.stamp: tuple[int, int, int, int] = stamp
        self.keep = keep  # what must stay open as long as `path` is to work, of a stream that was copied
        self.nbytes = stamp[2]
        self.inode = None if keep else stamp[:2]
        # by a path of a descriptor of this process
        self.is_private = path.startswith(("/proc/", "/dev/")) and not path.startswith("/dev/shm/")  # noqa: S108 - no name of ours

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
            source = cls(name, path, stamp_of(status))
            if 0 < source.nbytes <= context.few_bytes:  # of many small ranks each is then opened once
                content, fd = bytearray(source.nbytes), os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    nbytes = os.preadv(fd, [content], 0)
                    source.check_unchanged(fd)
                finally:
                    os.close(fd)
                source.content = bytes(content) if nbytes == source.nbytes else None
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker keeps nothing, and may have another working directory.
        path = self.path
        with contextlib.suppress(OSError):  # ours may be gone
            path = os.path.abspath(path)
        return LocalSource, (self.name, path, (ANY_DEVICE, *self.stamp[1:]))

    def open(self) -> OpenSource:
        """Open the file for reading, if it is the one that was checked."""
        return LocalFile(self)

    def check_unchanged(self, fd: int | None = None) -> None:
        """Raise `ChangedError` if the file, or the open one, is not as it was when it was checked."""
        with calls.errors_name(self.name):
            stamp = stamp_of(os.stat(self.path if fd is None else fd))
        if stamp != self.stamp and (self.stamp[0] != ANY_DEVICE or stamp[1:] != self.stamp[1:]):
            raise self.changed()


HEAD_NBYTES = 4096
"""The bytes at the start of a file by which its format is recognised; most headers are within them."""

_last_looked_at: tuple[Source | None, bytes] = (None, b"")


def peek(source: Source, nbytes: int = HEAD_NBYTES, offset: int = 0) -> bytes:
    """Return bytes of a source, by default the first ones; those of a file are read once for several looks in a row."""
    global _last_looked_at  # noqa: PLW0603 - where threads meet, one reads again
    is_head, end = False, offset + nbytes
    if isinstance(source, LocalSource) and source.keep is None:  # else it would stay open longer than it is read
        known, head = (source, source.content) if source.content else _last_looked_at
        if known is source and (end <= len(head) or len(head) == source.nbytes):
            return head[offset:end]
        is_head = known is not source and end <= HEAD_NBYTES
    with contextlib.closing(source.open()) as file, calls.errors_name(source.name):
        if not is_head:
            return file.read(nbytes, offset)
        head = file.read(HEAD_NBYTES, 0)
    _last_looked_at = source, head
    return head[offset:end]


def has_waited(status: os.stat_result) -> bool:
    """Wait until the next change of a file shows in its time, as it may not for a while after a change."""
    # Times in the future tell nothing of that.
    age = time.time_ns() - status.st_mtime_ns
    granule = _TICK if status.st_mtime_ns % 1_000_000_000 else _EVEN_SECONDS
    if waits := 0 <= age < granule:
        time.sleep((granule - age) / 1e9)
    return waits
