"""Shared parts of formats with columns: every numeric column is a buffer, streamed by batches.

A pair is a column of structures, or two columns. pyarrow is imported by the modules of these
formats and nowhere else.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from mpired.codecs.arrow import pa
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import TIMES, Datatype, Group, agrees, from_dtype, value_type, with_fields
from mpired.datatypes.pairs import FIELDS
from mpired.datatypes.times import as_times, time_type
from mpired.errors import BufferFileError, DatatypeError, UsageError, shortened
from mpired.formats import streamed
from mpired.formats.array import UNKNOWN_COUNT, Array, FlatReader
from mpired.formats.arrow_arrays import DTYPES, column_of, has_arrays, integers_of, is_time, nullable_values, objects_of
from mpired.formats.decoding import look_apart
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import NullsError
from mpired.formats.names import check_pair, listed, missing, picked
from mpired.formats.rank import Model, RankFile, SkippedArray, choice, datatype_of, element_text, ways_out
from mpired.formats.streamed import ColumnFile, Decoded, Values, form_of
from mpired.progress import track
from mpired.sources.source import Source

_T = TypeVar("_T")
_DECODED_NBYTES = 256 << 20  # a page or record batch is decoded at once
_INT64_DIGITS = 18  # of which every number is an int64
_OBJECT_ROWS = 4 << 10  # that become objects of Python at a time
_SKIPPED_ROWS = 64 << 10
_KEPT_NBYTES = 64 << 20  # about the most of columns that are kept that is in memory


_NOT_EQUAL = "; `keep` carries columns that are equal in all ranks; take those of rank 0 with `check_coordinates=False`"
_ZONED = re.compile(r"timestamp\[(\w+), tz=(.*)\]", re.DOTALL)


def _time_of(datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for a datatype of times."""
    if match := _ZONED.fullmatch(datatype.name):
        return pa.timestamp(*match.groups())
    try:
        return pa.type_for_alias(datatype.name)
    except ValueError:
        raise DatatypeError(f"{datatype}", "has no column type; use `to='npy'`") from None


class Leaf(NamedTuple):
    """A column of plain values, or a field of a column of structures."""

    column: str
    field: int | None
    rows: tuple[int, ...]  # see `Contents`


class Contents(NamedTuple):
    """Contents of a file with columns."""

    schema: pa.Schema
    rows: tuple[int, ...]  # of each row group or record batch; () if they are not counted
    nrows: int
    nulls: Sequence[int | None]  # of each column, as many as the header tells of; None if it does not say
    nbytes: int  # about those of all values; 0 if the rows are not counted either


class Table(ColumnFile):
    """An open file with columns."""

    format: ClassVar[str]
    schema: pa.Schema

    def begin(self) -> None:
        """Check the schema, which the format has read."""
        for field in self.schema:
            _check_names(field)

    def contents(self) -> Contents:
        """Return the contents of the file."""
        raise NotImplementedError

    def values(self, leaf: Leaf, start: int) -> Iterator[pa.Array]:
        """Yield the values of a leaf from the row `start` on, nulls too."""
        raise NotImplementedError

    def columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with at least some columns."""
        raise NotImplementedError

    def arrays(self, leaf: Leaf, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on as NumPy has them."""
        for array in self.values(leaf, start):
            if not nullable and array.null_count:
                raise NullsError(sum(each.null_count for each in self.values(leaf, 0)))
            if array.type in DTYPES or is_time(array.type):
                yield nullable_values(array)
                continue
            for at in range(0, len(array), _OBJECT_ROWS):
                yield objects_of(array[at : at + _OBJECT_ROWS])


def _check_names(field: pa.Field) -> None:
    """Raise `UnicodeDecodeError` if a name is not UTF-8: pyarrow decodes each when it is asked for."""
    str(field.name)
    for number in range(field.type.num_fields):
        _check_names(field.type.field(number))


Opener: TypeAlias = Callable[..., Table]


