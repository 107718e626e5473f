"""Parquet and arrow: every numeric column is a buffer, which pyarrow decodes in record batches.

A pair is a column of structures, or two columns.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np

from mpired.codecs.arrow import pa
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import TIMES, Datatype, Group, from_dtype, pair_fields, value_type
from mpired.datatypes.dtypes import as_times, time_type
from mpired.datatypes.predefined import FIELDS
from mpired.errors import BufferFileError, DatatypeError, shortened
from mpired.formats import streamed
from mpired.formats.array import Array, Reader
from mpired.formats.decoding import call_in_worker
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import Encoder, check_names
from mpired.formats.rank import Model, RankFile, SkippedArray, check_pair, declared_datatype, list_names, select_arrays
from mpired.formats.streamed import ColumnFile, ColumnReader, TableFile, Values, form_of
from mpired.log import track
from mpired.sources.source import Source

_DECODED_NBYTES = 256 << 20  # limit for a page or record batch, which is decoded at once
_BLOCK_ROWS = 512 << 10  # rows of numbers that are converted at a time
_OBJECT_ROWS = 4 << 10  # rows that become objects of Python at a time
_COMPARED_ROWS = 64 << 10
_KEPT_NBYTES = 64 << 20  # approximate limit for the memory of kept columns
_NOT_EQUAL = "; `keep` carries columns that are equal in all ranks; take those of rank 0 with `check_coordinates=False`"
_ENCODED = " by a dictionary"
_NUMBERS = "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
DTYPES: dict[pa.DataType, np.dtype] = {getattr(pa, name)(): np.dtype(name.rstrip("_")) for name in _NUMBERS.split()}
"""Arrow's types of numbers, with the dtypes of NumPy."""
_ZONED = re.compile(r"timestamp\[(\w+), tz=(.*)\]", re.DOTALL)


class Leaf(NamedTuple):
    """A column, or a field of a column of structures."""

    column: str
    field: int | None  # number of the field
    rows: tuple[int, ...]  # see `TableHeader`


HeaderFields: TypeAlias = tuple[pa.Schema, tuple[int, ...], Sequence[int | None], int]
"""The schema, rows, nulls and bytes of a `TableHeader`."""


class Table(ColumnFile):
    """An open file with columns."""

    format: ClassVar[str]
    schema: pa.Schema
    content: TableFile
    header_fields: Callable[[], HeaderFields]
    # yields batches with at least the named columns; the arguments are the names, `TableHeader.rows` and the first row
    batches: Callable[..., Iterator[pa.RecordBatch]]
    # writes a copy of the file with the schema; the function returns the new content of each batch
    copy: Callable[[BinaryIO, pa.Schema, Change], None]

    def begin(self) -> None:
        """Check the schema, which the subclass has read."""
        for field in self.schema:
            _check_names(field)

    def arrays(self, leaf: Leaf, start: int) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on as NumPy arrays."""
        for batch in self.batches([leaf.column], leaf.rows, start):
            encoded = batch.column(leaf.column)
            if leaf.field is not None:  # nulls of a structure become nulls of its fields
                encoded = encoded.flatten()[leaf.field]
            column = cast_column(encoded, decoded_kind(encoded.type))
            convert, nrows = (nullable_values, _BLOCK_ROWS) if is_plain(column.type) else (objects_of, _OBJECT_ROWS)
            for row in range(0, len(column), nrows):
                yield convert(column[row : row + nrows])
                self.content.forget()


def _check_names(field: pa.Field) -> None:
    """Raise `UnicodeDecodeError` if a name is not UTF-8, which pyarrow decodes only at its use."""
    str(field.name)
    for number in range(field.type.num_fields):
        _check_names(field.type.field(number))


TableOpener: TypeAlias = Callable[..., Table]
Change: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


def count_nodes(kind: pa.DataType, *, leaves: bool) -> int:
    """Return the number of nodes in the tree of a type, or of its leaves."""
    if isinstance(kind, pa.BaseExtensionType):
        return count_nodes(kind.storage_type, leaves=leaves)
    children = sum(count_nodes(kind.field(i).type, leaves=leaves) for i in range(kind.num_fields))
    return children or 1 if leaves else children + 1


def query(context: Context, source: Source, opener: TableOpener, function: Callable[[Any], Any]) -> Any:
    """Open a file in a worker, and return the result of a function of the open file."""
    return call_in_worker(context, source.name, _query, source, opener, function, inspects=True)


def _query(source: Source, opener: TableOpener, function: Callable[[Any], Any]) -> Any:
    with errors_of(source.name), closing(opener(source)) as file:
        return function(file)


SCHEMA: Callable[[Any], pa.Schema] = operator.attrgetter("schema")
errors_of = functools.partial(streamed.errors_of, errors=(pa.ArrowException,))
"""Converts pyarrow's exceptions about a file, or about a result that is modelled on it."""


