"""New results: a file that appears whole or not at all, or a stream that starts when all is computed.

Both are first a file without a name, filled by ranges from several processes, and then committed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from mpired import codecs, interrupts
from mpired.codecs import Codec
from mpired.context import NO_LIMITS, Context
from mpired.errors import OutputExistsError, UnconfirmedError, UsageError
from mpired.log import step
from mpired.storage import calls, interruptions, metadata
from mpired.storage.lock import Target
from mpired.storage.temporary import open_temporary
from mpired.storage.unfinished import recover_for_reading
from mpired.storage.urls import check_scheme, is_url

# Paths that mean a descriptor of this process: to be written to, never to be replaced.
_NAMED_DESCRIPTORS = {"/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED_DESCRIPTOR = r"(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})"


class Packing(NamedTuple):
    """How a result is compressed."""

    codec: Codec
    level: int

    @classmethod
    def of(cls, path: str, level: int | None) -> Packing | None:
        """Return how a result of that name is compressed, None if it is not."""
        codec = codecs.by_suffix(path)
        if codec is not None:
            return cls(codec, codec.checked_level(level))
        if level is not None:
            suffixes = ", ".join(row.suffix for row in codecs.CODECS.values())
            raise UsageError("`level`", f"is for compressed results ({suffixes}), and {path} is none; leave it out")
        return None

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


class _Single:
    """One result by itself, as several are together: one draft, whose file is there from the start."""

    name: str
    fd: int
    _real_path = ""

    @property
    def drafts(self) -> Sequence[Self]:
        """What is to be filled."""
        return (self,)

    @property
    def shared_path(self) -> str:
        """The path under which this process and its children can open the file while it is open here."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @property
    def shared(self) -> calls.SharedFile:
        """The file as a task of an engine has it."""
        return calls.NamedFile.of(self._real_path, self.fd) if self._real_path else calls.SharedPath(self.shared_path)

    def allocate(self, nbytes: int) -> None:
        """Reserve `nbytes`, or raise `OSError` (ENOSPC, EDQUOT, EFBIG) with the name of what has no room."""
        with calls.blaming(self.name):
            calls.allocate(self.fd, nbytes)

    @contextlib.contextmanager
    def created(self, nbytes: int | None = None) -> Generator[int, None, None]:
        """Give the descriptor for the block, with `nbytes` reserved."""
        if nbytes is not None:
            self.allocate(nbytes)
        with calls.blaming(self.name):
            yield self.fd


class Scratch(_Single):
    """A file without a name for intermediate results; it is gone when closed, and after any crash.

    Parameters
    ----------
    directory
        Where its bytes lie; None for the place of temporary files.
    name
        What messages call it, as the result that it is for; None for its place.
    named
        Whether it has a name all the same, so that processes that are no children of this one can open it. After a
        crash the next command that makes such a file for the same result removes it.
    """

    def __init__(self, directory: str | None = None, name: str | None = None, *, named: bool = False) -> None:
        place = directory or _temporary_directory()
        self.name = name or place
        self._dirfd, self._temporary = -1, b""
        with calls.blaming(self.name):
            if not named:
                self.fd = calls.open_scratch(place)
                return
            base = os.fsencode(os.path.basename(self.name) if directory else "scratch")
            self._dirfd = calls.open_directory(place)
            try:
                self.fd, self._temporary, _ = open_temporary(base, self._dirfd, named=True)
            except BaseException:
                os.close(self._dirfd)
                raise
            self._real_path = os.path.join(os.path.realpath(place), os.fsdecode(self._temporary))

    @property
    def shared_name(self) -> str:
        """Its name, "" if it has none."""
        return self._real_path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls.let_go(self.fd)
        self.fd = -1
        if self._temporary:
            with contextlib.suppress(OSError):
                calls.unlink(self._temporary, self._dirfd)
            calls.let_go(self._dirfd)

    def __del__(self) -> None:
        # A copy of a stream is there as long as its source is.
        if getattr(self, "fd", -1) >= 0:
            calls.let_go(self.fd)


