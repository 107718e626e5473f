"""Selections of elements in the syntax of NumPy's basic slicing, and the chosen elements of a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mpired.datatypes import TIMES
from mpired.datatypes.times import as_times
from mpired.formats import Array, RankFile
from mpired.formats.array import Reader
from mpired.formats.decoding import Decoder
from mpired.ops.state import Elements
from mpired.queries.elements import numbers
from mpired.values import parsed_index

_BLOCK = 1 << 14  # elements that are picked at a time
# Elements are read together if they are within a window, and the bytes between two of them are few: a call of the
# system costs as much. What a library decodes in sequence is read through up to here: to begin anew costs more.
_WINDOW = 1 << 18
_NEAR_NBYTES = 64 << 10
_NEAR_DECODED = 1 << 20
NULL = "null"
"""The text of an element that is missing."""


@dataclass(frozen=True)
class Selection:
    """Some elements of an array, numbered in C order of the selection."""

    shape: tuple[int, ...]  # the dimensions of the array
    axes: tuple[range, ...]  # the indices along each of them, in order
    kept: tuple[int, ...]  # the axes that the result has: an integer drops its axis, as in NumPy

    @classmethod
    def of(cls, text: str, shape: tuple[int, ...]) -> Selection:
        """Return what a text selects of an array."""
        parts = parsed_index("slice", text, shape)
        slices = [each if isinstance(each, slice) else slice(each, each + 1) for each in parts]
        axes = tuple(range(n)[each] for n, each in zip(shape, slices, strict=True))
        return cls(shape, axes, tuple(axis for axis, each in enumerate(parts) if isinstance(each, slice)))

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(map(len, self.axes))

    def read(
        self, arrays: Sequence[Array], wanted: Iterable[range], decoder: Decoder
    ) -> Iterator[tuple[list[np.ndarray], list[Elements]]]:
        """Yield the indices of wanted elements, some at a time, and these elements of each array."""
        dims = tuple(map(len, self.axes))
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(decoder.decoding(array).open())) for array in arrays]
            for some in (each[at : at + _BLOCK] for each in wanted for at in range(0, len(each), _BLOCK)):
                places = np.unravel_index(np.arange(some.start, some.stop), dims) if dims else ()
                indices = [axis.start + axis.step * each for axis, each in zip(self.axes, places, strict=True)]
                yield indices, [_pick(*each, indices) for each in zip(readers, arrays, strict=True)]


def _pick(reader: Reader, array: Array, indices: Sequence[np.ndarray]) -> Elements:
    """Return the elements of an array with these indices along each dimension."""
    order: Literal["C", "F"] = "F" if array.fortran_order else "C"
    positions = (
        np.ravel_multi_index(tuple(indices), array.dimensions, order=order) if indices else np.zeros(1, np.int64)
    )
    ascending = np.argsort(positions, kind="stable")
    near = _NEAR_DECODED if array.isolated else max(1, _NEAR_NBYTES // array.datatype.itemsize)
    gaps, windows = np.diff(positions[ascending]), np.diff(positions[ascending] // _WINDOW)
    found, valid = np.empty(len(positions), array.datatype.form), None
    for piece in np.split(ascending, np.flatnonzero((gaps > near) | (windows > 0)) + 1):
        first, last = int(positions[piece[0]]), int(positions[piece[-1]])
        block = np.empty(last + 1 - first, found.dtype)
        mask = reader.read(first, block)
        found[piece] = block[positions[piece] - first]
        if mask is not None:
            valid = np.ones(len(positions), np.bool_) if valid is None else valid
            valid[piece] = mask[positions[piece] - first]
    return found, valid


class ElementTable(NamedTuple):
    """The elements of a file that are shown one by one: its columns, or its arrays of one shape."""

    file: RankFile
    buffers: Sequence[Array]
    selection: Selection
    is_chosen: bool  # by the user, and not all
    decoder: Decoder

    def rows(self, wanted: Iterable[range]) -> Iterator[tuple[tuple[int, ...], list[str]]]:
        """Yield the index of each element, and its numbers as strings."""
        for indices, elements in self.selection.read(self.buffers, wanted, self.decoder):
            pairs = zip(self.buffers, elements, strict=True)
            columns = [texts for buffer, each in pairs for texts in _texts(buffer, *each)]
            places = zip(*(each.tolist() for each in indices), strict=True) if indices else [()]
            yield from zip(places, map(list, zip(*columns, strict=True)), strict=True)


def _texts(array: Array, block: np.ndarray, valid: np.ndarray | None) -> Iterator[list[str]]:
    """Yield the numbers of each component as strings."""
    is_time = array.datatype.group in TIMES
    for part in [as_times(block, array.datatype)] if is_time else numbers(block, array.datatype):
        texts = list(map(str, part))
        for place in () if valid is None else np.flatnonzero(~valid):
            texts[place] = NULL
        yield texts
