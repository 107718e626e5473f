"""Parquet: every numeric column is a buffer of its own, streamed by batches.

A pair is a column of structures, or two columns. The result has schema, column order and
compression of its template. pyarrow is imported here and nowhere else.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Literal

import numpy as np

# One thread a worker: the pool is ours. The system's allocator gives memory back after each batch,
# and starts no thread, so that a process may still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
import pyarrow as pa
import pyarrow.parquet as pq

from mpired.buffers.flat import FlatBuffer
from mpired.buffers.formats import Encoder
from mpired.buffers.rank import Declared, RankFile
from mpired.buffers.source import Source
from mpired.datatypes import Datatype, agrees, from_dtype
from mpired.errors import BufferFileError, DatatypeError, MpiredError

_BATCH_ROWS = 64 << 10
_READ_BUFFER = 256 << 10  # bytes of a column chunk read at a time, instead of the whole chunk
_ROW_GROUP_BYTES = 32 << 20  # a row group of the output is in memory at once
_THRIFT_STRINGS = 16 << 20
_THRIFT_ITEMS = 1 << 20


@dataclass(frozen=True)
class ColumnBuffer:
    """One rank's buffer as a column of a parquet file, or as two columns of a pair.

    Parameters
    ----------
    source
        The file.
    datatype
        What an element is.
    count
        Number of elements.
    columns
        One column, or two for the values and the indices of pairs.
    """

    source: Source
    datatype: Datatype
    count: int
    columns: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    byte_order: Literal["<", ">", "="] = "="

    @property
    def name(self) -> str:
        """The column, or both joined by a comma."""
        return ",".join(self.columns)

    def open(self) -> ColumnReader:
        """Open the file for reading by element ranges."""
        return ColumnReader(self)


@contextlib.contextmanager
def _explaining(name: str) -> Iterator[None]:
    """Turn pyarrow's exceptions about a file into ours, on one line."""
    try:
        yield
    except MpiredError:
        raise
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:200]
        raise BufferFileError(name, f"parquet cannot be read ({reason})") from error


