"""Elements that become those of a wider datatype as they are read, each with the same value."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype
from mpired.formats.array import Array


class Widening(NamedTuple):
    """The reader of an array whose elements become those of a wider datatype."""

    missing: float | None  # the value that stands for missing elements, in the precision of each array

    def __call__(self, array: Array) -> WideningReader:
        """Open an array."""
        return WideningReader(array, self.missing)


def widened(values: Array, datatype: Datatype, missing: float | None) -> Array:
    """Return an array with its elements as those of a datatype that has their values."""
    if values.datatype == datatype:
        return values
    stored = datatype.form.newbyteorder(values.byte_order)
    return values._replace(datatype=datatype, stored=stored, reader=Widening(missing), values=values)


class WideningReader:
    """Reads element ranges of an array as those of a wider datatype. The caller closes it."""

    def __init__(self, array: Array, missing: float | None) -> None:
        assert array.values is not None  # noqa: S101 - `widened` has made it
        self._values, self._datatype = array.values.open(), array.values.datatype
        self._missing = missing if self._datatype.form.kind == "f" else None

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return which are valid."""
        values = np.empty(len(block), self._datatype.form)
        valid = self._values.read(start, values)
        block[...] = values != 0 if self._datatype.is_bool else values
        if self._missing is not None:
            block[values == np.array(self._missing).astype(values.dtype)] = self._missing
        return valid

    def check_end(self) -> None:
        """Check that a stream ends behind the last element."""
        cast("Any", self._values).check_end()

    def close(self) -> None:
        """Close the file."""
        self._values.close()
