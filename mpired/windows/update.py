"""The elements of a window: the op combines others into them, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpired import cautions, ops
from mpired.datatypes.datatype import tail
from mpired.files import calls
from mpired.files.update import Update
from mpired.formats import Array
from mpired.formats.convert import as_in
from mpired.ops import overflow
from mpired.ops.overflow import Overflow
from mpired.windows.elements import BatchElements
from mpired.windows.origin import Origin, gathered, scattered
from mpired.windows.placement import WindowShare
from mpired.windows.runs import Batch


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
        stored = _read(batch, window, update.source)
        elements = as_in(window.datatype.form, stored.elements(window.stored), window.datatype)
        not_null, marks = _not_null(elements, batch, window, update.source) if window.nullable else (None, None)
        if not origins:
            if fetched is not None:
                old = elements if not_null is None else np.ma.MaskedArray(elements, ~not_null)
                for turn in batch.rounds:
                    fetched[turn.origin] = old if turn.where is None else old[turn.where]
            continue
        held = BatchElements(elements, not_null, op, window.datatype)
        for rank, origin in enumerate(origins):
            found += _combined(held, batch, origin, fetched, rank)
            yield elements.nbytes
        elements, not_null = held.results(window)
        nmasked += 0 if window.marked is None else window.marked.hidden(elements, not_null)
        stored.change(as_in(window.stored, elements, window.datatype), update)
        if marks is not None and not_null is not None:
            marks.change(not_null, update)
    for each in overflow.by_op(found):
        overflow.tell(op, window.datatype, each, [origin.name for origin in origins], buffer)
    if nunset := sum(origin.nunset for origin in origins):
        cautions.tell(cautions.unset(nunset, origins[0].array.name, "give the origins a `_FillValue`"))
    if nmasked and window.marked is not None:
        cautions.tell(cautions.masked(nmasked, window.name, window.marked.text))


class _Stored(NamedTuple):
    """The bytes of a batch."""

    octets: np.ndarray
    at: np.ndarray | None  # see `Batch`
    pieces: list[tuple[memoryview, int]]  # for each range its part of them, and its offset in the file

    def elements(self, form: np.dtype) -> np.ndarray:
        """Return the elements, in an array of their own."""
        return gathered(self.octets, self.at, form)

    def change(self, elements: np.ndarray, update: Update) -> None:
        """Give an update the bytes with other elements."""
        scattered(self.octets, self.at, elements)
        for data, offset in self.pieces:
            update.write(data, offset)


def _read(batch: Batch, window: Array, fd: int) -> _Stored:
    """Return the bytes of a batch."""
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
    return _Stored(octets, batch.at, pieces)


def _not_null(elements: np.ndarray, batch: Batch, window: Array, fd: int) -> tuple[np.ndarray | None, _Stored | None]:
    """Return which elements are there, None for all, and the bytes that say so, None if their values do."""
    if window.validity is None:
        return None if window.marked is None else window.marked.present(elements), None
    rows, form = batch.of_rows(window.source.name, window.stored.itemsize), np.dtype(np.bool_)
    stored = _read(rows, window._replace(offset=window.validity, stored=form), fd)
    return stored.elements(form), stored


def _combined(
    elements: BatchElements, batch: Batch, origin: Origin, fetched: np.ndarray | None, rank: int
) -> Iterator[Overflow]:
    """Combine an origin into the elements of a batch, and yield what overflowed."""
    for turn in batch.rounds:
        overflowed = elements.combine(turn, origin, fetched)
        if overflowed is not None:
            first = int(np.arange(origin.count)[turn.origin][overflowed.argmax()])
            yield Overflow(int(np.count_nonzero(overflowed)), 0, first, rank)
