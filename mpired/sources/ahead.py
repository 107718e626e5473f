"""Reading ahead: while a reader waits for another machine, its next reads are under way too."""

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
_MOST_SKIPPED = 1024  # keys at a time, of which an array that is hardly there has any number


class ReadAhead(Generic[_Key, _T]):
    """Reads of keys in a known order, of which some are begun before they are taken."""

    # `begin` returns None for a key that is not worth it; `has_room` is asked with the keys that have been begun
    def __init__(
        self,
        keys: Iterable[_Key],
        begin: Callable[[_Key], Future[_T] | None],
        has_room: Callable[[Sequence[_Key]], bool],
    ) -> None:
        self._keys, self._begin, self._has_room = iter(keys), begin, has_room
        self._begun: deque[tuple[_Key, Future[_T]]] = deque()
        self._go_on()

    def _go_on(self) -> None:
        for _ in range(_MOST_SKIPPED):
            if not self._has_room([key for key, _ in self._begun]) or (key := next(self._keys, None)) is None:
                return
            if (future := self._begin(key)) is not None:
                self._begun.append((key, future))

    def take(self, key: _Key) -> Future[_T] | None:
        """Return the read of a key, None if it has not been begun; those before it are dropped."""
        if all(key != other for other, _ in self._begun):
            return None
        while (first := self._begun.popleft())[0] != key:
            first[1].cancel()
        self._go_on()
        return first[1]

    def close(self) -> list[Future[_T]]:
        """Begin nothing more, and return the reads that cannot be stopped."""
        self._keys = iter(())
        running = [future for _, future in self._begun if not future.cancel()]
        self._begun.clear()
        return running


class Ahead:
    """Reads the same block of rank after rank, and that of the next ones meanwhile."""

    def __init__(self, read: Callable[[int, int, np.ndarray], np.ndarray | None], nranks: int, depth: int) -> None:
        self._read, self._nranks, self._depth = read, nranks, depth
        self._threads = ThreadPoolExecutor(depth)
        self._place: tuple[int, int, np.dtype] | None = None  # start, count and form of the block
        self._blocks: ReadAhead[int, _Block] = ReadAhead((), lambda _: None, bool)

    def _read_block(self, rank: int, start: int, count: int, form: np.dtype) -> _Block:
        block = np.empty(count, form)
        return block, self._read(rank, start, block)

    def read(self, rank: int, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with elements of one rank, from `start` on; an error is raised when it is the rank's turn."""
        place = start, len(block), block.dtype
        if place != self._place:
            self._blocks.close()
            self._place, ranks = place, range(rank, self._nranks)
            self._blocks = ReadAhead(
                ranks,
                lambda rank: self._threads.submit(self._read_block, rank, *place),
                lambda begun: len(begun) < self._depth,
            )
        if (coming := self._blocks.take(rank)) is None:  # read before
            return self._read(rank, start, block)
        block[...], valid = coming.result()
        return valid

    def close(self) -> None:
        """End the threads. One that is left waits for an answer that may never come, and only reads."""
        wait(self._blocks.close(), _PATIENCE)
        self._threads.shutdown(wait=False, cancel_futures=True)
