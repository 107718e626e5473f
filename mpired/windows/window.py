"""A target file as a window: its elements in place, and the op that combines others into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpired import ops
from mpired.buffers import Declared, FlatBuffer, open_rank, recognise
from mpired.buffers.flat import convert, lies_as
from mpired.buffers.raw import stored_form
from mpired.buffers.source import Source
from mpired.datatypes import Datatype
from mpired.errors import BufferFileError, UsageError
from mpired.storage import calls
from mpired.storage.lock import Target
from mpired.storage.update import Update
from mpired.windows.address import Access, Batch
from mpired.windows.origin import Origin, gathered, in_form, scattered


def open_window(target: Target, declared: Declared) -> FlatBuffer:
    """Look at the header of a locked file.

    Parameters
    ----------
    target
        The file.
    declared
        The datatype of its elements, and the byte order of a raw file.

    Returns
    -------
    FlatBuffer
        The window: its bytes begin at `offset`. The elements of a raw file are as many as fit.

    Raises
    ------
    MpiredError
        If the file is damaged, is not of the datatype, or has a format that is not changed in place.
    """
    source = Source.of(target.name, target.path)
    row = recognise(source, declared)
    if row.name == "raw":
        if declared.datatype is None:
            raise UsageError(target.name, "is raw binary, which says nothing of its elements; give --type")
        stored = stored_form(declared)
        return FlatBuffer(source, declared.datatype, source.nbytes // stored.itemsize, stored)
    file = open_rank(target.path, declared)
    buffer = file.only_buffer(row.name)
    if not isinstance(buffer, FlatBuffer):
        raise UsageError(target.name, f"{row.name} is rewritten whole")
    if buffer.source.stamp != source.stamp:
        raise BufferFileError(target.name, "changed while being read; something writes to it without the lock")
    return buffer


class Share(NamedTuple):
    """One window's part of a request.

    Parameters
    ----------
    window
        Its file.
    access
        The elements that are changed.
    """

    window: FlatBuffer
    access: Access

    @property
    def nbytes(self) -> int:
        """Bytes of the window."""
        window = self.window
        return (
            max(window.source.nbytes - window.offset, 0)
            if window.shape is None
            else window.count * window.stored.itemsize
        )


def fold(share: Share, op: ops.Op, origins: Sequence[Origin], update: Update, fetched: np.ndarray | None) -> None:
    """Combine origins into a window, one after another, and give the new bytes to an update.

    Parameters
    ----------
    share
        The window and its elements.
    op
        What combines: `target op origin`, in the order of the origins.
    origins
        What is combined; all have as many elements.
    update
        Takes the new bytes.
    fetched
        Takes the old elements, at the positions of the origin's; None if nobody wants them.
    """
    for batch in share.access.batches():
        octets = _read(update.source, batch, share.window)
        old = gathered(octets, batch.at, share.window.stored)
        new = _combined(old, batch, op, origins, share.window.datatype, fetched)
        scattered(octets, batch.at, new)
        _write(update, octets, batch, share.window.offset)


def _read(fd: int, batch: Batch, window: FlatBuffer) -> np.ndarray:
    octets = np.empty(sum(stop - start for start, stop in batch.ranges), np.uint8)
    at = 0
    with calls.blaming(window.source.name):
        for start, stop in batch.ranges:
            if calls.pread_into(fd, octets[at : at + stop - start].data, window.offset + start) < stop - start:
                raise window.source.changed()
            at += stop - start
    return octets


def _write(update: Update, octets: np.ndarray, batch: Batch, offset: int) -> None:
    at = 0
    for start, stop in batch.ranges:
        update.write(octets[at : at + stop - start].data, offset + start)
        at += stop - start


def _combined(
    stored: np.ndarray,
    batch: Batch,
    op: ops.Op,
    origins: Sequence[Origin],
    datatype: Datatype,
    fetched: np.ndarray | None,
) -> np.ndarray:
    """Return the new elements of a batch in the form of the file, their padding as it was."""
    direct = lies_as(stored.dtype, datatype)
    elements = stored.copy() if direct else in_form(stored, datatype.form)
    changed = False
    for origin in origins:
        for turn in batch.rounds:
            where, index = turn.where, turn.index
            old = elements if where is None else elements[where]
            if fetched is not None:
                fetched[index] = old
            if op.name != "NO_OP":
                new = applied(op, old.copy(), origin.read(index), datatype)
                changed = True
                if where is None:
                    elements = new
                else:
                    elements[where] = new
    if changed:
        with np.errstate(all="ignore"):
            op.finish(elements, datatype)
    return _with_padding_of(stored, elements, datatype)


def applied(op: ops.Op, target: np.ndarray, origin: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return `target op origin` in one of the two arrays.

    The target is the lower operand, so that accumulating ranks gives the bits of reducing them after it. REPLACE
    and NO_OP know the target as inoutvec, as in `kernels`.
    """
    lower, upper = (target, origin) if ops.Use.REDUCE in op.uses else (origin, target)
    with np.errstate(all="ignore"):  # what overflow and NaN give is defined, and no warning's business
        return op.kernel(lower, upper, datatype)


def _with_padding_of(stored: np.ndarray, elements: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return elements in the form of the file, the bytes that carry no value as they were there."""
    if stored.dtype.names is not None or not lies_as(stored.dtype, datatype):
        new = stored.copy()
        convert(elements, new)
        return new
    for gap in datatype.padding:
        octets, kept = (each.view(np.uint8).reshape(-1, datatype.extent) for each in (elements, stored))
        octets[:, gap] = kept[:, gap]
    return elements
