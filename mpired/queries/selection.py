"""Selections of elements in the syntax of NumPy's basic slicing; only these are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mpired.formats import Array
from mpired.formats.array import Reader
from mpired.ops.state import Elements
from mpired.values import parsed_index

_BLOCK = 1 << 14  # elements that are picked, or read, at a time
# Bytes between two elements up to which they are read together: a call of the system costs as much.
_NEAR_NBYTES = 64 << 10
# What a library decodes in sequence is read through up to here: to begin anew costs more.
_NEAR_DECODED = 1 << 20


@dataclass(frozen=True)
class Selection:
    """Some elements of an array, numbered in C order of the selection."""

    shape: tuple[int, ...]  # the dimensions of the array
    axes: tuple[Sequence[int], ...]  # the indices along each of them, in order
    kept: tuple[int, ...]  # the axes that the result has: an integer drops its axis, as in NumPy

    @classmethod
    def of(cls, text: str, shape: tuple[int, ...]) -> Selection:
        """Return what a text selects of an array."""
        parts = parsed_index("slice", text, shape)
        axes = [
            range(n)[each if isinstance(each, slice) else slice(each, each + 1)]
            for n, each in zip(shape, parts, strict=True)
        ]
        return cls(shape, tuple(axes), tuple(axis for axis, each in enumerate(parts) if isinstance(each, slice)))

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(map(len, self.axes))

    def indices(self, start: int, stop: int) -> list[np.ndarray]:
        """Return the indices of some of the elements, an array for each dimension."""
        dims = tuple(map(len, self.axes))
        numbers = np.unravel_index(np.arange(start, stop), dims) if dims else ()
        return [_at(axis, each) for axis, each in zip(self.axes, numbers, strict=True)]

    def positions(self, indices: Sequence[np.ndarray], *, fortran_order: bool) -> np.ndarray:
        """Return where elements are in the order of the file."""
        if not indices:
            return np.zeros(1, np.int64)
        found = np.ravel_multi_index(tuple(indices), self.shape, order="F" if fortran_order else "C")
        return np.asarray(found, np.int64)


def _at(axis: Sequence[int], numbers: np.ndarray) -> np.ndarray:
    if isinstance(axis, range):
        return np.asarray(axis.start + axis.step * numbers)
    return np.asarray(np.array(axis, np.int64)[numbers])


def cut(numbers: Sequence[range]) -> Iterator[range]:
    """Cut ranges of numbers into small ones."""
    for each in numbers:
        yield from (each[start : start + _BLOCK] for start in range(0, len(each), _BLOCK))


def pick(reader: Reader, buffer: Array, positions: np.ndarray) -> Elements:
    """Return the elements of a buffer at some positions of its file."""
    near = _NEAR_DECODED if buffer.isolated else max(1, _NEAR_NBYTES // buffer.datatype.itemsize)
    order = np.argsort(positions, kind="stable")
    ascending = positions[order]
    found, valid = np.empty(len(positions), buffer.datatype.form), None
    for piece in np.split(np.arange(len(order)), np.flatnonzero(np.diff(ascending) > near) + 1):
        first, last = int(ascending[piece[0]]), int(ascending[piece[-1]])
        for start in range(first, last + 1, _BLOCK):
            block = np.empty(min(_BLOCK, last + 1 - start), found.dtype)
            mask = reader.read(start, block)
            low, high = np.searchsorted(ascending, [start, start + len(block)])
            places, inside = order[low:high], ascending[low:high] - start
            found[places] = block[inside]
            if mask is not None:
                valid = np.ones(len(positions), np.bool_) if valid is None else valid
                valid[places] = mask[inside]
    return found, valid
