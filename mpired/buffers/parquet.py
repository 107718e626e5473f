"""Parquet: streamed by batches, page checksums verified; schema, column order and compression kept."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from mpired.buffers import columns, plain_pages
from mpired.buffers.arrow_arrays import DTYPES, is_time, nullable_values, values_of
from mpired.buffers.columns import Column, Contents, explaining
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.footer import MAGIC, Chunk, Footer, Leaf, Pages, pages, stretch
from mpired.buffers.footer import read as read_footer
from mpired.buffers.format import Encoder
from mpired.buffers.local import DamageError, Extent, OpenBytes, Spliced
from mpired.buffers.missing import NullsError
from mpired.buffers.model import Model
from mpired.buffers.rank import Values
from mpired.buffers.streamed import DECODED_NBYTES, Nullable
from mpired.errors import BufferFileError, DatatypeError
from mpired.sources.source import OpenSource, Source

import pyarrow as pa  # isort: skip - after columns, which sets it up
import pyarrow.parquet as pq  # isort: skip

_BATCH_ROWS = 64 << 10
_BATCH_NBYTES = 16 << 20  # about so much of the columns that are copied is decoded at a time
# Bytes of a column that are read at a time. A column by itself is cut so; with others pyarrow is told to have a buffer,
# which it makes larger and copies each time that a page ends with it, so that it has to be large for few columns.
_READ_NBYTES = 1 << 20
_LEAST_BUFFER, _BUFFERS = 256 << 10, 64 << 20
_ROW_GROUP_BYTES = 32 << 20  # a row group of the output is in memory at once
_ROW_GROUP_ROWS = 1 << 20
_KEPT_GROUP_NBYTES = 64 << 20  # a row group of a file that is written again stays as it is up to here
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20
_STRETCH_ROWS = 1 << 20  # row groups are read together up to here, because pyarrow opens a file for each stretch
_STRETCH_GROUPS = 256


class ParquetFile(OpenBytes):
    """An open parquet file, of which single leaves are read; pyarrow sees only clean footers of a leaf each."""

    def __init__(self, source: Source, memory: int = DECODED_NBYTES) -> None:
        super().__init__(source)
        self._memory = memory

    def arrays(self, wanted: Leaf | Nullable, start: int) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on."""
        leaf, nullable = (wanted.leaf, True) if isinstance(wanted, Nullable) else (wanted, False)
        check_copied(self._source.name, [leaf])
        for skip, parts in self._stretches(leaf, start):
            skipped = skip
            for found in self._columns(leaf, parts) if nullable else self._values(leaf, parts):
                rest = found[skipped:]
                skipped = max(0, skipped - len(found))
                if isinstance(rest, np.ndarray):
                    yield rest, None
                elif nullable:
                    yield nullable_values(rest)
                elif rest.null_count:
                    every = (column for _, some in self._stretches(leaf, 0) for column in self._columns(leaf, some))
                    raise NullsError(sum(column.null_count for column in every))
                else:
                    yield values_of(rest), None

    def _values(self, leaf: Leaf, parts: Sequence[Pages]) -> Iterator[np.ndarray | pa.Array]:
        """Yield the values of pages: those that lie there as they are, and columns of the others."""
        others: list[Pages] = []
        for part in parts:
            start = 0  # of the pages in a row that the library decodes
            for number, page in enumerate(part.data):
                values = plain_pages.values(self._bytes, leaf, part.chunk, page)
                if values is None:
                    continue
                if start < number:
                    others.append(part._replace(data=part.data[start:number]))
                if others:  # as a writer encodes by a dictionary until that is large
                    yield from self._columns(leaf, others)
                    others = []
                yield values
                start = number + 1
            if start < len(part.data):
                others.append(part._replace(data=part.data[start:]))
        if others:
            yield from self._columns(leaf, others)

    def _columns(self, leaf: Leaf, parts: Sequence[Pages]) -> Iterator[pa.Array]:
        """Yield the values of pages, nulls too."""
        for batch in _batches(Spliced(self._bytes, stretch(leaf, parts))):
            column = batch.column(0)
            while pa.types.is_struct(column.type):
                (column,) = column.flatten()  # nulls of a structure become nulls of its fields
            yield column if leaf.time is None else column.cast(leaf.time)

    def _stretches(self, leaf: Leaf, start: int) -> Iterator[tuple[int, list[Pages]]]:
        """Yield the pages from the row `start` on, those of some row groups at a time, and the values to skip there."""
        parts: list[Pages] = []
        skipped = rows = 0
        groups = zip(leaf.starts, leaf.rows, leaf.chunks, strict=False)
        self._bytes.expect((chunk.start, chunk.nbytes) for first, count, chunk in groups if first + count > start)
        for first, count, chunk in zip(leaf.starts, leaf.rows, leaf.chunks, strict=False):
            if count == 0 or first + count <= start:
                continue
            part = _pages(self._bytes, self._source.name, leaf, chunk, self._memory)
            if first < start:
                skipped, part = part.after(start - first)
            parts += part.cut(_READ_NBYTES)
            rows += count
            if rows >= _STRETCH_ROWS or len(parts) >= _STRETCH_GROUPS:
                yield skipped, parts
                parts, skipped, rows = [], 0, 0
        if parts:
            yield skipped, parts


