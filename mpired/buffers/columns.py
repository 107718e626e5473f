"""What the formats with columns share: every numeric column is a buffer, streamed by batches.

A pair is a column of structures, or two columns. pyarrow is imported by the modules of these
formats and nowhere else.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

# One thread a worker: the pool is ours. The system's allocator gives memory back after each batch,
# and starts no thread, so that a process may still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # else the import itself starts one
import pyarrow as pa

from mpired.buffers.flat import FlatBuffer
from mpired.buffers.rank import Declared, RankFile, dtype_text, no_number
from mpired.buffers.source import Source
from mpired.datatypes import Datatype, agrees, counterparts, from_dtype, with_fields
from mpired.datatypes.pairs import FIELDS
from mpired.errors import BufferFileError, DatatypeError, MpiredError


class ColumnFile(Protocol):
    """An open file with columns."""

    schema: pa.Schema
    starts: list[int]
    """The row that each group of rows starts with, and at the end the number of rows."""

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns from the start of a group to the end of the file."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, eq=False)
class ColumnBuffer:
    """One rank's buffer as a column of a file, or as two columns of a pair.

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
    opener
        Opens the file.
    fields
        The names of the fields, of a column of structures or of pairs.
    """

    source: Source
    datatype: Datatype
    count: int
    columns: tuple[str, ...]
    opener: Callable[[Source], ColumnFile]
    fields: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    byte_order: Literal["<", ">", "="] = "="
    datarep: str = "native"

    @property
    def name(self) -> str:
        """The column, or both joined by a comma."""
        return ",".join(self.columns)

    def open(self) -> ColumnReader:
        """Open the file for reading by element ranges."""
        return ColumnReader(self)


@contextlib.contextmanager
def explaining(name: str) -> Iterator[None]:
    """Turn pyarrow's exceptions about a file into ours, on one line."""
    try:
        yield
    except (MpiredError, MemoryError):
        raise
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or name
            raise
        reason = " ".join(str(error).split())[:200]
        raise BufferFileError(name, f"cannot be read, the file is damaged or not supported ({reason})") from error


def inspect(source: Source, declared: Declared, format_name: str, opener: Callable[[Source], ColumnFile]) -> RankFile:
    """Describe a file from its schema.

    Raises
    ------
    BufferFileError
        If the file is damaged, lacks a column, or has two of one name.
    DatatypeError
        If a column is not of a predefined MPI datatype, or the declared type is another.
    """
    if source.nbytes == 0:
        raise BufferFileError(source.name, f"the file is empty; not a valid {format_name} file")
    with explaining(source.name), contextlib.closing(opener(source)) as file:
        buffers, others = [], _others(file.schema, declared)
        for columns in _chosen(source, file.schema, declared, [name for name, _ in others]):
            dtype = _column_dtype(source, file.schema, columns)
            names = dtype.names if declared.named else None
            datatype = declared.datatype or with_fields(_datatype(source, columns, dtype), names)
            if not agrees(datatype, dtype):
                what = f"column {','.join(columns)!r} holds {dtype_text(dtype)}"
                raise declared.refused(source, datatype, what)
            buffers.append(ColumnBuffer(source, datatype, file.starts[-1], columns, opener, dtype.names or ()))
    return RankFile(source, format_name, tuple(buffers), others)


def _others(schema: pa.Schema, declared: Declared) -> tuple[tuple[str, str], ...]:
    """Return the columns that hold no numbers, and their types, unless the columns were chosen."""
    if declared.columns or declared.pair:
        return ()
    return tuple((field.name, str(field.type)) for field in schema if not all(map(_is_number, _scalars(field.type))))


