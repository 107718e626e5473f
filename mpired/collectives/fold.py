"""The one left fold, in rank order: ((a0 o a1) o a2) ... for every op (MPI-4.1, 6.9.1).

A worker reads the same block of every rank, one after another, and combines it with what the lower
ranks gave. The parallel work is over elements, never over ranks, so the number of workers cannot
show in the result. Every partial result that somebody gets is written when the fold is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from mpired.buffers import FlatBuffer, RankBuffer
from mpired.buffers.flat import convert, lies_as
from mpired.buffers.rank import Reader
from mpired.collectives.plan import Plan, Segment
from mpired.collectives.table import BEFORE, Share
from mpired.datatypes import Datatype
from mpired.datatypes.datatype import gaps
from mpired.ops import Op, neutral
from mpired.ops.overflow import Overflow, Steps, steps, total
from mpired.storage import calls

_PAGE = 4096
# How far the work is, is told after so many bytes: seldom enough to cost nothing.
_PIECE_BYTES = 32 << 20


class Region(NamedTuple):
    """Where the result of one buffer goes.

    Parameters
    ----------
    offset
        Bytes before the first element.
    stored
        The form of the elements there.
    kept
        The buffer that they replace, if the bytes between the entries of its elements are to stay.
    end
        Where the file is to end or go on with something else, if the padding of the last element may go beyond.
    """

    offset: int
    stored: np.dtype
    kept: FlatBuffer | None = None
    end: int | None = None

    def position(self, element: int) -> int:
        """Return the byte offset of an element."""
        return self.offset + element * self.stored.itemsize

    def encoded(self, block: np.ndarray, datatype: Datatype, name: str, start: int) -> memoryview:
        """Return the bytes of a block of the datatype as they lie in the file `name`, from element `start` on."""
        if not lies_as(self.stored, datatype):
            stored = np.zeros(len(block), self.stored)
            convert(block, stored, name, start)
            block = stored
        if self.kept is not None:
            block = _with_gaps_of(self.kept, block, start)
        octets: memoryview = block.view(np.uint8).data
        return octets if self.end is None else octets[: self.end - self.position(start)]


def _with_gaps_of(buffer: FlatBuffer, block: np.ndarray, start: int) -> np.ndarray:
    """Return elements with the bytes that carry no value as they are in a file, from element `start` on."""
    new = block.copy()
    octets, old = new.view(np.uint8).reshape(-1, block.itemsize), np.zeros((len(block), block.itemsize), np.uint8)
    with closing(buffer.open()) as reader, calls.blaming(buffer.source.name):
        reader.file.read_into(old.reshape(-1).data, buffer.offset + start * block.itemsize)
    for gap in gaps(block.dtype):
        octets[:, gap] = old[:, gap]
    return new


class Part(NamedTuple):
    """What came of a piece of a segment: the bytes that were read, and the overflow that was found."""

    nbytes: int
    overflow: Overflow | None


class Target(NamedTuple):
    """A file that takes a share of the result.

    Parameters
    ----------
    file
        The file.
    name
        What messages call it.
    share
        Which part of which partial result.
    regions
        For each buffer where in the file its part lies.
    soon
        Whether the file is to be on the disk soon, so that writing it out may begin.
    """

    file: calls.SharedFile
    name: str
    share: Share
    regions: tuple[Region, ...]
    soon: bool = False


@dataclass(frozen=True)
class Fold:
    """Folds segments of a plan into files. Picklable: it is sent once to each worker.

    Parameters
    ----------
    plan
        What is to be done.
    targets
        The files that take the results.
    """

    plan: Plan
    targets: tuple[Target, ...]

    def __call__(self, segment: Segment) -> Generator[Part, None, None]:
        """Fold one segment, and write its results; yield what came of each piece of it."""
        op, ranks = self.plan.op, self.plan.buffers[segment.buffer]
        datatype, step = ranks[0].datatype, self.plan.block_counts[segment.buffer]
        state, result = op.state(datatype), op.result(datatype)
        blocks = [_block(min(step, segment.stop - segment.start), state.form) for _ in range(2)]
        making, nbytes = steps(op, state), 0
        if segment.start == 0:
            op.begin()
        found: list[Overflow | None] = []
        with (
            (_Readers if op.lift is None else _LiftingReaders)(ranks, self.plan.max_open, op) as readers,
            _Writers(self.targets, segment.buffer, self.plan.max_open) as writers,
        ):
            for start in range(segment.start, segment.stop, step):
                count = min(step, segment.stop - start)
                current = [block[:count] for block in blocks]
                found.append(_left_fold(making, readers, start, current, writers.at(start, result)))
                nbytes += count * len(ranks) * datatype.itemsize
                if nbytes >= _PIECE_BYTES:
                    yield _part(nbytes, found, segment)
                    nbytes, found = 0, []
        yield _part(nbytes, found, segment)


def _part(nbytes: int, found: Sequence[Overflow | None], segment: Segment) -> Part:
    overflow = total(found)
    return Part(nbytes, overflow and overflow._replace(buffer=segment.buffer))


def _block(count: int, form: np.dtype) -> np.ndarray:
    """Return an array that starts on a page: the kernel copies to there fastest, and SIMD crosses no cache line."""
    room = np.empty(count * form.itemsize + _PAGE, np.uint8)
    start = -room.ctypes.data % _PAGE
    return room[start : start + count * form.itemsize].view(form)


_Sinks = Mapping[int, Callable[[np.ndarray], None]]
"""What takes the partial result after a rank, by rank."""


def _left_fold(
    making: Steps, readers: _Readers, start: int, blocks: Sequence[np.ndarray], sinks: _Sinks
) -> Overflow | None:
    """Fold the elements from `start` on of all ranks, in two blocks by turns, and return what overflowed.

    The block in which a kernel leaves its result is the lower rank's for the next; the other one is read into.
    """
    op, datatype = making.op, readers.datatype
    running, spare = blocks
    making.begin()
    found = []
    with making.watching():
        if BEFORE in sinks:
            running[...] = neutral(op, datatype)
            sinks[BEFORE](op.lower(running, datatype))
        readers.read(0, start, running)
        for rank in range(len(readers)):
            if rank:
                readers.read(rank, start, spare)
                result, overflowed = making(running, spare, partial(readers.again, rank, start, len(spare)))
                if overflowed is not None:
                    found.append(Overflow.at(overflowed, start, rank))
                if result is spare:
                    running, spare = spare, running
            if rank in sinks:
                # The result of one rank is its copy, which no op touches (MPI-4.1, 6.9.5), unless it is a state.
                sinks[rank](op.lower(running, datatype) if rank or op.lift else running)
    return total(found)


class _Readers(AbstractContextManager["_Readers"]):
    """One buffer of every rank, the first `max_open` kept open, the others opened in turn."""

    def __init__(self, ranks: Sequence[RankBuffer], max_open: int, op: Op) -> None:
        self.datatype = ranks[0].datatype
        self._op = op
        self._ranks = ranks
        self._max_open = max_open
        self._open: dict[int, Reader] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def read(self, rank: int, start: int, block: np.ndarray) -> None:
        """Fill `block` with what one rank gives to the fold, from the element `start` on."""
        reader = self._open.get(rank)
        if reader is not None:
            reader.read(start, block)
        elif rank < self._max_open:
            self._open[rank] = self._ranks[rank].open()
            self._open[rank].read(start, block)
        else:
            with closing(self._ranks[rank].open()) as reader:
                reader.read(start, block)

    def again(self, rank: int, start: int, count: int) -> np.ndarray:
        """Return what one rank gives in an array of its own."""
        block = np.empty(count, self._op.state(self.datatype).form)
        self.read(rank, start, block)
        return block

    def __exit__(self, *_: object) -> None:
        for reader in self._open.values():
            reader.close()


class _LiftingReaders(_Readers):
    """The same for an op whose state is not the element: what is read is lifted into states."""

    def __init__(self, ranks: Sequence[RankBuffer], max_open: int, op: Op) -> None:
        super().__init__(ranks, max_open, op)
        self._elements = _block(0, self.datatype.form)

    def read(self, rank: int, start: int, block: np.ndarray) -> None:
        """Fill `block` with the states of one rank's elements, from the element `start` on."""
        assert self._op.lift is not None  # noqa: S101 - the fold has looked
        if len(self._elements) < len(block):
            self._elements = _block(len(block), self.datatype.form)
        elements = self._elements[: len(block)]
        super().read(rank, start, elements)
        self._op.lift(elements, block, self.datatype)


