"""Compressed sources: the bytes that are in a file or a stream, decompressed as they are read."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mpired import machine
from mpired.codecs import CODECS, Codec, Fill
from mpired.context import NO_LIMITS, RESERVED, Context
from mpired.errors import BufferFileError, MpiredError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source
from mpired.sources.stream import Forward, StreamSource, copied

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


_MOST_COPIES = 256
_copies: WeakSet[Scratch] = WeakSet()
_LEAST_AHEAD = 32 << 10  # fewer bytes are a header
_LEAST_PACKED = 256 << 10  # a shorter file, or a stream, is decompressed without threads


class CompressedSource(Source):
    """The content of compressed bytes: read forward from its start at each opening, or in any order from a copy."""

    packed: Source
    is_forward = True
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
        if self.is_forward:
            return self._only or self._opened(self._threads)
        return (self._copy or copied(self.name, self._opened(0))).open()

    def _opened(self, threads: int) -> Forward:
        fill = _unpacking(self.packed, CODECS[self.codec])
        return Forward(self.name, _ahead(fill, threads) if threads else fill, self._limit)

    def kept(self) -> Source:
        """Return the content in a scratch file, which stays or, if there are many, is there only while it is open."""
        if not self.is_forward:
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
        unpacked.is_forward, unpacked.is_private, unpacked.nbytes = False, stays or self.is_private, copy.nbytes
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
