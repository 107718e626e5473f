"""The elements of a window: the op combines others into them, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import numpy as np

from mpired import cautions, ops
from mpired.datatypes.datatype import tail
from mpired.files import calls
from mpired.files.update import Update
from mpired.formats import Array
from mpired.formats.convert import as_in
from mpired.ops import overflow
from mpired.ops.overflow import Overflow, steps
from mpired.ops.running import run
from mpired.windows.origin import Origin, gathered, scattered
from mpired.windows.placement import WindowShare
from mpired.windows.runs import Batch, Round


def fold(
    share: WindowShare,
    op: ops.Op,
    origins: Sequence[Origin],
    update: Update,
    fetched: np.ndarray | None,
    buffer: str = "",
) -> Generator[int, None, None]:
    """Combine origins into a window, one after another, and give the new bytes to an update; then warn."""
    # Yields the bytes of the elements that an origin was combined into. `buffer` is the name of the window for
    # warnings, if it is one of several in its file.
    window, found, nmasked = share.window, list[Overflow](), 0
    for batch in share.access.batches():
        octets, pieces = _read(batch, window, update.source)
        elements = as_in(window.datatype.form, gathered(octets, batch.at, window.stored), window.datatype)
        if not origins:
            if fetched is not None:
                for turn in batch.rounds:
                    fetched[turn.origin] = elements if turn.where is None else elements[turn.where]
            continue
        for rank, origin in enumerate(origins):
            elements, overflows = _combined(elements, batch, op, origin, fetched)
            found += [each._replace(rank=rank) for each in overflows]
            yield elements.nbytes
        nmasked += 0 if window.marked is None else window.marked.hidden(elements, None)
        scattered(octets, batch.at, as_in(window.stored, elements, window.datatype))
        for data, offset in pieces:
            update.write(data, offset)
    for each in overflow.by_op(found):
        overflow.tell(op, window.datatype, each, [origin.name for origin in origins], buffer)
    if nunset := sum(origin.nunset for origin in origins):
        cautions.tell(cautions.unset(nunset, origins[0].array.name, "give the origins a `_FillValue`"))
    if nmasked and window.marked is not None:
        cautions.tell(cautions.masked(nmasked, window.name, window.marked.text))


def _read(batch: Batch, window: Array, fd: int) -> tuple[np.ndarray, list[tuple[memoryview, int]]]:
    """Return the bytes of a batch, and for each range its part of them and its offset in the file."""
    # Without the padding of its last element: a window may end there (MPI-4.1, 5.1.6), or another element begin.
    octets = np.zeros(sum(stop - start for start, stop in batch.ranges), np.uint8)
    at, behind, pieces = 0, tail(window.stored), []
    for start, stop in batch.ranges:
        pieces.append((octets[at : at + stop - start - behind].data, window.offset + start))
        at += stop - start
    with calls.errors_name(window.source.name):
        for data, offset in pieces:
            if calls.pread_into(fd, data, offset) < len(data):
                raise window.source.changed()
    return octets, pieces


def _combined(
    elements: np.ndarray, batch: Batch, op: ops.Op, origin: Origin, fetched: np.ndarray | None
) -> tuple[np.ndarray, list[Overflow]]:
    """Return the elements of a batch after an origin was combined into them, and what overflowed."""
    found = []
    for turn in batch.rounds:
        combine = _one_by_one if isinstance(turn.where, slice) else _at_once
        elements, overflowed = combine(elements, turn, op, origin, fetched)
        if overflowed is not None:
            first = int(np.arange(origin.count)[turn.origin][overflowed.argmax()])
            found.append(Overflow(int(np.count_nonzero(overflowed)), 0, first, 0))
    return elements, found


def _at_once(
    elements: np.ndarray, turn: Round, op: ops.Op, origin: Origin, fetched: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the elements after each of a round was combined with one of the origin, and which of these overflowed."""
    old = elements if turn.where is None else elements[turn.where]
    if fetched is not None:
        fetched[turn.origin] = old
    making, unset = steps(op, origin.datatype), origin.array.unset
    read = partial(origin.read, turn.origin)
    # The target is the lower operand, so that accumulating ranks gives the bits of reducing them after it.
    with making.watching():
        values = read()
        origin.nunset += 0 if unset is None else int(np.count_nonzero(values == unset))
        new, overflowed = making(old, values, read)
        new = op.lower(new, origin.datatype)
    if turn.where is None:
        return new, overflowed
    elements[turn.where] = new
    return elements, overflowed


def _one_by_one(
    elements: np.ndarray, turn: Round, op: ops.Op, origin: Origin, fetched: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the elements after one of them was combined with many of the origin, and which of these overflowed."""
    values = origin.read(turn.origin)
    before = np.concatenate([elements[turn.where], values[:-1]])
    making = steps(op, origin.datatype)
    with making.watching():
        run(op, before, origin.datatype)
        op.lower(before[1:], origin.datatype)
        if fetched is not None:
            fetched[turn.origin] = before
        # All steps again, each for itself, tell which of them overflow.
        new, overflowed = making(before, values, partial(origin.read, turn.origin))
    elements[turn.where] = op.lower(new[-1:], origin.datatype)
    return elements, overflowed