def _chosen(source: Source, schema: pa.Schema, declared: Declared, others: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns of each buffer."""
    names = declared.columns or tuple(name for name in schema.names if name not in others)
    chosen: list[tuple[str, ...]] = [declared.pair] if declared.pair else [(name,) for name in names]
    for name in (name for columns in chosen for name in columns):
        found = schema.names.count(name)
        if found != 1:
            there = f"{found} columns named {name!r}" if found else f"no column {name!r}"
            raise BufferFileError(source.name, f"has {there}; its columns are {', '.join(map(repr, schema.names))}")
    if not schema.names:
        raise BufferFileError(source.name, "has no columns")
    return chosen


def _column_dtype(source: Source, schema: pa.Schema, columns: tuple[str, ...]) -> np.dtype:
    """Return the NumPy form of the elements of a column, or of two columns as pairs."""
    types = [schema.field(name).type for name in columns]
    structured = len(columns) == 1 and pa.types.is_struct(types[0])
    if len(columns) == 1:
        types = _scalars(types[0])
    if not all(map(_is_number, types)):
        numbers = [field.name for field in schema if _is_number(field.type)]
        raise no_number(source, columns[0], schema.field(columns[0]).type, numbers)
    plain: list[np.dtype] = [np.dtype(kind.to_pandas_dtype()) for kind in types]
    if not structured and len(columns) == 1:
        return plain[0]
    names = list(_field_names(schema, columns))
    if not all(names) or len(set(names)) < len(names):  # none that NumPy takes
        names = [f"field{i}" for i in range(len(plain))]
    return np.dtype(list(zip(names, plain, strict=True)))


def _scalars(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the fields of a structure, of another type only itself."""
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_struct(kind) else [kind]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _datatype(source: Source, columns: tuple[str, ...], dtype: np.dtype) -> Datatype:
    try:
        return from_dtype(dtype)
    except DatatypeError:
        reason = f"no predefined MPI datatype for column {','.join(columns)!r} of {dtype}"
        raise DatatypeError(source.name, reason) from None


def _field_names(schema: pa.Schema, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the fields of a column of structures, or of two columns that are one buffer."""
    if len(columns) > 1:
        return FIELDS
    kind = schema.field(columns[0]).type
    return tuple(kind.field(i).name for i in range(kind.num_fields)) if pa.types.is_struct(kind) else ()


def null_error(source: Source, columns: Sequence[str], nulls: int) -> DatatypeError:
    """Return the error for a column with missing values."""
    reason = f"{nulls} nulls in column {','.join(columns)!r}; fill or filter them first, MPI has no missing values"
    return DatatypeError(source.name, reason)


class ColumnReader:
    """Reads element ranges of a `ColumnBuffer`; cheapest in ascending order. The caller closes it."""

    def __init__(self, buffer: ColumnBuffer) -> None:
        self._buffer = buffer
        with explaining(buffer.source.name):
            self._file = buffer.opener(buffer.source)
        self._at = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest = np.empty(0, buffer.datatype.form)

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on.

        Raises
        ------
        DatatypeError
            If the column holds nulls.
        BufferFileError
            If the file is damaged or ends early.
        """
        with explaining(self._buffer.source.name):
            if start != self._at:
                self._seek(start)
            done = 0
            while done < len(block):
                piece = self._take(len(block) - done)
                block[done : done + len(piece)] = piece
                done += len(piece)
            self._at = start + len(block)

    def _seek(self, start: int) -> None:
        """Start over at the group that holds `start`."""
        group = bisect.bisect_right(self._file.starts, start) - 1
        self._batches = self._file.batches(group, self._buffer.columns)
        self._rest = self._rest[:0]
        skipped = start - self._file.starts[group]
        while skipped:
            skipped -= len(self._take(skipped))

    def _take(self, count: int) -> np.ndarray:
        """Return the next elements, at most `count`, in the datatype's native form."""
        while not len(self._rest):
            self._rest = self._decoded(next(self._batches, None))
        piece, self._rest = self._rest[:count], self._rest[count:]
        return piece

    def _decoded(self, batch: pa.RecordBatch | None) -> np.ndarray:
        if batch is None:
            raise self._buffer.source.changed()
        scalars = _scalar_columns(batch)
        if any(column.null_count for column in scalars):
            raise null_error(self._buffer.source, self._buffer.columns, self._count_nulls())
        plain = [_to_numpy(column) for column in scalars]
        form = self._buffer.datatype.form
        if form.names is None:
            return plain[0]
        piece = np.zeros(batch.num_rows, form)
        # They are in the order of the file.
        for (_, name), values in zip(counterparts(self._buffer.fields, form.names), plain, strict=True):
            piece[name] = values
        return piece

    def _count_nulls(self) -> int:
        batches = self._file.batches(0, self._buffer.columns)
        return sum(max(column.null_count for column in _scalar_columns(batch)) for batch in batches)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _scalar_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns without structures; nulls of a structure become nulls of its fields."""
    columns: list[pa.Array] = []
    for column in batch.columns:
        columns += column.flatten() if pa.types.is_struct(column.type) else [column]
    return columns


def _to_numpy(column: pa.Array) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values.view(np.uint8) if values.dtype == np.bool_ else values


class Layout(NamedTuple):
    """How results become columns: the schema, and for each buffer the columns that take it."""

    schema: pa.Schema
    columns: tuple[tuple[str, ...], ...]

    def batch(self, blocks: Sequence[np.ndarray]) -> pa.RecordBatch:
        """Build a batch of rows from a block of each buffer."""
        arrays: dict[str, pa.Array] = {}
        for names, block in zip(self.columns, blocks, strict=True):
            if len(names) == 1:
                arrays[names[0]] = _column(block, self.schema.field(names[0]).type)
            else:
                for name, part in zip(names, _parts(block), strict=True):
                    arrays[name] = _column(part, self.schema.field(name).type)
        return pa.record_batch([arrays[field.name] for field in self.schema], schema=self.schema)


def layout_like(template: RankFile, schema: pa.Schema | None) -> Layout:
    """Return the layout of a template with that schema, restricted to its buffers; without one a plain layout.

    Raises
    ------
    DatatypeError
        If a datatype has no column type.
    """
    if schema is not None:
        columns = tuple(buffer.columns for buffer in template.buffers if isinstance(buffer, ColumnBuffer))
        wanted = {name for names in columns for name in names}
        return Layout(pa.schema([field for field in schema if field.name in wanted], schema.metadata), columns)
    fields = [_plain_field(buffer.datatype, buffer.name) for buffer in template.buffers]
    return Layout(pa.schema(fields), tuple((field.name,) for field in fields))


def _plain_field(datatype: Datatype, name: str) -> pa.Field:
    form = datatype.form
    plain = [form] if form.names is None else [form[part] for part in datatype.fields]
    if any(each.kind == "c" or each.char == "g" or each.shape for each in plain):
        raise DatatypeError(f"{datatype}", "has no column type; use --to npy or --to raw")
    types = [pa.bool_() if datatype.is_bool else pa.from_numpy_dtype(each) for each in plain]
    if form.names is None:
        return pa.field(name or "value", types[0])
    return pa.field(name or "_".join(datatype.fields), pa.struct(list(zip(datatype.fields, types, strict=True))))


def _parts(block: np.ndarray) -> list[np.ndarray]:
    """Return the fields of structures, of other elements only themselves."""
    return [block] if block.dtype.names is None else [block[name] for name in block.dtype.names]


def _column(block: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Build a column of elements; structures give a part for each field."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        names = counterparts([field.name for field in fields], block.dtype.names or ())
        arrays = [_column(block[name], field.type) for (_, name), field in zip(names, fields, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.array(block != 0 if pa.types.is_boolean(kind) else block, kind)


class Patch:
    """New elements for some columns of a file, whose rows come by in order with all their columns.

    Parameters
    ----------
    schema
        That of the file.
    changed
        The new elements, each buffer named as its column.
    stack
        Closes what is opened.
    """

    def __init__(self, schema: pa.Schema, changed: Sequence[FlatBuffer], stack: contextlib.ExitStack) -> None:
        self._schema = schema
        self._readers = {
            schema.get_field_index(each.name): (stack.enter_context(contextlib.closing(each.open())), each.datatype)
            for each in changed
        }
        self._at = 0

    def applied(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows with the new elements, and the other columns as they are."""
        arrays = list(batch.columns)
        for number, (reader, datatype) in self._readers.items():
            block = np.empty(batch.num_rows, datatype.form)
            reader.read(self._at, block)
            arrays[number] = _column(block, self._schema.field(number).type)
        self._at += batch.num_rows
        return pa.record_batch(arrays, schema=self._schema)
