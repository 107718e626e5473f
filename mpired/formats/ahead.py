"""Ranks on a file system of other machines: some are read ahead, in their order, so that all wait at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeAlias

import numpy as np

_Read: TypeAlias = Callable[[int, int, np.ndarray], "np.ndarray | None"]
_Block: TypeAlias = tuple[np.ndarray, "np.ndarray | None"]
_PATIENCE = 1.0  # seconds


class Ahead:
    """Reads the same block of rank after rank, and that of the next ones meanwhile."""

    def __init__(self, read: _Read, nranks: int, depth: int) -> None:
        self._read = read
        self._nranks = nranks
        self._depth = depth
        self._threads = ThreadPoolExecutor(depth)
        self._place = -1, -1
        self._waiting: dict[int, Future[_Block]] = {}

    def read(self, rank: int, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with elements of one rank, from `start` on; an error is raised when it is the rank's turn."""
        if self._place != (start, len(block)):
            self._forget()
            self._place = start, len(block)
        for other in range(rank, min(rank + self._depth, self._nranks)):
            if other not in self._waiting:
                self._waiting[other] = self._threads.submit(self._one, other, start, len(block), block.dtype)
        block[...], there = self._waiting.pop(rank).result()
        return there

    def _one(self, rank: int, start: int, count: int, form: np.dtype) -> _Block:
        block = np.empty(count, form)
        return block, self._read(rank, start, block)

    def _forget(self) -> list[Future[_Block]]:
        """Ask for nothing more, and return what cannot be stopped."""
        under_way = [future for future in self._waiting.values() if not future.cancel()]
        self._waiting.clear()
        return under_way

    def close(self) -> None:
        """End the threads. One that is left waits for an answer that may never come, and only reads."""
        wait(self._forget(), _PATIENCE)
        self._threads.shutdown(wait=False, cancel_futures=True)
