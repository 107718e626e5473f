"""Scratch files for intermediate results, results that are streams, and the compression of results."""

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
        """Return the compression of a result by its suffix; None if the result is not compressed."""
        if not path.lower().endswith(codecs.SUFFIXES) or (codec := codecs.by_suffix(path)) is None:
            return None
        if level is not None and level not in codec.levels:
            span = f"{codec.levels[0]} to {codec.levels[-1]}"
            raise UsageError("`level`", f"{level} is none of {codec.name}, whose levels are {span}")
        return cls(codec, codec.level if level is None else level)

    @property
    def nbytes(self) -> int:
        """The memory needed for compression, in bytes."""
        megabytes = max(needed for min_level, needed in self.codec.packing_megabytes.items() if min_level <= self.level)
        return self.codec.library_nbytes + (megabytes << 20)

    def blocks(self, fd: int) -> Iterator[bytes | memoryview]:
        """Yield the compressed bytes of a file."""
        packer = self.codec.packer(self.level)
        for block in calls.blocks(fd, 0, os.fstat(fd).st_size):
            if packed := packer.compress(block):
                yield packed
        yield packer.flush()

    def pack(self, source: int, target: int) -> None:
        """Compress a file into an empty file."""
        offset = 0
        with step("compressing results"):
            for block in self.blocks(source):
                calls.pwrite_all(target, block, offset)
                offset += len(block)


class Scratch(calls.Closing):
    """A file without a name for intermediate results; it disappears when it is closed, and after a crash."""

    fd: int
    name: str  # in messages
    directory: str | None = None  # of more scratch files for this result; None for the temporary directory

    def __init__(
        self,
        directory: str | None = None,  # None for the temporary directory
        name: str | None = None,  # in messages, such as the name of the result; None for the directory
    ) -> None:
        folder = directory or temporary_directory()
        self.name = name or folder
        own_name = b".%b.mpired-tmp" % os.urandom(8).hex().encode()
        with calls.errors_name(self.name), calls.directory(folder) as dirfd:
            self.fd, is_named = create(own_name, dirfd)
            if is_named:
                calls.unlink(own_name, dirfd)
        self._close_fd = weakref.finalize(self, calls.close_quietly, self.fd)  # for copies of streams, without a block

    @property
    def shared(self) -> calls.SharedFile:
        """The file in the tasks of an engine; this process and its children can open it."""
        return calls.SharedFile(f"/proc/{os.getpid()}/fd/{self.fd}")

    def allocate(self, nbytes: int) -> None:
        """Reserve `nbytes`, or raise `OSError` (ENOSPC, EDQUOT, EFBIG) with the name of the file."""
        with self.created() as fd:
            calls.allocate(fd, nbytes)

    @contextlib.contextmanager
    def created(self) -> Generator[int, None, None]:
        """Yield the descriptor of the file, which is opened for the block if it is not open."""
        with calls.errors_name(self.name):
            fd = self.fd if self.fd >= 0 else self.shared.open()
            try:
                yield fd
            finally:
                if fd != self.fd:
                    calls.close_quietly(fd)

    def close(self) -> None:
        """Close the file, which then disappears."""
        self._close_fd()
        self.fd = -1


class StreamOutput(Scratch):
    """A result for standard output, a FIFO or a device, which is sent when it is complete."""

    def __init__(
        self,
        path: str,
        number: int | None,  # descriptor of a path such as `/dev/fd/3`
        compression: Compression | None = None,
    ) -> None:
        self.stream_name = "standard output" if path == "-" else path  # in messages
        super().__init__(name=kept_first(self.stream_name))
        self._path, self._number, self._compression = path, number, compression
        self._flowing = False

    @cached_property
    def _stream(self) -> int:
        # To open a redirected file again would start at its offset 0, and overwrite its bytes. To open a FIFO waits for
        # its reader.
        return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC) if self._number is None else os.dup(self._number)

    def flow(self) -> int | None:
        """Return the stream, for a result that is sent while it is computed; None if it is compressed."""
        if self._compression is not None:
            return None
        with calls.errors_name(self.stream_name):
            self._flowing = True
            return self._stream

    def check(self) -> None:
        """Open the stream, and raise `OSError` if it is known to refuse bytes; a FIFO is not checked."""
        if self._number is None and stat.S_ISFIFO(os.stat(self._path).st_mode):
            return
        with calls.errors_name(self.stream_name):
            calls.write_all(self._stream, b"")
            poll = select.poll()
            poll.register(self._stream, 0)
            if any(events & select.POLLERR for _, events in poll.poll(0)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Send the result, unless it was sent while it was computed."""
        with calls.errors_name(self.stream_name):
            stream = self._stream
            if not self._flowing:
                size, compression = os.fstat(self.fd).st_size, self._compression
                for block in compression.blocks(self.fd) if compression else calls.blocks(self.fd, 0, size):
                    calls.write_all(stream, block)
        on_commit()

    def close(self) -> None:
        """Close the scratch file and the stream, whose reader then gets the end of file."""
        super().close()
        if "_stream" in self.__dict__:
            calls.close_quietly(self._stream)


def kept_first(name: str) -> str:
    """Return the name, for messages, of a file whose bytes are kept in the temporary directory first."""
    return f"{name}, kept in {temporary_directory()} first"


def temporary_directory() -> str:
    """Return the first writable directory for temporary files."""
    folders = [os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]  # noqa: S108 - the file has no name there
    return next((folder for folder in folders if folder and os.access(folder, os.W_OK | os.X_OK)), os.curdir)


def create(name: bytes, dirfd: int, *, named: bool = False) -> tuple[int, bool]:
    """Create a locked file, with a name if `named` or necessary; return descriptor and whether the file is named."""
    # The lock shows other commands that the owner runs. `FileExistsError` if another file has the name.
    fd = None if named else calls.open_unnamed(dirfd)
    is_named = fd is None
    if fd is None:
        fd = calls.open_new(name, dirfd)
    try:
        if is_named:
            os.fchmod(fd, 0o600)  # the umask may not allow this user to open the file again
        # None: on a file system without locks no process can take the file for a leftover.
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
    """Remove one of mpired's own files that an ended command of this user has left; return whether it was removed."""
    # A running command holds a lock on its file. If locks are not reliable, the file is removed only if the caller is
    # `alone`.
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
