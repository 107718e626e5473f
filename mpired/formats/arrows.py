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
from mpired.formats.columns import Leaf, errors_of
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import NullsError, null_error
from mpired.formats.rank import RankFile
from mpired.formats.streamed import Decoded, Stream
from mpired.sources.source import Source


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an Arrow IPC stream from its schema and the lengths of its batches."""
    if source.is_forward and not inputs.nullable:  # one column of plain values is read as it arrives
        file = columns.inspect(source, inputs, ArrowFile)
        leaves = [leaf for array in file.buffers for leaf in cast("Decoded", array.reader).leaves]
        if len(leaves) == 1:
            reader = functools.partial(ArrivingReader, leaf=leaves[0])
            return file._replace(buffers=(file.buffers[0]._replace(reader=reader, isolated=False),))
    return columns.inspect(source.kept(), inputs, ArrowFile)


class ArrivingReader:
    """Reads a column of a stream as it arrives; the last block can be read again. The caller closes it."""

    def __init__(self, array: Array, leaf: Leaf) -> None:
        self._array, self._start, self._block = array, 0, np.empty(0, array.datatype.form)
        with errors_of(array.source.name):
            self._stream = Stream(ArrowFile(array.source), leaf, nullable=False)

    def available(self, start: int, count: int) -> int:
        """Return how many of some elements there are before the end."""
        array = self._array
        if start == self._start and len(self._block):
            return min(count, len(self._block))
        if start != self._start + len(self._block):
            raise BufferFileError(array.source.name, f"is read forward, and element {start} is not the next")
        block = np.empty(count, array.datatype.form)
        with errors_of(array.source.name):
            try:
                done, _ = self._stream.fill(start, block)
            except NullsError as found:
                raise null_error(array.source, array.columns, found.args[0]) from None
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

    def close(self) -> None:
        """Leave the rest."""


prepare = functools.partial(arrow.prepare, new=pa.ipc.new_stream)
note = arrow.note