class _Writers(AbstractContextManager["_Writers"]):
    """The files that take the results of one buffer, the first `max_open` kept open, the others opened in turn."""

    def __init__(self, targets: Sequence[Target], buffer: int, max_open: int) -> None:
        self._buffer = buffer
        self._max_open = max_open
        self._open: dict[calls.SharedFile, int] = {}
        self._by_last: dict[int, list[Target]] = {}
        for target in targets:
            self._by_last.setdefault(target.share.last, []).append(target)

    def at(self, start: int, datatype: Datatype) -> _Sinks:
        """Return what takes the partial results, of a datatype, of the block that begins with the element `start`."""

        def sink(targets: list[Target]) -> Callable[[np.ndarray], None]:
            return lambda block: self._write(targets, start, block, datatype)

        return {last: sink(targets) for last, targets in self._by_last.items()}

    def _write(self, targets: Sequence[Target], start: int, block: np.ndarray, datatype: Datatype) -> None:
        datatype.clear_padding(block)
        for target in targets:
            low, high = max(start, target.share.start), min(start + len(block), target.share.stop)
            if low < high:
                region = target.regions[self._buffer]
                first = low - target.share.start
                data = region.encoded(block[low - start : high - start], datatype, target.name, first)
                self._write_to(target, data, region.position(first))

    def _write_to(self, target: Target, data: memoryview, offset: int) -> None:
        with calls.blaming(target.name):
            fd = self._open.get(target.file)
            opened = target.file.open() if fd is None else fd
            try:
                calls.pwrite_all(opened, data, offset)
                if target.soon:
                    calls.start_writing_out(opened, offset, len(data))
            finally:
                if fd is None and len(self._open) < self._max_open:
                    self._open[target.file] = opened
                elif fd is None:
                    os.close(opened)

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
