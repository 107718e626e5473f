"""Read-ahead: while a reader waits for another machine, threads make its next reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeAlias, TypeVar

import numpy as np

_Key = TypeVar("_Key")
_T = TypeVar("_T")
_Block: TypeAlias = "tuple[np.ndarray, np.ndarray | None]"
_PATIENCE = 1.0  # seconds
_MAX_SKIPPED = 1024  # keys without a read at a time: an array may have millions of missing chunks


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
        self._threads = ThreadPoolExecutor(depth)
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
        wait(self._blocks.close(), _PATIENCE)
        self._threads.shutdown(wait=False, cancel_futures=True)
