"""Regular files of this machine; a file that changes during the call is an error."""

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

# Two changes of a file within this time, in nanoseconds, may give the same mtime: a tick of the kernel's clock, or two
# seconds on a file system whose times are even seconds.
_TICK, _EVEN_SECONDS = 10_000_000, 2_000_000_000


class LocalFile(OpenSource):
    """An open file of this machine. If the source has its content, the file is opened only for the descriptor."""

    def __init__(self, source: LocalSource) -> None:
        self._source, self._fd = source, -1
        if source.content is None:
            self._fd = self.fd

    @property
    def fd(self) -> int:  # type: ignore[override]
        """The descriptor of the inspected file."""
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
        content = self._source.content[offset : offset + len(view)]
        view[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file if it is open."""
        if self._fd >= 0:
            calls.close_quietly(self._fd)
            self._fd = -1


stamp_of = operator.attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns")
"""The stamp of a file, from its status: device, inode number, size in bytes, and mtime in nanoseconds."""


class LocalSource(Source):
    """A regular file of this machine, which must keep its stamp; the default is its present stamp."""

    content: bytes | None = None  # of a small file

    def __init__(self, name: str, path: str, stamp: tuple[int, int, int, int] | None = None, keep: Any = None) -> None:
        self.name = name  # path of the caller, for messages
        self.path = path  # to open
        if stamp is None:
            with calls.errors_name(name):
                stamp = stamp_of(os.stat(path))
        # At the inspection; in another process the device is `ANY_DEVICE`, because machines number devices differently.
        self.stamp: tuple[int, int, int, int] = stamp
        self.keep = keep  # scratch file of a copied stream, whose descriptor is in `path`
        self.nbytes = stamp[2]
        self.inode = None if keep else stamp[:2]
        # Paths of descriptors are valid in this process only.
        self.is_private = path.startswith(("/proc/", "/dev/")) and not path.startswith("/dev/shm/")  # noqa: S108 - a prefix

    @classmethod
    def inspected(
        cls, name: str, path: str, real_path: str | None, context: Context, status: os.stat_result | None = None
    ) -> LocalSource:
        """Recover and inspect a regular file; `real_path` is its path without links, or None if it has no path."""
        # The log is looked for after the status is read, so that a change in between shows in the stamp.
        with calls.errors_name(name):
            status = status or os.stat(path)
            if real_path is not None and has_log(real_path, status):
                recover_for_reading(name, context)
                status = os.stat(path)
            if has_waited(status):
                status = os.stat(path)
            source = cls(name, path, stamp_of(status))
            if 0 < source.nbytes <= context.small_nbytes:  # so that small files are opened once
                content, fd = bytearray(source.nbytes), os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    nbytes = os.preadv(fd, [content], 0)
                    source.check_unchanged(fd)
                finally:
                    os.close(fd)
                source.content = bytes(content) if nbytes == source.nbytes else None
        return source

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory, and does not get the content.
        path = self.path
        with contextlib.suppress(OSError):  # the current directory may not exist any more
            path = os.path.abspath(path)
        return LocalSource, (self.name, path, (ANY_DEVICE, *self.stamp[1:]))

    def open(self) -> OpenSource:
        """Open the file for reading; `ChangedError` if it has changed."""
        return LocalFile(self)

    def check_unchanged(self, fd: int | None = None) -> None:
        """Raise `ChangedError` if the file of the path, or of the descriptor, has changed since the inspection."""
        with calls.errors_name(self.name):
            stamp = stamp_of(os.stat(self.path if fd is None else fd))
        if stamp != self.stamp and (self.stamp[0] != ANY_DEVICE or stamp[1:] != self.stamp[1:]):
            raise self.changed()


HEAD_NBYTES = 4096
"""The number of bytes at the start of a file by which its format is recognised; most headers are shorter."""

_last_peek: tuple[Source | None, bytes] = (None, b"")  # source and first bytes


def peek(source: Source, nbytes: int = HEAD_NBYTES, offset: int = 0) -> bytes:
    """Return bytes of a source, from its start by default; repeated peeks at the start of a file read it once."""
    global _last_peek  # noqa: PLW0603 - at worst another thread makes a repetition of the read necessary
    is_head, end = False, offset + nbytes
    if isinstance(source, LocalSource) and source.keep is None:  # otherwise `_last_peek` would keep a copy open
        cached, head = (source, source.content) if source.content else _last_peek
        if cached is source and (end <= len(head) or len(head) == source.nbytes):
            return head[offset:end]
        is_head = cached is not source and end <= HEAD_NBYTES
    with contextlib.closing(source.open()) as file, calls.errors_name(source.name):
        if not is_head:
            return file.read(nbytes, offset)
        head = file.read(HEAD_NBYTES, 0)
    _last_peek = source, head
    return head[offset:end]


def has_waited(status: os.stat_result) -> bool:
    """Wait until the next change of a file changes its mtime too; return whether a wait was necessary."""
    age = time.time_ns() - status.st_mtime_ns  # negative for a time in the future, for which no wait helps
    resolution = _TICK if status.st_mtime_ns % 1_000_000_000 else _EVEN_SECONDS
    if waits := 0 <= age < resolution:
        time.sleep((resolution - age) / 1e9)
    return waits
