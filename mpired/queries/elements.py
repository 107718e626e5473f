"""The elements of a buffer for those who only look at them: null values too, and each component as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group
from mpired.formats import Array
from mpired.formats.decoding import Decoder
from mpired.formats.textual import components

Read: TypeAlias = Callable[[int, int], tuple[np.ndarray, np.ndarray | None]]
"""Gives a number of elements from a position on, and which of them are valid, None for all."""


@contextmanager
def reading(buffer: Array, decoder: Decoder) -> Iterator[Read]:
    """Open a buffer for reading ranges of elements, cheapest in ascending order; a worker runs a library."""
    with closing(decoder.decoding(buffer).open()) as reader:

        def read(start: int, count: int) -> tuple[np.ndarray, np.ndarray | None]:
            block = np.empty(count, buffer.datatype.form)
            return block, reader.read(start, block)

        yield read


def numbers(block: np.ndarray, datatype: Datatype) -> list[np.ndarray]:
    """Return the components of elements as numbers; truth values are 0 and 1, and times as `with_nat` has them."""
    if datatype.group is Group.LOGICAL:
        return [(block != 0).view(np.uint8)]
    if datatype.group in TIMES:
        return [block.view(with_nat(datatype))]
    return list(components(block, datatype).values())


def index_of(buffer: Array, element: int) -> tuple[int, ...]:
    """Return the index of an element of a buffer: in its shape, or else its number."""
    if buffer.shape is None:
        return (element,)
    order: Any = "F" if buffer.fortran_order else "C"
    return tuple(map(int, np.unravel_index(element, buffer.shape, order)))


def with_nat(datatype: Datatype) -> np.dtype:
    """Return the form whose NaN are those of the elements: of times of 8 bytes the least integer is NaT."""
    return np.dtype("m8") if datatype.group in TIMES and datatype.itemsize == np.dtype("m8").itemsize else datatype.form


def are_nan(values: np.ndarray) -> np.ndarray | None:
    """Return which numbers are NaN or NaT; None if none is."""
    found: np.ndarray | None = np.isnan(values) if values.dtype.kind in "fm" else None
    return None if found is None or not found.any() else found


def as_integers(values: np.ndarray) -> np.ndarray:
    """Return numbers without NaT as integers if they are times, and else as they are."""
    return values.view(np.int64) if values.dtype.kind == "m" else values
