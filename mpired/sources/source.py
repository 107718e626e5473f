"""Sources: the bytes of ranks, with a name for messages; each process opens a source to read it.

While a reader waits for another machine, threads make its next reads.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, Self, TypeAlias, TypeVar

import numpy as np

from mpired.errors import ChangedError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_Key = TypeVar("_Key")
_T = TypeVar("_T")
_Block: TypeAlias = tuple[np.ndarray, np.ndarray | None]
_PATIENCE = 1.0  # seconds to wait for running reads
_MAX_SKIPPED = 1024  # keys without a read at a time: an array may have millions of missing chunks

STANDARD_INPUT = "standard input"
STORE_HEAD = b"\0a store of arrays in a directory\n"
"""The content of a directory of arrays for the recognition of its format."""
STORE_SUFFIX = ".zarr"
"""The usual suffix of stores of arrays."""
STORE_MARKS = frozenset({".zgroup", ".zarray", "zarr.json"})
"""Documents of arrays and groups; every store of arrays has at least one."""
STORE_DOCUMENTS = STORE_MARKS | {".zattrs", ".zmetadata"}
"""The documents that describe the arrays of a store."""


class OpenSource:
    """An open source. The caller closes it."""

    fd: int | None = None
    """The descriptor, for copies by the kernel; None if the source has no descriptor."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with bytes from `offset` on; return their number, which is smaller at the end of the source."""
        raise NotImplementedError

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return `nbytes` from `offset` on, or fewer at the end of the source."""
        content = bytearray(nbytes)
        return bytes(content[: self.read_into(memoryview(content), offset)])

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce ranges (offset, number of bytes) that will be read; a remote source requests several at once."""

    def available(self, nbytes: int, offset: int) -> int:
        """Return the number of bytes available from `offset` on in a stream, at most `nbytes`; wait for them."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the source."""


class OpenBytes(OpenSource):
    """Bytes in memory."""

    def __init__(self, *parts: bytes | memoryview) -> None:
        self._parts = parts

    def read_into(self, view: memoryview, offset: int) -> int:
        filled = 0
        for part in self._parts:
            content = part[offset : offset + len(view) - filled] if offset < len(part) else b""
            view[filled : filled + len(content)] = content
            filled += len(content)
            offset = max(0, offset - len(part))
        return filled


class OpenStore(OpenBytes):
    """An open store of arrays: many files or objects, with names relative to the store."""

    def __init__(self, source: Source) -> None:
        super().__init__(STORE_HEAD)
        self.source = source

    def names(self) -> list[str]:
        """Return the sorted names."""
        raise NotImplementedError

    def content(self, name: str, limit: int) -> bytes:
        """Return the first bytes of a file or object, at most `limit + 1`."""
        raise NotImplementedError

    def expect_names(self, names: Iterable[str], limit: int) -> None:
        """Announce names, which may be missing, that will be read next; a remote store requests several at once.

        The announced files that are longer than `limit` bytes are not requested ahead.
        """


class Source:
    """The bytes of a rank, which are read in any order unless the source `is_sequential`. Small and picklable."""

    name: str  # in messages
    nbytes: int  # number of bytes; 0 for a source of unknown length
    packed: Source | None = None  # compressed source, if this source decompresses it
    inode: tuple[int, int] | None = None  # device and inode number; None if the source is not a local file
    is_private = False  # whether only this process and its children can open the source
    depth = 0  # of a remote source: number of ranks whose blocks are requested at the same time; otherwise 0
    block_nbytes = 0  # of a remote source: size of a block, if there is enough memory; otherwise 0
    is_sequential = False  # whether the source is read from start to end, and has unknown length

    def __eq__(self, other: object) -> bool:
        """Return whether both sources have the same bytes; a source may come from another process."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self) -> OpenSource:
        """Open the source for reading."""
        raise NotImplementedError

    def seekable(self) -> Source:
        """Return a seekable source of the same bytes: this source, or a copy in a scratch file."""
        return self

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the bytes have changed since the source was inspected."""
        if self.packed is not None:
            self.packed.check_unchanged()

    def changed(self) -> ChangedError:
        """Return the error for changed bytes."""
        if self.packed is not None:
            return self.packed.changed()
        return ChangedError(self.name, "changed while being read; run again when its writer has finished")

    def named(self, name: str) -> Self:
        """Return a copy of the source with another name in messages."""
        source = object.__new__(type(self))
        vars(source).update(vars(self), name=name)
        return source


def local_fd(file: OpenSource) -> int:
    """Return the descriptor of a local file."""
    assert file.fd is not None  # noqa: S101 - the plan has checked that the file is local
    return file.fd


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few commands have threads

    return ThreadPoolExecutor(threads)


class ReadAhead(Generic[_Key, _T]):
    """Reads of keys in a known order; some reads start before they are requested."""

    def __init__(
        self,
        keys: Iterable[_Key],
        start: Callable[[_Key], Future[_T] | None],  # starts a read; returns None for a key that is not read ahead
        has_room: Callable[[Sequence[_Key]], bool],  # whether the next read may start beside the reads of these keys
    ) -> None:
        self._keys, self._start, self._has_room = iter(keys), start, has_room
        self._reads: deque[tuple[_Key, Future[_T]]] = deque()
        self._start_reads()

    def _start_reads(self) -> None:
        for _ in range(_MAX_SKIPPED):
            if not self._has_room([key for key, _ in self._reads]) or (key := next(self._keys, None)) is None:
                return
            if (future := self._start(key)) is not None:
                self._reads.append((key, future))

    def take(self, key: _Key) -> Future[_T] | None:
        """Return the read of a key, or None if it has not started; earlier reads are cancelled."""
        if all(key != started for started, _ in self._reads):
            return None
        while (first := self._reads.popleft())[0] != key:
            first[1].cancel()
        self._start_reads()
        return first[1]

    def close(self) -> list[Future[_T]]:
        """Cancel all reads, and return the running reads, which cannot be cancelled."""
        self._keys = iter(())
        running = [future for _, future in self._reads if not future.cancel()]
        self._reads.clear()
        return running


class BlockReadAhead:
    """Reads a block of one rank after the other; threads read the same block of the next ranks."""

    def __init__(self, read: Callable[[int, int, np.ndarray], np.ndarray | None], nranks: int, depth: int) -> None:
        self._read, self._nranks, self._depth = read, nranks, depth
        self._threads = thread_pool(depth)
        self._range: tuple[int, int, np.dtype] | None = None  # start, count and dtype of the block
        self._blocks: ReadAhead[int, _Block] = ReadAhead((), lambda _: None, bool)

    def _read_block(self, rank: int, start: int, count: int, dtype: np.dtype) -> _Block:
        block = np.empty(count, dtype)
        return block, self._read(rank, start, block)

    def read(self, rank: int, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with elements of a rank from `start` on, and return their mask, or None if all are valid."""
        block_range = start, len(block), block.dtype
        if block_range != self._range:
            self._blocks.close()
            self._range = block_range
            self._blocks = ReadAhead(
                range(rank, self._nranks),
                lambda rank: self._threads.submit(self._read_block, rank, *block_range),
                lambda ranks: len(ranks) < self._depth,
            )
        if (future := self._blocks.take(rank)) is None:  # the rank is read again
            return self._read(rank, start, block)
        block[...], valid = future.result()
        return valid

    def close(self) -> None:
        """End the threads; a thread that still waits for an answer is left alone."""
        end = time.monotonic() + _PATIENCE
        with contextlib.suppress(TimeoutError):
            for read in self._blocks.close():
                read.exception(end - time.monotonic())
        self._threads.shutdown(wait=False, cancel_futures=True)