def _open(source: Source) -> pq.ParquetFile:
    os.close(source.open())  # checks that it is still the file that was looked at
    return pq.ParquetFile(
        pa.OSFile(source.path, "rb"),  # a local path, never a URI
        page_checksum_verification=True,
        pre_buffer=False,
        buffer_size=_READ_BUFFER,
        thrift_string_size_limit=_THRIFT_STRINGS,
        thrift_container_size_limit=_THRIFT_ITEMS,
    )


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a parquet file from its footer.

    Raises
    ------
    BufferFileError
        If the file is damaged, lacks a column, or has two of one name.
    DatatypeError
        If a column is not of a predefined MPI datatype or holds nulls, or the declared type is another.
    """
    if source.nbytes == 0:
        raise BufferFileError(source.name, "the file is empty; not a valid parquet file")
    with _explaining(source.name), _open(source) as file:
        metadata, schema = file.metadata, file.schema_arrow
        buffers = []
        for columns in _chosen(source, schema, declared):
            dtype = _column_dtype(source, schema, columns)
            datatype = declared.datatype or _datatype(source, columns, dtype)
            if not agrees(datatype, dtype):
                reason = f"column {','.join(columns)!r} holds {dtype}, which is not {datatype}; leave --type out"
                raise DatatypeError(source.name, reason)
            buffers.append(ColumnBuffer(source, datatype, metadata.num_rows, columns))
            _check_nulls(source, metadata, columns)
    return RankFile(source, "parquet", tuple(buffers))


def _chosen(source: Source, schema: pa.Schema, declared: Declared) -> list[tuple[str, ...]]:
    """Return the columns of each buffer."""
    names = declared.columns or tuple(schema.names)
    chosen: list[tuple[str, ...]] = [declared.pair] if declared.pair else [(name,) for name in names]
    for name in (name for columns in chosen for name in columns):
        found = schema.names.count(name)
        if found != 1:
            there = f"{found} columns named {name!r}" if found else f"no column {name!r}"
            raise BufferFileError(source.name, f"has {there}; its columns are {', '.join(map(repr, schema.names))}")
    if not chosen:
        raise BufferFileError(source.name, "has no columns")
    return chosen


def _column_dtype(source: Source, schema: pa.Schema, columns: tuple[str, ...]) -> np.dtype:
    """Return the NumPy form of the elements of a column, or of two columns as pairs."""
    types = [schema.field(name).type for name in columns]
    if len(columns) == 1 and pa.types.is_struct(types[0]):
        types = [types[0].field(i).type for i in range(types[0].num_fields)]
    for kind in types:
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            reason = (
                f"column {columns[0]!r} is {schema.field(columns[0]).type}, which is no number; choose with --columns"
            )
            raise DatatypeError(source.name, reason)
    plain: list[np.dtype] = [np.dtype(kind.to_pandas_dtype()) for kind in types]
    if len(columns) == 1 and not pa.types.is_struct(schema.field(columns[0]).type):
        return plain[0]
    return np.dtype([(f"field{i}", each) for i, each in enumerate(plain)])


def _datatype(source: Source, columns: tuple[str, ...], dtype: np.dtype) -> Datatype:
    try:
        return from_dtype(dtype)
    except DatatypeError:
        reason = f"no predefined MPI datatype for column {','.join(columns)!r} of {dtype}"
        raise DatatypeError(source.name, reason) from None


def _check_nulls(source: Source, metadata: pq.FileMetaData, columns: tuple[str, ...]) -> None:
    """Refuse nulls that the statistics tell of; those without statistics show when they are read."""
    nulls = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i in range(row_group.num_columns):
            chunk = row_group.column(i)
            path = chunk.path_in_schema
            if path in columns or path.startswith(f"{columns[0]}."):
                statistics = chunk.statistics
                nulls += statistics.null_count if statistics is not None and statistics.has_null_count else 0
    if nulls:
        raise _null_error(source, columns, nulls)


def _null_error(source: Source, columns: tuple[str, ...], nulls: int) -> DatatypeError:
    reason = f"{nulls} nulls in column {','.join(columns)!r}; fill or filter them first, MPI has no missing values"
    return DatatypeError(source.name, reason)


class ColumnReader:
    """Reads element ranges of a `ColumnBuffer`; cheapest in ascending order. The caller closes it."""

    def __init__(self, buffer: ColumnBuffer) -> None:
        self._buffer = buffer
        with _explaining(buffer.source.name):
            self._file = _open(buffer.source)
        rows = (self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups))
        self._starts = [0]
        for each in rows:
            self._starts.append(self._starts[-1] + each)
        self._at = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: np.ndarray | None = None

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on.

        Raises
        ------
        DatatypeError
            If the column holds nulls.
        BufferFileError
            If the file is damaged or ends early.
        """
        with _explaining(self._buffer.source.name):
            if start != self._at:
                self._seek(start)
            done = 0
            while done < len(block):
                piece = self._next_piece()
                taken = min(len(piece), len(block) - done)
                block[done : done + taken] = piece[:taken]
                self._rest = piece[taken:] if taken < len(piece) else None
                done += taken
            self._at = start + len(block)

    def _seek(self, start: int) -> None:
        """Start over at the row group that holds `start`."""
        group = bisect.bisect_right(self._starts, start) - 1
        groups = list(range(group, len(self._starts) - 1))
        self._batches = self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=groups, columns=list(self._buffer.columns), use_threads=False
        )
        self._rest = None
        skipped = start - self._starts[group]
        while skipped:
            piece = self._next_piece()
            self._rest = piece[skipped:] if skipped < len(piece) else None
            skipped -= min(skipped, len(piece))

    def _next_piece(self) -> np.ndarray:
        """Return the next elements, in the datatype's native form."""
        if self._rest is not None:
            return self._rest
        batch = next(self._batches, None)
        if batch is None:
            raise self._buffer.source.changed()
        scalars = _scalar_columns(batch)
        if any(column.null_count for column in scalars):
            raise _null_error(self._buffer.source, self._buffer.columns, self._count_nulls())
        form = self._buffer.datatype.form
        plain = [_to_numpy(column) for column in scalars]
        if form.names is None:
            return plain[0]
        piece = np.zeros(batch.num_rows, form)
        for name, values in zip(form.names, plain, strict=True):
            piece[name] = values
        return piece

    def _count_nulls(self) -> int:
        batches = self._file.iter_batches(columns=list(self._buffer.columns), use_threads=False)
        return sum(max(column.null_count for column in _scalar_columns(batch)) for batch in batches)

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)


