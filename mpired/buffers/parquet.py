"""Parquet: streamed by batches, page checksums verified; schema, column order and compression kept."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from mpired.buffers.columns import Patch, explaining, layout_like, null_error
from mpired.buffers.columns import inspect as inspect_columns
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.formats import Encoder
from mpired.buffers.rank import Declared, RankFile
from mpired.buffers.source import Source
from mpired.errors import BufferFileError

import pyarrow as pa  # isort: skip - after columns, which sets it up
import pyarrow.parquet as pq  # isort: skip

_BATCH_ROWS = 64 << 10
_BATCH_NBYTES = 16 << 20  # about so much of the columns that are copied is decoded at a time
_READ_BUFFER = 256 << 10  # bytes of a column chunk read at a time, instead of the whole chunk
_ROW_GROUP_BYTES = 32 << 20  # a row group of the output is in memory at once
_ROW_GROUP_ROWS = 1 << 20
_KEPT_GROUP_NBYTES = 256 << 20  # a row group of a file that is written again stays as it is up to here
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20
_CODEC_NAMES = {"UNCOMPRESSED": "NONE"}  # what the reader calls it and what the writer does


class ParquetFile:
    """An open parquet file, its row groups the groups of rows."""

    def __init__(self, source: Source) -> None:
        os.close(source.open())  # checks that it is still the file that was looked at
        self.name = source.name
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

    def group(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, with all columns; long rows by fewer."""
        footer = self.metadata.row_group(number)
        rows = max(1, min(_BATCH_ROWS, footer.num_rows * _BATCH_NBYTES // max(1, footer.total_byte_size)))
        return iter(self._file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False))

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
        statistics = [
            chunk.statistics
            for chunk in _chunks(file, group)
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
    row_bytes = sum(buffer.datatype.itemsize for buffer in template.buffers)
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
        groups = range(file.metadata.num_row_groups)
        rows = max((file.metadata.row_group(group).num_rows for group in groups), default=0)
        return file.schema, _compression(file), rows or _ROW_GROUP_ROWS


def _compression(file: ParquetFile) -> dict[str, str] | str:
    """Return the compression by column."""
    compression = {}
    for group in range(file.metadata.num_row_groups):
        file.check_codecs(group)
        for chunk in _chunks(file, group):
            compression[chunk.path_in_schema] = _CODEC_NAMES.get(chunk.compression, chunk.compression)
    return compression or "snappy"


def _chunks(file: ParquetFile, group: int) -> Iterator[pq.ColumnChunkMetaData]:
    """Yield what the footer says of the columns of a row group."""
    chunks = file.metadata.row_group(group)
    return map(chunks.column, range(chunks.num_columns))


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some columns; a row group is in memory at once.

    The parameters are those of `Format.rewrite`.

    Raises
    ------
    BufferFileError
        If the old file is damaged, or holds what cannot be written as it is.
    """
    with explaining(source.name), ExitStack() as stack:
        old = stack.enter_context(closing(ParquetFile(source)))
        new = stack.enter_context(os.fdopen(os.dup(fd), "wb"))
        patch = Patch(old.schema, changed, stack)
        writer = stack.enter_context(pq.ParquetWriter(new, old.schema, write_page_checksum=True, **_kept(old)))
        for number in range(len(old.starts) - 1):
            _write_group(writer, old.schema, map(patch.applied, old.group(number)))


def _kept(file: ParquetFile) -> dict[str, Any]:
    """Return how a file is written, as far as its footer tells.

    Raises
    ------
    BufferFileError
        If a column cannot be written as it is.
    """
    chunks = [chunk for group in range(len(file.starts) - 1) for chunk in _chunks(file, group)]
    paths = {chunk.path_in_schema for chunk in chunks}
    for chunk in chunks:
        if chunk.physical_type == "INT96":  # its range is larger than that of Arrow's nanoseconds
            reason = f"column {chunk.path_in_schema!r} is INT96, a time that cannot be copied exactly"
            raise BufferFileError(file.name, f"{reason}; write it as a timestamp of 64 bits first")
    return {
        "compression": _compression(file),
        "use_dictionary": sorted({chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}),
        "write_statistics": sorted({chunk.path_in_schema for chunk in chunks if chunk.is_stats_set}),
        "write_page_index": any(chunk.has_column_index for chunk in chunks),
        "use_compliant_nested_type": not any(path.endswith(".list.item") or ".list.item." in path for path in paths),
    }


def _write_group(writer: pq.ParquetWriter, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    """Write a row group, cut where it is more than memory should hold."""
    piece: list[pa.RecordBatch] = []

    def write() -> None:
        rows = sum(batch.num_rows for batch in piece)
        writer.write_table(pa.Table.from_batches(piece, schema), row_group_size=max(1, rows))
        piece.clear()

    for batch in batches:
        if sum(each.nbytes for each in piece) > _KEPT_GROUP_NBYTES:
            write()
        piece.append(batch)
    write()
