"""Elements whose bytes are spread over a raw file, between those of others, as the columns of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from mpired.datatypes import Datatype
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import CountError, DatatypeError, UsageError
from mpired.files import calls, copying
from mpired.formats.array import Array, FlatReader, blocks
from mpired.formats.convert import convert, in_form
from mpired.sources.source import OpenSource, Source, local_fd


@dataclass(frozen=True)
class Records:
    """Elements of a datatype in a raw file, with gaps."""

    datatype: Datatype  # what an element is
    count: int  # how many there are
    offset: int  # where displacement 0 of the first element is, in bytes

    @classmethod
    def of(cls, source: Source, datatype: Datatype, offset: int, count: int | None) -> Records:
        """Return the elements of a file: those declared, or all that are in it."""
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
        found = cls(datatype, count, offset)
        found.check_inside(source)
        return found

    def part(self, start: int, count: int) -> Run:
        """Return `count` elements, from element `start` on."""
        extent = self.datatype.typemap.extent
        return Run(self.datatype.typemap, self.offset + start * extent, count, extent)

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte that belongs to an element, and the end of the last; both 0 if there is none."""
        return transfer.reach(self.part(0, self.count)) if self.nbytes else (0, 0)

    @property
    def end(self) -> int:
        """The bytes of a file with these elements and nothing behind them, the padding of the last included."""
        if not self.count:
            return self.offset
        typemap = self.datatype.typemap
        padded = self.offset + (self.count - 1) * max(typemap.extent, 0) + typemap.ub
        return max(self.reach[1], padded)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements without the gaps."""
        return self.count * self.datatype.size

    def make_room(self, fd: int) -> None:
        """Give a new file the size for these elements: reserved, unless most of it would be gaps."""
        (calls.allocate if self.end <= transfer.MOST_GAPS * self.nbytes else calls.set_size)(fd, self.end)

    def check_starts(self) -> None:
        """Raise an error if an element starts before the file."""
        if self.reach[0] < 0:
            raise UsageError("`offset`", f"the elements start {-self.reach[0]} bytes before the file; give `offset`")

    def check_inside(self, source: Source) -> None:
        """Raise an error unless all elements are in a file."""
        self.check_starts()
        if self.reach[1] > source.nbytes:
            what = f"{self.count} elements of {self.datatype.label}"
            raise CountError(source.name, f"has {source.nbytes} bytes, and {what} end at byte {self.reach[1]}")

    def check_apart(self, hint: str) -> None:
        """Raise an error if an entry would be written over another (MPI-4.1, 5.1.11)."""
        overlap = pieces.overlaps(self.datatype.typemap, self.count)
        reason = f"in {self.count} elements of it entries overlap, and none may be written twice"
        if overlap is None:
            reason = f"{self.count} elements of it have too many pieces to tell that none overlap"
        if overlap is None or overlap:
            raise DatatypeError(f"{self.datatype}", f"{reason}; {hint}")


def gather(file: OpenSource, source: Source, run: Run, packed: np.ndarray) -> None:
    """Read the bytes of a run, which is no larger than `transfer.cut` makes them, to `packed`."""
    with calls.errors_name(source.name):
        is_dense = transfer.is_dense(run)
        if is_dense and file.read_into(packed.data, transfer.reach(run)[0]) < len(packed):
            raise source.changed()
        for window in () if is_dense else transfer.windows(run):
            room = np.empty((len(window.starts), window.nbytes), np.uint8)
            stretches = zip(window.starts, room, strict=True)
            if any(file.read_into(each.data, start) < len(each) for start, each in stretches):
                raise source.changed()
            window.gather(room, packed)


def scatter(fd: int, run: Run, packed: np.ndarray) -> None:
    """Write `packed` to where the bytes of a run belong in a file; the bytes between them stay."""
    if transfer.is_dense(run):
        calls.pwrite_all(fd, packed.data, transfer.reach(run)[0])
        return
    for window in transfer.windows(run):
        room = np.zeros((len(window.starts), window.nbytes), np.uint8)
        if not window.full:
            for start, stretch in zip(window.starts, room, strict=True):
                calls.pread_into(fd, stretch.data, start)
        window.scatter(room, packed)
        for start, stretch in zip(window.starts, room, strict=True):
            calls.pwrite_all(fd, stretch.data, start)


def _cut(run: Run, packed: np.ndarray) -> Iterator[tuple[Run, np.ndarray]]:
    """Yield a run piece by piece, each with its packed bytes."""
    at = 0
    for piece in transfer.cut(run):
        end = at + piece.copies * piece.of.size
        yield piece, packed[at:end]
        at = end


class SpreadReader(FlatReader):
    """Reads element ranges of an array that is spread over its file. The caller closes it."""

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on, packed, in native byte order."""
        array = self._array
        stored = block if array.stored == block.dtype else np.empty(len(block), array.stored)
        records = Records(array.datatype, array.count, array.offset)
        for run, packed in _cut(records.part(start, len(block)), stored.view(np.uint8)):
            gather(self.file, array.source, run, packed)
        if stored is not block:
            convert(stored, block, array.source.name, start)


def spread_encoder(
    datatype: Datatype, stored: np.dtype, around: Array | None = None
) -> Callable[[Sequence[Array], int], None]:
    """Return what writes elements with the form `stored` when packed, perhaps in the place of those of an array."""

    def encode(results: Sequence[Array], fd: int) -> None:  # no two workers can write interleaved bytes
        (result,) = results
        records = _prepared(Records(datatype, result.count, 0), around, fd)
        start, step = 0, max(1, transfer.INTERLEAVED_BYTES // result.datatype.itemsize)
        for block, _ in blocks(result, step):
            packed = block if stored == block.dtype else in_form(block, stored, result.source.name, start)
            for run, octets in _cut(records.part(start, len(block)), packed.view(np.uint8)):
                scatter(fd, run, octets)
            start += len(block)

    return encode


def _prepared(records: Records, around: Array | None, fd: int) -> Records:
    """Write the other bytes of a file: zeros, or those of the file of an array; return where the elements go."""
    if around is None:
        records = replace(records, offset=max(0, -records.reach[0]))
        records.make_room(fd)
        return records
    old, source = Records(records.datatype, around.count, around.offset), around.source
    records = replace(old, count=records.count)
    tail = old.reach[1] if old.count else old.offset
    end = records.reach[1] if records.count else old.offset
    with closing(source.open()) as file:
        if tail == end:
            copying.copy_file(local_fd(file), fd)
        else:
            calls.set_size(fd, end + source.nbytes - tail)
            copying.copy_sparse(local_fd(file), fd, 0, end, 0)
            copying.copy_sparse(local_fd(file), fd, tail, source.nbytes, end)
    return records
