"""Packing and unpacking of raw files whose elements have derived datatypes (MPI_Pack, MPI_Unpack; MPI-4.1, 5.2).

The file of records has elements one extent apart, with gaps. The packed file has the same elements as units without
gaps; a unit is the smallest group of entries that the datatype repeats, and often one number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype, parse, transfer
from mpired.datatypes.derived import repeated_unit
from mpired.errors import BufferFileError, CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.files.lock import LockedTargets
from mpired.files.places import check_are_data, is_stream
from mpired.files.scratch import Compression, Scratch
from mpired.files.transaction import Output, open_output
from mpired.files.urls import check_are_files
from mpired.formats import RAW, Array, FlatLayout, InputOptions, Layout, Model, output_format, recognise, spread
from mpired.formats.array import blocks, limit_decoding
from mpired.formats.convert import as_in, byte_order, in_form
from mpired.formats.recognise import check_raw_suffix, check_records, decompressed
from mpired.formats.spread import Records
from mpired.log import Progress, step
from mpired.options import INPUTS, PACKED, RECORDS, Options, PathLike, part
from mpired.ranks.opening import check_formats
from mpired.sources.local import LocalSource
from mpired.sources.open import check_no_input, check_unchanged, open_source
from mpired.sources.source import OpenSource, Source, local_fd

_BYTE = parse("byte")[0]
_MAX_END = 2**63 - 1  # bytes; the limit of a file on every file system


class PackedUnit(NamedTuple):
    """The unit of packed elements: a predefined datatype, a pair or a structure of them."""

    datatype: Datatype
    per_element: int  # units
    stored: np.dtype  # the unit without gaps, in the byte order of the records

    @classmethod
    def of(cls, inputs: InputOptions, datatype: Datatype, *, as_bytes: bool) -> PackedUnit:
        """Return the unit of a datatype; with `as_bytes` a byte if NumPy has no dtype of the entries."""
        try:
            unit = repeated_unit(datatype)
            return cls(unit, datatype.size // unit.size, unit.packed_form.newbyteorder(inputs.order))
        except DatatypeError:
            if not as_bytes:
                raise
            return cls(_BYTE, datatype.size, _BYTE.form)


@dataclass(frozen=True)
class Transfer:
    """A checked packing or unpacking."""

    records: Records  # the elements with gaps
    packed: PackedUnit
    sources: tuple[Source, ...]  # the files to read
    path: str  # of the result
    format: str  # of the result
    overwrite: bool  # whether the result may replace a file
    function: ClassVar[str]  # of MPI
    folders: ClassVar[tuple[str, ...]] = ()  # for `attempts`: a packing creates no folders
    # the file whose bytes between the elements stay, `None` if they become zeros; of an unpacking only
    target: Source | None = field(default=None, kw_only=True)

    @property
    def count(self) -> int:
        """The number of units."""
        return self.records.count * self.packed.per_element

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the units: a row for each element with several."""
        per_element = self.packed.per_element
        return (self.records.count,) if per_element == 1 else (self.records.count, per_element)

    @property
    def paths(self) -> list[str]:
        """The paths of the results."""
        return [self.path]

    replaced_paths = paths

    def run(self, context: Context, locked: LockedTargets) -> Self:
        """Write and commit the result; `locked` has the lock of a replaced file."""
        compression = Compression.of(self.path, None) if self.target is None else None
        with open_output(
            self.path, overwrite=self.overwrite, context=context, locked=locked, compression=compression
        ) as output:
            self.write(output, context.progress)
            check_unchanged(self.sources)
            output.commit(context.on_commit)
        return self

    def write(self, output: Output, progress: Progress) -> None:
        """Write the result."""
        raise NotImplementedError


def _record_options(options: Options, context: Context) -> tuple[InputOptions, Datatype]:
    """Return the input options of the records, and the datatype of their elements."""
    inputs = InputOptions.of(part(INPUTS, part(RECORDS, options)), context)
    if inputs.datatype is None:
        raise UsageError("`type`", "is missing; give the type of the elements of the records")
    return inputs, inputs.datatype


