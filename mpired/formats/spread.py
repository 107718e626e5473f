"""Elements of a raw file that interleave, such as the columns of a matrix: their bytes are read and written in runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from mpired.datatypes import Datatype, transfer
from mpired.datatypes.typemap import MOST_GAPS, Run, overlaps
from mpired.errors import CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.formats.array import Array, FlatReader, blocks
from mpired.formats.convert import convert, in_form
from mpired.sources.source import OpenSource, Source, local_fd


@dataclass(frozen=True)
class Records:
    """Elements of a datatype with gaps in a raw file."""

    datatype: Datatype  # datatype of an element
    count: int  # number of elements
    offset: int  # bytes before displacement 0 of the first element

    @classmethod
    def of(cls, source: Source, datatype: Datatype, offset: int, count: int | None) -> Records:
        """Return `count` elements of a file, or all elements."""
        if count is None:
            typemap, nbytes = datatype.typemap, source.nbytes - offset
            if nbytes < 0:
                raise CountError(source.name, f"has {source.nbytes} bytes, fewer than `offset={offset}` skips")
            if typemap.extent <= 0 or not typemap.size:
                reason = f"is needed: the extent of {datatype.label} is {typemap.extent}, its size {typemap.size}"
                raise UsageError("`count`", reason)
            count = max(0, (nbytes - typemap.true_ub) // typemap.extent + 1) if nbytes else 0
            # The last element may end with its last entry, or with its extent (MPI-4.1, 5.1.6).
            end = (count - 1) * typemap.extent + max(typemap.true_ub, typemap.ub) if count else 0
            if nbytes > end:
                elements = f"{count} elements of {datatype.label}, whose extent is {typemap.extent}"
                reason = f"{nbytes - end} bytes are left after {elements}"
                raise CountError(source.name, f"{reason}; say with `count` how many to take")
        records = cls(datatype, count, offset)
        records.check_inside(source)
        return records

    def part(self, start: int, count: int) -> Run:
        """Return the run of `count` elements from the element `start` on."""
        typemap = self.datatype.typemap
        return typemap.elements(count, self.offset + start * typemap.extent)

    @property
    def reach(self) -> tuple[int, int]:
        """The offset of the first byte of all elements, and of the byte after the last; both 0 without elements."""
        return self.datatype.typemap.reach(self.count, self.offset)

    @property
    def end(self) -> int:
        """The size of a file with these elements, including the padding of the last element."""
        if not self.count:
            return self.offset
        typemap = self.datatype.typemap
        padded = self.offset + (self.count - 1) * max(typemap.extent, 0) + typemap.ub
        return max(self.reach[1], padded)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements without gaps."""
        return self.count * self.datatype.size

    def reserve_space(self, fd: int) -> None:
        """Set the size of a new file, and reserve its space, unless most of it would be gaps."""
        (calls.allocate if self.end <= MOST_GAPS * self.nbytes else calls.set_size)(fd, self.end)

    def check_starts(self) -> None:
        """Raise an error if an element starts before the file."""
        if self.reach[0] < 0:
            raise UsageError("`offset`", f"the elements start {-self.reach[0]} bytes before the file; give `offset`")

    def check_inside(self, source: Source) -> None:
        """Raise an error unless all elements are within a file."""
        self.check_starts()
        if self.reach[1] > source.nbytes:
            elements = f"{self.count} elements of {self.datatype.label}"
            raise CountError(source.name, f"has {source.nbytes} bytes, and {elements} end at byte {self.reach[1]}")

    def check_disjoint(self, hint: str) -> None:
        """Raise an error if entries overlap, which is not allowed for writing (MPI-4.1, 5.1.11)."""
        overlap = overlaps(self.datatype.typemap, self.count)
        reason = f"in {self.count} elements of it entries overlap, and none may be written twice"
        if overlap is None:
            reason = f"{self.count} elements of it have too many pieces to tell that none overlap"
        if overlap is None or overlap:
            raise DatatypeError(f"{self.datatype}", f"{reason}; {hint}")


