"""Parquet: pyarrow decodes it in batches, with page checksums; schema, column order and compression are kept."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple

from mpired.errors import BufferFileError, DatatypeError
from mpired.formats import columns
from mpired.formats.columns import Change, Contents, Table, errors_of
from mpired.formats.layout import Encoder
from mpired.formats.rank import Model
from mpired.formats.streamed import DamageError, TableFile, limited
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source

import pyarrow as pa  # isort: skip - after columns, which sets it up
import pyarrow.parquet as pq  # isort: skip

_BATCH_ROWS = 64 << 10
_BATCH_NBYTES = 16 << 20  # about so much of the columns that are copied is decoded at a time
_BUFFER_NBYTES = 256 << 10  # of a column that are read at a time
_ROW_GROUP_BYTES = 32 << 20  # a row group of the output is in memory at once
_ROW_GROUP_ROWS = 1 << 20
_KEPT_GROUP_NBYTES = 64 << 20  # a row group of a file that is written again stays as it is up to here
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20
_MOST_PARSED = 32


class _Parsed(NamedTuple):
    """The footer of a file."""

    content: TableFile
    file: pq.ParquetFile
    schema: pa.Schema
    group_rows: list[int]  # of each row group
    leaves: list[range]  # the numbers of parquet's columns that each column consists of
    old_times: frozenset[str]  # the columns with times of 96 bits


_parsed: dict[Source, _Parsed] = {}
"""The files that this process read last, without their descriptors: a footer of 1,000 columns takes 10 ms."""


class ParquetFile(Table):
    """An open parquet file."""

    format = "parquet"

    def begin(self) -> None:
        """Read the footer."""
        # A source that can be opened again after this one is forgotten.
        self._stays = isinstance(self._source, LocalSource) and self._source.keep is None
        # Another opening of it may be using the kept footer.
        known = _parsed.pop(self._source, None) if self._stays else None
        if known is not None:
            known.content.reopen(self._bytes)
        self._known = known or _parse(TableFile(self._bytes, self._source.nbytes))
        self.content, self._file, self.schema, self.group_rows, *_ = self._known
        self.metadata: pq.FileMetaData = self._file.metadata
        super().begin()

    def contents(self) -> Contents:
        """Return the contents of the file."""
        groups = [self.metadata.row_group(number) for number in range(len(self.group_rows))]
        nulls = [_nulls(self.metadata, groups, own) for own in self._known.leaves]
        nbytes = sum(each.total_byte_size for each in groups)
        return self.schema, tuple(self.group_rows), nulls, nbytes

    def batches(self, names: Sequence[str], rows: Sequence[int], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` on with some columns."""
        del rows  # the row groups are those of the footer
        for number, nrows in enumerate(self.group_rows):
            if start >= nrows:
                start -= nrows
                continue
            for batch in self.group(number, names):
                if start < batch.num_rows:
                    yield batch[start:]
                start = max(0, start - batch.num_rows)

    def group(self, number: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group with some columns; long rows by fewer."""
        group, there, done = self.metadata.row_group(number), self.group_rows[number], 0
        chosen = {*names}
        own = (leaves for name, leaves in zip(self.schema.names, self._known.leaves, strict=True) if name in chosen)
        chunks = [group.column(leaf) for leaf in itertools.chain(*own)]
        starts = [each.dictionary_page_offset or each.data_page_offset for each in chunks]
        self._bytes.expect(zip(starts, (each.total_compressed_size for each in chunks), strict=True))
        nbytes = max(1, sum(each.total_uncompressed_size for each in chunks))
        rows = max(1, min(_BATCH_ROWS, there * _BATCH_NBYTES // nbytes))
        self._check_old_times(number, self._known.old_times.intersection(names))
        some = None if len(names) == len(self.schema) else names
        wanted = {"batch_size": rows, "row_groups": [number], "columns": some, "use_threads": False}
        batches = limited(self._source.name, self._memory, self._file.iter_batches(**wanted))
        for batch in batches if there else ():
            done += batch.num_rows
            yield batch
            self.content.forget()
        if done != there:  # for a damaged page header the library gives none, and no error
            raise DamageError(f"row group {number} has {done} rows, and its header says {there}")

    def _check_old_times(self, number: int, names: Collection[str]) -> None:
        """Raise `BufferFileError` if a time of 96 bits does not fit nanoseconds of 64 bits, where it would wrap."""
        if not names:
            return
        seconds = _opened(self.content, metadata=self.metadata, coerce_int96_timestamp_unit="s")
        wanted = {"batch_size": _BATCH_ROWS, "row_groups": [number], "columns": sorted(names), "use_threads": False}
        for batch in limited(self._source.name, self._memory, seconds.iter_batches(**wanted)):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column.cast(self.schema.field(name).type)
                except pa.ArrowInvalid:
                    reason = "before 1677 or after 2262; write it as a timestamp of 64 bits first"
                    raise BufferFileError(self._source.name, f"column {name!r} has times of 96 bits {reason}") from None

    def form(self) -> tuple[pa.Schema, int, dict[str, Any]]:
        """Return the schema, the most rows of a row group, and how the file is written, in the words of pyarrow."""
        schema, with_dictionary = self.metadata.schema, set()
        chunks = [
            (schema.column(leaf).path, schema.column(leaf), self.metadata.row_group(number).column(leaf))
            for number in range(len(self.group_rows))
            for leaf in range(len(schema))
        ]
        for path, leaf, chunk in chunks:  # a writer gives up a dictionary that saves nothing
            nbytes = chunk.num_values * _TYPE_NBYTES.get(leaf.physical_type, 0)
            if chunk.has_dictionary_page and (not nbytes or chunk.total_uncompressed_size < nbytes):
                with_dictionary.add(path)
        codecs = {path: chunk.compression for path, _, chunk in chunks}
        written = _WRITTEN | {
            "compression": {path: _CODECS.get(codec, codec) for path, codec in codecs.items()} or "snappy",
            "use_dictionary": sorted(with_dictionary),
            "write_statistics": sorted({path for path, _, chunk in chunks if chunk.is_stats_set}),
            "write_page_index": any(chunk.has_offset_index for _, _, chunk in chunks),
            "use_deprecated_int96_timestamps": bool(self._known.old_times)
            and not any(leaf.logical_type.type == "TIMESTAMP" for _, leaf, _ in chunks),
        }
        return self.schema, max(self.group_rows, default=0), written

    def copy(self, new: BinaryIO, schema: pa.Schema, change: Change) -> None:
        """Write the file again, each row group as it is unless it is more than memory should hold."""
        paths = [self.metadata.schema.column(leaf).path for leaf in range(len(self.metadata.schema))]
        old_lists = any(path.endswith(".list.item") or ".list.item." in path for path in paths)
        with pq.ParquetWriter(new, schema, **self.form()[2], use_compliant_nested_type=not old_lists) as writer:
            for number, rows in enumerate(self.group_rows):
                piece: list[pa.RecordBatch] = []
                for batch in map(change, self.group(number, self.schema.names)):
                    if sum(each.nbytes for each in piece) > _KEPT_GROUP_NBYTES:
                        writer.write_table(pa.Table.from_batches(piece, schema), rows)
                        piece = []
                    piece.append(batch)
                writer.write_table(pa.Table.from_batches(piece, schema), max(1, rows))

    def close(self) -> None:
        """Close the file, and keep its footer for the next column."""
        super().close()
        if not self._stays:
            return
        self.content.reopen(OpenSource())
        _parsed[self._source] = self._known
        while len(_parsed) > _MOST_PARSED:
            del _parsed[next(iter(_parsed))]


def _parse(file: TableFile) -> _Parsed:
    """Read the footer of a file."""
    parsed = _opened(file)
    metadata, schema = parsed.metadata, parsed.schema_arrow
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if sum(rows) != metadata.num_rows:
        raise DamageError(f"its row groups have {sum(rows)} rows, and it {metadata.num_rows}")
    counts = (columns.count_of(field.type, leaves=True) for field in schema)
    leaves = [*itertools.starmap(range, itertools.pairwise(itertools.accumulate(counts, initial=0)))]
    kinds = [metadata.schema.column(leaf).physical_type for leaf in range(len(metadata.schema))]
    named = zip(schema.names, leaves, strict=True)
    old = {name for name, own in named if any(kinds[leaf] == "INT96" for leaf in own)}
    return _Parsed(file, parsed, schema, rows, leaves, frozenset(old))


def _opened(file: TableFile, **more: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(file, mode="r"),
        page_checksum_verification=True,
        pre_buffer=False,
        buffer_size=_BUFFER_NBYTES if file.is_remote else 0,
        thrift_string_size_limit=_THRIFT_STRINGS,
        thrift_container_size_limit=_THRIFT_ITEMS,
        **more,
    )


_WRITTEN: dict[str, Any] = {"write_page_checksum": True}
_CODECS = {"UNCOMPRESSED": "NONE", "UNKNOWN": "LZ4"}  # Hadoop's LZ4, which pyarrow only reads
_TYPE_NBYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


def _nulls(metadata: pq.FileMetaData, groups: Sequence[pq.RowGroupMetaData], own: range) -> int | None:
    """Return how many values of a column are missing: a structure that is null is one in each of its fields."""
    known, is_known = 0, True
    for leaf in own:
        schema = metadata.schema.column(leaf)
        if schema.max_repetition_level:
            return None
        if not schema.max_definition_level:
            continue
        statistics = [group.column(leaf).statistics for group in groups if group.num_rows]
        counts = [each.null_count if each is not None and each.has_null_count else None for each in statistics]
        is_known = is_known and None not in counts
        known = max(known, sum(each or 0 for each in counts))
    return known if known or is_known else None


inspect = functools.partial(columns.inspect, opener=ParquetFile)
provenance = functools.partial(columns.provenance_of, opener=ParquetFile)
rewrite = functools.partial(columns.rewrite, opener=ParquetFile)


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a row group, and a part more."""
    with errors_of(source.name), closing(ParquetFile(source)) as file:
        groups = [file.metadata.row_group(number).total_byte_size for number in range(len(file.group_rows))]
        return int(min(max((0, *groups)), _KEPT_GROUP_NBYTES + _BATCH_NBYTES) * 3 // 2)


def prepare(model: Model) -> Encoder:
    """Say how a result like `model` becomes parquet."""
    schema, rows, written = None, _ROW_GROUP_ROWS, _WRITTEN
    if model.source:
        question = operator.methodcaller("form")
        schema, largest, written = columns.query(model.context, model.source, ParquetFile, question)
        rows = largest or _ROW_GROUP_ROWS
    made, names = columns.result_schema(model, schema)
    # Parquet lacks some types, or has another, for example of some times.
    for number, field in enumerate(made) if schema is None else ():
        sink = pa.BufferOutputStream()
        try:
            pq.ParquetWriter(sink, pa.schema([field])).close()
        except pa.ArrowException:
            raise DatatypeError(f"{field.type}", "has no form in parquet; use `to='arrow'`") from None
        found = pq.read_schema(pa.BufferReader(sink.getvalue())).field(0).type
        if columns.values_type(found) != columns.values_type(field.type):
            raise DatatypeError(f"{field.type}", f"would be {found} in parquet; use `to='arrow'`")
        made = made.set(number, field.with_type(found))
    rows = max(1, min(rows, _ROW_GROUP_BYTES // sum(buffer.datatype.itemsize for buffer in model.buffers)))
    writer = functools.partial(pq.ParquetWriter, **written)
    return columns.encoder(model, (made, names), writer, rows, row_group_size=rows)