def leaves_of(schema: pa.Schema, rows: tuple[int, ...]) -> list[tuple[Leaf, ...]]:
    """Return the leaves of each column."""
    fields = [range(field.type.num_fields) if pa.types.is_struct(field.type) else [None] for field in schema]
    return [tuple(Leaf(name, each, rows) for each in own) for name, own in zip(schema.names, fields, strict=True)]


def count_of(kind: pa.DataType, *, leaves: bool) -> int:
    """Return the number of a type and of those within it, or only of those that have none within."""
    if isinstance(kind, pa.BaseExtensionType):
        return count_of(kind.storage_type, leaves=leaves)
    within = sum(count_of(kind.field(i).type, leaves=leaves) for i in range(kind.num_fields))
    return within or 1 if leaves else within + 1


def behind(start: int, batches: Iterable[pa.RecordBatch], leaf: Leaf) -> Iterator[pa.Array]:
    """Yield the values of a leaf behind the first rows of some record batches."""
    for batch in batches:
        if start < batch.num_rows:
            column = batch.column(batch.schema.get_field_index(leaf.column))[start:]
            # Nulls of a structure become nulls of its fields.
            yield column if leaf.field is None else column.flatten()[leaf.field]
        start = max(0, start - batch.num_rows)


SCHEMA: Callable[[Any], pa.Schema] = operator.attrgetter("schema")


def asked(context: Context, source: Source, opener: Opener, question: Callable[[Any], _T]) -> _T:
    """Let a worker open a file, and return its answer to a question."""
    if source.is_forward:  # no other process has its bytes
        return _answer(source, opener, question)
    answer: _T = look_apart(context, _answer, source, opener, question)
    return answer


def _answer(source: Source, opener: Opener, question: Callable[[Any], _T]) -> _T:
    with errors_of(source.name), closing(opener(source)) as file:
        return question(file)


errors_of = functools.partial(streamed.errors_of, errors=(pa.ArrowException,))
"""Turns pyarrow's exceptions about a file, or a result like it, into ours, on one line."""


