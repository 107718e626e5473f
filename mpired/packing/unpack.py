"""Unpack: elements that lie one after another to where a datatype says (MPI_Unpack; MPI-4.1, 5.2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import Datatype
from mpired.datatypes.typemap import transfer
from mpired.errors import BufferFileError, CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.names import check_are_data
from mpired.files.output import Output, open_output
from mpired.files.places import is_stream
from mpired.files.urls import check_are_files
from mpired.formats import RAW, Array, InputOptions, recognise, spread
from mpired.formats.array import within_budget
from mpired.formats.convert import convert, lies_as
from mpired.formats.decoding import Decoder
from mpired.formats.recognise import check_raw_suffix, check_records, unpacked
from mpired.formats.spread import Records
from mpired.options import INPUTS, PACKED, Options, PathLike, part
from mpired.packing.units import Packed, octets, said_of
from mpired.ranks import check_use
from mpired.sources.open import check_no_input, check_no_other_input, open_source
from mpired.sources.source import Source, local_fd

_MAX_END = 2**63 - 1
"""The most bytes of a file, whatever the file system."""


@dataclass(frozen=True)
class Unpacking:
    """An unpacking that has passed all checks."""

    buffer: Array  # the units
    records: Records  # where they go
    packed: Packed  # what they are
    path: str  # the file to write
    target: Source | None  # the file whose other bytes stay; None for zeros
    function: ClassVar[str] = "MPI_Unpack"
    format: ClassVar[str] = RAW.name

    @property
    def keeps(self) -> bool:
        """Whether the bytes between the elements stay."""
        return self.target is not None

    @property
    def paths(self) -> list[str]:
        """Where the result goes."""
        return [self.path]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [self.buffer.source] if self.target is None else [self.buffer.source, self.target]

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Do it, and commit the result; `held` has the file that it replaces."""
        with open_output(self.path, overwrite=overwrite, context=context, held=held) as output:
            with calls.blaming(output.name):
                self._prepare(output.fd)
            for _ in context.progress(self._write(output), self.records.nbytes):
                pass
            self.buffer.source.check_unchanged()
            if self.target is not None:
                self.target.check_unchanged()
            output.commit(context.on_commit)

    def _prepare(self, fd: int) -> None:
        """Write what is between the elements."""
        if self.target is None:
            self.records.make_room(fd)
        else:
            with closing(self.target.open()) as file:
                copying.copy_file(local_fd(file), fd)

    def _write(self, output: Output) -> Iterator[int]:
        units = _Units(self.buffer, self.packed)
        with closing(units), calls.blaming(output.name):
            for run in transfer.cut(self.records.run):
                block = units.take(run.copies * run.of.size)
                spread.scatter(output.fd, run, block)
                yield len(block)


