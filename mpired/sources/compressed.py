"""Compressed sources: the bytes that are in a file or a stream, decompressed as they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from mpired.codecs import CODECS, Codec
from mpired.context import RESERVED
from mpired.errors import BufferFileError, MpiredError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source, of_file
from mpired.sources.stream import Forward, StreamSource, copied

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class CompressedSource(Source):
    """The content of compressed bytes, read forward; each opening starts at the beginning."""

    is_forward = True
    nbytes = 0

    def __init__(
        self, packed: Source, codec: str, takes: int, limit: int | None = None, max_open_files: int | None = None
    ) -> None:
        self.name, self.packed = packed.name, packed
        self.codec = codec  # the name of the codec
        self.takes = takes  # bytes of memory that decompressing takes
        self._limit = limit  # the most bytes that are wanted of a stream; None for all
        self._max_open_files = max_open_files  # None without a limit
        self.threads = 0  # how many such files are decompressed ahead together
        if isinstance(packed, StreamSource):
            packed.forward.limit = None  # the limit counts decompressed bytes
        # The bytes read of a stream are gone, and so is the state of its decompressor.
        self._only = self._opened() if packed.is_forward else None

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.kept().__reduce_ex__(protocol) if self._only else super().__reduce_ex__(protocol)

    def open(self) -> OpenSource:
        """Open it for reading."""
        return self._only or self._opened()

    def _opened(self) -> Forward:
        fill = _unpacking(of_file(self), CODECS[self.codec])
        return Forward(self.name, _Ahead(fill, self.threads).fill if self.threads else fill, self._limit)

    def reading_ahead(self, threads: int) -> CompressedSource:
        """Return it, with some threads of the process that opens it; a stream as it is."""
        if self._only is not None:
            return self
        other = self.named(self.name)
        other.threads = threads
        return other

    def kept(self) -> Source:
        """Return the content in a scratch file, which stays or, if there are many, is there only while it is open."""
        copy = copied(self.name, self.open())
        self.check_unchanged()
        if self._only is not None:
            return copy
        return UnpackedSource(self, copy, stays=_stays(copy, self._max_open_files))


_MOST_COPIES = 256
_copies: WeakSet[Scratch] = WeakSet()


def _stays(copy: LocalSource, max_open_files: int | None) -> bool:
    """Return whether a copy may stay, which is an open file; half of the allowed ones are for other files."""
    wanted = 2 * _MOST_COPIES
    allowed = calls.allow_descriptors(RESERVED + wanted) - RESERVED
    most = min(allowed, wanted, wanted if max_open_files is None else max_open_files - RESERVED) // 2
    if len(_copies) >= most:
        return False
    _copies.add(copy.keep)
    return True


class UnpackedSource(Source):
    """The content of a compressed file, read in any order."""

    def __init__(self, forward: CompressedSource, copy: LocalSource, *, stays: bool) -> None:
        self.name, self.packed, self.nbytes = forward.name, forward, copy.nbytes
        self._copy = copy if stays else None  # None if it is decompressed whenever it is opened

    @property
    def is_private(self) -> bool:
        """Whether only this process and its children can open it."""
        return self._copy is not None or super().is_private

    def open(self) -> OpenSource:
        """Open it for reading."""
        return (self._copy or copied(self.name, cast("Source", self.packed).open())).open()


def unpacking_nbytes(sources: Iterable[Source]) -> int:
    """Return the memory that decompressing some sources at the same time takes."""
    used = [source for source in sources if isinstance(source, CompressedSource)]
    return sum(source.takes for source in used) + max((CODECS[source.codec].library for source in used), default=0)


_LEAST_AHEAD = 32 << 10  # fewer bytes are a header


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only where files are compressed

    return ThreadPoolExecutor(threads)


class _Ahead:
    """Lets a thread fill the next block while this one is used: the libraries decompress without Python's lock."""

    def __init__(self, fill: Callable[[memoryview], int], threads: int) -> None:
        self._fill, self._threads = fill, threads
        self._ready = memoryview(b"")
        self._next: tuple[memoryview, Future[int]] | None = None

    def fill(self, view: memoryview) -> int:
        """Fill a view with the next bytes, and return how many there were before the end."""
        done = 0
        while done < len(view):
            if not self._ready and self._next is not None:
                block, filled = self._next
                self._next, self._ready = None, block[: filled.result()]
            if not (part := self._ready[: len(view) - done]):
                done += self._fill(view[done:])
                break
            view[done : done + len(part)] = part
            self._ready, done = self._ready[len(part) :], done + len(part)
        if done == len(view) >= _LEAST_AHEAD and not self._ready:
            block = memoryview(bytearray(len(view)))
            self._next = block, _pool(self._threads).submit(self._fill, block)
        return done


def _unpacking(packed: Source, codec: Codec) -> Callable[[memoryview], int]:
    """Return what fills a view with the next bytes, and returns how many there were before the end."""
    at = 0

    def read(nbytes: int) -> bytes:
        # Between two reads no descriptor is held, so that many sources may be under way.
        nonlocal at
        with calls.errors_name(packed.name), closing(packed.open()) as file:
            data = file.read(nbytes, at)
        at += len(data)
        return data

    unpacker = codec.unpacker(read)

    def fill(view: memoryview) -> int:
        try:
            return int(unpacker.fill(view))
        except MpiredError:
            raise
        except ValueError as error:
            damage = f"the {codec.name} data is damaged ({' '.join(str(error).split())[:200]})"
            raise BufferFileError(packed.name, f"cannot be decompressed, {damage}") from None

    return fill
