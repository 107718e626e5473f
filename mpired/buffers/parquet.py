"""Parquet: streamed by batches, page checksums verified; schema, column order and compression kept."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np

from mpired.buffers.columns import explaining, layout_like, null_error
from mpired.buffers.columns import inspect as inspect_columns
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.formats import Encoder
from mpired.buffers.rank import Declared, RankFile
from mpired.buffers.source import Source

import pyarrow as pa  # isort: skip - after columns, which sets it up
import pyarrow.parquet as pq  # isort: skip

_BATCH_ROWS = 64 << 10
_READ_BUFFER = 256 << 10  # bytes of a column chunk read at a time, instead of the whole chunk
_ROW_GROUP_BYTES = 32 << 20  # a row group of the output is in memory at once
_ROW_GROUP_ROWS = 1 << 20
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20
_CODEC_NAMES = {"UNCOMPRESSED": "NONE"}  # what the reader calls it and what the writer does


class ParquetFile:
    """An open parquet file, its row groups the groups of rows."""

    def __init__(self, source: Source) -> None:
        os.close(source.open())  # checks that it is still the file that was looked at
        self._file = pq.ParquetFile(
            pa.OSFile(source.path, "rb"),  # a local path, never a URI
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_READ_BUFFER,
            thrift_string_size_limit=_THRIFT_STRINGS,
            thrift_container_size_limit=_THRIFT_ITEMS,
        )
        self.metadata = self._file.metadata
        self.schema = self._file.schema_arrow
        groups = range(self.metadata.num_row_groups)
        self.starts = [0, *itertools.accumulate(self.metadata.row_group(i).num_rows for i in groups)]

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns from the start of a row group on."""
        groups = list(range(group, len(self.starts) - 1))
        return iter(
            self._file.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=list(columns), use_threads=False)
        )

    def check_codecs(self, group: int) -> None:
        """Read one row of a row group: that refuses an unknown codec, whose name cannot even be asked for."""
        next(iter(self._file.iter_batches(batch_size=1, row_groups=[group], use_threads=False)), None)

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a parquet file from its footer.

    Raises
    ------
    BufferFileError, DatatypeError
        As for every format with columns; `DatatypeError` also for nulls that the statistics tell of.
    """
    rank = inspect_columns(source, declared, "parquet", ParquetFile)
    with explaining(source.name), closing(ParquetFile(source)) as file:
        for buffer in rank.buffers:
            columns = buffer.name.split(",") if declared.pair else [buffer.name]
            nulls = sum(_known_nulls(file, name) for name in columns)
            if nulls:
                raise null_error(source, columns, nulls)
    return rank


def _known_nulls(file: ParquetFile, name: str) -> int:
    """Return the nulls of a column according to the statistics; those without show when they are read."""
    nulls = 0
    for group in range(file.metadata.num_row_groups):
        chunks = file.metadata.row_group(group)
        statistics = [
            chunk.statistics
            for chunk in map(chunks.column, range(chunks.num_columns))
            if chunk.path_in_schema == name or chunk.path_in_schema.startswith(f"{name}.")
        ]
        # A structure that is null is one in each of its fields.
        nulls += max((each.null_count for each in statistics if each is not None and each.has_null_count), default=0)
    return nulls


def prepare(template: RankFile) -> Encoder:
    """Say how a result like `template` becomes parquet.

    Raises
    ------
    DatatypeError
        If parquet has no type for a datatype.
    """
    schema, compression, rows = _like(template) if template.format == "parquet" else (None, "snappy", _ROW_GROUP_ROWS)
    layout = layout_like(template, schema)
    row_bytes = sum(buffer.datatype.extent for buffer in template.buffers)
    rows = max(1, min(rows, _ROW_GROUP_BYTES // row_bytes))

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(result.open())) for result in results]
            file = stack.enter_context(os.fdopen(os.dup(fd), "wb"))
            writer = stack.enter_context(
                pq.ParquetWriter(file, layout.schema, compression=compression, write_page_checksum=True)
            )
            for start in range(0, results[0].count, rows):
                count = min(rows, results[0].count - start)
                blocks = [np.empty(count, result.datatype.form) for result in results]
                for reader, block in zip(readers, blocks, strict=True):
                    reader.read(start, block)
                writer.write_batch(layout.batch(blocks), row_group_size=rows)

    return encode


def _like(template: RankFile) -> tuple[pa.Schema, dict[str, str] | str, int]:
    """Return schema, compression by column and the most rows of a row group of a parquet file."""
    with explaining(template.source.name), closing(ParquetFile(template.source)) as file:
        compression, rows = {}, 0
        for group in range(file.metadata.num_row_groups):
            chunks = file.metadata.row_group(group)
            rows = max(rows, chunks.num_rows)
            file.check_codecs(group)
            for chunk in map(chunks.column, range(chunks.num_columns)):
                compression[chunk.path_in_schema] = _CODEC_NAMES.get(chunk.compression, chunk.compression)
        return file.schema, compression or "snappy", rows or _ROW_GROUP_ROWS
