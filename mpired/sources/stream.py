"""Streams, read once from start to end: pipes, FIFOs, devices, and decompressed bytes."""

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

from mpired import interrupts
from mpired.codecs import CODECS, Codec, Fill
from mpired.context import NO_LIMITS, RESERVED, Context, usable_cores
from mpired.errors import BufferFileError, MpiredError, UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch, kept_first
from mpired.sources.local import LocalSource, stamp_of
from mpired.sources.source import OpenSource, Source, thread_pool

if TYPE_CHECKING:
    import hashlib
    from concurrent.futures import Future

_PATIENCE = 200  # milliseconds
_PIPE_NBYTES = 1 << 20
_HEAD_NBYTES = 128 << 10  # the head that can be read again; all headers are shorter
_BLOCK_NBYTES = 1 << 20
_MAX_COPIES = 256
_copies: weakref.WeakSet[Scratch] = weakref.WeakSet()
_MIN_READ_AHEAD = 32 << 10  # shorter reads are of headers
_MIN_PACKED = 256 << 10  # shorter files, and streams, are decompressed without threads


class ForwardReader(OpenSource):
    """Reads bytes from start to end. The last range can be read again, and at first also the head."""

    def __init__(self, name: str, fill: Fill, limit: int | None = None) -> None:
        self._name, self._fill = name, fill
        self.limit = limit  # maximum number of bytes; None for all
        self._buffer = bytearray()
        self._start = self.stop = 0  # offsets of the bytes in the buffer
        self.has_ended = False
        self.digest: hashlib._Hash | None = None  # of all bytes read

    def available(self, nbytes: int, offset: int) -> int:
        """Read bytes into the buffer; return the number available from `offset` on, at most `nbytes`."""
        if offset < self._start:
            raise BufferFileError(self._name, f"is read forward, and byte {offset} is read already")
        stop = offset + nbytes if self.limit is None else min(offset + nbytes, self.limit)
        if stop > self.stop and not self.has_ended:
            self._fill_buffer(offset, stop)
        return max(0, min(nbytes, self.stop - offset))

    def read_into(self, view: memoryview, offset: int) -> int:
        nbytes, start = self.available(len(view), offset), offset - self._start
        view[:nbytes] = memoryview(self._buffer)[start : start + nbytes]
        return nbytes

    def _fill_buffer(self, start: int, stop: int) -> None:
        """Read the bytes up to `stop` into the buffer; drop the bytes before `start`, except a head."""
        while start > self.stop + _BLOCK_NBYTES and not self.has_ended:  # skip a long range in blocks
            self._fill_buffer(self.stop, self.stop + _BLOCK_NBYTES)
        first = self._start if stop - self._start <= _HEAD_NBYTES else min(start, self.stop)
        old = memoryview(self._buffer)[first - self._start : self.stop - self._start]
        if stop - first > len(self._buffer) or first > self._start:
            buffer = self._buffer if not old and stop - first <= len(self._buffer) else bytearray(stop - first)
            buffer[: len(old)] = old
            self._buffer, self._start = buffer, first
        view = memoryview(self._buffer)
        while self.stop < stop and not self.has_ended:
            free = view[self.stop - first : stop - first]
            nbytes = self._fill(free)
            if self.digest is not None:
                self.digest.update(free[:nbytes])
            self.stop += nbytes
            self.has_ended = not nbytes


def copy_to_scratch(name: str, file: OpenSource) -> LocalSource:
    """Return a copy of a stream in a scratch file."""
    scratch, offset = Scratch(name=kept_first(name)), 0
    block = memoryview(bytearray(_BLOCK_NBYTES))
    while True:
        with calls.errors_name(name):
            nbytes = file.read_into(block, offset)
        if not nbytes:
            break
        with scratch.created() as fd:
            calls.pwrite_all(fd, block[:nbytes], offset)
        offset += nbytes
    return LocalSource(name, scratch.shared.path, stamp_of(os.fstat(scratch.fd)), keep=scratch)


class StreamSource(Source):
    """A stream, which is read once."""

    is_private = True
    is_sequential = True
    nbytes = 0

    def __init__(self, name: str, fd: int, limit: int | None, *, digested: bool) -> None:
        """Take over a descriptor, which is closed when the stream is deleted."""
        self.name = name
        self._copy: Source | None = None
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        with contextlib.suppress(OSError):  # not a pipe, or the buffers of this user are at their limit
            if fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) < _PIPE_NBYTES:
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
        self.reader = ForwardReader(name, partial(_read, fd, poll), limit)
        weakref.finalize(self.reader, calls.close_quietly, fd)
        status = os.fstat(fd)
        if limit is None and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            raise UsageError(name, "is a device, which has no end; say with `type` and `count` how much to read")
        if digested:
            import hashlib  # noqa: PLC0415 - loads OpenSSL

            self.reader.digest = hashlib.sha256()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process cannot read the bytes that this process has received, so it gets a copy.
        return self.seekable().__reduce__()  # type: ignore[return-value]

    def open(self) -> OpenSource:
        """Return the only reader."""
        return self.reader

    def seekable(self) -> Source:
        """Return a copy in a scratch file; at most a head of the stream may be read before."""
        self._copy = self._copy or copy_to_scratch(self.name, self.reader)
        return self._copy

    @property
    def totals(self) -> tuple[int | None, str | None]:
        """The size of the stream and its SHA-256; None if unknown, or if the stream was not read to its end."""
        reader = self.reader
        is_complete = reader.has_ended or (reader.limit is not None and reader.stop >= reader.limit)
        return (reader.stop, reader.digest.hexdigest()) if reader.digest and is_complete else (None, None)