def _temporary_directory() -> str:
    """Return the first of the usual places for temporary files that can be written to."""
    usual = [os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]  # noqa: S108 - the file has no name there
    return next((place for place in usual if place and os.access(place, os.W_OK | os.X_OK)), os.curdir)


class Output(Protocol):
    """Where a result goes: fill `fd` by ranges, then `commit`. Leaving the block without it changes nothing."""

    name: str
    fd: int

    @property
    def shared(self) -> calls.SharedFile: ...
    @property
    def shared_path(self) -> str: ...
    @property
    def directory(self) -> str | None: ...
    def allocate(self, nbytes: int) -> None: ...
    @property
    def drafts(self) -> Sequence[Output]: ...
    def created(self, nbytes: int | None = None) -> contextlib.AbstractContextManager[int]: ...
    def commit(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StreamOutput(Scratch):
    """A result for standard output, a FIFO or a device: nothing is sent before all of it is known.

    Parameters
    ----------
    name
        What messages call the stream.
    opener
        Gives a descriptor to write to, which is closed at the end; called at the commit, so a FIFO waits for its reader
        then.
    on_commit
        Called when the last byte is out.
    named
        As of `Scratch`.
    packing
        How it is compressed; None if it is not.
    """

    directory = None

    def __init__(
        self,
        name: str,
        opener: Callable[[], int],
        on_commit: Callable[[], None] = interrupts.committed,
        *,
        named: bool = False,
        packing: Packing | None = None,
    ) -> None:
        super().__init__(name=f"{name}, kept in {_temporary_directory()} first", named=named)
        self.stream_name = name
        self._opener = opener
        self._stream: int | None = None
        self._on_commit = on_commit
        self._packing = packing
        self._flowing = False

    def flow(self) -> int | None:
        """Return the stream, for a result that is sent as it is made, in order; None if it is compressed.

        Nothing else of it is sent at the commit then.
        """
        if self._packing is not None:
            return None
        with calls.blaming(self.stream_name):
            self._stream = self._opener()
        self._flowing = True
        return self._stream

    def check(self) -> None:
        """Open the stream, and raise `OSError` if it takes nothing, as far as that can be known before."""
        with calls.blaming(self.stream_name):
            self._stream = self._opener()
            calls.write_all(self._stream, b"")
            gone = select.poll()
            gone.register(self._stream, 0)
            if any(events & select.POLLERR for _, events in gone.poll(0)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def commit(self) -> None:
        """Send all bytes."""
        with calls.blaming(self.stream_name):
            if self._stream is None:
                self._stream = self._opener()
            if not self._flowing:
                for block in self._blocks():
                    calls.write_all(self._stream, block)
        self._on_commit()

    def _blocks(self) -> Iterator[bytes | memoryview]:
        if self._packing is not None:
            return self._packing.blocks(self.fd)
        return calls.blocks(self.fd, 0, os.fstat(self.fd).st_size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream too, so that its reader gets to the end."""
        super().__exit__(kind, error, trace)
        if self._stream is not None:
            calls.let_go(self._stream)


class FileOutput(_Single):
    """A file that appears under its name in one step, durable, or not at all.

    A symbolic link stays, and what it points to is replaced. An existing file gives its mode,
    owner and attributes to the new one.

    Parameters
    ----------
    path
        The name.
    overwrite
        Whether an existing file may be replaced.
    context
        The settings of the call; interruptions are still held back when it is told of the commit.
    durable
        Whether the file is synced before it gets its name, and its name after that.
    target
        The existing file that is replaced, if this process has it locked. Its place is not looked for again.
    named
        Whether it has another name from the start, so that processes that are no children of this one can open it.
        After a crash the next command that writes the file removes that.
    packing
        How it is compressed when all of it is there; None if it is not.
    """

    def __init__(  # noqa: PLR0913 - all that a result depends on
        self,
        path: str,
        *,
        overwrite: bool = False,
        context: Context = NO_LIMITS,
        durable: bool = True,
        target: Target | None = None,
        named: bool = False,
        packing: Packing | None = None,
    ) -> None:
        self.name = path
        self._packing = packing
        self._overwrite = overwrite
        self._on_commit = context.on_commit
        self._durable = durable
        self._within: list[str] = []
        self._existing = existing_file(path) if target is None else target.status
        if self._existing is not None and not overwrite:
            raise _exists(path)
        if target is None:
            recover_for_reading(
                path, context
            )  # else its journal would outlive the file that it is of, or meet a new file
        with calls.blaming(path):  # there may be no current directory
            self._path = os.path.realpath(path) if target is None else target.path
        directory, base = os.path.split(os.fsencode(self._path))
        self.directory = os.fsdecode(directory)
        self._base = base
        with calls.blaming(path):
            self._dirfd = calls.open_directory(directory) if target is None else os.dup(target.dirfd)
            try:
                self.fd, self._temporary, self._named = open_temporary(base, self._dirfd, named=named)
            except BaseException:
                os.close(self._dirfd)
                raise
        if named:
            self._real_path = os.path.join(self.directory, os.fsdecode(self._temporary))
        self._final, self._plain = self.fd, None
        if packing is not None:  # how many bytes these become shows only when they are compressed
            self._plain = Scratch(self.directory, path, named=named)
            self.fd, self._real_path = self._plain.fd, self._plain.shared_name

    def replaces(self, inode: tuple[int, int] | None) -> bool:
        """Tell whether the file that it replaces is the one of that device and inode."""
        return self._existing is not None and (self._existing.st_dev, self._existing.st_ino) == inode

    def limit_readers(self, path: str) -> None:
        """Let only its owner open the file, and those who can open the existing file `path`, whose content it has."""
        self._within.append(path)

    def commit(self) -> None:
        """Make the file durable and put it in its place."""
        self.seal()
        self.publish()

    def seal(self) -> None:
        """Make the file ready: all that can fail for want of space or rights fails here, with `OSError`."""
        with calls.blaming(self.name):
            if self._packing is not None:
                self._packing.pack(self.fd, self._final)
            if self._existing is not None:
                metadata.copy_metadata(self._existing, self._path, self._final, within=self._within)
            else:
                os.fchmod(self._final, metadata.default_mode() & metadata.widest(self._within, self._final))
            if self._durable:
                calls.fsync(self._final)

    def take_back(self) -> bool:
        """Remove the file again that has just got its name, if there was none before; tell whether that worked."""
        if self._existing is not None:
            return False
        with contextlib.suppress(OSError):
            calls.unlink(self._base, self._dirfd)
            return True
        return False

    def publish(self, on_commit: Callable[[], None] | None = None) -> None:
        """Put the sealed file in its place: the commit point; errors as of `commit`."""
        with calls.blaming(self.name), interruptions.blocked():
            self._put_in_place()
            (on_commit or self._on_commit)()
            try:
                if self._durable:
                    calls.fsync_directory(self._dirfd)
            except OSError as error:
                reason = f"the result is in place, but its directory could not be synced ({error.strerror})"
                raise UnconfirmedError(self.name, reason) from error

    def _put_in_place(self) -> None:
        if not self._overwrite:
            self._take_free_name()
            return
        if not self._named:
            calls.link(self._final, self._temporary, self._dirfd)
            self._named = True
        calls.rename(self._temporary, self._base, self._dirfd)
        self._named = False

    def _take_free_name(self) -> None:
        """Put the file under its name unless somebody has made one of that name in the meantime."""
        try:
            if self._named:
                os.link(self._temporary, self._base, src_dir_fd=self._dirfd, dst_dir_fd=self._dirfd)
            else:
                calls.link(self._final, self._base, self._dirfd)
        except FileExistsError:
            raise OutputExistsError(self.name, "was created by another process; `overwrite=True` replaces it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._named:
            with contextlib.suppress(OSError):
                calls.unlink(self._temporary, self._dirfd)
        if self._plain is not None:
            self._plain.__exit__(kind, error, trace)
        calls.let_go(self._final, self._dirfd)


def existing_file(path: str) -> os.stat_result | None:
    """Return what is at `path`, None if there is nothing; a directory is an error."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
        check_scheme(path)
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return found


def check_new(paths: Iterable[str], context: Context, *, overwrite: bool) -> None:
    """Check that results can be written to paths, as far as that shows without making or locking anything."""
    for path in paths:
        if path == "-" and sys.__stdout__ is None:
            raise _closed_stdout()
        if is_stream(path):
            continue
        if is_url(path):
            from mpired.storage import upload  # noqa: PLC0415 - most results are files

            upload.check_new(path, overwrite=overwrite)
            continue
        if existing_file(path) is not None and not overwrite:
            raise _exists(path)
        recover_for_reading(path, context)
        with calls.blaming(path):
            directory = os.path.dirname(os.path.realpath(path))
            calls.let_go(calls.open_directory(directory))
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def in_the_way(paths: Iterable[str]) -> list[OutputExistsError]:
    """Return an error for each result that already exists; objects of stores are not looked at."""
    return [_exists(path) for path in paths if not (is_stream(path) or is_url(path)) and os.path.isfile(path)]


def _exists(path: str) -> OutputExistsError:
    return OutputExistsError(path, "already exists; `overwrite=True` replaces it")


def _closed_stdout() -> OSError:
    return OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def parted(paths: Iterable[str]) -> list[str]:
    """Return those of some files to be replaced whose other names are not replaced, too, so that they would part."""
    there = {path: os.stat(path) for path in paths if not is_stream(path) and os.path.exists(path)}
    replaced = Counter((status.st_dev, status.st_ino) for status in there.values())
    return [path for path, status in there.items() if status.st_nlink > replaced[status.st_dev, status.st_ino]]


def _descriptor(path: str) -> int | None:
    """Return the number of the descriptor that a path means, None if it is an ordinary path."""
    numbered = re.fullmatch(_NUMBERED_DESCRIPTOR, path) if path.startswith(("/dev/", "/proc/")) else None
    return int(numbered[1]) if numbered else _NAMED_DESCRIPTORS.get(path)


def is_stream(path: str) -> bool:
    """Tell whether `path` is to be written to as it is: `-`, a descriptor, a FIFO, a device, a socket."""
    if path == "-" or _descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_fifo(path: str) -> bool:
    """Tell whether `path` is a FIFO, whose opening waits for its reader."""
    return path != "-" and _descriptor(path) is None and stat.S_ISFIFO(os.stat(path).st_mode)


def is_terminal(path: str) -> bool:
    """Tell whether what is written to `path` shows on a terminal."""
    number = 1 if path == "-" else _descriptor(path)
    if number is not None:
        return os.isatty(number)
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            return False
        fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False  # the opening for writing will say why
    try:
        return os.isatty(fd)
    finally:
        os.close(fd)


def open_output(
    path: str,
    *,
    overwrite: bool = False,
    context: Context = NO_LIMITS,
    target: Target | None = None,
    named: bool = False,
    level: int | None = None,
) -> Output:
    """Open the output that `path` asks for: `-` is standard output, a URL an object, anything but a file a stream.

    `target` is the file that is replaced, if this process has it locked; `named` is as of `FileOutput` and `Scratch`.
    The suffix of the path may ask for a codec, and `level` is that of the compression, None for the usual one.
    """
    packing = Packing.of(path, level)
    if is_url(path):
        from mpired.storage.upload import RemoteOutput  # noqa: PLC0415 - most results are files

        return RemoteOutput(path, overwrite=overwrite, on_commit=context.on_commit, named=named, packing=packing)
    if path == "-":
        if sys.__stdout__ is None:  # closed by the caller; descriptor 1 may be any file by now
            raise _closed_stdout()
        return StreamOutput("standard output", lambda: os.dup(1), context.on_commit, named=named)
    if (number := _descriptor(path)) is not None:
        # A second opening would start at offset 0 of a redirected file and write over what is there.
        return StreamOutput(path, lambda: os.dup(number), context.on_commit, named=named)
    if is_stream(path):
        return StreamOutput(
            path, lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC), context.on_commit, named=named, packing=packing
        )
    return FileOutput(path, overwrite=overwrite, context=context, target=target, named=named, packing=packing)
