"""The one left fold, in rank order: ((a0 o a1) o a2) ... for every op (MPI-4.1, 6.9.1).

A worker reads the same block of every rank, one after another, and combines it with what the lower
ranks gave. The parallel work is over elements, never over ranks, so the number of workers cannot
show in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpired.buffers import RankBuffer
from mpired.buffers.flat import convert, lies_as
from mpired.buffers.rank import Reader
from mpired.collectives.plan import Plan, Segment
from mpired.datatypes import Datatype
from mpired.ops import Op
from mpired.storage import calls


class Region(NamedTuple):
    """Where the result of one buffer goes: elements in the form `stored` from `offset` bytes on."""

    offset: int
    stored: np.dtype

    def position(self, element: int) -> int:
        """Return the byte offset of an element."""
        return self.offset + element * self.stored.itemsize

    def encoded(self, block: np.ndarray, datatype: Datatype, name: str, start: int) -> memoryview:
        """Return the bytes of a block of the datatype as they lie in the file `name`, from element `start` on."""
        if not lies_as(self.stored, datatype):
            stored = np.zeros(len(block), self.stored)
            convert(block, stored, name, start)
            block = stored
        return block.view(np.uint8).data


@dataclass(frozen=True)
class Fold:
    """Folds segments of a plan into a file. Picklable: it is sent once to each worker.

    Parameters
    ----------
    plan
        What is to be done.
    path
        The file that takes the results.
    name
        What messages call that file.
    regions
        For each buffer where in the file its result lies.
    """

    plan: Plan
    path: str
    name: str
    regions: tuple[Region, ...]

    def __call__(self, segment: Segment) -> int:
        """Fold one segment, write its result, and return the bytes that were read."""
        ranks, region = self.plan.buffers[segment.buffer], self.regions[segment.buffer]
        datatype, step = ranks[0].datatype, self.plan.block_counts[segment.buffer]
        blocks = [np.empty(min(step, segment.stop - segment.start), datatype.form) for _ in range(2)]
        with _Readers(ranks, self.plan.max_open) as readers, calls.opened_for_writing(self.path, self.name) as fd:
            for start in range(segment.start, segment.stop, step):
                count = min(step, segment.stop - start)
                result = _left_fold(self.plan.op, readers, start, [block[:count] for block in blocks])
                datatype.clear_padding(result)
                with calls.blaming(self.name):
                    calls.pwrite_all(fd, region.encoded(result, datatype, self.name, start), region.position(start))
        return (segment.stop - segment.start) * len(ranks) * datatype.extent


def _left_fold(op: Op, readers: _Readers, start: int, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Fold the elements from `start` on of all ranks, in two blocks by turns; return the one with the result.

    The block in which a kernel leaves its result is the lower rank's for the next; the other one is read into.
    """
    invec, inoutvec = blocks
    readers.read(0, start, invec)
    with np.errstate(all="ignore"):  # what overflow and NaN give is defined, and no warning's business
        for rank in range(1, len(readers)):
            readers.read(rank, start, inoutvec)
            if op.kernel(invec, inoutvec, readers.datatype) is inoutvec:
                invec, inoutvec = inoutvec, invec
        if len(readers) > 1:  # the result of one rank is its copy, which no op touches (MPI-4.1, 6.9.5)
            op.finish(invec, readers.datatype)
    return invec


class _Readers(AbstractContextManager["_Readers"]):
    """One buffer of every rank, the first `max_open` kept open, the others opened in turn."""

    def __init__(self, ranks: Sequence[RankBuffer], max_open: int) -> None:
        self.datatype = ranks[0].datatype
        self._ranks = ranks
        self._max_open = max_open
        self._open: dict[int, Reader] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def read(self, rank: int, start: int, block: np.ndarray) -> None:
        """Fill `block` from one rank."""
        reader = self._open.get(rank)
        if reader is not None:
            reader.read(start, block)
        elif rank < self._max_open:
            self._open[rank] = self._ranks[rank].open()
            self._open[rank].read(start, block)
        else:
            with closing(self._ranks[rank].open()) as reader:
                reader.read(start, block)

    def __exit__(self, *_: object) -> None:
        for reader in self._open.values():
            reader.close()
