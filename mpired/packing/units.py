"""Records, and what they are when packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpired.context import Context
from mpired.datatypes import Datatype, parse, unit_of
from mpired.errors import DatatypeError, UsageError
from mpired.formats import InputOptions
from mpired.options import INPUTS, RECORDS, Options, part

_BYTE = parse("byte")[0]


@dataclass(frozen=True)
class Packed:
    """Elements one after another: units that are predefined types, pairs or structures of them."""

    datatype: Datatype  # the unit: the fewest entries that, repeated, are an element
    per_element: int  # how many units an element is
    stored: np.dtype  # the NumPy form of a unit as it comes out of the records: without gaps, in their byte order

    @classmethod
    def of(cls, said: InputOptions, datatype: Datatype, *, as_bytes: bool) -> Packed:
        """Return the packed form of a type; `as_bytes` allows bytes where the entries are no type for NumPy."""
        try:
            unit = unit_of(datatype)
            return cls(unit, datatype.size // unit.size, said.packed_form(unit))
        except DatatypeError:
            if not as_bytes:
                raise
            return cls(_BYTE, datatype.size, _BYTE.form)


def octets(block: np.ndarray) -> np.ndarray:
    """Return the bytes of a block as an array."""
    return np.ascontiguousarray(block).view(np.uint8)


def said_of(options: Options, context: Context) -> tuple[InputOptions, Datatype]:
    """Return what is declared of the records, and their datatype."""
    said = InputOptions.of(part(INPUTS, part(RECORDS, options)), context)
    if said.datatype is None:
        raise UsageError("`type`", "is missing; give the type of the elements of the records")
    return said, said.datatype
