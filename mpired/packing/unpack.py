"""Unpack: adjacent elements to the places of a datatype (MPI_Unpack; MPI-4.1, 5.2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype
from mpired.datatypes.typemap import transfer
from mpired.errors import BufferFileError, CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.files.names import check_are_data
from mpired.files.output import Output
from mpired.files.places import is_stream
from mpired.files.urls import check_are_files
from mpired.formats import RAW, Array, InputOptions, recognise, spread
from mpired.formats.array import blocks, within_budget
from mpired.formats.convert import as_in
from mpired.formats.decoding import Decoder
from mpired.formats.recognise import check_raw_suffix, check_records, unpacked
from mpired.formats.spread import Records
from mpired.options import INPUTS, PACKED, Options, PathLike, part
from mpired.packing.units import PackedUnit, Transfer, describe_records, octets
from mpired.progress import Progress
from mpired.ranks import check_formats
from mpired.sources.open import check_no_input, check_no_other_input, open_source
from mpired.sources.source import Source, local_fd

_MAX_END = 2**63 - 1  # the most bytes of a file, whatever the file system


@dataclass(frozen=True)
class Unpacking(Transfer):
    """An unpacking that has passed all checks."""

    units: Array
    target: Source | None = None  # the file whose other bytes stay; `None` for zeros
    function = "MPI_Unpack"

    @property
    def keeps(self) -> bool:  # type: ignore[override]
        """Whether the bytes between the elements stay."""
        return self.target is not None

    def write(self, output: Output, progress: Progress) -> None:
        """Write the bytes between the elements, and then the elements."""
        with calls.errors_name(output.name):
            if self.target is None:
                self.records.make_room(output.fd)
            else:
                with closing(self.target.open()) as file:
                    copying.copy_file(local_fd(file), output.fd)
        for _ in progress(self._scatter(output), self.records.nbytes):
            pass

    def _scatter(self, output: Output) -> Iterator[int]:
        """Write the elements, and yield the number of their bytes."""
        rest = np.empty(0, np.uint8)
        with closing(self._blocks()) as packed, calls.errors_name(output.name):
            for run in transfer.cut(self.records.run):
                nbytes = run.copies * run.of.size
                while len(rest) < nbytes:
                    rest = np.concatenate([rest, next(packed)])
                spread.scatter(output.fd, run, rest[:nbytes])
                rest = rest[nbytes:]
                yield nbytes

    def _blocks(self) -> Generator[np.ndarray, None, None]:
        """Yield the packed bytes in order."""
        step, start = max(1, transfer.BLOCK_BYTES // self.packed.stored.itemsize), 0
        with closing(Decoder()) as decoder:
            for block, _ in blocks(decoder.decoding(self.units), step):
                yield octets(as_in(self.packed.stored, block, self.packed.datatype, self.units.source.name, start))
                start += len(block)


def plan_unpack(packed: PathLike, output: str, into: PathLike | None, options: Options, context: Context) -> Unpacking:
    """Check an unpacking: the type, the file, where its elements go. Nothing is written."""
    declared, datatype = describe_records(options, context)
    check_are_data([output, into])
    check_no_other_input([output if into is None else os.fspath(into)], [(options["types"], "the named datatypes")])
    inputs = InputOptions.of(part(INPUTS, part(PACKED, options)), context)
    buffer, form = _opened(os.fspath(packed), declared, datatype, inputs)
    buffer = within_budget(buffer, context)
    context.check_memory(BASE_NBYTES)
    if buffer.fortran_order and sum(dim > 1 for dim in buffer.shape or ()) > 1:
        reason = f"is in Fortran order, and an element is taken from a row of {buffer.shape}"
        raise BufferFileError(buffer.source.name, f"{reason}; save it with numpy.ascontiguousarray")
    records = Records(datatype, _elements(buffer, form, declared), declared.offset)
    records.check_starts()
    records.check_apart("say a larger extent with resized(LB,EXTENT,TYPE), or fewer with `count`")
    if into is None:
        check_raw_suffix(output)
        check_no_input([output], [(buffer.source, "the packed elements")], "name another output")
        if records.end > _MAX_END:
            what = f"{records.count} elements of {datatype.label} at `offset={records.offset}`"
            raise CountError(output, f"{what} end at byte {records.end}; files end at byte 2**63 - 1")
        return Unpacking(records, form, (buffer.source,), output, RAW.name, buffer)
    path = os.fspath(into)
    if output != "-":
        raise UsageError("`into`", "names the file to write; leave `output` out")
    if is_stream(path):
        raise UsageError("`into`", f"{path} is a stream; give a file")
    check_are_files([path])
    target = open_source(path, context).kept()
    check_records(target, declared.offset)
    records.check_inside(target)
    return Unpacking(records, form, (buffer.source, target), path, RAW.name, buffer, target)


def _opened(path: str, declared: InputOptions, datatype: Datatype, inputs: InputOptions) -> tuple[Array, PackedUnit]:
    """Open a file of units, or of whole elements as reductions write them, and say which it is."""
    # Once: a stream gives its bytes only once.
    source = unpacked(open_source(path, inputs.context), inputs._replace(datatype=datatype))
    units = PackedUnit.of(declared, datatype, as_bytes=not declared.is_external)
    try:
        return _buffer(source, declared.of_units(units.datatype, inputs), declared.count), units
    except DatatypeError:
        if datatype.memory.obstacle:
            raise
        whole = PackedUnit(datatype, 1, declared.packed_form(datatype))
        with contextlib.suppress(DatatypeError):
            return _buffer(source, declared.of_units(datatype, inputs), declared.count), whole
        raise


def _buffer(source: Source, packed: InputOptions, count: int | None) -> Array:
    row = recognise(source, packed)
    if row.needs_type and count == 0:
        packed = packed._replace(count=0)  # of which any number of bytes has enough
    file = row.inspect(source, packed)
    check_formats(packed, {file.format}, raw_result=True)
    file.check_complete()
    return file.only_buffer()


def _elements(buffer: Array, packed: PackedUnit, declared: InputOptions) -> int:
    """Return how many whole elements a buffer of units holds, or those that are declared."""
    name = buffer.source.name
    if not packed.per_element:
        if declared.count is None and buffer.count:
            raise CountError(name, f"has {buffer.source.nbytes} bytes, and elements of {declared.datatype} have none")
        return declared.count or 0
    available, rest = divmod(buffer.count, packed.per_element)
    if declared.count is not None:
        if declared.count > available:
            raise CountError(name, f"has {available} elements, fewer than `count={declared.count}`")
        return declared.count
    if rest:
        reason = f"{buffer.count} x {packed.datatype.label} is not a multiple of {packed.per_element}"
        raise CountError(name, f"{reason}, which an element has")
    return available
