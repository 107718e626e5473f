"""The elements of a window: the op combines others into them, batch by batch, with the rules for missing ones."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import log, ops
from mpired.datatypes import Datatype
from mpired.datatypes.datatype import gaps, tail
from mpired.errors import RangeError
from mpired.files import calls
from mpired.files.update import Update
from mpired.formats import Array
from mpired.formats.convert import as_in
from mpired.formats.missing import masked, null_error
from mpired.ops.op import Overflow, Steps, by_op, run, tell_overflow
from mpired.ops.state import Elements, absent, valid_of
from mpired.ops.table import REPLACE
from mpired.windows.origin import Origin, at_each_byte, gathered
from mpired.windows.placement import Batch, Round, Runs
from mpired.windows.targets import WindowFile


def fold(
    file: WindowFile, share: tuple[int, Runs], op: ops.Op, origins: Sequence[Origin], fetched: np.ndarray | None
) -> Generator[int, None, None]:
    """Combine origins into a share of a file, one after another, and give it the new bytes; then warn."""
    # Yields the bytes of the elements that an origin was combined into.
    number, runs = share
    window, fd, found, nmasked = file.windows[number], file.fd, list[Overflow](), 0
    for batch in runs.batches():
        stored = _read(batch, window, fd)
        elements = as_in(window.datatype.form, gathered(stored.octets, stored.at, window.stored), window.datatype)
        not_null, marks = _not_null(elements, batch, window, fd)
        _check_valid(not_null, window, op)
        if not origins and fetched is not None:
            old = elements if not_null is None else masked(elements, ~not_null)
            for turn in batch.rounds:
                fetched[turn.origin] = old if turn.where is None else old[turn.where]
            continue
        held = BatchElements(elements, not_null, op, window.datatype)
        for rank, origin in enumerate(origins):
            found += held.combine(batch, origin, fetched, rank)
            yield elements.nbytes
        elements, not_null = held.results(window) if op.rules.leaves_out else (held.elements, None)
        nmasked += 0 if window.marked is None else window.marked.hidden(elements, not_null)
        if file.update is not None:
            stored.change(as_in(window.stored, elements, window.datatype), file.update)
            if marks is not None and not_null is not None and window.nullable:
                marks.change(not_null, file.update)
    name = window.name if len(file.shares) > 1 else ""
    for each in by_op(found) if found else ():
        tell_overflow(op, window.datatype, each, [origin.name for origin in origins], name)
    if nunset := sum(origin.nunset for origin in origins):
        log.warn(log.unset(nunset, origins[0].array.name, "give the origins a `_FillValue`"))
    if nmasked and window.marked is not None:
        log.warn(log.masked(nmasked, window.name, window.marked.text))


def _check_valid(valid: np.ndarray | None, array: Array, op: ops.Op) -> None:
    """Raise an error if some of the elements that are combined are missing, which is one by the rules of the op."""
    if op.rules.nulls == "error" and valid is not None and not valid.all():
        what = "nulls" if array.missing is array.marked is None else "missing elements"
        raise null_error(array.source, array.columns, int(np.count_nonzero(~valid)), what)


class _Stored(NamedTuple):
    """The bytes of a batch."""

    octets: np.ndarray
    at: np.ndarray | None  # see `Batch`
    pieces: list[tuple[memoryview, int]]  # for each range its part of them, and its offset in the file

    def change(self, elements: np.ndarray, update: Update) -> None:
        """Write the bytes with other elements, but for those bytes that carry no value; offsets ascend."""
        itemsize, source, unused = elements.itemsize, elements.view(np.uint8), gaps(elements.dtype)
        bounds = [0, *(bound for gap in unused for bound in (gap.start, gap.stop)), itemsize]
        if self.at is None and not unused:
            self.octets[:] = source
            bounds = []
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            if start < stop:
                where = slice(start, None, itemsize) if self.at is None else self.at + start
                at_each_byte(self.octets, stop - start)[where] = at_each_byte(source, stop - start)[start::itemsize]
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
    itemsize, form = window.stored.itemsize, np.dtype(np.bool_)  # each row has a byte
    if any(bound % itemsize for both in batch.ranges for bound in both):
        reason = f"may have nulls, and the request does not begin at one of its {itemsize}-byte rows"
        raise RangeError(window.source.name, reason)
    ranges = [(start // itemsize, stop // itemsize) for start, stop in batch.ranges]
    rows = Batch(ranges, None if batch.at is None else batch.at // itemsize, batch.rounds)
    stored = _read(rows, window._replace(offset=window.validity, stored=form), fd)
    return gathered(stored.octets, stored.at, form), stored


class BatchElements:
    """The elements of a batch. If the op leaves some out, masks say which have a value, and which are null."""

    # As in reductions, those without a value take the first one that an origin has. What an op has computed is a value,
    # whatever it is equal to.

    def __init__(self, elements: np.ndarray, not_null: np.ndarray | None, op: ops.Op, datatype: Datatype) -> None:
        self.elements, self._op, self._datatype = elements, op, datatype
        self._are_masked = op.rules.leaves_out
        self._propagates, self._replaces = op.rules.nulls == "propagate", op.kernel is REPLACE.kernel
        if self._are_masked:
            self._valid, self._null = self._masks(elements, not_null)

    def _masks(self, elements: np.ndarray, not_null: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return which elements have a value that is not left out, and which are null."""
        valid = valid_of(elements, not_null, self._datatype, self._op)
        null = np.zeros(len(elements), np.bool_) if not_null is None else ~not_null
        return np.ones(len(elements), np.bool_) if valid is None else valid, null

    def combine(self, batch: Batch, origin: Origin, fetched: np.ndarray | None, rank: int) -> Iterator[Overflow]:
        """Combine them with those of an origin, of a rank, and yield what overflowed."""
        for turn in batch.rounds:
            where = slice(None) if turn.where is None else turn.where
            values, not_null = origin.read(turn.origin)
            _check_valid(not_null, origin.array, self._op)
            if origin.array.unset is not None:
                origin.nunset += int(np.count_nonzero(values == origin.array.unset))
            making = Steps(self._op, self._datatype)  # which knows the bounds of the elements of one round
            with np.errstate(all="ignore"):  # NaN and infinity have defined results
                if isinstance(turn.where, slice):
                    overflowed = self._one_by_one(turn, values, not_null, making, fetched)
                else:
                    old = self.elements[where]
                    if fetched is not None:
                        fetched[turn.origin] = np.ma.MaskedArray(old, self._null[where]) if self._are_masked else old
                    if self._are_masked:
                        new, overflowed = self._of_those_with_values(where, values, not_null, making)
                    else:
                        # The target is the lower operand: accumulating ranks gives the bits of reducing them after it.
                        new, overflowed = making(old, values, partial(lambda index: origin.read(index)[0], turn.origin))
                        new = self._op.lower(new, self._datatype)
                    if turn.where is None:
                        self.elements = new
                    else:
                        self.elements[where] = new
            if overflowed is not None:
                first = int(np.arange(origin.count)[turn.origin][overflowed.argmax()])
                yield Overflow(int(np.count_nonzero(overflowed)), 0, first, rank)

    def _of_those_with_values(
        self, where: slice | np.ndarray, values: np.ndarray, not_null: np.ndarray | None, making: Steps
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return elements combined with others where both have a value, and which of them overflowed."""
        old, valid, null = self.elements[where], self._valid[where], self._null[where]
        new, lacking = self._masks(values, not_null)
        (both,), taken = np.nonzero(valid & new), new & ~valid
        result, overflowed = making(old[both], values[both], lambda: values[both])
        old[both] = self._op.lower(result, self._datatype)
        old[taken] = values[taken]
        null = ~(valid | new) | ((lacking if self._replaces else null | lacking) & self._propagates)
        self._valid[where], self._null[where] = valid | new, null
        return old, _among(both, overflowed, ~null)

    def _one_by_one(
        self, turn: Round, values: np.ndarray, not_null: np.ndarray | None, making: Steps, fetched: np.ndarray | None
    ) -> np.ndarray | None:
        """Combine one element with many, one after another, and return which of the steps overflowed."""
        at: Any = turn.where
        if not self._are_masked:
            states, overflowed = self._chain(np.concatenate([self.elements[at], values]), making)
            old = states[:-1]
        else:
            new, lacking = self._masks(values, not_null)
            some = np.concatenate([self.elements[at][self._valid[at]], values[new]])
            states, overflowed = self._chain(some, making)
            first, null = int(self._valid[at][0]), self._null[at]
            count = first + np.concatenate([[0], np.cumsum(new)])  # of values up to there
            lacking = np.concatenate([null, lacking])
            lacking = lacking if self._replaces else np.logical_or.accumulate(lacking)
            # Before each step and behind the last.
            null = np.concatenate([null, ((count == 0) | (lacking & self._propagates))[1:]])
            states = np.concatenate([self.elements[at], states])[count]
            old = np.ma.MaskedArray(states[:-1], null[:-1])
            self._valid[at], self._null[at] = count[-1:] > 0, null[-1:]
            overflowed = _among(np.flatnonzero(new)[1 - first :], overflowed, ~null[1:])
        if fetched is not None:
            fetched[turn.origin] = old
        self.elements[at] = states[-1:]
        return overflowed

    def _chain(self, parts: np.ndarray, making: Steps) -> tuple[np.ndarray, np.ndarray | None]:
        """Return each of some elements combined with all before it, and which of the steps overflowed."""
        before = parts[:-1].copy()
        run(self._op, before, self._datatype)
        before[1:] = self._op.lower(before[1:], self._datatype)
        states = before.copy()
        # All steps again, each for itself, tell which of them overflow.
        after, overflowed = making(before, parts[1:].copy(), lambda: parts[1:])
        return np.concatenate([parts[:1], states[1:], self._op.lower(after[-1:], self._datatype)]), overflowed

    def results(self, window: Array) -> Elements:
        """Return the elements, with what stands for null in the window's file, and which are not null."""
        elements, marked = self.elements, window.marked
        if marked is not None and window.nullable:  # other values mean it already, such as those beyond a valid range
            present = marked.present(elements)
            marked.mark(elements, self._null if present is None else self._null & present)
        elif self._null.any() and (value := absent(self._datatype, self._op)) is not None:
            elements[self._null] = value
        return elements, ~self._null


def _among(places: np.ndarray, found: np.ndarray | None, wanted: np.ndarray) -> np.ndarray | None:
    """Return which of the `wanted` elements are `found` among those at some places; None for none."""
    if found is None:
        return None
    whole = np.zeros(len(wanted), np.bool_)
    whole[places] = found
    whole &= wanted
    return whole if whole.any() else None
