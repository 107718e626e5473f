"""Compressed sources: the bytes that are in a file or a stream, decompressed as they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from mpired.codecs import CODECS, Codec, Unpacker
from mpired.context import RESERVED, spare_open_files
from mpired.errors import BufferFileError, ChangedError, MpiredError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.sources.local import LocalSource
from mpired.sources.source import Lasting, OpenSource, Source
from mpired.sources.stream import Forward, StreamSource, copied

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class _Packed:
    """The fields of a compressed source."""

    packed: Source

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.packed.name

    @property
    def inode(self) -> tuple[int, int] | None:
        """Device and inode of the compressed file."""
        return self.packed.inode

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the compressed bytes are not those that were there when it was looked at."""
        self.packed.check_unchanged()

    def changed(self) -> ChangedError:
        """Return the error for bytes that changed."""
        return self.packed.changed()


@dataclass(eq=False)
class CompressedSource(_Packed):
    """The content of compressed bytes, read forward; each opening starts at the beginning."""

    packed: Source  # the compressed bytes
    codec: str  # the name of the codec
    takes: int  # bytes of memory that decompressing takes
    limit: int | None = None  # the most bytes that are wanted of a stream; None for all
    threads: int = 0  # how many such files are decompressed ahead together; 0 for none
    max_open_files: int | None = None  # the limit of open files; None without a limit
    is_forward: ClassVar[bool] = True
    nbytes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if isinstance(self.packed, StreamSource):
            self.packed.unlimited()
        # The bytes read of a stream are gone, and so is the state of its decompressor.
        self._only = self._opened() if self.packed.is_forward else None

    def __reduce_ex__(self, protocol: Any) -> str | tuple[Any, ...]:
        return self.kept().__reduce_ex__(protocol) if self._only else super().__reduce_ex__(protocol)

    @property
    def is_private(self) -> bool:
        """Whether only this process can open the compressed bytes."""
        return self.packed.is_private

    def open(self) -> OpenSource:
        """Open it for reading."""
        return self._only or self._opened()

    def _opened(self) -> Forward:
        fill = _Unpacking(self.packed, CODECS[self.codec]).fill
        return Forward(self.name, _Ahead(fill, self.threads).fill if self.threads else fill, self.limit)

    def reading_ahead(self, threads: int) -> CompressedSource:
        """Return it, with some threads of the process that opens it; a stream as it is."""
        return self if self._only else replace(self, threads=threads)

    def kept(self) -> Source:
        """Return the content in a scratch file, which stays or, if there are many, is there only while it is open."""
        copy = copied(self.name, self.open())
        self.check_unchanged()
        if self._only is not None:
            return copy
        return UnpackedSource(self, copy.nbytes, copy if _stays(copy, self.max_open_files) else None)


_MOST_COPIES = 256
_copies: WeakSet[Scratch] = WeakSet()


def _stays(copy: LocalSource, max_open_files: int | None) -> bool:
    """Return whether a copy may stay, which is an open file; half of the allowed ones are for other files."""
    wanted = 2 * _MOST_COPIES
    allowed = calls.allow_descriptors(RESERVED + wanted) - RESERVED
    most = min(allowed, spare_open_files(wanted, max_open_files)) // 2
    if len(_copies) >= most:
        return False
    _copies.add(copy.keep)
    return True


@dataclass(frozen=True)
class UnpackedSource(_Packed, Lasting):
    """The content of a compressed file, read in any order."""

    packed: CompressedSource  # the same, as it is read forward
    nbytes: int  # how many bytes there are
    copy: LocalSource | None  # where they are; None if they are decompressed whenever it is opened

    @property
    def is_private(self) -> bool:
        """Whether only this process and its children can open it."""
        return self.copy is not None or self.packed.is_private

    def open(self) -> OpenSource:
        """Open it for reading."""
        return (self.copy or copied(self.name, self.packed.open())).open()


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
                self._next = None
                self._ready = block[: filled.result()]
                if not self._ready:
                    break
            if not self._ready:
                got = self._fill(view[done:])
                done += got
                break
            part = self._ready[: len(view) - done]
            view[done : done + len(part)] = part
            self._ready = self._ready[len(part) :]
            done += len(part)
        if done == len(view) >= _LEAST_AHEAD and not self._ready:
            block = memoryview(bytearray(len(view)))
            self._next = block, _pool(self._threads).submit(self._fill, block)
        return done


class _Unpacking:
    """Compressed bytes on their way; between two reads no descriptor is held, so that many may be under way."""

    def __init__(self, packed: Source, codec: Codec) -> None:
        self._packed, self._codec = packed, codec
        self._at = 0
        self._unpacker: Unpacker | None = None

    def fill(self, view: memoryview) -> int:
        """Fill a view with the next bytes, and return how many there were before the end."""
        try:
            self._unpacker = self._unpacker or self._codec.unpacker(self._read)
            return self._unpacker.fill(view)
        except MpiredError:
            raise
        except ValueError as error:
            damage = f"the {self._codec.name} data is damaged ({' '.join(str(error).split())[:200]})"
            raise BufferFileError(self._packed.name, f"cannot be decompressed, {damage}") from None

    def _read(self, nbytes: int) -> bytes:
        with calls.errors_name(self._packed.name), closing(self._packed.open()) as file:
            data = file.read(nbytes, self._at)
        self._at += len(data)
        return data
