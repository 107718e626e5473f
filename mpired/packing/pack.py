"""Pack: elements of a derived type out of a raw file, one after another (MPI_Pack; MPI-4.1, 5.2)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpired import codecs
from mpired.context import BASE_NBYTES, Context
from mpired.datatypes.typemap import transfer
from mpired.errors import UsageError
from mpired.files import calls
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.names import check_are_data
from mpired.files.output import Output, open_output
from mpired.files.scratch import Scratch
from mpired.formats import RAW, Array, FlatLayout, Layout, Model, output_format, spread
from mpired.formats.convert import byte_order, convert
from mpired.formats.recognise import check_records, unpacked
from mpired.formats.spread import Records
from mpired.log import step
from mpired.options import Options, PathLike
from mpired.packing.units import Packed, octets, said_of
from mpired.progress import Progress
from mpired.sources.local import LocalSource
from mpired.sources.open import check_no_input, check_no_other_input, open_source
from mpired.sources.source import OpenSource, Source


@dataclass(frozen=True)
class Packing:
    """A packing that has passed all checks."""

    source: Source
    records: Records
    packed: Packed
    path: str
    format: str
    layout: Layout
    function: ClassVar[str] = "MPI_Pack"
    keeps: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """The units in the result."""
        return self.records.count * self.packed.per_element

    @property
    def paths(self) -> list[str]:
        """Where the result goes."""
        return [self.path]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [self.source]

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Do it, and commit the result; `held` has the file that it replaces."""
        with open_output(self.path, overwrite=overwrite, context=context, held=held) as output:
            if isinstance(self.layout, FlatLayout):
                output.allocate(self.layout.offset + self.count * self.layout.stored.itemsize)
                with calls.blaming(output.name):
                    calls.pwrite_all(output.fd, self.layout.head, 0)
                self._write(output, self.layout, context.progress)
            else:
                with Scratch(output.directory, output.name) as scratch, calls.blaming(output.name):
                    packed = self.gathered(scratch, context.progress)
                    with step("encoding results"):
                        self.layout([packed], output.fd)
            self.source.check_unchanged()
            output.commit(context.on_commit)

    def gathered(self, scratch: Scratch, progress: Progress) -> Array:
        """Pack into a scratch file, and return what is there."""
        scratch.allocate(self.records.nbytes)
        self._write(scratch, FlatLayout(self.packed.stored), progress)
        source = LocalSource.of(scratch.name, scratch.shared_path)
        return Array(source, self.packed.datatype, self.count, self.packed.stored)

    def _write(self, output: Output | Scratch, layout: FlatLayout, progress: Progress) -> None:
        """Write the units in the form of the layout."""
        at = 0
        direct = layout.stored == self.packed.stored
        for units in _whole(self._blocks(progress), self.packed.stored.itemsize):
            block = units.view(self.packed.stored)
            if not direct:
                block = np.zeros(len(block), layout.stored)
                convert(units.view(self.packed.stored), block, output.name, at)
            with calls.blaming(output.name):
                calls.pwrite_all(output.fd, octets(block).data, layout.offset + at * layout.stored.itemsize)
            at += len(block)

    def _blocks(self, progress: Progress) -> Iterator[np.ndarray]:
        """Yield the packed bytes in order."""
        done: list[np.ndarray] = []
        with closing(self.source.open()) as file, step("packing"):
            for _ in progress(self._read(file, done), self.records.nbytes):
                yield done.pop()

    def _read(self, file: OpenSource, done: list[np.ndarray]) -> Iterator[int]:
        for run in transfer.cut(self.records.run):
            block = np.empty(run.copies * run.of.size, np.uint8)
            spread.gather(file, self.source, run, block)
            done.append(block)
            yield len(block)


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
    said, datatype = said_of(options, context)
    check_are_data([output])
    limit = None if said.count is None else Records(datatype, said.count, said.offset).reach[1]
    source = unpacked(open_source(os.fspath(file), context, limit), said)
    check_no_input([output], [(source, "the records")], "name another output")
    check_no_other_input([output], [(options["types"], "the named datatypes")])
    check_records(source, said.offset)
    records = Records.of(source, datatype, said.offset, said.count)
    chosen = output_format(output, options["to"], RAW.name, terminal=terminal)
    context.check_memory(BASE_NBYTES + chosen.encoding + codecs.packing_nbytes(output, None))
    if said.is_external and not chosen.needs_type:
        raise UsageError("`datarep`", f"external32 is a form of raw results, not of {chosen.name}; add `to='raw'`")
    packed = Packed.of(said, datatype, as_bytes=chosen.needs_type and not said.is_external)
    if chosen.needs_type:
        layout: Layout = FlatLayout(packed.datatype.external_form if said.is_external else packed.stored)
        return Packing(source, records, packed, output, chosen.name, layout)
    shape = (records.count,) if packed.per_element == 1 else (records.count, packed.per_element)
    total = records.count * packed.per_element
    units = Array.of_result(packed.datatype, total, shape, byte_order(packed.stored))
    layout = chosen.prepare(Model(RAW.name, (units,), context=context))
    return Packing(source, records, packed, output, chosen.name, layout)
