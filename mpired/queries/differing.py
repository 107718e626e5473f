"""Differences of two files for a picture: maps of planes, and of other arrays their number at each place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpired.datatypes import Datatype, Group, value_type
from mpired.formats import Array
from mpired.formats.decoding import Decoder
from mpired.ops.state import Elements
from mpired.queries.elements import scan
from mpired.queries.figures import Figures, Part, Plane
from mpired.queries.show import MOST_CELLS, axis_name
from mpired.queries.statistics import Counter

_BINS = 100


Apart = Callable[[Elements, Elements], np.ndarray]
"""Returns how far elements of B are from those of A: 0 if they are equal, NaN if they differ by no number."""


def map_of(
    name: str, shaped: Array, arrays: Sequence[Array], apart: Apart, decoder: Decoder
) -> tuple[Figures, Datatype, Plane | None]:
    """Read two arrays, and return where they differ: a map of a plane, or else a histogram of the places."""
    axes = [axis for axis, length in enumerate(shaped.dimensions) if length > 1]
    cells = _Cells(shaped, axes) if len(axes) == 2 else None  # noqa: PLR2004 - rows and columns
    counter = Counter(np.int64(0), np.int64(max(shaped.count, 1) - 1), _BINS)
    for start, both in scan(arrays, decoder):
        amounts = apart(*both)
        wrong = np.flatnonzero(amounts)
        counter.add(start + wrong)
        if cells is not None:
            cells.add(start + wrong, amounts[wrong])
    is_value = arrays[0].datatype.group is Group.VALUE
    part = Part("", None, None, None, None, None, 0, 0, counter.histogram)
    unit = "" if cells is None or is_value else shaped.unit
    figures = Figures(name or "elements", "", None, shaped.count, shaped.shape, unit, 0, (part,), None)
    if cells is None:
        return figures, value_type("number of the element"), None
    numbers = np.where(np.isnan(cells.numbers), 1.0, cells.numbers) if is_value else cells.numbers
    names = [axis_name(f"axis {axis}", range(shaped.dimensions[axis]), shaped.dimensions[axis]) for axis in axes]
    label = value_type("1 where they differ" if is_value else "B - A")
    return figures, label, Plane((numbers,), cells.steps, (names[0], names[1]), (None, None), not is_value)


class _Cells:
    """A map, each cell of which has the difference that is largest there."""

    def __init__(self, array: Array, axes: Sequence[int]) -> None:
        self._array, self._axes = array, axes
        lengths = [array.dimensions[axis] for axis in axes]
        self.steps = (-(-lengths[0] // MOST_CELLS), -(-lengths[1] // MOST_CELLS))
        self.numbers = np.zeros([math.ceil(n / step) for n, step in zip(lengths, self.steps, strict=True)])

    def add(self, places: np.ndarray, amounts: np.ndarray) -> None:
        """Add the differences of elements at some places; NaN is the largest."""
        order: Any = "F" if self._array.fortran_order else "C"
        index = np.unravel_index(places, self._array.dimensions, order)
        rows, columns = (index[axis] // step for axis, step in zip(self._axes, self.steps, strict=True))
        sizes = np.nan_to_num(np.abs(amounts), nan=np.inf, posinf=np.inf)
        larger = ~(sizes < np.abs(self.numbers[rows, columns]))
        ascending = np.argsort(sizes, kind="stable")
        ascending = ascending[larger[ascending]]
        self.numbers[rows[ascending], columns[ascending]] = amounts[ascending]
