"""Files for intermediate results, results that are streams, and how results are compressed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from typing import NamedTuple

from mpired import codecs
from mpired.codecs import Codec
from mpired.errors import UsageError
from mpired.files import calls, mounts
from mpired.log import step


class Compression(NamedTuple):
    """The compression of a result."""

    codec: Codec
    level: int

    @classmethod
    def of(cls, path: str, level: int | None) -> Compression | None:
        """Return the compression of a result by its name, None if it is not compressed."""
        if not path.lower().endswith(codecs.SUFFIXES) or (codec := codecs.by_suffix(path)) is None:
            return None
        if level is not None and level not in codec.levels:
            span = f"{codec.levels[0]} to {codec.levels[-1]}"
            raise UsageError("`level`", f"{level} is none of {codec.name}, whose levels are {span}")
        return cls(codec, codec.level if level is None else level)

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        megabytes = max(needed for least, needed in self.codec.packing.items() if least <= self.level)
        return self.codec.library + (megabytes << 20)

    def blocks(self, fd: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a file, compressed."""
        packer = self.codec.packer(self.level)
        for block in calls.blocks(fd, 0, os.fstat(fd).st_size):
            if packed := packer.compress(block):
                yield packed
        yield packer.flush()

    def pack(self, source: int, target: int) -> None:
        """Compress a file into an empty one."""
        done = 0
        with step("compressing results"):
            for block in self.blocks(source):
                calls.pwrite_all(target, block, done)
                done += len(block)


class Scratch(calls.Closing):
    """A file without a name for intermediate results; it is gone when closed, and after any crash."""

    fd: int
    name: str  # in messages
    directory: str | None = None  # where other scratch files for it are; None for the place of temporary files

    def __init__(
        self,
        directory: str | None = None,  # of its bytes; None for the place of temporary files
        name: str | None = None,  # in messages, such as that of the result; None for its place
    ) -> None:
        place = directory or temporary_directory()
        self.name = name or place
        own_name = b".%b.mpired-tmp" % os.urandom(8).hex().encode()
        with calls.errors_name(self.name), calls.directory(place) as dirfd:
            self.fd, is_named = create(own_name, dirfd)
            if is_named:
                calls.unlink(own_name, dirfd)
        self._end = weakref.finalize(self, calls.close_quietly, self.fd)  # the copy of a stream ends with its source

    @property
    def shared(self) -> calls.SharedFile:
        """The file for the tasks of an engine: this process and its children can open it while it is open here."""
        return calls.SharedFile(f"/proc/{os.getpid()}/fd/{self.fd}")

    def allocate(self, nbytes: int) -> None:
        """Reserve `nbytes`, or raise `OSError` (ENOSPC, EDQUOT, EFBIG) with the name of the file."""
        with self.created() as fd:
            calls.allocate(fd, nbytes)

    @contextlib.contextmanager
    def created(self) -> Generator[int, None, None]:
        """Open the file for the block, unless it is open."""
        with calls.errors_name(self.name):
            fd = self.fd if self.fd >= 0 else self.shared.open()
            try:
                yield fd
            finally:
                if fd != self.fd:
                    calls.close_quietly(fd)

    def close(self) -> None:
        """Close the file, which ends with that."""
        self._end()
        self.fd = -1


class StreamOutput(Scratch):
    """A result for standard output, a FIFO or a device: nothing is sent before all of it is known."""

    def __init__(
        self,
        path: str,
        number: int | None,  # of the descriptor that the path means
        packing: Compression | None = None,  # how it is compressed
    ) -> None:
        self.stream_name = "standard output" if path == "-" else path  # in messages
        super().__init__(name=f"{self.stream_name}, kept in {temporary_directory()} first")
        self._path, self._number, self._packing = path, number, packing
        self._flowing = False

    @cached_property
    def _stream(self) -> int:
        # A second opening of a descriptor would start at offset 0 of a redirected file and write over its bytes. That
        # of a FIFO waits for its reader.
        return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC) if self._number is None else os.dup(self._number)

    def flow(self) -> int | None:
        """Return the stream, for a result that is sent in order as it is computed; None if it is compressed."""
        if self._packing is not None:
            return None
        with calls.errors_name(self.stream_name):
            self._flowing = True
            return self._stream

    def check(self) -> None:
        """Open the stream, and raise `OSError` if it takes nothing, as far as that can be known before."""
        if self._number is None and stat.S_ISFIFO(os.stat(self._path).st_mode):
            return  # its opening waits for its reader
        with calls.errors_name(self.stream_name):
            calls.write_all(self._stream, b"")
            gone = select.poll()
            gone.register(self._stream, 0)
            if any(events & select.POLLERR for _, events in gone.poll(0)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Send all bytes, unless the result has flowed."""
        with calls.errors_name(self.stream_name):
            stream = self._stream
            if not self._flowing:
                size, packing = os.fstat(self.fd).st_size, self._packing
                for block in packing.blocks(self.fd) if packing else calls.blocks(self.fd, 0, size):
                    calls.write_all(stream, block)
        on_commit()

    def close(self) -> None:
        """Close the stream too, so that its reader gets to the end."""
        super().close()
        if "_stream" in self.__dict__:
            calls.close_quietly(self._stream)


def temporary_directory() -> str:
    """Return the first of the usual places for temporary files that can be written to."""
    usual = [os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]  # noqa: S108 - the file has no name there
    return next((place for place in usual if place and os.access(place, os.W_OK | os.X_OK)), os.curdir)


def create(name: bytes, dirfd: int, *, named: bool = False) -> tuple[int, bool]:
    """Create a locked file, under a name of our own only if it has to be named; return whether it is."""
    # The lock shows other commands that the owner lives. `FileExistsError` if something has the name.
    fd = None if named else calls.open_unnamed(dirfd)
    is_named = fd is None
    if fd is None:
        fd = calls.open_new(name, dirfd)
    try:
        if is_named:
            os.fchmod(fd, 0o600)  # so that this user can open it again, whatever the umask takes away
        # Without locks it counts as locked, because no process can lock it.
        if calls.lock(fd) is False or (is_named and not calls.leads_to(name, dirfd, fd)):
            reason = "was taken for a leftover before it was locked"
            raise FileExistsError(errno.EEXIST, reason)  # noqa: TRY301 - it is removed below
    except BaseException:
        with contextlib.suppress(OSError):
            if is_named:
                calls.unlink_inode(name, dirfd, os.fstat(fd).st_ino)
        calls.close_quietly(fd)
        raise
    return fd, is_named


def remove_dead(name: bytes, dirfd: int, *, alone: bool = False) -> bool:
    """Remove a file with a name of our own that a command of this user has left; return whether there was one."""
    # A living command holds a lock on its file. Where locks do not show that, it is removed only if the user asserts
    # that this command works `alone`.
    try:
        fd = calls.open_regular(name, os.O_RDWR, dirfd)
    except OSError:
        return False
    try:
        is_locked = os.fstat(fd).st_uid == os.geteuid() and calls.lock(fd)
        is_dead = alone if is_locked is None else is_locked and (alone or mounts.obstacle(fd) is None)
        if is_dead := is_dead and calls.leads_to(name, dirfd, fd):
            calls.unlink(name, dirfd)
    except OSError:
        return False
    finally:
        calls.close_quietly(fd)
    return is_dead