@dataclass(frozen=True)
class Packing(Transfer):
    """A checked packing."""

    layout: Layout
    function = "MPI_Pack"

    def write(self, output: Output, progress: Progress) -> None:
        """Write the units, in place in a flat format, else with the encoder of the format."""
        if isinstance(self.layout, FlatLayout):
            output.allocate(self.layout.end(self.count))
            with calls.errors_name(output.name):
                calls.pwrite_all(output.fd, self.layout.head, 0)
            for _ in progress(self._write(output, self.layout), self.records.nbytes):
                pass
            return
        with Scratch(output.directory, output.name) as scratch, calls.errors_name(output.name):
            packed = self.gather(scratch, progress)
            with step("encoding results"):
                self.layout.encode([packed], output.fd)

    def gather(self, scratch: Scratch, progress: Progress) -> Array:
        """Pack into a scratch file, and return the array of units in it."""
        scratch.allocate(self.records.nbytes)
        for _ in progress(self._write(scratch, FlatLayout(self.packed.stored)), self.records.nbytes):
            pass
        source = LocalSource(scratch.name, scratch.shared.path)
        return Array(source, self.packed.datatype, self.count, self.packed.stored)

    def _write(self, output: Output | Scratch, layout: FlatLayout) -> Iterator[int]:
        """Write the units as the dtype of the layout, and yield the bytes of each block in the records."""
        offset, start = layout.offset, 0
        with closing(self.sources[0].open()) as file, step("packing"):
            for units in self._blocks(file):
                block = units if layout.stored == units.dtype else in_form(units, layout.stored, output.name, start)
                with calls.errors_name(output.name):
                    calls.pwrite_all(output.fd, np.ascontiguousarray(block).view(np.uint8).data, offset)
                offset, start = offset + block.nbytes, start + len(block)
                yield units.nbytes

    def _blocks(self, file: OpenSource) -> Iterator[np.ndarray]:
        """Yield the units in order, in blocks; a piece of the records may end within a unit."""
        itemsize, nbytes = self.packed.stored.itemsize, 0
        pieces: list[np.ndarray] = []
        for run in transfer.cut(self.records.part(0, self.records.count)):
            pieces.append(np.empty(run.copies * run.of.size, np.uint8))
            spread.gather(file, self.sources[0], run, pieces[-1])
            nbytes += len(pieces[-1])
            if nbytes >= transfer.BLOCK_BYTES:
                octets = np.concatenate(pieces)
                end = nbytes - nbytes % itemsize
                yield octets[:end].view(self.packed.stored)
                pieces, nbytes = [octets[end:]], nbytes - end
        if nbytes:
            yield np.concatenate(pieces).view(self.packed.stored)


def plan_pack(file: PathLike, output: str, options: Options, context: Context, *, terminal: bool = False) -> Packing:
    """Check the datatype, the file and the format of a packing, and return the packing."""
    inputs, datatype = _record_options(options, context)
    check_are_data([output])
    limit = None if inputs.count is None else Records(datatype, inputs.count, inputs.offset).reach[1]
    source = decompressed(open_source(os.fspath(file), context, limit), inputs)
    check_no_input([output], [(source, "the records"), (options["types"], "the named datatypes")])
    check_records(source, inputs.offset)
    records = Records.of(source, datatype, inputs.offset, inputs.count)
    row = output_format(output, options["to"], RAW, terminal=terminal)
    compression = Compression.of(output, None)
    context.check_memory(BASE_NBYTES + row.encoding_nbytes + (compression.nbytes if compression else 0))
    if inputs.is_external and not row.needs_type:
        raise UsageError("`datarep`", f"external32 is a form of raw results, not of {row.name}; add `to='raw'`")
    packed = PackedUnit.of(inputs, datatype, as_bytes=row.needs_type and not inputs.is_external)
    stored = packed.datatype.external_form if inputs.is_external else packed.stored
    packing = Packing(records, packed, (source,), output, row.name, options["overwrite"], FlatLayout(stored))
    if row.needs_type:
        return packing
    units = Array.of_result(packed.datatype, packing.count, packing.shape, byte_order(stored))
    return replace(packing, layout=row.prepare(Model(RAW, (units,), context=context)))


