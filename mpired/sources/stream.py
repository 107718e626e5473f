"""Streams, read forward in blocks: pipes, FIFOs, devices, open files that cannot seek, and decompressed bytes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import stat
import weakref
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from mpired import interrupts, machine
from mpired.codecs import CODECS, Codec, Fill
from mpired.context import NO_LIMITS, RESERVED, Context
from mpired.errors import BufferFileError, MpiredError, UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.sources.local import LocalSource, stamp_of
from mpired.sources.source import OpenSource, Source

if TYPE_CHECKING:
    import hashlib
    from concurrent.futures import Future, ThreadPoolExecutor

_PATIENCE = 200  # milliseconds
_PIPE_NBYTES = 1 << 20
_HEAD_NBYTES = 128 << 10  # more than any header that is looked at before the elements are read
_COPIED_NBYTES = 1 << 20
_MOST_COPIES = 256
_copies: weakref.WeakSet[Scratch] = weakref.WeakSet()
_LEAST_AHEAD = 32 << 10  # fewer bytes are a header
_LEAST_PACKED = 256 << 10  # a shorter file, or a stream, is decompressed without threads


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
    is_sequential = True
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
        weakref.finalize(self.forward, calls.close_quietly, fd)
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
        while not interrupts.interruptible(ready.poll, _PATIENCE):
            pass
        got = os.readv(fd, [view[done:]])
        if not got:
            break
        done += got
    return done


class CompressedSource(Source):
    """The content of compressed bytes: read forward from its start at each opening, or in any order from a copy."""

    packed: Source
    is_sequential = True
    nbytes = 0
    _copy: LocalSource | None = None  # read in any order; None if each opening makes one

    def __init__(
        self, packed: Source, codec: str, takes: int, context: Context = NO_LIMITS, limit: int | None = None
    ) -> None:
        self.name, self.packed = packed.name, packed
        self.inode, self.is_private = packed.inode, packed.is_private
        self.codec = codec  # the name of the codec
        self.takes = takes  # bytes of memory that decompressing takes
        self._limit = limit  # the most bytes that are wanted of a stream; None for all
        self._max_open_files = context.max_open_files  # None without a limit
        is_alone = context.jobs == 1 or packed.nbytes < _LEAST_PACKED
        # of the process that opens it, which decompress such files ahead
        self._threads = 0 if is_alone else context.jobs or machine.usable_cores()
        self._only: Forward | None = None
        if isinstance(packed, StreamSource):
            packed.forward.limit = None  # the limit counts decompressed bytes
            self._only = self._opened(0)  # the bytes read of a stream are gone, and so is the state of its decompressor

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.kept().__reduce_ex__(protocol) if self._only else super().__reduce_ex__(protocol)

    def open(self) -> OpenSource:
        """Open it for reading."""
        if self.is_sequential:
            return self._only or self._opened(self._threads)
        return (self._copy or copied(self.name, self._opened(0))).open()

    def _opened(self, threads: int) -> Forward:
        fill = _unpacking(self.packed, CODECS[self.codec])
        return Forward(self.name, _ahead(fill, threads) if threads else fill, self._limit)

    def kept(self) -> Source:
        """Return the content in a scratch file, which stays or, if there are many, is there only while it is open."""
        if not self.is_sequential:
            return self
        copy = copied(self.name, self._only or self._opened(0))  # without threads, so that workers can be forked
        self.check_unchanged()
        if self._only is not None:
            return copy
        # A copy that stays is an open file; half of the allowed ones are for other files.
        wanted = 2 * _MOST_COPIES
        allowed = calls.allow_descriptors(RESERVED + wanted) - RESERVED
        most = min(allowed, wanted, wanted if self._max_open_files is None else self._max_open_files - RESERVED)
        stays = len(_copies) < most // 2
        if stays:
            _copies.add(copy.keep)
        unpacked = self.named(self.name)
        unpacked.is_sequential, unpacked.is_private, unpacked.nbytes = False, stays or self.is_private, copy.nbytes
        unpacked._copy = copy if stays else None  # noqa: SLF001 - of its own class
        return unpacked


def unpacking_nbytes(sources: Iterable[Source]) -> int:
    """Return the memory that decompressing some sources at the same time takes."""
    used = [source for source in sources if isinstance(source, CompressedSource)]
    return sum(source.takes for source in used) + max((CODECS[source.codec].library for source in used), default=0)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only where files are compressed

    return ThreadPoolExecutor(threads)


def _ahead(fill: Fill, threads: int) -> Fill:
    """Let a thread fill the next block while this one is used: the libraries decompress without Python's lock."""
    ready = memoryview(b"")
    following: tuple[memoryview, Future[int]] | None = None

    def fill_ahead(view: memoryview) -> int:
        nonlocal ready, following
        done = 0
        while done < len(view):
            if not ready and following is not None:
                block, filled = following
                ready, following = block[: filled.result()], None
            if not (part := ready[: len(view) - done]):
                done += fill(view[done:])
                break
            view[done : done + len(part)] = part
            ready, done = ready[len(part) :], done + len(part)
        if done == len(view) >= _LEAST_AHEAD and not ready:
            block = memoryview(bytearray(len(view)))
            following = block, _pool(threads).submit(fill, block)
        return done

    return fill_ahead


def _unpacking(packed: Source, codec: Codec) -> Fill:
    """Return what fills a view with the decompressed bytes; damage is an error of the file."""
    at = 0

    def read(nbytes: int) -> bytes:
        # Between two reads no descriptor is held, so that many sources may be under way.
        nonlocal at
        with calls.errors_name(packed.name), closing(packed.open()) as file:
            data = file.read(nbytes, at)
        at += len(data)
        return data

    unpacked = codec.unpacker(read)

    def fill(view: memoryview) -> int:
        try:
            return unpacked(view)
        except MpiredError:
            raise
        except ValueError as error:
            damage = f"the {codec.name} data is damaged ({' '.join(str(error).split())[:200]})"
            raise BufferFileError(packed.name, f"cannot be decompressed, {damage}") from None

    return fill
