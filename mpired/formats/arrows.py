"""Arrow IPC streams: what an Arrow IPC file has between its magic and its footer."""

from __future__ import annotations

import functools
from typing import cast

import numpy as np

from mpired.codecs.arrow import pa
from mpired.errors import BufferFileError
from mpired.formats import arrow, columns
from mpired.formats.array import Array
from mpired.formats.arrow import ArrowFile
from mpired.formats.input_options import InputOptions
from mpired.formats.rank import RankFile
from mpired.formats.streamed import DECODED_NBYTES, ColumnReader, Decoded
from mpired.sources.source import Source


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an Arrow IPC stream from its schema and the lengths of its batches."""
    if source.is_forward and not inputs.nullable:  # one column of plain values is read as it arrives
        file = columns.inspect(source, inputs, ArrowFile)
        decoded = [cast("Decoded", array.reader) for array in file.buffers]
        if sum(len(each.leaves) for each in decoded) == 1:
            reader = functools.partial(ArrivingReader, decoded=decoded[0])
            buffer = file.buffers[0]._replace(reader=reader, isolated=False, memory=DECODED_NBYTES)
            return file._replace(buffers=(buffer,))
    return columns.inspect(source.kept(), inputs, ArrowFile)


class ArrivingReader(ColumnReader):
    """Reads a column of a stream as it arrives; the last block can be read again. The caller closes it."""

    def __init__(self, array: Array, decoded: Decoded) -> None:
        super().__init__(array, decoded)
        self._start, self._block = 0, np.empty(0, array.datatype.form)

    def available(self, start: int, count: int) -> int:
        """Return how many of some elements there are before the end."""
        if start == self._start and len(self._block):
            return min(count, len(self._block))
        if start != self._start + len(self._block):
            raise BufferFileError(self._array.source.name, f"is read forward, and element {start} is not the next")
        block = np.empty(count, self._array.datatype.form)
        done, _ = self.fill(start, block)
        self._start, self._block = start, block[:done]
        return done

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on."""
        found = self.available(start, len(block))
        if found < len(block):
            raise self._array.miscounted(f"count {start + found}")
        block[:] = self._block[:found]

    def check_end(self) -> None:
        """Raise `CountError` if the stream goes on behind the last element."""
        if self.available(self._array.count, 1):
            raise self._array.miscounted(f"more than {self._array.count} elements")


prepare = functools.partial(arrow.prepare, new=pa.ipc.new_stream)
note = arrow.note
