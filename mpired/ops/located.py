"""MINLOC and MAXLOC of plain values with indices that are counted: values and indices are kept apart.

The result is that of the pairs (MPI-4.1, 6.9.4), without building a pair of each element of each rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mpired.datatypes import Datatype
from mpired.ops.op import Op
from mpired.ops.state import Reread, State, block_of


class Located(State):
    """The best values so far, and where they are from."""

    counts_indices = True
    keeps: tuple[str, ...] = ("nadded", "_best", "_from")

    def __init__(self, op: Op, datatype: Datatype, firsts: Sequence[int], *, counting: bool) -> None:
        super().__init__(op, datatype, len(firsts))
        assert op.extreme is not None  # noqa: S101 - no other op takes pairs
        self._extreme = op.extreme
        self._better = np.greater if op.extreme is np.maximum else np.less
        self._firsts, self._counting = firsts, counting  # the first index of each rank; whether it rises by one
        self._rises = all(a < b for a, b in itertools.pairwise(firsts))
        value, index = datatype.form[0], datatype.form[1]
        self._values = [block_of(0, value)] * 3
        self._indices = [block_of(0, index)] * 2
        self._pairs = block_of(0, datatype.form)

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` other elements."""
        if len(self._values[0]) < count:
            self._values = [block_of(count, each.dtype) for each in self._values]
            self._indices = [block_of(count, each.dtype) for each in self._indices]
            self._pairs = np.zeros(count, self.datatype.form)
        self._best, self.free_block, self._spare = (each[:count] for each in self._values)
        self._from, self._change = (each[:count] for each in self._indices)
        self._counted = np.arange(start, start + count) if self._counting else 0
        self.nadded = 0

    def add(self, _reread: Reread, _not_null: np.ndarray | None = None) -> None:
        """Let the values in the free block win or not."""
        index = np.asarray(self._firsts[int(self.nadded)] + self._counted).astype(self._from.dtype)
        self.nadded += 1
        if self.nadded == 1:
            self._best, self.free_block = self.free_block, self._best
            self._from[...] = index
            return
        best, values = self._best, self.free_block
        takes = self._better(values, best)
        self._extreme(best, values, out=self._spare)
        doubtful = self._spare == 0
        if values.dtype.kind == "f":
            # A NaN wins, and is not better than another.
            takes |= np.isnan(values) & ~np.isnan(best)
            doubtful |= np.isnan(self._spare)
        if not self._rises:
            tied = (values == best) | (doubtful & (values != values) & (best != best))  # noqa: PLR0124 - both are NaN
            takes |= tied & (index < self._from)
        if doubtful.any():  # which bits a zero or a NaN has, is that of the one that wins
            np.copyto(self._spare, np.where(takes, values, best), where=doubtful)
        np.subtract(index, self._from, out=self._change)
        self._change *= takes
        self._from += self._change
        self._best, self._spare = self._spare, self._best

    def result(self) -> tuple[np.ndarray, None, None]:
        """Return the pairs."""
        value, index = self.datatype.form.names or ()
        pairs = self._pairs[: len(self._best)]
        pairs[value], pairs[index] = self._best, self._from
        return pairs, None, None