def _read(fd: int, poll: select.poll, view: memoryview) -> int:
    """Fill a view with the next bytes of a stream; return their number, which is smaller at the end of the stream."""
    filled = 0
    while filled < len(view):
        # A wait is short, because a signal immediately before the system call is handled only after it.
        while not interrupts.interruptible(poll.poll, _PATIENCE):
            pass
        nbytes = os.readv(fd, [view[filled:]])
        if not nbytes:
            break
        filled += nbytes
    return filled


class CompressedSource(Source):
    """The decompressed bytes of a source: sequential, or seekable in a copy."""

    packed: Source
    is_sequential = True
    nbytes = 0
    _copy: LocalSource | None = None  # of a seekable source; None if each opening makes a copy

    def __init__(
        self, packed: Source, codec: str, memory: int, context: Context = NO_LIMITS, limit: int | None = None
    ) -> None:
        self.name, self.packed = packed.name, packed
        self.inode, self.is_private = packed.inode, packed.is_private
        self.codec = codec  # name
        self.memory = memory  # bytes needed for decompression
        self._limit = limit  # maximum number of decompressed bytes; None for all
        self._max_open_files = context.max_open_files  # None without a limit
        is_alone = context.jobs == 1 or packed.nbytes < _MIN_PACKED
        self._threads = 0 if is_alone else context.jobs or usable_cores()  # for read-ahead, in each process
        self._stream: ForwardReader | None = None  # the only reader, if the compressed source is a stream
        if isinstance(packed, StreamSource):
            packed.reader.limit = None  # the limit counts decompressed bytes
            self._stream = self._open_reader(0)

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.seekable().__reduce_ex__(protocol) if self._stream else super().__reduce_ex__(protocol)

    def open(self) -> OpenSource:
        """Open the source for reading."""
        if self.is_sequential:
            return self._stream or self._open_reader(self._threads)
        return (self._copy or copy_to_scratch(self.name, self._open_reader(0))).open()

    def _open_reader(self, threads: int) -> ForwardReader:
        fill = _decompress(self.packed, CODECS[self.codec])
        return ForwardReader(self.name, _fill_ahead(fill, threads) if threads else fill, self._limit)

    def seekable(self) -> Source:
        """Return a seekable source of the same bytes; it keeps its copy open, unless there are many copies."""
        if not self.is_sequential:
            return self
        # Without threads, so that workers can be forked.
        copy = copy_to_scratch(self.name, self._stream or self._open_reader(0))
        self.check_unchanged()
        if self._stream is not None:
            return copy
        # Copies use at most half of the allowed open files.
        count = 2 * _MAX_COPIES
        allowed = calls.allow_descriptors(RESERVED + count) - RESERVED
        limit = min(allowed, count, count if self._max_open_files is None else self._max_open_files - RESERVED)
        stays_open = len(_copies) < limit // 2
        if stays_open:
            _copies.add(copy.keep)
        seekable = self.named(self.name)
        seekable.is_sequential, seekable.is_private, seekable.nbytes = False, stays_open or self.is_private, copy.nbytes
        seekable._copy = copy if stays_open else None  # noqa: SLF001 - of the same class
        return seekable


def decompression_nbytes(sources: Iterable[Source]) -> int:
    """Return the memory needed to decompress these sources together, in bytes."""
    compressed = [source for source in sources if isinstance(source, CompressedSource)]
    libraries = [CODECS[source.codec].library_nbytes for source in compressed]
    return sum(source.memory for source in compressed) + max(libraries, default=0)


_pool = functools.cache(thread_pool)  # for compressed files


def _fill_ahead(fill: Fill, threads: int) -> Fill:
    """Let a thread fill the next block during the use of a block: the libraries release the GIL."""
    ready = memoryview(b"")
    following: tuple[memoryview, Future[int]] | None = None

    def fill_ahead(view: memoryview) -> int:
        nonlocal ready, following
        filled = 0
        while filled < len(view):
            if not ready and following is not None:
                block, nbytes = following
                ready, following = block[: nbytes.result()], None
            if not (part := ready[: len(view) - filled]):
                filled += fill(view[filled:])
                break
            view[filled : filled + len(part)] = part
            ready, filled = ready[len(part) :], filled + len(part)
        if filled == len(view) >= _MIN_READ_AHEAD and not ready:
            block = memoryview(bytearray(len(view)))
            following = block, _pool(threads).submit(fill, block)
        return filled

    return fill_ahead


def _decompress(packed: Source, codec: Codec) -> Fill:
    """Return the function that fills a view with decompressed bytes; damage is an error of the file."""
    offset = 0

    def read(nbytes: int) -> bytes:
        # The source is opened for each read, so that many sources can be read without many open files.
        nonlocal offset
        with calls.errors_name(packed.name), closing(packed.open()) as file:
            data = file.read(nbytes, offset)
        offset += len(data)
        return data

    decompress = codec.unpacker(read)

    def fill(view: memoryview) -> int:
        try:
            return decompress(view)
        except MpiredError:
            raise
        except ValueError as error:
            damage = f"the {codec.name} data is damaged ({' '.join(str(error).split())[:200]})"
            raise BufferFileError(packed.name, f"cannot be decompressed, {damage}") from None

    return fill
