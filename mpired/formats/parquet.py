"""Parquet: pyarrow decodes batches of rows, and verifies the checksums of pages.

A result has the schema, the column order and the compression of the first rank.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple

from mpired.errors import BufferFileError, DatatypeError
from mpired.formats import columns
from mpired.formats.columns import Change, HeaderFields, Table, errors_of
from mpired.formats.layout import Encoder
from mpired.formats.rank import Model
from mpired.formats.streamed import DamageError, TableFile, limit_each
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source

import pyarrow as pa  # isort: skip - after columns, which sets it up
import pyarrow.parquet as pq  # isort: skip

_BATCH_ROWS = 64 << 10
_BATCH_NBYTES = 16 << 20  # approximate size of a decoded batch
_BUFFER_NBYTES = 256 << 10  # read-ahead in each column of a remote file
_ROW_GROUP_BYTES = 32 << 20  # size of the row groups of results, which are in memory at once
_ROW_GROUP_ROWS = 1 << 20
_KEPT_GROUP_NBYTES = 64 << 20  # larger row groups are divided when a file is rewritten
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20
_MAX_FOOTERS = 32


class _Footer(NamedTuple):
    """The parsed footer of a file."""

    content: TableFile
    file: pq.ParquetFile
    schema: pa.Schema
    group_rows: list[int]  # number of rows in each row group
    leaves: list[range]  # numbers of parquet's leaf columns in each column
    old_times: frozenset[str]  # names of columns with times of 96 bits


_footers: dict[Source, _Footer] = {}
"""Cache of the last footers, without descriptors: parsing a footer of 1,000 columns takes 10 ms."""


class ParquetFile(Table):
    """An open parquet file."""

    format = "parquet"

    def begin(self) -> None:
        """Read the footer."""
        # The cache would keep other sources, such as scratch files, alive.
        self._is_cached = isinstance(self._source, LocalSource) and self._source.keep is None
        # The cached footer is used by a single opening at a time.
        footer = _footers.pop(self._source, None) if self._is_cached else None
        if footer is not None:
            footer.content.reopen(self._bytes)
        self._footer = footer or _parse(TableFile(self._bytes, self._source.nbytes))
        self.content, self._file, self.schema, self.group_rows, *_ = self._footer
        self.metadata: pq.FileMetaData = self._file.metadata
        super().begin()

    def header_fields(self) -> HeaderFields:
        """Return the fields of the header of the file."""
        groups = [self.metadata.row_group(number) for number in range(len(self.group_rows))]
        nulls = [_null_count(self.metadata, groups, leaves) for leaves in self._footer.leaves]
        nbytes = sum(group.total_byte_size for group in groups)
        return self.schema, tuple(self.group_rows), nulls, nbytes

    def batches(self, names: Sequence[str], rows: Sequence[int], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` on with the named columns."""
        del rows  # equal to `group_rows`
        for number, nrows in enumerate(self.group_rows):
            if start >= nrows:
                start -= nrows
                continue
            for batch in self.group(number, names):
                if start < batch.num_rows:
                    yield batch[start:]
                start = max(0, start - batch.num_rows)

    def group(self, number: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group with the named columns, in batches of limited size."""
        group, nrows, ndecoded = self.metadata.row_group(number), self.group_rows[number], 0
        chosen, named = {*names}, zip(self.schema.names, self._footer.leaves, strict=True)
        chunks = [group.column(leaf) for name, leaves in named if name in chosen for leaf in leaves]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        self._bytes.expect(zip(starts, (chunk.total_compressed_size for chunk in chunks), strict=True))
        nbytes = max(1, sum(chunk.total_uncompressed_size for chunk in chunks))
        batch_rows = max(1, min(_BATCH_ROWS, nrows * _BATCH_NBYTES // nbytes))
        self._check_old_times(number, self._footer.old_times.intersection(names))
        selected = None if len(names) == len(self.schema) else names
        options = {"batch_size": batch_rows, "row_groups": [number], "columns": selected, "use_threads": False}
        batches = limit_each(self._source.name, self._memory, self._file.iter_batches(**options))
        for batch in batches if nrows else ():
            ndecoded += batch.num_rows
            yield batch
            self.content.forget()
        if ndecoded != nrows:  # the library ends without an error at a damaged page header
            raise DamageError(f"row group {number} has {ndecoded} rows, and its header says {nrows}")

    def _check_old_times(self, number: int, names: Collection[str]) -> None:
        """Raise `BufferFileError` if a time of 96 bits would overflow as nanoseconds of 64 bits."""
        if not names:
            return
        seconds = _open(self.content, metadata=self.metadata, coerce_int96_timestamp_unit="s")
        options = {"batch_size": _BATCH_ROWS, "row_groups": [number], "columns": sorted(names), "use_threads": False}
        for batch in limit_each(self._source.name, self._memory, seconds.iter_batches(**options)):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column.cast(self.schema.field(name).type)
                except pa.ArrowInvalid:
                    reason = "before 1677 or after 2262; write it as a timestamp of 64 bits first"
                    raise BufferFileError(self._source.name, f"column {name!r} has times of 96 bits {reason}") from None

    def form(self) -> tuple[pa.Schema, int, dict[str, Any]]:
        """Return the schema, the maximum rows of a row group, and pyarrow's options for writing such a file."""
        schema, with_dictionary = self.metadata.schema, set()
        chunks = [
            (schema.column(leaf).path, schema.column(leaf), self.metadata.row_group(number).column(leaf))
            for number in range(len(self.group_rows))
            for leaf in range(len(schema))
        ]
        for path, leaf, chunk in chunks:  # a dictionary that saved nothing was given up by the writer
            nbytes = chunk.num_values * _TYPE_NBYTES.get(leaf.physical_type, 0)
            if chunk.has_dictionary_page and (not nbytes or chunk.total_uncompressed_size < nbytes):
                with_dictionary.add(path)
        codecs = {path: chunk.compression for path, _, chunk in chunks}
        options = _WRITER_OPTIONS | {
            "compression": {path: _CODECS.get(codec, codec) for path, codec in codecs.items()} or "snappy",
            "use_dictionary": sorted(with_dictionary),
            "write_statistics": sorted({path for path, _, chunk in chunks if chunk.is_stats_set}),
            "write_page_index": any(chunk.has_offset_index for _, _, chunk in chunks),
            "use_deprecated_int96_timestamps": bool(self._footer.old_times)
            and not any(leaf.logical_type.type == "TIMESTAMP" for _, leaf, _ in chunks),
        }
        return self.schema, max(self.group_rows, default=0), options

    def copy(self, new: BinaryIO, schema: pa.Schema, change: Change) -> None:
        """Write a copy of the file with changed batches; row groups stay, unless they are too large for the memory."""
        paths = [self.metadata.schema.column(leaf).path for leaf in range(len(self.metadata.schema))]
        old_lists = any(path.endswith(".list.item") or ".list.item." in path for path in paths)
        with pq.ParquetWriter(new, schema, **self.form()[2], use_compliant_nested_type=not old_lists) as writer:
            for number, rows in enumerate(self.group_rows):
                batches: list[pa.RecordBatch] = []
                for batch in map(change, self.group(number, self.schema.names)):
                    if sum(waiting.nbytes for waiting in batches) > _KEPT_GROUP_NBYTES:
                        writer.write_table(pa.Table.from_batches(batches, schema), rows)
                        batches = []
                    batches.append(batch)
                writer.write_table(pa.Table.from_batches(batches, schema), max(1, rows))

    def close(self) -> None:
        """Close the file, and cache its footer for the next column."""
        super().close()
        if not self._is_cached:
            return
        self.content.reopen(OpenSource())
        _footers[self._source] = self._footer
        while len(_footers) > _MAX_FOOTERS:
            del _footers[next(iter(_footers))]


def _parse(content: TableFile) -> _Footer:
    """Read the footer of a file."""
    file = _open(content)
    metadata, schema = file.metadata, file.schema_arrow
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if sum(rows) != metadata.num_rows:
        raise DamageError(f"its row groups have {sum(rows)} rows, and it {metadata.num_rows}")
    counts = (columns.count_nodes(field.type, leaves=True) for field in schema)
    leaves = [*itertools.starmap(range, itertools.pairwise(itertools.accumulate(counts, initial=0)))]
    types = [metadata.schema.column(leaf).physical_type for leaf in range(len(metadata.schema))]
    named = zip(schema.names, leaves, strict=True)
    old_times = frozenset(name for name, numbers in named if any(types[leaf] == "INT96" for leaf in numbers))
    return _Footer(content, file, schema, rows, leaves, old_times)


def _open(file: TableFile, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(file, mode="r"),
        page_checksum_verification=True,
        pre_buffer=False,
        buffer_size=_BUFFER_NBYTES if file.is_remote else 0,
        thrift_string_size_limit=_THRIFT_STRINGS,
        thrift_container_size_limit=_THRIFT_ITEMS,
        **options,
    )


_WRITER_OPTIONS: dict[str, Any] = {"write_page_checksum": True}
_CODECS = {"UNCOMPRESSED": "NONE", "UNKNOWN": "LZ4"}  # Hadoop's LZ4, which pyarrow only reads
_TYPE_NBYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


def _null_count(metadata: pq.FileMetaData, groups: Sequence[pq.RowGroupMetaData], leaves: range) -> int | None:
    """Return the number of missing values in a column, or None if it is not known; all leaves have its null values."""
    nulls, is_known = 0, True
    for leaf in leaves:
        schema = metadata.schema.column(leaf)
        if schema.max_repetition_level:
            return None
        if not schema.max_definition_level:
            continue
        statistics = [group.column(leaf).statistics for group in groups if group.num_rows]
        counts = [chunk.null_count if chunk is not None and chunk.has_null_count else None for chunk in statistics]
        is_known = is_known and None not in counts
        nulls = max(nulls, sum(count or 0 for count in counts))
    return nulls if nulls or is_known else None


inspect = functools.partial(columns.inspect, opener=ParquetFile)
provenance = functools.partial(columns.provenance_of, opener=ParquetFile)
rewrite = functools.partial(columns.rewrite, opener=ParquetFile)


def rewrite_nbytes(source: Source) -> int:
    """Return the approximate bytes of memory for rewriting a file: its largest row group, and half of it encoded."""
    with errors_of(source.name), closing(ParquetFile(source)) as file:
        groups = [file.metadata.row_group(number).total_byte_size for number in range(len(file.group_rows))]
        return int(min(max((0, *groups)), _KEPT_GROUP_NBYTES + _BATCH_NBYTES) * 3 // 2)


def prepare(model: Model) -> Encoder:
    """Return the encoder of a result like `model`."""
    old_schema, rows, options = None, _ROW_GROUP_ROWS, _WRITER_OPTIONS
    if model.source:
        form = operator.methodcaller("form")
        old_schema, max_rows, options = columns.query(model.context, model.source, ParquetFile, form)
        rows = max_rows or _ROW_GROUP_ROWS
    schema, names = columns.result_schema(model, old_schema)
    # Parquet lacks some types of Arrow, and replaces others, such as the units of some times.
    for number, field in enumerate(schema) if old_schema is None else ():
        sink = pa.BufferOutputStream()
        try:
            pq.ParquetWriter(sink, pa.schema([field])).close()
        except pa.ArrowException:
            raise DatatypeError(f"{field.type}", "has no form in parquet; use `to='arrow'`") from None
        stored = pq.read_schema(pa.BufferReader(sink.getvalue())).field(0).type
        if columns.values_type(stored) != columns.values_type(field.type):
            raise DatatypeError(f"{field.type}", f"would be {stored} in parquet; use `to='arrow'`")
        schema = schema.set(number, field.with_type(stored))
    rows = max(1, min(rows, _ROW_GROUP_BYTES // sum(result.datatype.itemsize for result in model.buffers)))
    writer = functools.partial(pq.ParquetWriter, **options)
    return columns.encoder(model, (schema, names), writer, rows, row_group_size=rows)