def inspect(source: Source, inputs: InputOptions, opener: type[Table]) -> RankFile:
    """Describe a file from its schema."""
    if source.nbytes == 0:
        raise BufferFileError(source.name, f"the file is empty; not a valid {opener.format} file")
    header_fields = query(inputs.context, source, opener, operator.methodcaller("header_fields"))
    schema = header_fields[0]
    names, counts = schema.names, Counter(schema.names)
    combined, kept = select_arrays(source, names, inputs)
    if ambiguous := next((name for name in (*combined, *inputs.keep) if counts[name] > 1), None):
        raise BufferFileError(source.name, _skip_reason(ambiguous, pa.null(), names))
    matched = [field for field in schema if field.name in kept and field.name not in inputs.keep]  # by a pattern
    refused = {field.name for field in matched if counts[field.name] > 1 or not has_array_class(field.type)}
    table = TableHeader(source, opener, tuple(name for name in kept if name not in refused), *header_fields)
    is_chosen = bool(inputs.columns or inputs.pair)
    skipped = _skipped_columns(table, inputs) if refused or not is_chosen else []
    if not combined:
        excluded = {*kept, *(column.name for column in skipped)}
        combined = dict.fromkeys(name for name in names if name not in excluded)
    groups = [tuple(combined)] if inputs.pair else [(name,) for name in combined]
    buffers = tuple(_buffer(table, inputs, columns) for columns in groups)
    others = [] if is_chosen else [column for column in skipped if column.name not in refused]
    not_kept = tuple({column.name: column for column in skipped if column.name in refused}.values())
    return RankFile(source, buffers, others, tuple(names), kept=table if inputs.keep else None, not_kept=not_kept)


