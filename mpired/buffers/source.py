"""Where a rank's bytes come from: a file that must not change, or a stream that is kept first."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from mpired.errors import BufferFileError, ChangedError, UsageError
from mpired.storage import calls
from mpired.storage.output import Scratch
from mpired.storage.recovery import check_is_data, check_not_orphan, has_journal, recover_for_reading

STANDARD_INPUT = "standard input"
_PATIENCE = 200  # milliseconds
_COARSEST = 2_000_000_000  # nanoseconds


class OpenSource:
    """The bytes of a source that is open. The caller closes it."""

    fd: int | None = None
    """The descriptor, for those who copy within the system; None if there is none."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        raise NotImplementedError

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return `nbytes` bytes from `offset` on, or those that there are before the end."""
        content = bytearray(nbytes)
        return bytes(content[: self.read_into(memoryview(content), offset)])

    def close(self) -> None:
        """Close it."""


class Source(Protocol):
    """Where a rank's bytes are. Small and picklable: it is opened where it is read."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode of the local file; None if it is none, as a stream."""

    @property
    def is_private(self) -> bool:
        """Whether only this process and its children can open it."""

    def open(self) -> OpenSource:
        """Open it for reading.

        Raises
        ------
        ChangedError
            If the bytes are not those that were there when it was looked at.
        OSError
            If it cannot be opened.
        """

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the bytes are not those that were there when it was looked at."""

    def changed(self) -> ChangedError:
        """Return the error for bytes that changed."""


def local_fd(file: OpenSource) -> int:
    """Return the descriptor of a local file: a result replaces no other."""
    assert file.fd is not None  # noqa: S101 - checked where the call is planned
    return file.fd


class _LocalFile(OpenSource):
    """An open file of this machine."""

    def __init__(self, fd: int) -> None:
        self.fd: int = fd

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        return calls.pread_into(self.fd, view, offset)

    def close(self) -> None:
        """Close it."""
        calls.let_go(self.fd)


class LocalSource(NamedTuple):
    """A regular file of this machine.

    Parameters
    ----------
    name
        The path as given, for messages.
    path
        The path to open.
    stamp
        Device, inode, size in bytes and modification time in nanoseconds when it was checked.
    keep
        What must stay open as long as `path` is to work.
    """

    name: str
    path: str
    stamp: tuple[int, int, int, int]
    keep: Any = None

    @classmethod
    def of(cls, name: str, path: str) -> LocalSource:
        """Return the source of a regular file as it is now."""
        with calls.blaming(name):
            return cls.of_status(name, path, os.stat(path))

    @classmethod
    def of_status(cls, name: str, path: str, status: os.stat_result) -> LocalSource:
        """Return the source of a regular file as it was when its status was taken."""
        return cls(name, path, _stamp(status))

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        return self.stamp[2]

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode; None of what came by a stream."""
        return None if isinstance(self.keep, Scratch) else self.stamp[:2]

    @property
    def is_private(self) -> bool:
        """Whether its path is of a descriptor of this process."""
        return self.path.startswith(("/proc/", "/dev/"))

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker keeps nothing, and may have another working directory.
        return LocalSource, (self.name, calls.absolute(self.path), self.stamp)

    def open(self) -> OpenSource:
        """Open the file for reading, if it is the one that was checked."""
        with calls.blaming(self.name):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if _stamp(os.fstat(fd)) != self.stamp:
            calls.let_go(fd)
            raise self.changed()
        return _LocalFile(fd)

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the file is not what it was when it was checked."""
        with calls.blaming(self.name):
            if _stamp(os.stat(self.path)) != self.stamp:
                raise self.changed()

    def changed(self) -> ChangedError:
        """Return the error for a file that changed."""
        return ChangedError(self.name, "changed while being read; run again when its writer has finished")


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _watchable(status: os.stat_result, path: str) -> os.stat_result:
    """Wait until the next change of a file shows in its time, as it may not for a while after a change; look again.

    Times in the future tell nothing of that.
    """
    age = time.time_ns() - status.st_mtime_ns
    granule = calls.time_granule(status) if 0 <= age < _COARSEST else 0
    if age >= granule or age < 0:
        return status
    time.sleep((granule - age) / 1e9)
    return os.stat(path)


_MOST_HELD = 64


class _Descriptor:
    """An open file, which is closed when it is forgotten."""

    number = 0

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _Descriptor.number += 1

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            _Descriptor.number -= 1
            calls.let_go(self.fd)


_holds: ContextVar[bool] = ContextVar("holds", default=False)


@contextlib.contextmanager
def holding(*, yes: bool) -> Iterator[None]:
    """Let files that are looked at stay open, a few, while the block runs: one that takes a name does no harm then."""
    token = _holds.set(yes)
    try:
        yield
    finally:
        _holds.reset(token)


def _held(name: str) -> LocalSource:
    """Return the source of a file that stays open."""
    keep = _Descriptor(name)
    path = f"/proc/{os.getpid()}/fd/{keep.fd}"
    return LocalSource(name, path, _stamp(_watchable(os.fstat(keep.fd), path)), keep)


def open_source(word: str, limit: int | None = None) -> Source:
    """Look at the file that a word of the command line names; `-` is standard input.

    A pipe, FIFO or device is read into a scratch file first, because ranks are read by ranges.

    Parameters
    ----------
    word
        A path, or `-`.
    limit
        The most bytes that are wanted of a stream; None for all.

    Raises
    ------
    BufferFileError
        If it is a directory.
    UsageError
        If it is a device without an end and there is no limit.
    OSError
        If it cannot be opened or read.
    MpiredError
        If an update of it is half done and cannot be finished now.
    """
    name = STANDARD_INPUT if word == "-" else word
    if word != "-":
        check_is_data(word)
    with calls.blaming(name):
        if word == "-" and sys.stdin is None:  # the command has filled the place of it with another file
            raise OSError(errno.EBADF, "is closed; name a file, or give one by `< FILE`", name)
        status = os.fstat(0) if word == "-" else _status(word)
        if stat.S_ISDIR(status.st_mode):
            raise BufferFileError(name, "is a directory, not a file with a rank's buffer")
        if stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENXIO, "is a socket and cannot be read as a file", name)
        if stat.S_ISREG(status.st_mode):
            named = None if word == "-" else word
            if named is not None and _holds.get() and _Descriptor.number < _MOST_HELD:
                recovered_status(named, word)
                return _held(word)
            path = f"/proc/{os.getpid()}/fd/0" if named is None else word
            return LocalSource.of_status(name, path, recovered_status(named, path))
        check_has_end(name, status, limit)
        return _keep_stream(name, word, limit)


def recovered_status(name: str | None, path: str) -> os.stat_result:
    """Return the status of a regular file whose every change will show, after an update of it was finished.

    Parameters
    ----------
    name
        Its path, None if it has none.
    path
        The path to open.
    """
    if name is not None and has_journal(name):
        recover_for_reading(name)
    return _watchable(os.stat(path), path)


def check_has_end(name: str, status: os.stat_result, limit: int | None) -> None:
    """Raise `UsageError` if a file is a device, which has no end, and there is no limit to what is wanted of it."""
    if limit is None and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        raise UsageError(name, "is a device, which has no end; say with `type` and `count` how much to read")


def check_no_input(paths: Iterable[str], inputs: Iterable[tuple[Source, str]], way_out: str) -> None:
    """Check that no result replaces what the same command reads: a repetition would combine its own result.

    Parameters
    ----------
    paths
        Where the results go.
    inputs
        What is read, each with what messages call it.
    way_out
        What to do instead.

    Raises
    ------
    UsageError
        If one of the paths leads to an input, by whatever name.
    """
    known = {source.inode: what for source, what in inputs if source.inode is not None}
    for path in paths:
        with contextlib.suppress(OSError):  # there is no file yet, or the error is told where it is opened
            status = os.stat(path)
            if what := known.get((status.st_dev, status.st_ino)):
                raise UsageError(path, f"is the file of {what}, an input of this command; {way_out}")


def check_no_other_input(paths: Iterable[str], files: Iterable[tuple[object, str]]) -> None:
    """Check that no result replaces a file that the same command reads and that has no elements, as of a definition.

    Parameters
    ----------
    paths
        Where the results go.
    files
        The files, each with what messages call it; what is no path, or of no regular file, is left out.

    Raises
    ------
    UsageError
        As of `check_no_input`.
    """
    there = [(os.fspath(name), what) for name, what in files if isinstance(name, str | os.PathLike)]
    inputs = [(LocalSource.of(name, name), what) for name, what in there if os.path.isfile(name)]
    check_no_input(paths, inputs, "name another output")


def _status(path: str) -> os.stat_result:
    """Return what is at a path; if nothing is, but an update waits for the file, the error says so."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        check_not_orphan(path)
        raise


def _keep_stream(name: str, word: str, limit: int | None) -> Source:
    """Read a stream that a word names into a scratch file."""
    stream = 0 if word == "-" else os.open(word, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    ready = select.poll()
    ready.register(stream, select.POLLIN)

    def read(nbytes: int) -> bytes:
        # One call never waits long, because a signal just before it shows only after it.
        while not ready.poll(_PATIENCE):
            pass
        return os.read(stream, nbytes)

    try:
        return keep_stream(name, read, limit)
    finally:
        if stream:
            calls.let_go(stream)


def keep_stream(name: str, read: Callable[[int], bytes], limit: int | None) -> Source:
    """Read a stream to its end or to `limit` bytes into a scratch file; `read` gives at most so many bytes."""
    scratch = Scratch()
    done = 0
    while block := read(1 << 20 if limit is None else min(limit - done, 1 << 20)):
        calls.pwrite_all(scratch.fd, block, done)
        done += len(block)
    return LocalSource(name, scratch.shared_path, _stamp(os.fstat(scratch.fd)), keep=scratch)
