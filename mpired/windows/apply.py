"""The elements of a window: the op combines others into them, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from mpired import ops
from mpired.datatypes.datatype import tail
from mpired.files import calls
from mpired.files.update import Update
from mpired.formats import Array
from mpired.formats.convert import as_in
from mpired.ops.overflow import Overflow, steps, total
from mpired.ops.running import run
from mpired.windows.origin import Origin, gathered, scattered
from mpired.windows.runs import Access, Batch, Chain, Round


class Share(NamedTuple):
    """One window's part of a request."""

    window: Array  # its file
    access: Access  # the elements that are changed
    # that of the elements, in the order of the window; None if they have none of their own
    shape: tuple[int, ...] | None = None
    buffer: int = 0  # which of the buffers of a file the window is

    @property
    def fetched_shape(self) -> tuple[int, ...] | None:
        """The shape of the elements when they are fetched; None of a window that has none."""
        if self.shape is not None or self.window.shape is None:
            return self.shape
        return self.window.shape if self.access.entries == self.window.count else (self.access.entries,)


def fold(
    share: Share, op: ops.Op, origins: Sequence[Origin], update: Update, fetched: np.ndarray | None
) -> Generator[int, None, tuple[Overflow | None, int]]:
    """Combine origins into a window, one after another, and give the new bytes to an update."""
    # Yields the bytes of the elements as an origin was combined into them. Returns what overflowed, and how many
    # elements mean by their values to readers of the file that they are missing.
    window = share.window
    found: list[Overflow] = []
    hidden = 0
    for batch in share.access.batches():
        octets = _read(update.source, batch, window)
        elements = as_in(window.datatype.form, gathered(octets, batch.at, window.stored), window.datatype)
        if fetched is not None:
            for turn in () if origins else batch.rounds:
                fetched[turn.index] = elements if turn.where is None else elements[turn.where]
        for rank, origin in enumerate(origins):
            for turn in batch.rounds:
                if isinstance(turn, Chain):
                    elements, overflowed = _chained(elements, turn, op, origin, fetched)
                else:
                    elements, overflowed = _one_round(elements, turn, op, origin, fetched)
                if overflowed is not None:
                    first = int(np.arange(origin.count)[turn.index][overflowed.argmax()])
                    found.append(Overflow(int(np.count_nonzero(overflowed)), 0, first, rank))
            yield elements.nbytes
        if origins:
            hidden += 0 if window.marked is None else window.marked.hidden(elements, None)
        scattered(octets, batch.at, as_in(window.stored, elements, window.datatype))
        for data, offset in _stretches(octets, batch, window):
            update.write(data, offset)
    return total(found), hidden


def _read(fd: int, batch: Batch, window: Array) -> np.ndarray:
    octets = np.zeros(sum(stop - start for start, stop in batch.ranges), np.uint8)
    with calls.blaming(window.source.name):
        for data, offset in _stretches(octets, batch, window):
            if calls.pread_into(fd, data, offset) < len(data):
                raise window.source.changed()
    return octets


def _stretches(octets: np.ndarray, batch: Batch, window: Array) -> Iterator[tuple[memoryview, int]]:
    """Yield where each range of a batch is in its bytes and in the file, without the padding of its last element."""
    # A window may end there (MPI-4.1, 5.1.6), or another element begin.
    at, behind = 0, tail(window.stored)
    for start, stop in batch.ranges:
        yield octets[at : at + stop - start - behind].data, window.offset + start
        at += stop - start


def _one_round(
    elements: np.ndarray, turn: Round, op: ops.Op, origin: Origin, fetched: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the elements after each of a round was combined with one of the origin, and which of these overflowed."""
    old = elements if turn.where is None else elements[turn.where]
    if fetched is not None:
        fetched[turn.index] = old
    making = steps(op, origin.datatype)
    read = partial(origin.read, turn.index)
    # The target is the lower operand, so that accumulating ranks gives the bits of reducing them after it.
    with making.watching():
        values = read()
        origin.nunset += 0 if origin.unset is None else int(np.count_nonzero(values == origin.unset))
        new, overflowed = making(old, values, read)
        new = op.lower(new, origin.datatype)
    if turn.where is None:
        return new, overflowed
    elements[turn.where] = new
    return elements, overflowed


def _chained(
    elements: np.ndarray, chain: Chain, op: ops.Op, origin: Origin, fetched: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the elements after one of them was combined with all of a chain, and which of these steps overflowed."""
    read = partial(origin.read, chain.index)
    before = np.concatenate([elements[chain.where : chain.where + 1], read()[:-1]])
    making = steps(op, origin.datatype)
    with making.watching():
        run(op, before, origin.datatype)
        op.lower(before[1:], origin.datatype)
        if fetched is not None:
            fetched[chain.index] = before
        # All steps again, each for itself, tell which of them overflow.
        new, overflowed = making(before, read(), read)
    elements[chain.where] = op.lower(new[-1:], origin.datatype)[0]
    return elements, overflowed