@dataclass(frozen=True, eq=False)
class TableHeader:
    """The header of a file with columns, and the columns that results keep: a `KeptContent` of `rank.py`."""

    source: Source
    opener: TableOpener
    chosen: tuple[str, ...]  # names of the kept columns
    schema: pa.Schema
    rows: tuple[int, ...]  # number of rows in each row group or record batch
    nulls: Sequence[int | None]  # number of nulls in each column, or None if the header does not contain it
    nbytes: int  # approximate bytes of all values
    kind: ClassVar[str] = "columns"
    others: ClassVar[tuple[SkippedArray, ...]] = ()

    @property
    def names(self) -> list[str]:
        """The names of the kept columns, in the order of the file."""
        return [name for name in self.schema.names if name in self.chosen]

    def array(
        self, columns: tuple[str, ...], datatype: Datatype, fields: Sequence[str] = (), *, nullable: bool
    ) -> Array:
        """Return a column, or the two columns of pairs, as an array; `fields` are the names of a structure."""
        leaves = [Leaf(name, None, self.rows) for name in columns]
        if fields and len(columns) == 1:
            leaves = [Leaf(columns[0], number, self.rows) for number in range(len(fields))]
        metadata = self.schema.field(columns[0]).metadata or {}  # other programs store units there
        numbers = [self.schema.get_field_index(name) for name in columns]
        # Headers count the null indices of a dictionary, but not its null values.
        is_encoded = any(pa.types.is_dictionary(self.schema.types[number]) for number in numbers)
        nulls = [None if is_encoded else self.nulls[number] for number in numbers]
        reader = functools.partial(ColumnReader, opener=self.opener, leaves=leaves, errors=(pa.ArrowException,))
        return Array(
            self.source, datatype, sum(self.rows), form_of(datatype, fields), name=",".join(columns), parts=columns,
            reader=reader, isolated=True, memory=_DECODED_NBYTES, fixed_order=True,
            grain=max((1, *self.rows)),  # row groups are decoded as a whole
            unit=metadata.get(b"units", metadata.get(b"unit", b"")).decode(errors="replace"),
            nulls=None if None in nulls and not any(nulls) else sum(count or 0 for count in nulls), nullable=nullable,
        )  # fmt: skip

    @property
    def max_rows(self) -> int:
        """The maximum number of rows of kept columns in memory."""
        return max(1, _KEPT_NBYTES // max(1, self.nbytes // max(1, sum(self.rows))))

    def kept_rows(self, count: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield the kept columns in batches of `count` rows; the last batch may have fewer."""
        batches, needed = list[pa.RecordBatch](), count
        with errors_of(self.source.name), closing(self.opener(self.source)) as file:
            for decoded in file.batches(self.names, self.rows):
                batch = decoded.select(self.names)
                while batch.num_rows >= needed:
                    yield _join([*batches, batch[:needed]])
                    batch, batches, needed = batch[needed:], [], count
                if batch.num_rows:
                    batches.append(batch)
                    needed -= batch.num_rows
            if batches:
                yield _join(batches)

    def check_same(self, other: Any, like: str) -> None:
        """Raise `BufferFileError` unless the kept columns of `other` are equal; `like` is this file in messages."""
        for name in self.names:
            kind, expected = other.schema.field(name).type, self.schema.field(name).type
            if values_type(kind) != values_type(expected):
                reason = f"has column {name!r} of {kind}, but {like} ({self.source.name!r}) of {expected}"
                raise BufferFileError(other.source.name, reason + _NOT_EQUAL)
        start, count = 0, min(self.max_rows, _COMPARED_ROWS)
        with closing(self.kept_rows(count)) as left, closing(other.kept_rows(count)) as right:
            for batch, other_batch in itertools.zip_longest(left, right):
                if batch is None or other_batch is None or batch.num_rows != other_batch.num_rows:
                    raise other.source.changed()
                for name in self.names:  # the order of the columns may differ
                    if difference := _first_difference(batch.column(name), other_batch.column(name)):
                        row, value, other_value = difference
                        reason = f"row {start + row} of column {name!r} is {other_value}, but {value} in {like}"
                        raise BufferFileError(other.source.name, f"{reason} ({self.source.name!r}){_NOT_EQUAL}")
                start += batch.num_rows

    def buffers(self, *, fortran_order: bool) -> list[Array]:  # noqa: ARG002 - columns have one dimension
        """Return the kept columns as arrays."""
        kinds = [decoded_kind(self.schema.field(name).type) for name in self.names]
        datatypes = [(_datatype(kind) if is_plain(kind) else None) or value_type(str(kind)) for kind in kinds]
        columns = zip(self.names, datatypes, strict=True)
        return [self.array((name,), datatype, nullable=True) for name, datatype in columns]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the kept columns as NumPy arrays: numbers and times, masked if some are null, else objects."""
        schema = pa.schema(map(self.schema.field, self.names))
        with errors_of(self.source.name), closing(self.opener(self.source)) as file:
            batches = [batch.select(self.names) for batch in file.batches(self.names, self.rows)]
        arrays = {}
        for name, chunks in zip(self.names, pa.Table.from_batches(batches, schema).columns, strict=True):
            kind = decoded_kind(chunks.type)
            column = chunks.cast(kind).combine_chunks()
            if not is_plain(kind):
                arrays[name] = objects_of(column)[0]  # `to_numpy` would round integers if there are nulls
                continue
            values, valid = nullable_values(column)
            values = np.array(values, np.bool_ if pa.types.is_boolean(kind) else None)  # a copy: callers may change it
            if is_time(kind):
                values = as_times(values, time_type(str(kind)))
            arrays[name] = values if valid is None else np.ma.MaskedArray(values, mask=~valid)
        return arrays


def _buffer(table: TableHeader, inputs: InputOptions, columns: tuple[str, ...]) -> Array:
    """Return a column, or the two columns of pairs, as a buffer."""
    source, fields = table.source, [table.schema.field(name) for name in columns]
    subject = f"column {','.join(columns)!r} holds"
    kind = decoded_kind(fields[0].type) if inputs.any_type else fields[0].type
    if inputs.pair:
        kind = pa.struct([(part, field.type) for part, field in zip(FIELDS, fields, strict=True)])
    form = _form(kind)
    names: tuple[str, ...] = ()
    if is_time(kind):
        datatype = time_type(str(kind))
        if inputs.datatype is not None:
            raise inputs.datatype_error(source, inputs.datatype, f"{subject} {datatype}")
    elif inputs.any_type and not inputs.pair and _datatype(kind) is None:
        datatype = values_type(kind)
    elif form is None:
        field = next(field for field in fields if field.type not in DTYPES)
        reason = _skip_reason(field.name, field.type)
        raise DatatypeError(source.name, f"{reason}{'; a pair is of two columns of numbers' if inputs.pair else ''}")
    else:
        if inputs.pair and not inputs.named:
            check_pair(source, columns, form, "columns")
        datatype, names = declared_datatype(source, inputs._replace(type_order=None), form, subject), form.names or ()
    return table.array(columns, datatype, names, nullable=inputs.nullable)


def is_time(kind: pa.DataType) -> bool:
    """Return whether values of a type are times, which are integers with a unit; intervals are not."""
    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type are numbers or times."""
    return kind in DTYPES or is_time(kind)


def decoded_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of numbers or times without their dictionary encoding; other types stay."""
    return kind.value_type if pa.types.is_dictionary(kind) and is_plain(kind.value_type) else kind


def has_array_class(kind: pa.DataType) -> bool:
    """Return whether pyarrow has arrays of a type: not of intervals in months, or in days and milliseconds."""
    return str(kind) not in {"month_interval", "day_time_interval"}


def _form(kind: pa.DataType) -> np.dtype | None:
    """Return the dtype of numbers or of structures of numbers; None for other types."""
    if not pa.types.is_struct(kind):
        return DTYPES.get(kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if not fields or any(field.type not in DTYPES for field in fields):
        return None
    names = [field.name for field in fields]
    if not all(names) or len(set(names)) < len(names):  # NumPy refuses empty and equal names
        names = [f"field{i}" for i in range(len(fields))]
    return np.dtype([(name, DTYPES[field.type]) for name, field in zip(names, fields, strict=True)])


def _datatype(kind: pa.DataType) -> Datatype | None:
    """Return the datatype of times, numbers or structures of numbers; None for other types."""
    if is_time(kind):
        return time_type(str(kind))
    form = _form(kind)
    with contextlib.suppress(DatatypeError):
        return None if form is None else from_dtype(form)
    return None


def _skipped_columns(table: TableHeader, inputs: InputOptions) -> list[SkippedArray]:
    """Return the columns without numbers and the columns of equal names, unless they are kept."""
    names, nrows = table.schema.names, sum(table.rows)
    counts, skipped = Counter(names), []
    for field, nulls in zip(table.schema, table.nulls, strict=True):
        name, kind, is_unique = field.name, field.type, counts[field.name] == 1
        is_supported = has_array_class(kind) if inputs.any_type else _form(kind) is not None
        if name in table.chosen or (is_unique and is_supported):
            continue
        reason, datatype = _skip_reason(name, kind, names), _datatype(kind) if is_unique else None
        group = None if datatype is None else datatype.group
        column = SkippedArray(name, str(kind), reason, nrows, label=_description(kind), group=group, nulls=nulls)
        skipped.append(column._replace(keeps=has_array_class(kind)))
    return skipped


def _skip_reason(name: str, kind: pa.DataType, names: Sequence[str] = ()) -> str:
    """Return the reason why a column is not a buffer, among columns with these names."""
    if names.count(name) > 1:
        return f"has {names.count(name)} columns named {name!r}; its columns are {list_names(names)}"
    if pa.types.is_decimal(kind):
        return f"column {name!r} is {kind}, and no op takes decimals"
    if is_time(kind):
        return f"column {name!r} is {kind}, and times are combined only if they are chosen"
    return f"column {name!r} holds {kind}, not numbers"


def _description(kind: pa.DataType) -> str:
    """Return the description of the values of a type, in the plural."""
    if pa.types.is_struct(kind):
        fields = [f"{kind.field(i).name} ({_description(kind.field(i).type)})" for i in range(kind.num_fields)]
        return f"structures of {', '.join(fields) or 'nothing'}"
    if pa.types.is_map(kind):
        return f"maps of {_description(kind.key_type)} to {_description(kind.item_type)}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"lists of {_description(kind.value_type)}"
    if pa.types.is_dictionary(kind):
        return f"{_description(kind.value_type)}{_ENCODED}"
    return DTYPES[kind].name if kind in DTYPES else str(kind)


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of record batches in a single batch."""
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]


def values_type(kind: pa.DataType) -> Datatype:
    """Return the datatype of the values of a column, which does not depend on their encoding."""
    return value_type(_description(kind).replace(_ENCODED, ""))


def _first_difference(left: pa.Array, right: pa.Array) -> tuple[int, str, str] | None:
    """Return the first row in which two columns differ, and both values, or None; a NaN equals a NaN."""
    if left.equals(right):
        return None
    for row, values in enumerate(zip(objects_of(left)[0], objects_of(right)[0], strict=True)):
        texts = ("null" if value is None else repr(value) if isinstance(value, str) else str(value) for value in values)
        value, other = texts
        if value != other:
            return row, shortened(value, 100), shortened(other, 100)
    return None


_PROVENANCE_KEY = b"mpired"


def with_provenance(schema: pa.Schema, provenance: Any) -> pa.Schema:
    """Return a schema with this provenance, or without one if it is None."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _PROVENANCE_KEY}
    if provenance is not None:
        metadata[_PROVENANCE_KEY] = provenance.text.encode(errors="surrogateescape")
    return schema.with_metadata(metadata or None)


def provenance_of(source: Source, opener: TableOpener) -> str | None:
    """Return the provenance in a file, or None."""
    provenance = (query(NO_LIMITS, source, opener, SCHEMA).metadata or {}).get(_PROVENANCE_KEY)
    return None if provenance is None else provenance.decode(errors="replace")


ResultSchema: TypeAlias = tuple[pa.Schema, list[tuple[str, ...]]]
"""The schema of a file of results, and the names of the columns of each result."""


def encoder(
    model: Model, layout: ResultSchema, new: Callable[[BinaryIO, pa.Schema], Any], rows: int, **options: Any
) -> Encoder:
    """Return an encoder that writes batches of `rows` rows to the writer that `new` returns, with `options`."""
    schema, columns = layout
    kept: TableHeader | None = model.kept
    rows = min(rows, kept.max_rows) if kept else rows

    def encode(results: Sequence[Array], fd: int) -> None:
        with (
            errors_of(model.subject, writes=True),
            os.fdopen(os.dup(fd), "wb") as file,
            new(file, with_provenance(schema, model.provenance)) as writer,
            contextlib.ExitStack() as stack,
        ):
            readers = [stack.enter_context(closing(result.open())) for result in results]
            kept_batches = stack.enter_context(closing(kept.kept_rows(rows))) if kept else None
            for start in track(range(0, results[0].count, rows)):
                count, arrays = min(rows, results[0].count - start), {}
                if kept and kept_batches:
                    batch = next(kept_batches, None)
                    if batch is None or batch.num_rows != count:
                        raise kept.source.changed()
                    named = zip(kept.names, batch.columns, strict=True)
                    arrays = {name: cast_column(column, schema.field(name).type) for name, column in named}
                for names, result, reader in zip(columns, results, readers, strict=True):
                    kinds = [schema.field(name).type for name in names]
                    arrays |= zip(names, _read_rows(reader, result.datatype, start, count, kinds), strict=True)
                batch = pa.record_batch([arrays[name] for name in schema.names], schema=schema)
                writer.write_batch(batch, **options)

    return Encoder(encode)


def _read_rows(reader: Reader, datatype: Datatype, start: int, count: int, kinds: Sequence[pa.DataType]) -> list[Any]:
    """Read elements from `start` on, and return them as a column, or as a column for each field of pairs."""
    block = np.empty(count, datatype.form)
    valid = reader.read(start, block)
    values = [block] if len(kinds) == 1 else [block[field] for field in block.dtype.names or ()]
    return [arrow_column(part, kind, valid) for part, kind in zip(values, kinds, strict=True)]


def result_schema(model: Model, schema: pa.Schema | None) -> ResultSchema:
    """Return the schema of results with the fields of their model, or with fields made from the datatypes."""
    kept: TableHeader | None = model.kept
    order = schema.names if schema is not None else kept.schema.names if kept else []
    positions = {name: position for position, name in enumerate(order)}
    placed = [(positions[name], kept.schema.field(name)) for name in kept.names] if kept else []
    columns = []
    for result in model.buffers:
        datatype = result.datatype
        if schema is not None:
            fields = [schema.field(name) for name in result.columns]
        elif datatype.parts and len(result.columns) == len(datatype.parts):  # columns of values and of indices
            fields = list(map(pa.field, result.columns, map(_arrow_type, datatype.parts)))
        else:
            fields = [pa.field(result.name or "_".join(datatype.fields) or "value", _arrow_type(datatype))]
        columns.append(tuple(field.name for field in fields))
        for field in fields:
            model_names = result.columns if schema is None else (field.name,)
            position = min((positions.get(name, len(positions)) for name in model_names), default=len(positions))
            placed.append((position, field.with_nullable(field.nullable or result.nullable)))
    check_names([*itertools.chain(*columns)], kept.names if kept else (), model.format.name)
    fields = [field for _, field in sorted(placed, key=operator.itemgetter(0))]
    return pa.schema(fields, None if schema is None else schema.metadata), columns


def _arrow_type(datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for the elements of a datatype."""
    if match := _ZONED.fullmatch(datatype.name):
        return pa.timestamp(*match.groups())
    if datatype.group in TIMES:
        with contextlib.suppress(ValueError):
            return pa.type_for_alias(datatype.name)
        raise DatatypeError(f"{datatype}", "has no column type; use `to='npy'`")
    if datatype.group is Group.VALUE:
        return _kept_type(datatype.form, datatype)
    forms = [datatype.form[part] for part in datatype.fields] if datatype.form.names else [datatype.form]
    if any(form.kind == "c" or form.char == "g" or form.shape for form in forms):
        raise DatatypeError(datatype.label, "has no column type; use `to='npy'` or `to='raw'`")
    types = [pa.bool_() if datatype.is_bool else pa.from_numpy_dtype(form) for form in forms]
    return pa.struct(list(zip(datatype.fields, types, strict=True))) if datatype.form.names else types[0]


def _kept_type(form: np.dtype, datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for kept elements of the dtype `form`; errors name the datatype."""
    if form.names:
        return pa.struct([(name, _kept_type(form[name], datatype)) for name in form.names])
    if form.subdtype:
        return pa.list_(_kept_type(form.base, datatype), form.itemsize // form.base.itemsize)
    if form.hasobject and not form.metadata:
        return pa.string()
    if form.kind in "SUV":
        return {"S": pa.binary(), "U": pa.string(), "V": pa.binary(form.itemsize)}[form.kind]
    if form.kind not in "biuf" or form.char == "g" or form.metadata:
        raise DatatypeError(datatype.label, "has no column type; use `to='hdf5'`")
    return pa.from_numpy_dtype(form)


def rewrite(source: Source, changed: Sequence[Array], fd: int, opener: TableOpener) -> None:
    """Write a copy of a file with new elements in the changed columns, and without its provenance."""
    with errors_of(source.name), contextlib.ExitStack() as stack:
        old = stack.enter_context(closing(opener(source)))
        schema, readers = with_provenance(old.schema, None), {}
        for column in changed:
            number = schema.get_field_index(column.name)
            field = schema.field(number)
            schema = schema.set(number, field.with_nullable(field.nullable or column.mask_offset is not None))
            readers[number] = stack.enter_context(closing(column.open())), column.datatype
        start = 0

        def patch(batch: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal start
            arrays = list(batch.columns)
            for number, (reader, datatype) in readers.items():
                kinds = [schema.field(number).type]
                (arrays[number],) = _read_rows(reader, datatype, start, batch.num_rows, kinds)
            start += batch.num_rows
            return pa.record_batch(arrays, schema=schema)

        old.copy(stack.enter_context(os.fdopen(os.dup(fd), "wb")), schema, patch)


# Conversions between columns and NumPy's arrays, which share their buffers. Those of pyarrow (`to_numpy`, `pa.array`,
# `pa.scalar`) import pandas if it is installed, which takes longer than a small reduction.


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to another encoding of its values; pyarrow cannot cast dictionaries of views."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type) and pa.types.is_dictionary(kind):
        values = column.dictionary.cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(column.indices, values, ordered=kind.ordered)
    return column.cast(kind)


def nullable_values(column: pa.Array) -> Values:
    """Return the values of a column with 0 for nulls, truth values as bytes and times as integers; and the mask."""
    (bitmap, data), start, count = column.buffers(), column.offset, len(column)
    dtype = DTYPES.get(column.type) or np.dtype(f"i{column.type.bit_width // 8}")  # times are integers
    if pa.types.is_boolean(column.type):
        values = _unpack_bits(data, start, count)
    else:
        values = np.frombuffer(data, dtype, count, start * dtype.itemsize) if count else np.empty(0, dtype)
    if not column.null_count:
        return values, None
    valid = _unpack_bits(bitmap, start, count).view(bool)
    return np.where(valid, values, values.dtype.type(0)), valid


def objects_of(column: pa.Array) -> Values:
    """Return the values of a column of any type as objects of Python, and the mask."""
    values = _python_values(column)
    return np.fromiter(values, object, len(values)), np.array([value is not None for value in values], np.bool_)


def _python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as objects of Python: None for nulls, strings for times."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        values = _python_values(column.storage)
    elif pa.types.is_dictionary(kind):
        dictionary, indices = column.dictionary, column.indices.to_pylist()  # pyarrow cannot decode views
        by_index = {index: _python_values(dictionary[index : index + 1])[0] for index in {*indices} - {None}}
        values = [by_index.get(index) for index in indices]
    elif is_time(kind):
        values = as_times(nullable_values(column)[0], time_type(str(kind))).astype(str).tolist()
    elif pa.types.is_struct(kind) and kind.num_fields:
        names = [kind.field(i).name for i in range(kind.num_fields)]
        rows = zip(*map(_python_values, column.flatten()), strict=True)
        # A dictionary cannot have two fields of a name.
        values = [dict(zip(names, row, strict=True)) if len(set(names)) == len(names) else row for row in rows]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = iter(_python_values(column.flatten()))
        values = [list(itertools.islice(items, length or 0)) for length in column.value_lengths().to_pylist()]
    elif pa.types.is_map(kind):
        values = [_python_values(items.values) if items.is_valid else None for items in column]
    else:
        return cast("list[Any]", column.to_pylist())
    if not column.null_count:
        return values
    mask = column.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, mask, strict=True)]


def arrow_column(block: np.ndarray, kind: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Return elements as a column of this type, null where the mask is false."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        pairs = pair_fields([field.name for field in fields], block.dtype.names) if block.dtype.names else []
        parts = [block[name] for _, name in pairs] or [block]  # a block of plain values is the only field
        arrays = [arrow_column(part, field.type) for part, field in zip(parts, fields, strict=True)]
        return pa.StructArray.from_arrays(
            arrays, fields=fields, mask=None if valid is None else arrow_column(~valid, pa.bool_())
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(arrow_column(block.reshape(-1), kind.value_type), type=kind)
    if block.dtype.kind in "SUVO":
        return pa.array(block.tolist(), kind)
    if pa.types.is_boolean(kind):
        data = np.packbits(block != 0, bitorder="little")
    else:
        data = np.ascontiguousarray(block, DTYPES.get(kind) or f"i{kind.bit_width // 8}")
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(block), [bitmap, pa.py_buffer(data)])


def _unpack_bits(data: pa.Buffer, start: int, count: int) -> np.ndarray:
    """Return `count` bits of a buffer, from bit `start` on, as bytes of 0 and 1."""
    octets = np.frombuffer(data, np.uint8, -(-(start % 8 + count) // 8), start // 8) if count else np.empty(0, np.uint8)
    return np.unpackbits(octets, bitorder="little")[start % 8 :][:count]
