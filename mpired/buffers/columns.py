"""What the formats with columns share: every numeric column is a buffer, streamed by batches.

A pair is a column of structures, or two columns. pyarrow is imported by the modules of these
formats and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

import numpy as np

# One thread a worker: the pool is ours. The system's allocator gives memory back after each batch,
# and starts no thread, so that a process may still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # else the import itself starts one
import pyarrow as pa

from mpired.buffers.declared import Declared
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.model import Model
from mpired.buffers.rank import Other, RankFile, choice, dtype_text, null_error
from mpired.buffers.source import Source
from mpired.datatypes import Datatype, agrees, counterparts, from_dtype, with_fields
from mpired.datatypes.pairs import FIELDS
from mpired.datatypes.times import TIMES, time_type
from mpired.errors import BufferFileError, DatatypeError, MpiredError, shortened

DECODED_NBYTES = 64 << 20
"""The most bytes of a page, or of a compressed record batch, that are decoded at once unless more memory is allowed."""
_KEPT_NBYTES = 64 << 20  # about the most of columns that are kept that is in memory
DTYPES: dict[pa.DataType, np.dtype] = {
    getattr(pa, name)(): np.dtype(name.rstrip("_"))
    for name in ("bool_", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
} | {getattr(pa, name)(): np.dtype(name) for name in ("float16", "float32", "float64")}
"""The types of columns that are numbers, and NumPy's."""


_TIME = re.compile(r"(?P<kind>\w+)\[(?P<unit>\w+)(, tz=(?P<zone>.*))?\]", re.DOTALL)


def is_time(kind: pa.DataType) -> bool:
    """Tell whether a type is that of times, which are integers with a unit; not of intervals of months."""
    return pa.types.is_temporal(kind) and not pa.types.is_interval(kind)


def integers_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the integers that times are."""
    return pa.int32() if kind.bit_width == 32 else pa.int64()  # noqa: PLR2004 - bits


def _time_of(datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for a datatype of times."""
    match = _TIME.fullmatch(datatype.name)
    assert match is not None  # noqa: S101 - so Arrow writes them
    unit, zone = match["unit"], match["zone"]
    make = {
        "timestamp": lambda: pa.timestamp(unit, zone),
        "duration": lambda: pa.duration(unit),
        "time32": lambda: pa.time32(unit),
        "time64": lambda: pa.time64(unit),
        "date32": pa.date32,
        "date64": pa.date64,
    }
    return make[match["kind"]]()


class ColumnFile(Protocol):
    """An open file with columns of plain values, its leaves: a column of structures has one for each field.

    What a leaf is, only the format knows; it is small, and can be pickled.
    """

    def arrays(self, leaf: Any, start: int) -> Iterator[np.ndarray]:
        """Yield the values of a leaf from the row `start` to the end of the file; truth values as bytes.

        Raises
        ------
        NullsError
            If there are missing values.
        """

    def close(self) -> None:
        """Close the file."""


class Contents(NamedTuple):
    """What a file with columns holds: the schema, the number of rows, and for each column its leaves and its nulls.

    Of nulls it is as many as the header tells of; None if it does not say. The bytes are about those of all values.
    """

    schema: pa.Schema
    leaves: Sequence[tuple[Any, ...]]
    rows: int
    nulls: Sequence[int | None]
    nbytes: int


class WholeColumns(Protocol):
    """An open file whose columns are decoded as they are, whatever their types."""

    def columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with some columns at least."""

    def close(self) -> None:
        """Close the file."""


class Column(NamedTuple):
    """How a format describes its files, and opens them."""

    format: str
    look: Callable[[Source], Contents]
    opener: Callable[[Source, int], ColumnFile]
    whole: Callable[[Source], WholeColumns]


class NullsError(Exception):
    """Raised where values are missing; the argument says how many."""


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
    leaves
        The plain columns that it consists of, as the format knows them.
    opener
        Opens the file, with the most bytes that are decompressed at once.
    fields
        The names of the fields, of a column of structures or of pairs.
    memory
        The most bytes that are decompressed at once.
    nulls
        How many values are missing, as far as the header tells; None if it does not say.
    """

    source: Source
    datatype: Datatype
    count: int
    columns: tuple[str, ...]
    leaves: tuple[Any, ...]
    opener: Callable[[Source, int], ColumnFile]
    fields: tuple[str, ...] = ()
    memory: int = DECODED_NBYTES
    nulls: int | None = None
    shape: tuple[int, ...] | None = None
    fortran_order: bool = False
    byte_order: Literal["<", ">", "="] = "="
    datarep: str | None = None
    isolated: ClassVar[bool] = True

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


