"""Pack: elements of a derived type out of a raw file, one after another (MPI_Pack; MPI-4.1, 5.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from mpired import codecs
from mpired.context import BASE_NBYTES, Context
from mpired.datatypes.typemap import transfer
from mpired.errors import UsageError
from mpired.files import calls
from mpired.files.names import check_are_data
from mpired.files.output import Output
from mpired.files.scratch import Scratch
from mpired.formats import RAW, Array, FlatLayout, Layout, Model, output_format, spread
from mpired.formats.convert import byte_order, in_form
from mpired.formats.recognise import check_records, unpacked
from mpired.formats.spread import Records
from mpired.log import step
from mpired.options import Options, PathLike
from mpired.packing.units import PackedUnit, Transfer, describe_records, octets
from mpired.progress import Progress
from mpired.sources.local import LocalSource
from mpired.sources.open import check_no_input, check_no_other_input, open_source
from mpired.sources.source import OpenSource


@dataclass(frozen=True)
class Packing(Transfer):
    """A packing that has passed all checks."""

    layout: Layout
    function = "MPI_Pack"

    def write(self, output: Output, progress: Progress) -> None:
        """Write the units, directly or by an encoder."""
        if isinstance(self.layout, FlatLayout):
            output.allocate(self.layout.offset + self.count * self.layout.stored.itemsize)
            with calls.errors_name(output.name):
                calls.pwrite_all(output.fd, self.layout.head, 0)
            self._write(output, self.layout, progress)
            return
        with Scratch(output.directory, output.name) as scratch, calls.errors_name(output.name):
            packed = self.gather(scratch, progress)
            with step("encoding results"):
                self.layout([packed], output.fd)

    def gather(self, scratch: Scratch, progress: Progress) -> Array:
        """Pack into a scratch file, and return the array in it."""
        scratch.allocate(self.records.nbytes)
        self._write(scratch, FlatLayout(self.packed.stored), progress)
        source = LocalSource.of(scratch.name, scratch.shared_path)
        return Array(source, self.packed.datatype, self.count, self.packed.stored)

    def _write(self, output: Output | Scratch, layout: FlatLayout, progress: Progress) -> None:
        with closing(self.sources[0].open()) as file, step("packing"):
            for _ in progress(self._units(file, output, layout), self.records.nbytes):
                pass

    def _units(self, file: OpenSource, output: Output | Scratch, layout: FlatLayout) -> Iterator[int]:
        """Write the units in the form of the layout, and yield the number of their bytes."""
        at, start = layout.offset, 0
        for packed in _whole(self._blocks(file), self.packed.stored.itemsize):
            block = packed.view(self.packed.stored)
            if layout.stored != block.dtype:
                block = in_form(block, layout.stored, output.name, start)
            with calls.errors_name(output.name):
                calls.pwrite_all(output.fd, octets(block).data, at)
            at, start = at + block.nbytes, start + len(block)
            yield len(packed)

    def _blocks(self, file: OpenSource) -> Iterator[np.ndarray]:
        """Yield the packed bytes in order."""
        for run in transfer.cut(self.records.run):
            block = np.empty(run.copies * run.of.size, np.uint8)
            spread.gather(file, self.sources[0], run, block)
            yield block


def _whole(blocks: Iterable[np.ndarray], nbytes: int) -> Iterator[np.ndarray]:
    """Join blocks of bytes, and cut them where units of `nbytes` end."""
    kept: list[np.ndarray] = []
    have = 0
    for block in blocks:
        kept.append(block)
        have += len(block)
        if have >= transfer.BLOCK_BYTES:
            joined = np.concatenate(kept)
            end = have - have % nbytes
            yield joined[:end]
            kept, have = [joined[end:]], have - end
    if have:
        yield np.concatenate(kept)


def plan_pack(file: PathLike, output: str, options: Options, context: Context, *, terminal: bool = False) -> Packing:
    """Check a packing: the type, the file, the form of the result. Nothing is written."""
    inputs, datatype = describe_records(options, context)
    check_are_data([output])
    limit = None if inputs.count is None else Records(datatype, inputs.count, inputs.offset).reach[1]
    source = unpacked(open_source(os.fspath(file), context, limit), inputs)
    check_no_input([output], [(source, "the records")], "name another output")
    check_no_other_input([output], [(options["types"], "the named datatypes")])
    check_records(source, inputs.offset)
    records = Records.of(source, datatype, inputs.offset, inputs.count)
    chosen = output_format(output, options["to"], RAW.name, terminal=terminal)
    context.check_memory(BASE_NBYTES + chosen.encoding + codecs.packing_nbytes(output, None))
    if inputs.is_external and not chosen.needs_type:
        raise UsageError("`datarep`", f"external32 is a form of raw results, not of {chosen.name}; add `to='raw'`")
    packed = PackedUnit.of(inputs, datatype, as_bytes=chosen.needs_type and not inputs.is_external)
    stored = packed.datatype.external_form if inputs.is_external else packed.stored
    plan = Packing(records, packed, (source,), output, chosen.name, FlatLayout(stored))
    if chosen.needs_type:
        return plan
    units = Array.of_result(packed.datatype, plan.count, plan.shape, byte_order(stored))
    return replace(plan, layout=chosen.prepare(Model(RAW.name, (units,), context=context)))
