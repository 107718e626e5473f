"""The fold of origins into the elements of a window, batch by batch, with the rules for missing elements."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import log, ops
from mpired.datatypes.datatype import gaps, tail
from mpired.errors import RangeError
from mpired.files import calls
from mpired.files.update import Update
from mpired.formats import Array
from mpired.formats.convert import OF_A_PACKAGE, as_in, lost_numbers
from mpired.formats.missing import masked
from mpired.ops.op import Overflow, Steps, by_op, run, warn_of_overflow
from mpired.ops.state import Elements, fill_value, valid_of
from mpired.ops.table import REPLACE
from mpired.windows.origin import Origin, gather, view_at_each_byte
from mpired.windows.placement import Batch, Pass, WindowSelection
from mpired.windows.targets import WindowFile


def fold(
    file: WindowFile,
    numbered_selection: tuple[int, WindowSelection],  # the number of an array of the file, and its elements
    op: ops.Op,
    origins: Sequence[Origin],
    fetched: np.ndarray | None,  # gets the old elements
) -> Generator[int, None, None]:
    """Combine origins in order into selected elements, and yield the bytes of the elements after each origin."""
    number, selection = numbered_selection
    window, fd, overflows, nmasked = file.arrays[number], file.fd, list[Overflow](), 0
    for batch in selection.batches():
        stored = _read(batch, window, fd)
        elements = as_in(window.datatype.form, gather(stored.octets, stored.positions, window.stored), window.datatype)
        not_null, stored_mask = _not_null(elements, batch, window, fd, op)
        if not origins and fetched is not None:
            old = elements if not_null is None else masked(elements, ~not_null)
            for pass_ in batch.passes:
                fetched[pass_.origin] = old if pass_.where is None else old[pass_.where]
            continue
        state = BatchElements(elements, not_null, op, window)
        for rank, origin in enumerate(origins):
            overflows += state.combine(batch, origin, fetched, rank, is_last=rank == len(origins) - 1)
            yield elements.nbytes
        elements, not_null = state.results(window) if op.rules.leaves_out else (state.elements, None)
        nmasked += 0 if window.ignored_missing is None else window.ignored_missing.count_masked(elements, not_null)
        if file.update is not None:
            stored.change(as_in(window.stored, elements, window.datatype), file.update)
            if stored_mask is not None and not_null is not None and window.nullable:
                stored_mask.change(not_null, file.update)
    name = window.name if len(file.selections) > 1 else ""
    for overflow in by_op(overflows) if overflows else ():
        warn_of_overflow(op, window.datatype, overflow, [origin.name for origin in origins], name)
    if nunset := sum(origin.nunset for origin in origins):
        log.warn(log.unset_warning(nunset, origins[0].array.name, "give the origins a `_FillValue`"))
    if nmasked and window.ignored_missing is not None:
        log.warn(log.masked_warning(nmasked, window.name, window.ignored_missing.text))


class _StoredBatch(NamedTuple):
    """The bytes of a batch in the file."""

    octets: np.ndarray
    positions: np.ndarray | None  # see `Batch`
    pieces: list[tuple[memoryview, int]]  # the octets of each range, and their offset in the file

    def change(self, elements: np.ndarray, update: Update) -> None:
        """Write new elements into the file, in ascending order; the bytes in the gaps of elements stay."""
        itemsize, source, unused = elements.itemsize, elements.view(np.uint8), gaps(elements.dtype)
        bounds = [0, *(bound for gap in unused for bound in (gap.start, gap.stop)), itemsize]
        if self.positions is None and not unused:
            self.octets[:] = source
            bounds = []
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
            if (nbytes := stop - start) > 0:
                where = slice(start, None, itemsize) if self.positions is None else self.positions + start
                view_at_each_byte(self.octets, nbytes)[where] = view_at_each_byte(source, nbytes)[start::itemsize]
        for data, offset in self.pieces:
            update.write(data, offset)


def _read(batch: Batch, window: Array, fd: int) -> _StoredBatch:
    """Return the bytes of a batch."""
    # Without the padding of the last element: a window may end there (MPI-4.1, 5.1.6), or another element begin.
    octets = np.zeros(sum(stop - start for start, stop in batch.ranges), np.uint8)
    end, padding, pieces = 0, tail(window.stored), []
    for start, stop in batch.ranges:
        pieces.append((octets[end : end + stop - start - padding].data, window.offset + start))
        end += stop - start
    with calls.errors_name(window.source.name):
        for data, offset in pieces:
            if calls.pread_into(fd, data, offset) < len(data):
                raise window.source.changed()
    return _StoredBatch(octets, batch.positions, pieces)


def _not_null(
    elements: np.ndarray, batch: Batch, window: Array, fd: int, op: ops.Op
) -> tuple[np.ndarray | None, _StoredBatch | None]:
    """Return the mask of elements that are not null, None for all, and its bytes if the file stores a mask."""
    not_null, stored = None if window.ignored_missing is None else window.ignored_missing.valid_mask(elements), None
    if window.mask_offset is not None:
        itemsize, form = window.stored.itemsize, np.dtype(np.bool_)  # the mask has a byte for each row
        if any(bound % itemsize for bounds in batch.ranges for bound in bounds):
            reason = f"may have nulls, and the request does not begin at one of its {itemsize}-byte rows"
            raise RangeError(window.source.name, reason)
        ranges = [(start // itemsize, stop // itemsize) for start, stop in batch.ranges]
        rows = Batch(ranges, None if batch.positions is None else batch.positions // itemsize, batch.passes)
        stored = _read(rows, window._replace(offset=window.mask_offset, stored=form), fd)
        not_null = gather(stored.octets, stored.positions, form)
    if not_null is not None and op.rules.nulls == "error":
        window.check_valid(not_null)
    return not_null, stored


class BatchElements:
    """The elements of a batch, with the masks of elements that have a value and of nulls if the op skips elements."""

    # As in reductions, an element without a value takes the first value of an origin. A computed element is a value,
    # even if it equals a fill value.

    def __init__(self, elements: np.ndarray, not_null: np.ndarray | None, op: ops.Op, window: Array) -> None:
        self.elements, self._op, self._datatype, self._stored = elements, op, window.datatype, window.stored
        self._are_masked = op.rules.leaves_out
        self._propagates, self._replaces = op.rules.nulls == "propagate", op.kernel is REPLACE.kernel
        if self._are_masked:
            self._valid, self._null = self._masks(elements, not_null)

    def _masks(self, elements: np.ndarray, not_null: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the masks of elements that the op combines, and of nulls."""
        valid = valid_of(elements, not_null, self._datatype, self._op)
        null = np.zeros(len(elements), np.bool_) if not_null is None else ~not_null
        return np.ones(len(elements), np.bool_) if valid is None else valid, null

    def combine(
        self, batch: Batch, origin: Origin, fetched: np.ndarray | None, rank: int, *, is_last: bool
    ) -> Iterator[Overflow]:
        """Combine the elements of an origin into the batch, and yield overflows; `rank` is that of the origin."""
        for pass_ in batch.passes:
            where = slice(None) if pass_.where is None else pass_.where
            values, not_null = origin.read(pass_.origin)
            if not_null is not None and self._op.rules.nulls == "error":
                origin.array.check_valid(not_null)
            if origin.array.unset is not None:
                origin.nunset += int(np.count_nonzero(values == origin.array.unset))
            apply = Steps(self._op, self._datatype)  # one for each pass: it remembers bounds of the elements
            with np.errstate(all="ignore"):  # NaN and infinity have defined results
                if isinstance(pass_.where, slice):
                    overflowed = self._combine_chain(pass_, values, not_null, apply, fetched)
                else:
                    old = self.elements[where]
                    if fetched is not None:
                        fetched[pass_.origin] = np.ma.MaskedArray(old, self._null[where]) if self._are_masked else old
                    if self._are_masked:
                        new, overflowed = self._combine_masked(where, values, not_null, apply)
                    else:
                        # The target is the lower operand: accumulating ranks gives the bits of reducing them after it.
                        new, overflowed = apply(old, values, partial(lambda index: origin.read(index)[0], pass_.origin))
                        new = self._op.lower(new, self._datatype)
                    if pass_.where is None:
                        self.elements = new
                    else:
                        self.elements[where] = new
            is_narrowed = is_last and self._stored.isbuiltin == OF_A_PACKAGE
            if is_narrowed and (lost := lost_numbers(self.elements[where], self._stored)) is not None:
                # Of many values that are combined into one element, the last overflows.
                lost = np.append(np.zeros(len(values) - len(lost), np.bool_), lost)
                overflowed = lost if overflowed is None else overflowed | lost
            if overflowed is not None:
                first = int(np.arange(origin.count)[pass_.origin][overflowed.argmax()])
                yield Overflow(int(np.count_nonzero(overflowed)), 0, first, rank)

    def _combine_masked(
        self, where: slice | np.ndarray, values: np.ndarray, not_null: np.ndarray | None, apply: Steps
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return elements combined with values of an origin where both are valid, and the mask of overflows."""
        elements, valid, null = self.elements[where], self._valid[where], self._null[where]
        new_valid, new_null = self._masks(values, not_null)
        (both,), only_new = np.nonzero(valid & new_valid), new_valid & ~valid
        result, overflowed = apply(elements[both], values[both], lambda: values[both])
        elements[both] = self._op.lower(result, self._datatype)
        elements[only_new] = values[only_new]
        null = ~(valid | new_valid) | ((new_null if self._replaces else null | new_null) & self._propagates)
        self._valid[where], self._null[where] = valid | new_valid, null
        return elements, _scatter(both, overflowed, ~null)

    def _combine_chain(
        self, pass_: Pass, values: np.ndarray, not_null: np.ndarray | None, apply: Steps, fetched: np.ndarray | None
    ) -> np.ndarray | None:
        """Combine many values into one element, in order, and return the mask of steps that overflowed."""
        where: Any = pass_.where
        if not self._are_masked:
            states, overflowed = self._chain(np.concatenate([self.elements[where], values]), apply)
            old = states[:-1]
        else:
            new_valid, new_null = self._masks(values, not_null)
            operands = np.concatenate([self.elements[where][self._valid[where]], values[new_valid]])
            states, overflowed = self._chain(operands, apply)
            first, null = int(self._valid[where][0]), self._null[where]
            count = first + np.concatenate([[0], np.cumsum(new_valid)])  # operands before each step, and at the end
            nulls = np.concatenate([null, new_null])
            nulls = nulls if self._replaces else np.logical_or.accumulate(nulls)
            null = np.concatenate([null, ((count == 0) | (nulls & self._propagates))[1:]])
            states = np.concatenate([self.elements[where], states])[count]
            old = np.ma.MaskedArray(states[:-1], null[:-1])
            self._valid[where], self._null[where] = count[-1:] > 0, null[-1:]
            overflowed = _scatter(np.flatnonzero(new_valid)[1 - first :], overflowed, ~null[1:])
        if fetched is not None:
            fetched[pass_.origin] = old
        self.elements[where] = states[-1:]
        return overflowed

    def _chain(self, operands: np.ndarray, apply: Steps) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the partial results of a fold, the first operand first, and the mask of steps that overflowed."""
        partials = operands[:-1].copy()
        run(self._op, partials, self._datatype)
        partials[1:] = self._op.lower(partials[1:], self._datatype)
        states = partials.copy()
        # All steps are repeated, independent of each other, to find the steps that overflow.
        results, overflowed = apply(partials, operands[1:].copy(), lambda: operands[1:])
        return np.concatenate([operands[:1], states[1:], self._op.lower(results[-1:], self._datatype)]), overflowed

    def results(self, window: Array) -> Elements:
        """Return the elements, with the file's value for nulls, and the mask of elements that are not null."""
        elements, marked = self.elements, window.ignored_missing
        if marked is not None and window.nullable:
            # Elements that are missing by their value, such as those beyond a valid range, keep it.
            present = marked.valid_mask(elements)
            marked.mark(elements, self._null if present is None else self._null & present)
        elif self._null.any() and (value := fill_value(self._datatype, self._op)) is not None:
            elements[self._null] = value
        return elements, ~self._null


def _scatter(positions: np.ndarray, mask: np.ndarray | None, allowed: np.ndarray) -> np.ndarray | None:
    """Return a mask of some positions as a mask of all elements, within `allowed`; None if no element is in it."""
    if mask is None:
        return None
    scattered = np.zeros(len(allowed), np.bool_)
    scattered[positions] = mask
    scattered &= allowed
    return scattered if scattered.any() else None
