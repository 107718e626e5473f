"""Arrow IPC files: every record batch is checked whole before its values are touched."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing

import numpy as np

from mpired.buffers.columns import Patch, explaining, layout_like
from mpired.buffers.columns import inspect as inspect_columns
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.formats import Encoder
from mpired.buffers.rank import Declared, RankFile
from mpired.buffers.source import Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_MAGIC_NBYTES = 8
_CODECS = ("lz4", "zstd")  # org.apache.arrow.flatbuf.CompressionType


class ArrowFile:
    """An open Arrow IPC file, its record batches the groups of rows."""

    def __init__(self, source: Source) -> None:
        os.close(source.open())  # checks that it is still the file that was looked at
        self._file = pa.OSFile(source.path, "rb")  # never mapped: a shortened file would kill the process
        with explaining(source.name):
            self.schema = pa.ipc.open_file(self._file).schema
            reader = self._reader([])
            rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        self.starts = [0, *itertools.accumulate(rows)]

    def _reader(self, fields: list[int]) -> pa.RecordBatchFileReader:
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        return pa.ipc.open_file(self._file, options=options)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns from the start of a record batch on."""
        reader = self._reader([self.schema.get_field_index(name) for name in columns])
        for i in range(group, reader.num_record_batches):
            batch = reader.get_batch(i)
            # Lengths and offsets are the file's word: without this a patched one reads foreign memory.
            batch.validate(full=True)
            yield batch.select(list(columns))

    def whole(self) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]]:
        """Yield every record batch with all columns, and its metadata."""
        reader = self._reader([])
        for i in range(reader.num_record_batches):
            batch, metadata = reader.get_batch_with_custom_metadata(i)
            batch.validate(full=True)
            yield batch, metadata

    def compression(self) -> str | None:
        """Return the compression of the first record batch, None if there is none.

        pyarrow knows it, but does not tell. What lies where no writer puts it says nothing of compression.
        """
        self._file.seek(_MAGIC_NBYTES)
        try:
            while (message := pa.ipc.read_message(self._file)).type != "record batch":
                pass
            return _codec(message.metadata.to_pybytes())
        except (EOFError, ValueError, IndexError, struct.error):
            return None

    @property
    def metadata(self) -> Mapping[bytes, bytes] | None:
        """The metadata of the footer; a pyarrow that cannot keep it shows none."""
        metadata: Mapping[bytes, bytes] | None = getattr(self._reader([]), "metadata", None)
        return metadata

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _codec(message: bytes) -> str | None:
    """Return the compression that a message says of a record batch (org.apache.arrow.flatbuf.Message)."""

    def field(table: int, number: int) -> int:
        """Return where a field of a table is, 0 if it is left out."""
        (back,) = struct.unpack_from("<i", message, table)
        (nbytes,) = struct.unpack_from("<H", message, table - back)
        slot = 4 + 2 * number
        offset: int = struct.unpack_from("<H", message, table - back + slot)[0] if slot < nbytes else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        to: int = at + struct.unpack_from("<I", message, at)[0]
        return to

    batch = follow(field(follow(0), 2))  # Message.header
    compression = field(batch, 3)  # RecordBatch.compression
    if not compression:
        return None
    codec = field(follow(compression), 0)  # BodyCompression.codec
    return _CODECS[message[codec] if codec else 0]


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe an Arrow IPC file from its schema and the lengths of its batches.

    Raises
    ------
    BufferFileError, DatatypeError
        As for every format with columns.
    """
    return inspect_columns(source, declared, "arrow", ArrowFile)


def prepare(template: RankFile) -> Encoder:
    """Say how a result like `template` becomes an Arrow IPC file.

    Raises
    ------
    DatatypeError
        If Arrow has no type for a datatype.
    """
    schema = None
    if template.format == "arrow":
        with explaining(template.source.name), closing(ArrowFile(template.source)) as file:
            schema = file.schema
    layout = layout_like(template, schema)

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(result.open())) for result in results]
            file = stack.enter_context(os.fdopen(os.dup(fd), "wb"))
            writer = stack.enter_context(pa.ipc.new_file(file, layout.schema))
            for start in range(0, results[0].count, _BATCH_ROWS):
                count = min(_BATCH_ROWS, results[0].count - start)
                blocks = [np.empty(count, result.datatype.form) for result in results]
                for reader, block in zip(readers, blocks, strict=True):
                    reader.read(start, block)
                writer.write_batch(layout.batch(blocks))

    return encode


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some columns, record batch by record batch.

    The parameters are those of `Format.rewrite`.

    Raises
    ------
    BufferFileError
        If the old file is damaged.
    """
    with explaining(source.name), ExitStack() as stack:
        old = stack.enter_context(closing(ArrowFile(source)))
        new = stack.enter_context(os.fdopen(os.dup(fd), "wb"))
        patch = Patch(old.schema, changed, stack)
        options = pa.ipc.IpcWriteOptions(compression=old.compression(), use_threads=False)
        footer = {"metadata": metadata} if (metadata := old.metadata) else {}
        writer = stack.enter_context(pa.ipc.new_file(new, old.schema, options=options, **footer))
        for batch, said in old.whole():
            writer.write_batch(patch.applied(batch), custom_metadata=said)