@dataclass(frozen=True)
class Unpacking(Transfer):
    """A checked unpacking."""

    units: Array
    function = "MPI_Unpack"

    def write(self, output: Output, progress: Progress) -> None:
        """Write the bytes of the target or zeros, and then the elements over them."""
        with calls.errors_name(output.name):
            if self.target is None:
                self.records.reserve_space(output.fd)
            else:
                with closing(self.target.open()) as file:
                    copying.copy_file(local_fd(file), output.fd)
        for _ in progress(self._scatter(output), self.records.nbytes):
            pass

    def _scatter(self, output: Output) -> Iterator[int]:
        """Write the elements, and yield the number of their bytes."""
        octets = np.empty(0, np.uint8)  # read and not written yet
        with closing(self._blocks()) as packed, calls.errors_name(output.name):
            for run in transfer.cut(self.records.part(0, self.records.count)):
                nbytes = run.copies * run.of.size
                while len(octets) < nbytes:
                    octets = np.concatenate([octets, next(packed)])
                spread.scatter(output.fd, run, octets[:nbytes])
                octets = octets[nbytes:]
                yield nbytes

    def _blocks(self) -> Generator[np.ndarray, None, None]:
        """Yield the bytes of the units in order, in blocks."""
        step, start = max(1, transfer.BLOCK_BYTES // self.packed.stored.itemsize), 0
        for block, _ in blocks(self.units, step):
            units = as_in(self.packed.stored, block, self.packed.datatype, self.units.source.name, start)
            yield np.ascontiguousarray(units).view(np.uint8)
            start += len(block)


def plan_unpack(packed: PathLike, output: str, into: PathLike | None, options: Options, context: Context) -> Unpacking:
    """Check the datatype, the packed file and the target of an unpacking, and return the unpacking."""
    inputs, datatype = _record_options(options, context)
    check_are_data([output, into])
    check_no_input([output if into is None else os.fspath(into)], [(options["types"], "the named datatypes")])
    packed_inputs = InputOptions.of(part(INPUTS, part(PACKED, options)), context)
    units, unit = _open_packed(os.fspath(packed), inputs, datatype, packed_inputs)
    units = context.worker.decoding(limit_decoding(units, context))
    context.check_memory(BASE_NBYTES)
    if units.fortran_order and sum(dim > 1 for dim in units.shape or ()) > 1:
        reason = f"is in Fortran order, and an element is taken from a row of {units.shape}"
        raise BufferFileError(units.source.name, f"{reason}; save it with numpy.ascontiguousarray")
    records = Records(datatype, _count_elements(units, unit, inputs), inputs.offset)
    records.check_starts()
    records.check_disjoint("say a larger extent with resized(LB,EXTENT,TYPE), or fewer with `count`")
    if into is None:
        check_raw_suffix(output)
        check_no_input([output], [(units.source, "the packed elements")])
        if records.end > _MAX_END:
            elements = f"{records.count} elements of {datatype.label} at `offset={records.offset}`"
            raise CountError(output, f"{elements} end at byte {records.end}; files end at byte 2**63 - 1")
        return Unpacking(records, unit, (units.source,), output, RAW.name, options["overwrite"], units)
    path = os.fspath(into)
    if output != "-":
        raise UsageError("`into`", "names the file to write; leave `output` out")
    if is_stream(path):
        raise UsageError("`into`", f"{path} is a stream; give a file")
    check_are_files([path])
    target = open_source(path, context).seekable()
    check_records(target, inputs.offset)
    records.check_inside(target)
    return Unpacking(records, unit, (units.source, target), path, RAW.name, True, units, target=target)  # noqa: FBT003


def _open_packed(
    path: str, inputs: InputOptions, datatype: Datatype, packed_inputs: InputOptions
) -> tuple[Array, PackedUnit]:
    """Open a file of units, or of whole elements such as a reduction writes, and return its array and its unit."""
    # The source is opened once, because the bytes of a stream can be read only once.
    source = decompressed(open_source(path, packed_inputs.context), packed_inputs._replace(datatype=datatype))
    unit = PackedUnit.of(inputs, datatype, as_bytes=not inputs.is_external)
    order = inputs.byte_order or inputs.type_order
    packed_inputs = packed_inputs._replace(byte_order=order, datarep=inputs.datarep, packed=True)
    try:
        return _inspect(source, packed_inputs._replace(datatype=unit.datatype), inputs.count), unit
    except DatatypeError:
        if datatype.typemap.memory.obstacle:
            raise
        element = PackedUnit(datatype, 1, datatype.packed_form.newbyteorder(inputs.order))
        with contextlib.suppress(DatatypeError):
            return _inspect(source, packed_inputs._replace(datatype=datatype), inputs.count), element
        raise


def _inspect(source: Source, inputs: InputOptions, count: int | None) -> Array:
    """Return the array of a packed file from which `count` elements are read, `None` for all."""
    row = recognise(source, inputs)
    if row.needs_type and count == 0:
        inputs = inputs._replace(count=0)  # else the bytes would have to be whole units
    file = row.inspect(source, inputs)
    check_formats(inputs, {file.format}, raw_result=True)
    file.check(complete=True)
    return file.only_buffer()


def _count_elements(units: Array, unit: PackedUnit, inputs: InputOptions) -> int:
    """Return the number of elements to unpack: `count`, or all that the units make."""
    name = units.source.name
    if not unit.per_element:
        if inputs.count is None and units.count:
            raise CountError(name, f"has {units.source.nbytes} bytes, and elements of {inputs.datatype} have none")
        return inputs.count or 0
    available, remainder = divmod(units.count, unit.per_element)
    if inputs.count is not None:
        if inputs.count > available:
            raise CountError(name, f"has {available} elements, fewer than `count={inputs.count}`")
        return inputs.count
    if remainder:
        reason = f"{units.count} x {unit.datatype.label} is not a multiple of {unit.per_element}"
        raise CountError(name, f"{reason}, which an element has")
    return available