def _pages(file: OpenSource, name: str, leaf: Leaf, chunk: Chunk, memory: int) -> Pages:
    """Return the pages of a leaf in a row group, if each can be decoded within the memory."""
    found = pages(file, chunk)
    if found.largest > memory:
        raise columns.too_large(name, f"a page of column {leaf.name!r}", found.largest, memory)
    return found


def _batches(file: Spliced) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a parquet file, with all columns."""
    return iter(_opened(file).iter_batches(batch_size=_BATCH_ROWS, use_threads=False))


def _opened(file: Spliced | pa.NativeFile, buffer_nbytes: int = 0) -> pq.ParquetFile:
    return pq.ParquetFile(
        file,
        page_checksum_verification=True,
        pre_buffer=False,
        buffer_size=buffer_nbytes,
        thrift_string_size_limit=_THRIFT_STRINGS,
        thrift_container_size_limit=_THRIFT_ITEMS,
    )


class WholeFile(OpenBytes):
    """An open parquet file, to be written again."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.footer = read_footer(self._bytes, source.nbytes)
        # Arrow's schema, from a footer without the row groups.
        self.schema = _opened(pa.BufferReader(MAGIC + self.footer.head)).schema_arrow
        if len(self.schema.names) != len(self.footer.columns):
            raise DamageError("its schema makes no sense")
        self._file: pq.ParquetFile | None = None

    def contents(self) -> Contents:
        """Return what it holds."""
        leaves = [
            tuple(_typed(leaf, field.type) for leaf in own)
            for field, own in zip(self.schema, self.footer.columns, strict=True)
        ]
        nulls = [None if any(leaf.repeated for leaf in own) else _nulls(own) for own in leaves]
        return Contents(self.schema, leaves, sum(self.footer.rows), nulls, sum(self.footer.group_nbytes))

    def columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with some columns."""
        wanted = set(names)
        check_copied(self._source.name, [leaf for leaf in self.footer.leaves if leaf.path[0].decode() in wanted])
        for number in range(len(self.footer.rows)):
            yield from self.group(number, names)

    def group(self, number: int, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group, with all columns or at least some; long rows by fewer."""
        if self._file is None:
            buffer_nbytes = max(_LEAST_BUFFER, _BUFFERS // max(1, len(self.footer.leaves)))
            self._file = _opened(Spliced(self._bytes, [Extent(0, self._source.nbytes)]), buffer_nbytes)
        for leaf in self.footer.leaves:
            if names is not None and leaf.path[0].decode() not in names:
                continue
            _pages(self._bytes, self._source.name, leaf, leaf.chunks[number], DECODED_NBYTES)
        rows, nbytes = self.footer.rows[number], max(1, self.footer.group_nbytes[number])
        rows = max(1, min(_BATCH_ROWS, rows * _BATCH_NBYTES // nbytes))
        wanted = {"batch_size": rows, "row_groups": [number], "columns": names, "use_threads": False}
        return iter(self._file.iter_batches(**wanted))


def _typed(leaf: Leaf, kind: pa.DataType) -> Leaf:
    """Return a leaf with what the schema of Arrow tells of its values."""
    if is_time(kind):
        return leaf._replace(time=kind)
    form = DTYPES.get(kind)
    return leaf._replace(plain=form.name if form is not None and leaf.is_stored_as(form.itemsize) else "")


def _nulls(leaves: Sequence[Leaf]) -> int | None:
    """Return how many values of a column are missing: a structure that is null is one in each of its fields."""
    counts = [[chunk.nulls for chunk in leaf.chunks] for leaf in leaves]
    known = max((sum(count or 0 for count in each) for each in counts), default=0)
    return None if not known and any(None in each for each in counts) else known


_COLUMN = Column("parquet", WholeFile, ParquetFile, WholeFile)


inspect = functools.partial(columns.inspect, column=_COLUMN)
note = functools.partial(columns.note_of, whole=WholeFile)


def prepare(model: Model) -> Encoder:
    """Say how a result like `model` becomes parquet."""
    schema, rows, written = None, _ROW_GROUP_ROWS, {}
    if model.source:
        with explaining(model.source.name), closing(WholeFile(model.source)) as old:
            schema, rows = old.schema, max(old.footer.rows, default=0) or _ROW_GROUP_ROWS
            written = _written(old.footer)
    layout = columns.layout_like(model, schema)
    if schema is None:
        _check_held(layout.schema)
    row_bytes = sum(buffer.datatype.itemsize for buffer in model.buffers)
    rows = layout.most_rows(max(1, min(rows, _ROW_GROUP_BYTES // row_bytes)))

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        schema = columns.with_note(layout.schema, model.note)
        with (
            os.fdopen(os.dup(fd), "wb") as file,
            pq.ParquetWriter(file, schema, write_page_checksum=True, **written) as writer,
            closing(layout.batches(results, rows)) as batches,
        ):
            for batch in batches:
                writer.write_batch(batch, row_group_size=rows)

    return encode


def _check_held(schema: pa.Schema) -> None:
    """Raise `DatatypeError` if parquet has no form for a column, or another than it had: some times, for example."""
    for field in schema:
        sink = pa.BufferOutputStream()
        try:
            pq.ParquetWriter(sink, pa.schema([field])).close()
        except pa.ArrowException:
            raise DatatypeError(f"{field.type}", "has no form in parquet; use `to='arrow'`") from None
        found = pq.read_schema(pa.BufferReader(sink.getvalue())).field(0).type
        if found != field.type:
            raise DatatypeError(f"{field.type}", f"would be {found} in parquet; use `to='arrow'`")


def _written(footer: Footer) -> dict[str, Any]:
    """Return how a file is written, as far as its footer tells, in the words of pyarrow."""
    leaves = footer.leaves
    # Of old versions of pyarrow LZ4 is what others call LZ4_RAW.
    codecs = {leaf.name: chunk.compression.removesuffix("_RAW") for leaf in leaves for chunk in leaf.chunks}
    return {
        "compression": codecs or "snappy",
        "use_dictionary": [leaf.name for leaf in leaves if any(chunk.has_dictionary for chunk in leaf.chunks)],
        "write_statistics": [leaf.name for leaf in leaves if any(chunk.has_statistics for chunk in leaf.chunks)],
        "write_page_index": any(chunk.has_index for leaf in leaves for chunk in leaf.chunks),
    }


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some columns; a row group is in memory at once."""
    with columns.patching(source, WholeFile, changed) as (old, schema, patched), os.fdopen(os.dup(fd), "wb") as new:
        leaves = old.footer.leaves
        check_copied(source.name, leaves)
        old_lists = any(leaf.name.endswith(".list.item") or ".list.item." in leaf.name for leaf in leaves)
        written = {**_written(old.footer), "use_compliant_nested_type": not old_lists}
        with pq.ParquetWriter(new, schema, write_page_checksum=True, **written) as writer:
            for number in range(len(old.footer.rows)):
                _write_group(writer, schema, map(patched, old.group(number)))


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a row group, and a part more."""
    with explaining(source.name), closing(WholeFile(source)) as file:
        largest = max((0, *file.footer.group_nbytes))
        return min(largest, _KEPT_GROUP_NBYTES + _BATCH_NBYTES) * 3 // 2


def check_copied(name: str, leaves: Sequence[Leaf]) -> None:
    """Raise `BufferFileError` if a column cannot be written as it is."""
    for leaf in leaves:
        if leaf.is_int96:  # its range is larger than that of Arrow's nanoseconds
            reason = f"column {leaf.name!r} is INT96, a time that cannot be copied exactly"
            raise BufferFileError(name, f"{reason}; write it as a timestamp of 64 bits first")


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