def gather(file: OpenSource, source: Source, run: Run, packed: np.ndarray) -> None:
    """Read the bytes of a run, whose size `transfer.cut` has limited, to `packed`."""
    with calls.errors_name(source.name):
        is_dense = transfer.is_dense(run)
        if is_dense and file.read_into(packed.data, run.reach[0]) < len(packed):
            raise source.changed()
        for window in () if is_dense else transfer.windows(run):
            buffer = np.empty((len(window.starts), window.nbytes), np.uint8)
            stretches = zip(window.starts, buffer, strict=True)
            if any(file.read_into(stretch.data, start) < len(stretch) for start, stretch in stretches):
                raise source.changed()
            window.gather(buffer, packed)


def scatter(fd: int, run: Run, packed: np.ndarray) -> None:
    """Write `packed` to the bytes of a run in a file; the bytes in its gaps stay."""
    if transfer.is_dense(run):
        calls.pwrite_all(fd, packed.data, run.reach[0])
        return
    for window in transfer.windows(run):
        buffer = np.zeros((len(window.starts), window.nbytes), np.uint8)
        if not window.has_no_gaps:
            for start, stretch in zip(window.starts, buffer, strict=True):
                calls.pread_into(fd, stretch.data, start)
        window.scatter(buffer, packed)
        for start, stretch in zip(window.starts, buffer, strict=True):
            calls.pwrite_all(fd, stretch.data, start)


def _cut(run: Run, packed: np.ndarray) -> Iterator[tuple[Run, np.ndarray]]:
    """Yield pieces of limited size of a run, each with its packed bytes."""
    start = 0
    for piece in transfer.cut(run):
        stop = start + piece.copies * piece.of.size
        yield piece, packed[start:stop]
        start = stop


class SpreadReader(FlatReader):
    """Reads ranges of elements that interleave. The caller closes it."""

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with packed native elements from `start` on."""
        array = self._array
        stored = block if array.stored == block.dtype else np.empty(len(block), array.stored)
        records = Records(array.datatype, array.count, array.offset)
        for run, packed in _cut(records.part(start, len(block)), stored.view(np.uint8)):
            gather(self.file, array.source, run, packed)
        if stored is not block:
            convert(stored, block, array.source.name, start)


def spread_encoder(
    datatype: Datatype, stored: np.dtype, replaced: Array | None = None
) -> Callable[[Sequence[Array], int], None]:
    """Return the encoder of elements of the form `stored`, for a new file or a copy of the file of a replaced array."""

    def encode(results: Sequence[Array], fd: int) -> None:  # no two workers can write interleaved bytes
        (result,) = results
        records = _write_surroundings(Records(datatype, result.count, 0), replaced, fd)
        start, step = 0, max(1, transfer.INTERLEAVED_BYTES // result.datatype.itemsize)
        for block, _ in blocks(result, step):
            packed = block if stored == block.dtype else in_form(block, stored, result.source.name, start)
            for run, octets in _cut(records.part(start, len(block)), packed.view(np.uint8)):
                scatter(fd, run, octets)
            start += len(block)

    return encode


def _write_surroundings(records: Records, replaced: Array | None, fd: int) -> Records:
    """Write the bytes around and between the elements of a result, zeros or those of the replaced array's file.

    Return the elements with their offset.
    """
    if replaced is None:
        records = replace(records, offset=max(0, -records.reach[0]))
        records.reserve_space(fd)
        return records
    old, source = Records(records.datatype, replaced.count, replaced.offset), replaced.source
    records = replace(old, count=records.count)
    old_end = old.reach[1] if old.count else old.offset
    end = records.reach[1] if records.count else old.offset
    with closing(source.open()) as file:
        if old_end == end:
            copying.copy_file(local_fd(file), fd)
        else:
            calls.set_size(fd, end + source.nbytes - old_end)
            copying.copy_sparse(local_fd(file), fd, 0, end, 0)
            copying.copy_sparse(local_fd(file), fd, old_end, source.nbytes, end)
    return records