def _scalar_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns without structures; nulls of a structure become nulls of its fields."""
    columns: list[pa.Array] = []
    for column in batch.columns:
        columns += column.flatten() if pa.types.is_struct(column.type) else [column]
    return columns


def _to_numpy(column: pa.Array) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values.view(np.uint8) if values.dtype == np.bool_ else values


@dataclass(frozen=True)
class _Layout:
    """How results become parquet: the schema, and for each buffer the columns that take it."""

    schema: pa.Schema
    columns: tuple[tuple[str, ...], ...]
    compression: dict[str, str] | str
    rows: int


def prepare(template: RankFile) -> Encoder:
    """Say how a result like `template` becomes parquet.

    Raises
    ------
    DatatypeError
        If parquet has no type for a datatype.
    """
    layout = _template_layout(template) if template.format == "parquet" else _plain_layout(template)
    row_bytes = sum(buffer.datatype.extent for buffer in template.buffers)
    rows = max(1, min(layout.rows, _ROW_GROUP_BYTES // row_bytes))

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(result.open())) for result in results]
            file = stack.enter_context(os.fdopen(os.dup(fd), "wb"))
            writer = stack.enter_context(pq.ParquetWriter(file, layout.schema, compression=layout.compression))
            for start in range(0, results[0].count, rows):
                count = min(rows, results[0].count - start)
                blocks = [np.empty(count, result.datatype.form) for result in results]
                for reader, block in zip(readers, blocks, strict=True):
                    reader.read(start, block)
                writer.write_table(_row_group(layout, blocks), row_group_size=rows)

    return encode


def _template_layout(template: RankFile) -> _Layout:
    """Return the layout of a parquet file, restricted to the columns that are buffers."""
    columns = tuple(buffer.columns for buffer in template.buffers if isinstance(buffer, ColumnBuffer))
    wanted = {name for names in columns for name in names}
    with _explaining(template.source.name), _open(template.source) as file:
        whole = file.schema_arrow
        schema = pa.schema([field for field in whole if field.name in wanted], whole.metadata)
        compression, rows = {}, 0
        for group in range(file.num_row_groups):
            chunks = file.metadata.row_group(group)
            rows = max(rows, chunks.num_rows)
            for i in range(chunks.num_columns):
                compression[chunks.column(i).path_in_schema] = chunks.column(i).compression
    return _Layout(schema, columns, compression or "snappy", rows or _BATCH_ROWS)


def _plain_layout(template: RankFile) -> _Layout:
    """Return a layout for the buffer of a format without columns."""
    datatype = template.buffers[0].datatype
    form = datatype.form
    plain = [form] if form.names is None else [form[name] for name in form.names]
    if any(each.kind == "c" or each.char == "g" for each in plain):
        raise DatatypeError(str(datatype), "parquet has no such type; use --to npy or --to raw")
    types = [pa.bool_() if datatype.is_bool else pa.from_numpy_dtype(each) for each in plain]
    field = pa.field("value", types[0])
    if form.names is not None:
        field = pa.field("_".join(form.names), pa.struct(list(zip(form.names, types, strict=True))))
    return _Layout(pa.schema([field]), ((field.name,),), "snappy", 1 << 20)


def _row_group(layout: _Layout, blocks: Sequence[np.ndarray]) -> pa.Table:
    """Build a row group from a block of each buffer."""
    arrays: dict[str, pa.Array] = {}
    for names, block in zip(layout.columns, blocks, strict=True):
        parts = [block] if block.dtype.names is None else [block[part] for part in block.dtype.names]
        if len(names) > 1:
            parts_of = dict(zip(names, parts, strict=True))
            arrays |= {name: _array([part], layout.schema.field(name).type) for name, part in parts_of.items()}
        else:
            arrays[names[0]] = _array(parts, layout.schema.field(names[0]).type)
    return pa.table([arrays[field.name] for field in layout.schema], layout.schema)


def _array(parts: Sequence[np.ndarray], kind: pa.DataType) -> pa.Array:
    """Build a column: of structures from a part for each field, else from the only part."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        arrays = [pa.array(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.array(parts[0] != 0 if pa.types.is_boolean(kind) else parts[0], kind)