def inspect(source: Source, inputs: InputOptions, opener: type[Table]) -> RankFile:
    """Describe a file from its schema."""
    if source.nbytes == 0 and not source.is_forward:
        raise BufferFileError(source.name, f"the file is empty; not a valid {opener.format} file")
    contents = asked(inputs.context, source, opener, operator.methodcaller("contents"))
    schema, others = contents.schema, _others(contents, inputs)
    leaves, buffers = leaves_of(schema, contents.rows), []
    for columns in _chosen(source, schema, inputs, {other.name for other in others}):
        buffer = _buffer(source, contents, inputs, columns)
        own = tuple(leaf for name in columns for leaf in leaves[schema.get_field_index(name)])
        if buffer.datatype.group is Group.VALUE:
            own = (Leaf(columns[0], None, contents.rows),)
        buffers.append(buffer._replace(reader=Decoded(opener, own, (pa.ArrowException,))))
    kept = None
    if inputs.keep:
        _check_one_each(source, schema, inputs.keep)
        fields = pa.schema([field for field in schema if field.name in inputs.keep])
        row_nbytes = max(1, contents.nbytes // max(1, contents.nrows))
        kept = KeptColumns(source, fields, tuple(schema.names), opener, row_nbytes)
    return RankFile(source, tuple(buffers), others, tuple(schema.names), kept=kept)


def _buffer(source: Source, contents: Contents, inputs: InputOptions, columns: tuple[str, ...]) -> Array:
    """Return a column, or two of pairs, as a buffer, whose reader is still missing."""
    schema, name = contents.schema, ",".join(columns)
    fields, what = [schema.field(each) for each in columns], f"column {name!r} holds"
    if len(columns) == 1 and is_time(fields[0].type):
        dtype, datatype = np.dtype("i8"), time_type(str(fields[0].type))
        if inputs.datatype is not None:
            raise inputs.refused(source, inputs.datatype, f"{what} {datatype}")
    elif inputs.any_type and not inputs.pair and (kind := _value_type(fields[0].type)) is not None:
        dtype, datatype = kind.form, kind
    else:
        for field in fields:
            if not _are_numbers(_scalars(field.type) if len(columns) == 1 else [field.type]):
                raise _not_taken(source, contents, field, inputs)
        dtype = _column_dtype(columns, [field.type for field in fields])
        if inputs.pair and not inputs.named:
            check_pair(source, inputs.pair, dtype, "columns")
        datatype = inputs.datatype or datatype_of(dtype, source, f"{what} elements of {dtype}")
        if inputs.named and inputs.datatype is None:
            datatype = with_fields(datatype, dtype.names)
        if not agrees(datatype, dtype):
            raise inputs.refused(source, datatype, f"{what} {element_text(dtype)}")
    metadata = fields[0].metadata or {}  # as files of other programs name a unit
    unit = metadata.get(b"units", metadata.get(b"unit", b"")).decode(errors="replace")
    missing = [contents.nulls[schema.get_field_index(each)] for each in columns]
    known = None if None in missing and not any(missing) else sum(each or 0 for each in missing)
    form = form_of(datatype, dtype.names or ())
    found = Array(source, datatype, contents.nrows, form, name=name, parts=columns, fixed_order=True, unit=unit)
    grain = max((1, *contents.rows))  # of a row group only the whole is decoded
    return found._replace(isolated=True, memory=_DECODED_NBYTES, grain=grain, nulls=known, nullable=inputs.nullable)


def _value_type(kind: pa.DataType) -> Datatype | None:
    """Return the datatype of values that are only compared, however they are encoded; None of numbers."""
    with contextlib.suppress(DatatypeError):
        if _are_numbers(_scalars(kind)):
            from_dtype(_column_dtype(("",), [kind]))
            return None
    return value_type(_in_words(_plain_type(kind)))


def _others(contents: Contents, inputs: InputOptions) -> tuple[SkippedArray, ...]:
    """Return the columns that hold no numbers or share a name, unless the columns were chosen."""
    if inputs.columns or inputs.pair:
        return ()
    schema, names = contents.schema, contents.schema.names
    there = Counter(names)
    is_taken = has_arrays if inputs.any_type else lambda kind: _are_numbers(_scalars(kind))
    numbers = {field.name for field in schema if there[field.name] == 1 and is_taken(field.type)}
    left = numbers.union(inputs.keep)
    others = []
    for field, nulls in zip(schema, contents.nulls, strict=True):
        if field.name in left:
            continue
        is_one = there[field.name] == 1
        reason = _no_buffer(field) if is_one else _not_one(names, field.name)
        other = SkippedArray(field.name, str(field.type), reason, contents.nrows, nulls=nulls)
        other = other._replace(label=_in_words(field.type), keeps=has_arrays(field.type))
        if is_one:
            other = other._replace(way_out=_way_out(field.type, inputs.taken), group=_group(field.type))
        others.append(other)
    return tuple(others)


def _no_buffer(field: pa.Field) -> str:
    """Return why a column is not a buffer."""
    if pa.types.is_decimal(field.type):
        return f"column {field.name!r} is {field.type}, and no op takes decimals"
    if is_time(field.type):
        return f"column {field.name!r} is {field.type}, and times are combined only if they are chosen"
    return f"column {field.name!r} holds {field.type}, not numbers"


def _way_out(kind: pa.DataType, taken: Group | None) -> str:
    """Return how a column of another type can become one of numbers that are `taken`; "" for types that mean none."""
    fits = pa.types.is_decimal(kind) and kind.precision <= _INT64_DIGITS
    needed = Group.C_INTEGER if fits else Group.FLOATING_POINT
    if not pa.types.is_decimal(kind) or (taken is not None and needed not in taken):
        return ""
    if not fits:
        return f"write it as float64, which rounds, because int64 has no room for {kind.precision} digits"
    return f"write it as int64{f' in units of {decimal.Decimal(1).scaleb(-kind.scale)}' if kind.scale else ''}"


def _group(kind: pa.DataType) -> Group | None:
    """Return the group of the datatype of a column that is chosen, None if it is none."""
    if is_time(kind):
        return time_type(str(kind)).group
    return from_dtype(DTYPES[kind]).group if kind in DTYPES else None


def _in_words(kind: pa.DataType) -> str:
    """Return what a type of a column is called."""
    if pa.types.is_struct(kind):
        fields = [f"{kind.field(i).name} ({_in_words(kind.field(i).type)})" for i in range(kind.num_fields)]
        return f"structures of {', '.join(fields) or 'nothing'}"
    if pa.types.is_map(kind):
        return f"maps of {_in_words(kind.key_type)} to {_in_words(kind.item_type)}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"lists of {_in_words(kind.value_type)}"
    if pa.types.is_dictionary(kind):
        return f"{_in_words(kind.value_type)} by a dictionary"
    return DTYPES[kind].name if kind in DTYPES else str(kind)


def _not_one(names: Sequence[str], name: str) -> str:
    """Return the error for a name that is not that of one column; `names` are those of all."""
    if not (number := names.count(name)):
        return missing(name, names, "column")
    return f"has {number} columns named {name!r}; its columns are {listed(names)}"


def _chosen(source: Source, schema: pa.Schema, inputs: InputOptions, others: set[str]) -> list[tuple[str, ...]]:
    """Return the columns of each buffer."""
    left = others.union(inputs.keep)
    names = picked(source, schema.names, inputs.columns, "column")
    if not inputs.columns:
        names = [name for name in schema.names if name not in left]
    chosen: list[tuple[str, ...]] = [inputs.pair] if inputs.pair else [(name,) for name in names]
    _check_one_each(source, schema, (name for columns in chosen for name in columns))
    return chosen


def _check_one_each(source: Source, schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise `BufferFileError` unless each name is that of one column."""
    there = Counter(schema.names)
    for name in names:
        if there[name] != 1:
            raise BufferFileError(source.name, _not_one(schema.names, name))


def _not_taken(source: Source, contents: Contents, wrong: pa.Field, inputs: InputOptions) -> DatatypeError:
    """Return the error for a column that is chosen and holds no numbers."""
    if inputs.pair:
        return DatatypeError(source.name, f"{_no_buffer(wrong)}; a pair is of two columns of numbers")
    schema, there = contents.schema, Counter(contents.schema.names)
    whole = (field for field, missing in zip(schema, contents.nulls, strict=True) if not missing)
    groups = [(field.name, _group(field.type)) for field in whole if there[field.name] == 1]
    others = choice([(name, group) for name, group in groups if group is not None], inputs.taken)
    return DatatypeError(source.name, f"{_no_buffer(wrong)}{ways_out(_way_out(wrong.type, inputs.taken), others)}")


def _column_dtype(columns: tuple[str, ...], kinds: Sequence[pa.DataType]) -> np.dtype:
    """Return the NumPy form of the elements of a column, or of two columns as pairs; `kinds` are their types."""
    structured = len(columns) == 1 and pa.types.is_struct(kinds[0])
    types = _scalars(kinds[0]) if len(columns) == 1 else kinds
    plain = [DTYPES[kind] for kind in types]
    if not structured and len(columns) == 1:
        return plain[0]
    names = FIELDS if len(columns) > 1 else [kinds[0].field(i).name for i in range(kinds[0].num_fields)]
    if not all(names) or len(set(names)) < len(names):  # none that NumPy takes
        names = [f"field{i}" for i in range(len(plain))]
    return np.dtype(list(zip(names, plain, strict=True)))


def _are_numbers(kinds: Sequence[pa.DataType]) -> bool:
    """Return whether all types are numbers, and there is one at least: a structure may have no field."""
    return bool(kinds) and all(kind in DTYPES for kind in kinds)


def _scalars(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of the fields of a structure, of another type only itself."""
    return [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_struct(kind) else [kind]


@dataclass(frozen=True, eq=False)
class KeptColumns:
    """Columns of any type that results have as a file has them."""

    source: Source  # the file
    fields: pa.Schema  # their names and types
    order: tuple[str, ...]  # the names of all columns
    opener: Opener
    row_nbytes: int  # about how many bytes a row of the file has
    wanted: ClassVar[bool] = True
    kind: ClassVar[str] = "columns"
    others: ClassVar[tuple[SkippedArray, ...]] = ()

    @property
    def names(self) -> list[str]:
        """Their names, in the order of the file."""
        return list(self.fields.names)

    def open(self) -> KeptReader:
        """Open the file for reading rows in order."""
        return KeptReader(self)

    def check_same(self, other: Any, like: str) -> None:
        """Raise `BufferFileError` unless another file has equal ones; messages call this file `like`."""
        for name in self.names:
            kind, mine = other.fields.field(name).type, self.fields.field(name).type
            if _plain_type(kind) != _plain_type(mine):
                reason = f"has column {name!r} of {kind}, but {like} ({self.source.name!r}) of {mine}"
                reason += _NOT_EQUAL
                raise BufferFileError(other.source.name, reason)
        with closing(self.open()) as left, closing(other.open()) as right:
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
                        reason = f"row {at + first} of column {name!r} is {others}, but {mine} in {like}"
                        reason += f" ({self.source.name!r}){_NOT_EQUAL}"
                        raise BufferFileError(other.source.name, reason)
                at += count

    def among(self, results: Sequence[Array]) -> list[Array]:
        """Return results and these columns, which are read like them, in the order of the file."""
        places = {name: place for place, name in enumerate(self.order)}
        columns = [self._column(field, results[0].count) for field in self.fields]
        return sorted((*results, *columns), key=lambda each: places.get(each.name.partition(",")[0], len(places)))

    def _column(self, field: pa.Field, count: int) -> Array:
        datatype = value_type(str(field.type))
        if field.type in DTYPES or is_time(field.type):
            datatype = time_type(str(field.type)) if is_time(field.type) else from_dtype(DTYPES[field.type])
        reader = functools.partial(_KeptColumn, self)
        return Array(self.source, datatype, count, datatype.form, name=field.name, reader=reader)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all values of each as NumPy has them, masked ones where numbers or times are null."""
        with errors_of(self.source.name), closing(self.opener(self.source)) as file:
            batches = [batch.select(self.names) for batch in file.columns(self.names)]
        columns = pa.Table.from_batches(batches, self.fields).columns
        return {name: _as_numpy(column) for name, column in zip(self.names, columns, strict=True)}


_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, however they are encoded: by a dictionary, or with short or long offsets."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _LARGE.get(kind, kind)


def _as_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Return the values of a column as NumPy has them: numbers and times with a mask if some are null, else objects."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if kind not in DTYPES and not is_time(kind):
        objects: np.ndarray = column.to_numpy()
        return objects
    column = column.cast(integers_of(kind)) if is_time(kind) else column
    there: np.ndarray | None = column.is_valid().to_numpy() if column.null_count else None
    values: np.ndarray = (column if there is None else column.fill_null(pa.scalar(0).cast(column.type))).to_numpy()
    if is_time(kind):
        values = as_times(values, time_type(str(kind)))
    return values if there is None else np.ma.MaskedArray(values, mask=~there)


def _comparable(array: pa.Array) -> pa.Array:
    """Return values that are equal if their bits are, and not encoded."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type in _LARGE:
        array = array.cast(_LARGE[array.type])
    bits = _bits_of(array.type)
    return array if bits == array.type else array.view(bits)


def _bits_of(kind: pa.DataType) -> pa.DataType:
    """Return a type with integers in the place of floating-point numbers, also within it."""
    if pa.types.is_floating(kind):
        return pa.type_for_alias(f"int{kind.bit_width}")
    fields = [field.with_type(_bits_of(field.type)) for field in map(kind.field, range(kind.num_fields))]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(*fields[0].type)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(fields[0])
    return pa.list_(fields[0]) if pa.types.is_list(kind) else kind


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
        with errors_of(kept.source.name):
            self._file = kept.opener(kept.source)
        self._batches = self._file.columns(kept.names)
        self._rest: pa.RecordBatch | None = None

    def ahead(self) -> int:
        """Return how many rows are decoded, one at least except at the end."""
        while self._rest is None or not self._rest.num_rows:
            with errors_of(self._kept.source.name):
                self._rest = next(self._batches, None)
            if self._rest is None:
                return 0
        return int(self._rest.num_rows)

    def read(self, count: int) -> list[pa.Array]:
        """Return the next rows of each column."""
        parts = []
        while count:
            if not (there := min(count, self.ahead())):
                raise self._kept.source.changed()
            assert self._rest is not None  # noqa: S101 - it was looked ahead
            parts.append(self._rest[:there].select(self._kept.names))
            self._rest = self._rest[there:]
            count -= there
        rows = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
        return [column.chunk(0) for column in rows.columns]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _KeptColumn:
    """Reads a column of `KeptColumns` in ascending order, as objects of Python if these are not numbers."""

    def __init__(self, kept: KeptColumns, column: Array) -> None:
        self._reader = replace(kept, fields=pa.schema([kept.fields.field(column.name)])).open()
        self._at, self.close = 0, self._reader.close

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, and return which are valid; None if all are."""
        while self._at < start:
            self._at += len(self._reader.read(min(start - self._at, _SKIPPED_ROWS))[0])
        self._at += len(block)
        (column,) = self._reader.read(len(block))
        block[:], valid = (column.to_pylist(), column.is_valid()) if block.dtype.hasobject else nullable_values(column)
        return np.asarray(valid) if block.dtype.hasobject else valid


_NOTE = b"mpired"


def with_note(schema: pa.Schema, note: Any) -> pa.Schema:
    """Return a schema with what a file says of where it comes from; that of the file it is modelled on is left out."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _NOTE}
    if note is not None:
        metadata[_NOTE] = note.text.encode(errors="surrogateescape")
    return schema.with_metadata(metadata or None)


def note_of(source: Source, opener: Opener) -> str | None:
    """Return the provenance in a file; None if it has none."""
    note = (asked(NO_LIMITS, source, opener, SCHEMA).metadata or {}).get(_NOTE)
    return None if note is None else note.decode(errors="replace")


class TableLayout(NamedTuple):
    """Results as columns: the schema, the columns of each buffer, and those that are carried."""

    schema: pa.Schema
    columns: tuple[tuple[str, ...], ...]
    kept: KeptColumns | None = None

    def most_rows(self, rows: int) -> int:
        """Return how many rows are written at a time: `rows`, or fewer if those of the kept columns are long."""
        return rows if self.kept is None else max(1, min(rows, _KEPT_NBYTES // self.kept.row_nbytes))

    def batches(self, results: Sequence[Array], rows: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield all rows in blocks: the results, and the columns that are kept."""
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(closing(FlatReader(result))) for result in results]
            kept = self.kept and stack.enter_context(closing(self.kept.open()))
            has_unknown_length = results[0].count == UNKNOWN_COUNT
            whole = 0 if has_unknown_length else results[0].count
            steps = iter(track(range(0, whole, rows), "encoding results"))
            start = 0
            while count := readers[0].available(start, rows) if has_unknown_length else min(rows, whole - start):
                next(steps, None)
                arrays = dict(zip(self.kept.names, kept.read(count), strict=True)) if self.kept and kept else {}
                for names, result, reader in zip(self.columns, results, readers, strict=True):
                    block = np.empty(count, result.datatype.form)
                    there = reader.read(start, block)
                    for name, part in zip(names, _parts(block) if len(names) > 1 else [block], strict=True):
                        arrays[name] = column_of(part, self.schema.field(name).type, there)
                yield pa.record_batch([arrays[field.name] for field in self.schema], schema=self.schema)
                start += count
            next(steps, None)  # after the last one, so that a bar ends


def layout_like(model: Model, schema: pa.Schema | None) -> TableLayout:
    """Return the layout of a model with that schema, restricted to its buffers; without one a plain layout."""
    kept = cast("KeptColumns | None", model.kept)
    if schema is not None:
        columns = tuple(buffer.columns for buffer in model.buffers)
        wanted = {name for names in (*columns, kept.names if kept else ()) for name in names}
        nullable = {name for buffer in model.buffers if buffer.nullable for name in buffer.columns}
        fields = [
            field.with_nullable(field.nullable or field.name in nullable) for field in schema if field.name in wanted
        ]
        return TableLayout(pa.schema(fields, schema.metadata), columns, kept)
    made = [(buffer.columns, _plain_fields(buffer)) for buffer in model.buffers]
    columns = tuple(tuple(field.name for field in fields) for _, fields in made)
    if kept:
        return TableLayout(pa.schema(_in_order_of(kept, made)), columns, kept)
    return TableLayout(pa.schema([field for _, fields in made for field in fields]), columns)


def _in_order_of(kept: KeptColumns, made: Sequence[tuple[Sequence[str], Sequence[pa.Field]]]) -> list[pa.Field]:
    """Return the fields of a result, also those that are made from several columns of the file."""
    places = {name: place for place, name in enumerate(kept.order)}
    names = set(kept.names)
    placed = [(places[field.name], field) for field in kept.fields]
    for columns, fields in made:
        for field in fields:
            if field.name in names:
                reason = f"names the column {field.name!r}, and results have another of that name; leave it out"
                raise UsageError("`keep`", reason)
            placed.append((min((places.get(name, len(places)) for name in columns), default=len(places)), field))
    return [field for _, field in sorted(placed, key=lambda each: each[0])]


def _plain_fields(buffer: Array) -> list[pa.Field]:
    """Return the column of a buffer, or two of values and of indices if its pairs have a name for each."""
    parts = buffer.datatype.parts
    if parts and len(buffer.columns) == len(parts):
        return [_plain_field(each, name) for each, name in zip(parts, buffer.columns, strict=True)]
    return [_plain_field(buffer.datatype, buffer.name)]


def _plain_field(datatype: Datatype, name: str) -> pa.Field:
    if datatype.group in TIMES:
        return pa.field(name or "value", _time_of(datatype))
    form = datatype.form
    plain = [form] if form.names is None else [form[part] for part in datatype.fields]
    if any(each.kind == "c" or each.char == "g" or each.shape for each in plain):
        raise DatatypeError(datatype.label, "has no column type; use `to='npy'` or `to='raw'`")
    types = [pa.bool_() if datatype.is_bool else pa.from_numpy_dtype(each) for each in plain]
    if form.names is None:
        return pa.field(name or "value", types[0])
    return pa.field(name or "_".join(datatype.fields), pa.struct(list(zip(datatype.fields, types, strict=True))))


def _parts(block: np.ndarray) -> list[np.ndarray]:
    """Return the fields of structures, of other elements only themselves."""
    return [block] if block.dtype.names is None else [block[name] for name in block.dtype.names]


@contextlib.contextmanager
def patching(
    source: Source, opener: Opener, changed: Sequence[Array]
) -> Generator[tuple[Any, pa.Schema, Callable[[pa.RecordBatch], pa.RecordBatch]], None, None]:
    """Open a file; give it, the schema to write, and the function that puts new elements into all batches in order."""
    with errors_of(source.name), contextlib.ExitStack() as stack:
        old = stack.enter_context(closing(opener(source)))
        schema = with_note(old.schema, None)  # the file has other columns now
        for each in changed:
            number = schema.get_field_index(each.name)
            nullable = schema.field(number).nullable or each.validity is not None
            schema = schema.set(number, schema.field(number).with_nullable(nullable))
        readers = {
            schema.get_field_index(each.name): (stack.enter_context(closing(each.open())), each.datatype)
            for each in changed
        }
        at = 0

        def patched(batch: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal at
            arrays = list(batch.columns)
            for number, (reader, datatype) in readers.items():
                block = np.empty(batch.num_rows, datatype.form)
                there = reader.read(at, block)
                arrays[number] = column_of(block, schema.field(number).type, there)
            at += batch.num_rows
            return pa.record_batch(arrays, schema=schema)

        yield old, schema, patched