def inspect(source: Source, declared: Declared, column: Column) -> RankFile:
    """Describe a file from its schema.

    Raises
    ------
    BufferFileError
        If the file is damaged, lacks a column, or has two of one name.
    DatatypeError
        If a column is not of a predefined MPI datatype, or the declared type is another.
    """
    if source.nbytes == 0:
        raise BufferFileError(source.name, f"the file is empty; not a valid {column.format} file")
    with explaining(source.name):
        schema, leaves, rows, nulls, nbytes = column.look(source)
        buffers, others = [], _others(schema, declared)
        places = {name: number for number, name in enumerate(schema.names)}
        for columns in _chosen(source, schema, declared, {other.name for other in others}):
            kinds = [schema.field(places[name]).type for name in columns]
            if len(columns) == 1 and is_time(kinds[0]):
                dtype, datatype = np.dtype("i8"), time_type(str(kinds[0]))
                if declared.datatype is not None:
                    raise declared.refused(source, declared.datatype, f"column {columns[0]!r} holds {datatype}")
            else:
                dtype = _column_dtype(source, schema, columns, kinds)
                names = dtype.names if declared.named else None
                datatype = declared.datatype or with_fields(_datatype(source, columns, dtype), names)
                if not agrees(datatype, dtype):
                    what = f"column {','.join(columns)!r} holds {dtype_text(dtype)}"
                    raise declared.refused(source, datatype, what)
            mine = tuple(leaf for name in columns for leaf in leaves[places[name]])
            missing = [nulls[places[name]] for name in columns]
            buffers.append(
                ColumnBuffer(
                    source,
                    datatype,
                    rows,
                    columns,
                    mine,
                    column.opener,
                    dtype.names or (),
                    nulls=None if None in missing and not any(missing) else sum(each or 0 for each in missing),
                )
            )
        kept = KeptColumns.of(source, schema, declared, column) if declared.keep else None
        kept = kept and replace(kept, row_nbytes=max(1, nbytes // max(1, rows)))
    return RankFile(source, tuple(buffers), others, len(schema.names), kept=kept)


def _others(schema: pa.Schema, declared: Declared) -> tuple[Other, ...]:
    """Return the columns that hold no numbers or share a name, unless the columns were chosen."""
    if declared.columns or declared.pair:
        return ()
    there = Counter(schema.names)
    numbers = [field.name for field in schema if there[field.name] == 1 and _are_numbers(_scalars(field.type))]
    return tuple(
        Other(
            field.name,
            str(field.type),
            _no_buffer(field) if there[field.name] == 1 else _not_one(schema, field.name),
        )
        for field in schema
        if field.name not in numbers and field.name not in declared.keep
    )


def _no_buffer(field: pa.Field) -> str:
    """Return why a column is no buffer."""
    if pa.types.is_decimal(field.type):
        return f"column {field.name!r} is {field.type}, which no op combines exactly; write it as integers (int64)"
    return f"column {field.name!r} is {field.type}, no number"


def _not_one(schema: pa.Schema, name: str) -> str:
    """Return what is wrong with a name that is not that of one column."""
    number = schema.names.count(name)
    what = f"{number} columns named {name!r}" if number else f"no column {name!r}"
    return f"has {what}; its columns are {', '.join(map(repr, schema.names))}"


def _chosen(source: Source, schema: pa.Schema, declared: Declared, others: Container[str]) -> list[tuple[str, ...]]:
    """Return the columns of each buffer."""
    names = declared.columns or tuple(name for name in schema.names if name not in others and name not in declared.keep)
    chosen: list[tuple[str, ...]] = [declared.pair] if declared.pair else [(name,) for name in names]
    for name in (name for columns in chosen for name in columns):
        if schema.names.count(name) != 1:
            raise BufferFileError(source.name, _not_one(schema, name))
    return chosen


def _column_dtype(
    source: Source, schema: pa.Schema, columns: tuple[str, ...], kinds: Sequence[pa.DataType]
) -> np.dtype:
    """Return the NumPy form of the elements of a column, or of two columns as pairs; `kinds` are their types."""
    structured = len(columns) == 1 and pa.types.is_struct(kinds[0])
    types = _scalars(kinds[0]) if len(columns) == 1 else kinds
    if not _are_numbers(types):
        numbers = [field.name for field in schema if field.type in DTYPES]
        wrong = next((name for name in columns if schema.field(name).type not in DTYPES), columns[0])
        way_out = "a pair is of two columns of numbers" if len(columns) > 1 else choice(numbers)
        raise DatatypeError(source.name, f"{_no_buffer(schema.field(wrong))}; {way_out}")
    plain = [DTYPES[kind] for kind in types]
    if not structured and len(columns) == 1:
        return plain[0]
    names = FIELDS if len(columns) > 1 else [kinds[0].field(i).name for i in range(kinds[0].num_fields)]
    if not all(names) or len(set(names)) < len(names):  # none that NumPy takes
        names = [f"field{i}" for i in range(len(plain))]
    return np.dtype(list(zip(names, plain, strict=True)))


def _are_numbers(kinds: Sequence[pa.DataType]) -> bool:
    """Tell whether all types are numbers, and there is one at least: a structure may have no field."""
    return bool(kinds) and all(kind in DTYPES for kind in kinds)


def _scalars(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the fields of a structure, of another type only itself."""
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_struct(kind) else [kind]


def _datatype(source: Source, columns: tuple[str, ...], dtype: np.dtype) -> Datatype:
    try:
        return from_dtype(dtype)
    except DatatypeError:
        reason = f"no predefined MPI datatype for column {','.join(columns)!r} of {dtype}"
        raise DatatypeError(source.name, reason) from None


def too_large(name: str, what: str, nbytes: int, limit: int) -> BufferFileError:
    """Return the error for what cannot be decoded within the memory."""
    reason = f"{what} unfolds to {nbytes} bytes, and {limit} are decoded at once"
    return BufferFileError(name, f"{reason}; write it in smaller parts, or let `reduce` use more with `max_memory`")


class ColumnReader:
    """Reads element ranges of a `ColumnBuffer`; cheapest in ascending order. The caller closes it."""

    def __init__(self, buffer: ColumnBuffer) -> None:
        self._buffer = buffer
        with explaining(buffer.source.name):
            self._file = buffer.opener(buffer.source, buffer.memory)
        self._streams = [_Stream(self._file, leaf) for leaf in buffer.leaves]
        names = buffer.datatype.form.names
        # The leaves are in the order of the file.
        self._names = [name for _, name in counterparts(buffer.fields, names)] if names else []

    def read(self, start: int, block: np.ndarray) -> None:
        """Fill `block` with the elements from `start` on.

        Raises
        ------
        DatatypeError
            If the column holds nulls.
        BufferFileError
            If the file is damaged or ends early.
        """
        source = self._buffer.source
        with explaining(source.name):
            try:
                for stream, part in zip(self._streams, self._parts(block), strict=True):
                    if not stream.read(start, part):
                        raise source.changed()
            except NullsError as found:
                raise null_error(source, self._buffer.columns, found.args[0]) from None

    def _parts(self, block: np.ndarray) -> list[np.ndarray]:
        """Return what of a block each leaf fills."""
        if not self._names:
            return [block]
        self._buffer.datatype.clear_padding(block)
        return [block[name] for name in self._names]

    def close(self) -> None:
        """Close the file."""
        for stream in self._streams:
            stream.close()
        self._file.close()


class _Stream:
    """The values of a leaf, one after another."""

    def __init__(self, file: ColumnFile, leaf: Any) -> None:
        self._file = file
        self._leaf = leaf
        self._at = -1
        self._arrays: Iterator[np.ndarray] = iter(())
        self._rest = np.empty(0, np.uint8)

    def read(self, start: int, part: np.ndarray) -> bool:
        """Fill an array with the values from `start` on; tell whether there were so many."""
        if start != self._at:
            self.close()
            self._arrays = self._file.arrays(self._leaf, start)
        done = 0
        while done < len(part):
            while not len(self._rest):
                found = next(self._arrays, None)
                if found is None:
                    return False
                self._rest = found
            count = min(len(part) - done, len(self._rest))
            part[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        self._at = start + done
        return True

    def close(self) -> None:
        """Leave what is not read."""
        self._rest = self._rest[:0]
        if isinstance(self._arrays, Generator):
            self._arrays.close()


def values_of(column: pa.Array) -> np.ndarray:
    """Return the values of an array of Arrow without nulls; truth values as bytes, times as integers."""
    if is_time(column.type):
        column = column.view(integers_of(column.type))
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values.view(np.uint8) if values.dtype == np.bool_ else values


@dataclass(frozen=True, eq=False)
class KeptColumns:
    """Columns of any type that results have as a file has them.

    Parameters
    ----------
    source
        The file.
    fields
        Their names and types.
    order
        The names of all columns.
    whole
        Opens the file.
    row_nbytes
        About how many bytes a row of the file has.
    """

    source: Source
    fields: pa.Schema
    order: tuple[str, ...]
    whole: Callable[[Source], WholeColumns]
    row_nbytes: int = 1

    @classmethod
    def of(cls, source: Source, schema: pa.Schema, declared: Declared, column: Column) -> KeptColumns:
        """Return those that are declared.

        Raises
        ------
        BufferFileError
            If there is not one of each name.
        """
        for name in declared.keep:
            if schema.names.count(name) != 1:
                raise BufferFileError(source.name, _not_one(schema, name))
        fields = pa.schema([field for field in schema if field.name in declared.keep])
        return cls(source, fields, tuple(schema.names), column.whole)

    @property
    def names(self) -> list[str]:
        """Their names, in the order of the file."""
        names: list[str] = self.fields.names
        return names

    def open(self) -> KeptReader:
        """Open the file for reading rows in order."""
        return KeptReader(self)

    def check_same(self, other: Any, this: str, like: str) -> None:
        """Raise `BufferFileError` unless another file, `this`, has in them what this one has, which is `like`."""
        for name in self.names:
            kind, mine = other.fields.field(name).type, self.fields.field(name).type
            if kind != mine:
                reason = f"{this} has column {name!r} of {kind}, but {like} ({self.source.name!r}) of {mine}"
                raise BufferFileError(other.source.name, f"{reason}; `keep` carries what is equal in all ranks")
        with contextlib.closing(self.open()) as left, contextlib.closing(other.open()) as right:
            at = 0
            while count := left.ahead():
                count = min(count, right.ahead())
                if not count:
                    raise other.source.changed()
                own = dict(zip(self.names, left.read(count), strict=True))
                theirs = dict(zip(other.names, right.read(count), strict=True))  # perhaps in another order
                for name in self.names:
                    arrays = own[name], theirs[name]
                    first = _first_difference(*map(_comparable, arrays))
                    if first is not None:
                        mine, others = (_text(array[first]) for array in arrays)
                        reason = f"row {at + first} of column {name!r} is {others} in {this}, but {mine} in {like}"
                        reason += f" ({self.source.name!r}); `keep` carries what is equal in all ranks"
                        raise BufferFileError(other.source.name, reason)
                at += count


def _comparable(array: pa.Array) -> pa.Array:
    """Return values that are equal if their bits are, and not encoded."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.view(f"int{array.type.bit_width}") if pa.types.is_floating(array.type) else array


def _first_difference(left: pa.Array, right: pa.Array) -> int | None:
    """Return the first row in which two arrays of one length differ."""
    if left.equals(right):
        return None
    start, stop = 0, len(left)  # the first is between them
    while stop - start > 1:
        middle = (start + stop) // 2
        if left[start:middle].equals(right[start:middle]):
            start = middle
        else:
            stop = middle
    return start


def _text(value: pa.Scalar) -> str:
    """Return a short text for a value."""
    return shortened(repr(value.as_py()) if pa.types.is_string(value.type) else str(value), 100)


class KeptReader:
    """Reads the rows of `KeptColumns` in order. The caller closes it."""

    def __init__(self, kept: KeptColumns) -> None:
        self._kept = kept
        with explaining(kept.source.name):
            self._file = kept.whole(kept.source)
        self._batches = self._file.columns(kept.names)
        self._rest: pa.RecordBatch | None = None

    def ahead(self) -> int:
        """Return how many rows are decoded, one at least except at the end."""
        while self._rest is None or not self._rest.num_rows:
            with explaining(self._kept.source.name):
                self._rest = next(self._batches, None)
            if self._rest is None:
                return 0
        return int(self._rest.num_rows)

    def read(self, count: int) -> list[pa.Array]:
        """Return the next rows of each column.

        Raises
        ------
        ChangedError
            If there are not so many.
        """
        parts: list[list[pa.Array]] = [[] for _ in self._kept.names]
        while count:
            if not (there := min(count, self.ahead())):
                raise self._kept.source.changed()
            assert self._rest is not None  # noqa: S101 - it was looked ahead
            for part, name in zip(parts, self._kept.names, strict=True):
                part.append(self._rest.column(name)[:there])
            self._rest = self._rest[there:]
            count -= there
        return [_joined(part, field.type) for part, field in zip(parts, self._kept.fields, strict=True)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _joined(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return arrays as one; those with dictionaries of their own get a common one."""
    if len(parts) == 1:
        return parts[0]
    return pa.chunked_array(parts, kind).unify_dictionaries().combine_chunks() if parts else pa.array([], kind)


class Layout(NamedTuple):
    """How results become columns: the schema, for each buffer the columns that take it, and those that are kept."""

    schema: pa.Schema
    columns: tuple[tuple[str, ...], ...]
    kept: KeptColumns | None = None

    def most_rows(self, rows: int) -> int:
        """Return how many rows are written at a time: so many, unless those of the columns that are kept are long."""
        return rows if self.kept is None else max(1, min(rows, _KEPT_NBYTES // self.kept.row_nbytes))

    def rows(self, stack: contextlib.ExitStack) -> Callable[[Sequence[np.ndarray]], pa.RecordBatch]:
        """Return what builds batches of rows, in order, from a block of each buffer."""
        if self.kept is None:
            return self.batch
        kept, reader = self.kept, stack.enter_context(contextlib.closing(self.kept.open()))
        return lambda blocks: self.batch(blocks, dict(zip(kept.names, reader.read(len(blocks[0])), strict=True)))

    def batch(self, blocks: Sequence[np.ndarray], kept: Mapping[str, pa.Array] | None = None) -> pa.RecordBatch:
        """Build a batch of rows from a block of each buffer, and the columns that are kept."""
        arrays: dict[str, pa.Array] = dict(kept or {})
        for names, block in zip(self.columns, blocks, strict=True):
            if len(names) == 1:
                arrays[names[0]] = _column(block, self.schema.field(names[0]).type)
            else:
                for name, part in zip(names, _parts(block), strict=True):
                    arrays[name] = _column(part, self.schema.field(name).type)
        return pa.record_batch([arrays[field.name] for field in self.schema], schema=self.schema)


def layout_like(model: Model, schema: pa.Schema | None) -> Layout:
    """Return the layout of a model with that schema, restricted to its buffers; without one a plain layout.

    Raises
    ------
    DatatypeError
        If a datatype has no column type.
    """
    kept = cast("KeptColumns | None", model.kept)
    if schema is not None:
        columns = tuple(buffer.columns for buffer in model.buffers)
        wanted = {name for names in (*columns, kept.names if kept else ()) for name in names}
        return Layout(pa.schema([field for field in schema if field.name in wanted], schema.metadata), columns, kept)
    fields = [_plain_field(buffer.datatype, buffer.name) for buffer in model.buffers]
    columns = tuple((field.name,) for field in fields)
    if kept:
        fields = _in_order_of(kept, dict(zip((buffer.columns for buffer in model.buffers), fields, strict=True)))
    return Layout(pa.schema(fields), columns, kept)


def _in_order_of(kept: KeptColumns, fields: Mapping[tuple[str, ...], pa.Field]) -> list[pa.Field]:
    """Return the fields of a result, each where the file has the first of its columns."""
    places = {kept.order.index(columns[0]): field for columns, field in fields.items()}
    places |= {kept.order.index(field.name): field for field in kept.fields}
    return [places[number] for number in sorted(places)]


def _plain_field(datatype: Datatype, name: str) -> pa.Field:
    if datatype.group in TIMES:
        return pa.field(name or "value", _time_of(datatype))
    form = datatype.form
    plain = [form] if form.names is None else [form[part] for part in datatype.fields]
    if any(each.kind == "c" or each.char == "g" or each.shape for each in plain):
        raise DatatypeError(f"{datatype}", "has no column type; use `to='npy'` or `to='raw'`")
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
    if is_time(kind):
        return pa.array(block, integers_of(kind)).view(kind)
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
