"""The elements of a window: the op combines others into them, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from mpired import ops
from mpired.buffers import FlatBuffer
from mpired.buffers.flat import convert, in_form, lies_as
from mpired.datatypes import Datatype
from mpired.ops.overflow import Overflow, steps, total
from mpired.ops.running import run
from mpired.storage import calls
from mpired.storage.update import Update
from mpired.windows.origin import Origin, gathered, scattered
from mpired.windows.runs import Access, Batch, Chain, Round


class Share(NamedTuple):
    """One window's part of a request.

    Parameters
    ----------
    window
        Its file.
    access
        The elements that are changed.
    shape
        That of the elements, in the order of the window; None if they have none of their own.
    buffer
        Which of the buffers of a file the window is.
    """

    window: FlatBuffer
    access: Access
    shape: tuple[int, ...] | None = None
    buffer: int = 0

    @property
    def fetched_shape(self) -> tuple[int, ...] | None:
        """The shape of the elements when they are fetched; None of a window that has none."""
        if self.shape is not None or self.window.shape is None:
            return self.shape
        return self.window.shape if self.access.entries == self.window.count else (self.access.entries,)

    @property
    def nbytes(self) -> int:
        """Bytes of the window, the padding of its last element included."""
        elements = self.window.count * self.window.stored.itemsize
        if self.window.shape is not None:
            return elements
        return max(elements, self.window.source.nbytes - self.window.offset)  # a raw file is a window of bytes


def fold(
    share: Share, op: ops.Op, origins: Sequence[Origin], update: Update, fetched: np.ndarray | None
) -> Generator[int, None, tuple[Overflow | None, int]]:
    """Combine origins into a window, one after another, and give the new bytes to an update.

    Yields the bytes of the elements as an origin was combined into them. Returns what overflowed, and how many elements
    mean by their values to readers of the file that they are missing.

    Parameters
    ----------
    share
        The window and its elements.
    op
        What combines: `target op origin`, in the order of the origins.
    origins
        What is combined; all have as many elements. Without any the elements are only read.
    update
        Takes the new bytes.
    fetched
        Takes the old elements, at the positions of the origin's; None if they are not wanted.
    """
    window = share.window
    end = _end(window)
    found: list[Overflow] = []
    hidden = 0
    for batch in share.access.batches():
        octets = _read(update.source, batch, window, end)
        old = gathered(octets, batch.at, window.stored)
        elements = _native(old, window.datatype)
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
        scattered(octets, batch.at, _with_padding_of(old, elements, window.datatype))
        _write(update, octets, batch, window.offset, end)
    return total(found), hidden


def _end(window: FlatBuffer) -> int | None:
    """Return the size of a raw file whose last element lacks its padding (MPI-4.1, 5.1.6); None of any other."""
    size = window.source.nbytes
    return size if window.shape is None and window.end > size else None


def _read(fd: int, batch: Batch, window: FlatBuffer, end: int | None) -> np.ndarray:
    octets = np.zeros(sum(stop - start for start, stop in batch.ranges), np.uint8)
    at = 0
    with calls.blaming(window.source.name):
        for start, stop in batch.ranges:
            there = stop - start if end is None else min(stop, end - window.offset) - start
            if calls.pread_into(fd, octets[at : at + there].data, window.offset + start) < there:
                raise window.source.changed()
            at += stop - start
    return octets


def _write(update: Update, octets: np.ndarray, batch: Batch, offset: int, end: int | None) -> None:
    at = 0
    for start, stop in batch.ranges:
        there = stop - start if end is None else min(stop, end - offset) - start
        update.write(octets[at : at + there].data, offset + start)
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
        new, overflowed = making(old, read(), read)
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


def _native(stored: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return a copy of elements of a file in the native form."""
    # A structure in a file has the names that its writer chose.
    return stored.copy().view(datatype.form) if lies_as(stored.dtype, datatype) else in_form(stored, datatype.form)


def _with_padding_of(stored: np.ndarray, elements: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return elements in the form of the file, the bytes that carry no value as they were there."""
    if not lies_as(stored.dtype, datatype):
        new = stored.copy()
        convert(elements, new, "an element", 0)
        return new
    for gap in datatype.padding:
        octets, kept = (each.view(np.uint8).reshape(-1, datatype.extent) for each in (elements, stored))
        octets[:, gap] = kept[:, gap]
    return elements.view(stored.dtype)
