"""Records, and their packed elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpired.context import Context
from mpired.datatypes import Datatype, parse, unit_of
from mpired.errors import DatatypeError, UsageError
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.output import Output, open_output
from mpired.formats import InputOptions
from mpired.formats.spread import Records
from mpired.options import INPUTS, RECORDS, Options, part
from mpired.progress import Progress
from mpired.sources.source import Source

_BYTE = parse("byte")[0]


class PackedUnit(NamedTuple):
    """Elements one after another: units that are predefined types, pairs or structures of them."""

    datatype: Datatype  # the unit: the fewest entries that, repeated, are an element
    per_element: int  # units of an element
    stored: np.dtype  # the NumPy form of a unit as it comes out of the records: without gaps, in their byte order

    @classmethod
    def of(cls, inputs: InputOptions, datatype: Datatype, *, as_bytes: bool) -> PackedUnit:
        """Return the packed form of a type; `as_bytes` allows bytes where NumPy has no type of the entries."""
        try:
            unit = unit_of(datatype)
            return cls(unit, datatype.size // unit.size, inputs.packed_form(unit))
        except DatatypeError:
            if not as_bytes:
                raise
            return cls(_BYTE, datatype.size, _BYTE.form)


@dataclass(frozen=True)
class Transfer:
    """A packing or an unpacking that has passed all checks."""

    records: Records  # the elements with gaps
    packed: PackedUnit
    sources: tuple[Source, ...]  # that are read
    path: str  # of the result
    format: str
    function: ClassVar[str]  # of MPI
    folders: ClassVar[tuple[str, ...]] = ()  # that are made for results
    keeps: ClassVar[bool] = False  # whether the result has the bytes between the elements of an existing file

    @property
    def count(self) -> int:
        """The number of units."""
        return self.records.count * self.packed.per_element

    @property
    def shape(self) -> tuple[int, ...]:
        """One unit an element, or a row of them."""
        each = self.packed.per_element
        return (self.records.count,) if each == 1 else (self.records.count, each)

    @property
    def paths(self) -> list[str]:
        """The paths of the results."""
        return [self.path]

    renamed = paths

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Write the result and commit it; `held` has the file that it replaces."""
        with open_output(self.path, overwrite=overwrite, context=context, held=held) as output:
            self.write(output, context.progress)
            self.check_unchanged()
            output.commit(context.on_commit)

    def write(self, output: Output, progress: Progress) -> None:
        """Write the result."""
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if a file has changed since it was inspected."""
        for source in self.sources:
            source.check_unchanged()


def octets(block: np.ndarray) -> np.ndarray:
    """Return the bytes of a block as an array."""
    return np.ascontiguousarray(block).view(np.uint8)


def describe_records(options: Options, context: Context) -> tuple[InputOptions, Datatype]:
    """Return the options that describe the records, and their datatype."""
    inputs = InputOptions.of(part(INPUTS, part(RECORDS, options)), context)
    if inputs.datatype is None:
        raise UsageError("`type`", "is missing; give the type of the elements of the records")
    return inputs, inputs.datatype