class _Units:
    """Gives the bytes of packed units in order."""

    def __init__(self, buffer: Array, packed: Packed) -> None:
        self._decoder = Decoder()
        self._reader = self._decoder.decoding(buffer).open()
        self._count = buffer.count
        self._name = buffer.source.name
        self._packed = packed
        self._step = max(1, transfer.BLOCK_BYTES // packed.stored.itemsize)
        self._next = 0
        self._rest = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> np.ndarray:
        """Return the next bytes."""
        kept = []
        while nbytes > len(self._rest):
            kept.append(self._rest)
            nbytes -= len(self._rest)
            self._rest = self._read()
        kept.append(self._rest[:nbytes])
        self._rest = self._rest[nbytes:]
        return np.concatenate(kept) if len(kept) > 1 else np.ascontiguousarray(kept[0])

    def _read(self) -> np.ndarray:
        block = np.empty(min(self._step, self._count - self._next), self._packed.datatype.form)
        self._reader.read(self._next, block)
        stored = block
        if not lies_as(self._packed.stored, self._packed.datatype):
            stored = np.empty(len(block), self._packed.stored)
            convert(block, stored, self._name, self._next)
        self._next += len(block)
        return octets(stored)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._decoder.close()


def plan_unpack(packed: PathLike, output: str, into: PathLike | None, options: Options, context: Context) -> Unpacking:
    """Check an unpacking: the type, the file, where its elements go. Nothing is written."""
    said, datatype = said_of(options, context)
    check_are_data([output, into])
    check_no_other_input([output if into is None else os.fspath(into)], [(options["types"], "the named datatypes")])
    inputs = InputOptions.of(part(INPUTS, part(PACKED, options)), context)
    buffer, form = _opened(os.fspath(packed), said, datatype, inputs)
    buffer = within_budget(buffer, context)
    context.check_memory(BASE_NBYTES)
    if buffer.fortran_order and sum(dim > 1 for dim in buffer.shape or ()) > 1:
        reason = f"is in Fortran order, and an element is taken from a row of {buffer.shape}"
        raise BufferFileError(buffer.source.name, f"{reason}; save it with numpy.ascontiguousarray")
    records = Records(datatype, _elements(buffer, form, said), said.offset)
    records.check_starts()
    records.check_apart("say a larger extent with resized(LB,EXTENT,TYPE), or fewer with `count`")
    if into is None:
        check_raw_suffix(output)
        check_no_input([output], [(buffer.source, "the packed elements")], "name another output")
        if records.end > _MAX_END:
            what = f"{records.count} elements of {datatype.label} at `offset={records.offset}`"
            raise CountError(output, f"{what} end at byte {records.end}; files end at byte 2**63 - 1")
        return Unpacking(buffer, records, form, output, None)
    path = os.fspath(into)
    if output != "-":
        raise UsageError("`into`", "names the file to write; leave `output` out")
    if is_stream(path):
        raise UsageError("`into`", f"{path} is a stream; give a file")
    check_are_files([path])
    target = open_source(path, context).kept()
    check_records(target, said.offset)
    records.check_inside(target)
    return Unpacking(buffer, records, form, path, target)


def _opened(path: str, said: InputOptions, datatype: Datatype, inputs: InputOptions) -> tuple[Array, Packed]:
    """Open a file of units, or of whole elements as reductions write them, and say which it is."""
    # Once: a stream gives its bytes only once.
    source = unpacked(open_source(path, inputs.context), inputs._replace(datatype=datatype))
    units = Packed.of(said, datatype, as_bytes=not said.is_external)
    try:
        return _buffer(source, said.of_units(units.datatype, inputs), said.count), units
    except DatatypeError:
        if datatype.memory.obstacle:
            raise
        whole = Packed(datatype, 1, said.packed_form(datatype))
        with contextlib.suppress(DatatypeError):
            return _buffer(source, said.of_units(datatype, inputs), said.count), whole
        raise


def _buffer(source: Source, packed: InputOptions, count: int | None) -> Array:
    row = recognise(source, packed)
    if row.needs_type and count == 0:
        packed = packed._replace(count=0)  # of which any number of bytes has enough
    file = row.inspect(source, packed)
    check_use(packed, [file], raw_result=True)
    file.check_complete()
    return file.only_buffer()


def _elements(buffer: Array, packed: Packed, said: InputOptions) -> int:
    """Return how many whole elements a buffer of units holds, or those that are declared."""
    name = buffer.source.name
    if not packed.per_element:
        if said.count is None and buffer.count:
            raise CountError(name, f"has {buffer.source.nbytes} bytes, and elements of {said.datatype} have none")
        return said.count or 0
    available, rest = divmod(buffer.count, packed.per_element)
    if said.count is not None:
        if said.count > available:
            raise CountError(name, f"has {available} elements, fewer than `count={said.count}`")
        return said.count
    if rest:
        reason = f"{buffer.count} x {packed.datatype.label} is not a multiple of {packed.per_element}"
        raise CountError(name, f"{reason}, which an element has")
    return available
