"""Files whose elements are of derived types, packed and unpacked (MPI_Pack, MPI_Unpack; MPI-4.1, 5.2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype, parse, unit_of
from mpired.datatypes.typemap import transfer
from mpired.errors import BufferFileError, CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.files.lock import LockedTargets
from mpired.files.places import check_are_data, is_stream
from mpired.files.scratch import Compression, Scratch
from mpired.files.transaction import Output, open_output
from mpired.files.urls import check_are_files
from mpired.formats import RAW, Array, FlatLayout, InputOptions, Layout, Model, output_format, recognise, spread
from mpired.formats.array import blocks, within_budget
from mpired.formats.convert import as_in, byte_order, in_form
from mpired.formats.recognise import check_raw_suffix, check_records, unpacked
from mpired.formats.spread import Records
from mpired.log import Progress, step
from mpired.options import INPUTS, PACKED, RECORDS, Options, PathLike, part
from mpired.ranks.opening import check_formats
from mpired.sources.local import LocalSource
from mpired.sources.open import check_no_input, check_unchanged, open_source
from mpired.sources.source import OpenSource, Source, local_fd

_BYTE = parse("byte")[0]
_MAX_END = 2**63 - 1  # the most bytes of a file, whatever the file system


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
            return cls(unit, datatype.size // unit.size, unit.packed_form.newbyteorder(inputs.order))
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
    overwrite: bool  # whether the result may replace a file
    function: ClassVar[str]  # of MPI
    folders: ClassVar[tuple[str, ...]] = ()  # that are made for results
    # the file whose other bytes stay, of an unpacking; `None` for zeros
    target: Source | None = field(default=None, kw_only=True)

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

    def run(self, context: Context, locked: LockedTargets) -> None:
        """Write the result and commit it; `locked` has the file that it replaces."""
        packing = Compression.of(self.path, None) if self.target is None else None
        with open_output(
            self.path, overwrite=self.overwrite, context=context, locked=locked, packing=packing
        ) as output:
            self.write(output, context.progress)
            check_unchanged(self.sources)
            output.commit(context.on_commit)

    def write(self, output: Output, progress: Progress) -> None:
        """Write the result."""
        raise NotImplementedError


def _described(options: Options, context: Context) -> tuple[InputOptions, Datatype]:
    """Return the options that describe the records, and their datatype."""
    inputs = InputOptions.of(part(INPUTS, part(RECORDS, options)), context)
    if inputs.datatype is None:
        raise UsageError("`type`", "is missing; give the type of the elements of the records")
    return inputs, inputs.datatype


@dataclass(frozen=True)
class Packing(Transfer):
    """A packing that has passed all checks."""

    layout: Layout
    function = "MPI_Pack"

    def write(self, output: Output, progress: Progress) -> None:
        """Write the units, directly or by an encoder."""
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
        """Pack into a scratch file, and return the array in it."""
        scratch.allocate(self.records.nbytes)
        for _ in progress(self._write(scratch, FlatLayout(self.packed.stored)), self.records.nbytes):
            pass
        source = LocalSource(scratch.name, scratch.shared.path)
        return Array(source, self.packed.datatype, self.count, self.packed.stored)

    def _write(self, output: Output | Scratch, layout: FlatLayout) -> Iterator[int]:
        """Write the units in the form of the layout, and yield the number of their bytes."""
        at, start = layout.offset, 0
        with closing(self.sources[0].open()) as file, step("packing"):
            for units in self._blocks(file):
                block = units if layout.stored == units.dtype else in_form(units, layout.stored, output.name, start)
                with calls.errors_name(output.name):
                    calls.pwrite_all(output.fd, np.ascontiguousarray(block).view(np.uint8).data, at)
                at, start = at + block.nbytes, start + len(block)
                yield units.nbytes

    def _blocks(self, file: OpenSource) -> Iterator[np.ndarray]:
        """Yield the units in order, many at a time; a read may end within one."""
        nbytes, have = self.packed.stored.itemsize, 0
        kept: list[np.ndarray] = []
        for run in transfer.cut(self.records.part(0, self.records.count)):
            kept.append(np.empty(run.copies * run.of.size, np.uint8))
            spread.gather(file, self.sources[0], run, kept[-1])
            have += len(kept[-1])
            if have >= transfer.BLOCK_BYTES:
                joined = np.concatenate(kept)
                end = have - have % nbytes
                yield joined[:end].view(self.packed.stored)
                kept, have = [joined[end:]], have - end
        if have:
            yield np.concatenate(kept).view(self.packed.stored)


def plan_pack(file: PathLike, output: str, options: Options, context: Context, *, terminal: bool = False) -> Packing:
    """Check a packing: the type, the file, the form of the result. Nothing is written."""
    inputs, datatype = _described(options, context)
    check_are_data([output])
    limit = None if inputs.count is None else Records(datatype, inputs.count, inputs.offset).reach[1]
    source = unpacked(open_source(os.fspath(file), context, limit), inputs)
    check_no_input([output], [(source, "the records"), (options["types"], "the named datatypes")])
    check_records(source, inputs.offset)
    records = Records.of(source, datatype, inputs.offset, inputs.count)
    chosen = output_format(output, options["to"], RAW.name, terminal=terminal)
    packing = Compression.of(output, None)
    context.check_memory(BASE_NBYTES + chosen.encoding + (packing.nbytes if packing else 0))
    if inputs.is_external and not chosen.needs_type:
        raise UsageError("`datarep`", f"external32 is a form of raw results, not of {chosen.name}; add `to='raw'`")
    packed = PackedUnit.of(inputs, datatype, as_bytes=chosen.needs_type and not inputs.is_external)
    stored = packed.datatype.external_form if inputs.is_external else packed.stored
    plan = Packing(records, packed, (source,), output, chosen.name, options["overwrite"], FlatLayout(stored))
    if chosen.needs_type:
        return plan
    units = Array.of_result(packed.datatype, plan.count, plan.shape, byte_order(stored))
    return replace(plan, layout=chosen.prepare(Model(RAW.name, (units,), context=context)))


@dataclass(frozen=True)
class Unpacking(Transfer):
    """An unpacking that has passed all checks."""

    units: Array
    function = "MPI_Unpack"

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
            for run in transfer.cut(self.records.part(0, self.records.count)):
                nbytes = run.copies * run.of.size
                while len(rest) < nbytes:
                    rest = np.concatenate([rest, next(packed)])
                spread.scatter(output.fd, run, rest[:nbytes])
                rest = rest[nbytes:]
                yield nbytes

    def _blocks(self) -> Generator[np.ndarray, None, None]:
        """Yield the packed bytes in order."""
        step, start = max(1, transfer.BLOCK_BYTES // self.packed.stored.itemsize), 0
        for block, _ in blocks(self.units, step):
            units = as_in(self.packed.stored, block, self.packed.datatype, self.units.source.name, start)
            yield np.ascontiguousarray(units).view(np.uint8)
            start += len(block)


def plan_unpack(packed: PathLike, output: str, into: PathLike | None, options: Options, context: Context) -> Unpacking:
    """Check an unpacking: the type, the file, where its elements go. Nothing is written."""
    declared, datatype = _described(options, context)
    check_are_data([output, into])
    check_no_input([output if into is None else os.fspath(into)], [(options["types"], "the named datatypes")])
    inputs = InputOptions.of(part(INPUTS, part(PACKED, options)), context)
    buffer, form = _opened(os.fspath(packed), declared, datatype, inputs)
    buffer = context.worker.decoding(within_budget(buffer, context))
    context.check_memory(BASE_NBYTES)
    if buffer.fortran_order and sum(dim > 1 for dim in buffer.shape or ()) > 1:
        reason = f"is in Fortran order, and an element is taken from a row of {buffer.shape}"
        raise BufferFileError(buffer.source.name, f"{reason}; save it with numpy.ascontiguousarray")
    records = Records(datatype, _elements(buffer, form, declared), declared.offset)
    records.check_starts()
    records.check_apart("say a larger extent with resized(LB,EXTENT,TYPE), or fewer with `count`")
    if into is None:
        check_raw_suffix(output)
        check_no_input([output], [(buffer.source, "the packed elements")])
        if records.end > _MAX_END:
            what = f"{records.count} elements of {datatype.label} at `offset={records.offset}`"
            raise CountError(output, f"{what} end at byte {records.end}; files end at byte 2**63 - 1")
        return Unpacking(records, form, (buffer.source,), output, RAW.name, options["overwrite"], buffer)
    path = os.fspath(into)
    if output != "-":
        raise UsageError("`into`", "names the file to write; leave `output` out")
    if is_stream(path):
        raise UsageError("`into`", f"{path} is a stream; give a file")
    check_are_files([path])
    target = open_source(path, context).kept()
    check_records(target, declared.offset)
    records.check_inside(target)
    return Unpacking(records, form, (buffer.source, target), path, RAW.name, True, buffer, target=target)  # noqa: FBT003


def _opened(path: str, declared: InputOptions, datatype: Datatype, inputs: InputOptions) -> tuple[Array, PackedUnit]:
    """Open a file of units, or of whole elements as reductions write them, and say which it is."""
    # Once: a stream gives its bytes only once.
    source = unpacked(open_source(path, inputs.context), inputs._replace(datatype=datatype))
    units = PackedUnit.of(declared, datatype, as_bytes=not declared.is_external)
    order = declared.byte_order or declared.type_order
    packed = inputs._replace(byte_order=order, datarep=declared.datarep, packed=True)
    try:
        return _buffer(source, packed._replace(datatype=units.datatype), declared.count), units
    except DatatypeError:
        if datatype.memory.obstacle:
            raise
        whole = PackedUnit(datatype, 1, datatype.packed_form.newbyteorder(declared.order))
        with contextlib.suppress(DatatypeError):
            return _buffer(source, packed._replace(datatype=datatype), declared.count), whole
        raise


def _buffer(source: Source, packed: InputOptions, count: int | None) -> Array:
    row = recognise(source, packed)
    if row.needs_type and count == 0:
        packed = packed._replace(count=0)  # of which any number of bytes has enough
    file = row.inspect(source, packed)
    check_formats(packed, {file.format}, raw_result=True)
    file.check(complete=True)
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
