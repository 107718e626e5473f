"""Shared parts of formats with columns: every numeric column is a buffer, streamed by batches.

A pair is a column of structures, or two columns. pyarrow is imported by the modules of these
formats and nowhere else.
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
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeAlias

import numpy as np

from mpired.codecs.arrow import pa
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import TIMES, Datatype, Group, from_dtype, value_type
from mpired.datatypes.pairs import FIELDS
from mpired.datatypes.times import as_times, time_type
from mpired.errors import BufferFileError, DatatypeError, shortened
from mpired.formats import streamed
from mpired.formats.array import Array, Reader
from mpired.formats.arrow_arrays import (
    DTYPES,
    column_of,
    has_arrays,
    is_plain,
    is_time,
    nullable_values,
    objects_of,
    value_kind,
    with_kind,
)
from mpired.formats.decoding import call_in_worker
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import Encoder, check_names
from mpired.formats.missing import NullsError
from mpired.formats.rank import Model, RankFile, SkippedArray, check_pair, chosen, declared, some_names
from mpired.formats.streamed import ColumnFile, ColumnReader, TableFile, Values, form_of
from mpired.log import track
from mpired.sources.source import Source

_DECODED_NBYTES = 256 << 20  # a page or record batch is decoded at once
_OBJECT_ROWS = 4 << 10  # that become objects of Python at a time
_PIECE_ROWS = 512 << 10
_COMPARED_ROWS = 64 << 10
_KEPT_NBYTES = 64 << 20  # about the most of columns that are kept that is in memory
_NOT_EQUAL = "; `keep` carries columns that are equal in all ranks; take those of rank 0 with `check_coordinates=False`"
_ENCODED = " by a dictionary"
_ZONED = re.compile(r"timestamp\[(\w+), tz=(.*)\]", re.DOTALL)


class Leaf(NamedTuple):
    """A column, or a field of a column of structures."""

    column: str
    field: int | None
    rows: tuple[int, ...]  # see `TableHeader`


Contents: TypeAlias = tuple[pa.Schema, tuple[int, ...], Sequence[int | None], int]
"""The schema, rows, nulls and bytes of a `TableHeader`."""


class Table(ColumnFile):
    """An open file with columns."""

    format: ClassVar[str]
    schema: pa.Schema
    content: TableFile
    contents: Callable[[], Contents]  # returns the contents of the file
    # yields rows with at least the columns of some names: `rows` are those of `TableHeader`, the third is the first row
    batches: Callable[..., Iterator[pa.RecordBatch]]
    # writes the file again with another schema, and every batch as the last argument returns it
    copy: Callable[[BinaryIO, pa.Schema, Change], None]

    def begin(self) -> None:
        """Check the schema, which the format has read."""
        for field in self.schema:
            _check_names(field)

    def arrays(self, leaf: Leaf, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on as NumPy has them."""
        for found in self._values(leaf, start):
            column = with_kind(found, value_kind(found.type))
            if not nullable and column.null_count:
                raise NullsError(sum(each.null_count for each in self._values(leaf, 0)))
            convert, nrows = (nullable_values, _PIECE_ROWS) if is_plain(column.type) else (objects_of, _OBJECT_ROWS)
            for at in range(0, len(column), nrows):
                yield convert(column[at : at + nrows])
                self.content.forget()

    def _values(self, leaf: Leaf, start: int) -> Iterator[pa.Array]:
        for batch in self.batches([leaf.column], leaf.rows, start):
            column = batch.column(leaf.column)
            # Nulls of a structure become nulls of its fields.
            yield column if leaf.field is None else column.flatten()[leaf.field]


def _check_names(field: pa.Field) -> None:
    """Raise `UnicodeDecodeError` if a name is not UTF-8: pyarrow decodes each when it is asked for."""
    str(field.name)
    for number in range(field.type.num_fields):
        _check_names(field.type.field(number))


Opener: TypeAlias = Callable[..., Table]
Change: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


def count_of(kind: pa.DataType, *, leaves: bool) -> int:
    """Return the number of a type and of those within it, or only of those that have none within."""
    if isinstance(kind, pa.BaseExtensionType):
        return count_of(kind.storage_type, leaves=leaves)
    within = sum(count_of(kind.field(i).type, leaves=leaves) for i in range(kind.num_fields))
    return within or 1 if leaves else within + 1


def asked(context: Context, source: Source, opener: Opener, question: Callable[[Any], Any]) -> Any:
    """Let a worker open a file, and return its answer to a question."""
    return call_in_worker(context, source.name, _answer, source, opener, question, inspects=True)


def _answer(source: Source, opener: Opener, question: Callable[[Any], Any]) -> Any:
    with errors_of(source.name), closing(opener(source)) as file:
        return question(file)


SCHEMA: Callable[[Any], pa.Schema] = operator.attrgetter("schema")
errors_of = functools.partial(streamed.errors_of, errors=(pa.ArrowException,))
"""Turns pyarrow's exceptions about a file, or a result like it, into ours, on one line."""


def inspect(source: Source, inputs: InputOptions, opener: type[Table]) -> RankFile:
    """Describe a file from its schema."""
    if source.nbytes == 0:
        raise BufferFileError(source.name, f"the file is empty; not a valid {opener.format} file")
    contents = asked(inputs.context, source, opener, operator.methodcaller("contents"))
    names = contents[0].names
    combined, kept = chosen(source, names, inputs)
    numbers = Counter(names)
    if twice := next((name for name in (*combined, *inputs.keep) if numbers[name] > 1), None):
        raise BufferFileError(source.name, _no_buffer(twice, pa.null(), names))
    matched = [each for each in contents[0] if each.name in kept and each.name not in inputs.keep] if kept else []
    unkept = {each.name for each in matched if numbers[each.name] > 1 or not has_arrays(each.type)}
    table = TableHeader(source, opener, tuple(name for name in kept if name not in unkept), *contents)
    is_chosen = bool(inputs.columns or inputs.pair)
    others = _others(table, inputs) if unkept or not is_chosen else []
    if not combined:
        left = {*kept, *(other.name for other in others)}
        combined = dict.fromkeys(name for name in names if name not in left)
    columns = [tuple(combined)] if inputs.pair else [(name,) for name in combined]
    buffers = tuple(_buffer(table, inputs, each) for each in columns)
    rest = tuple({each.name: each for each in others if each.name in unkept}.values())
    others = [] if is_chosen else [each for each in others if each.name not in unkept]
    return RankFile(source, buffers, others, tuple(names), kept=table if inputs.keep else None, unkept=rest)


@dataclass(frozen=True, eq=False)
class TableHeader:
    """A file with columns, as its header describes it. As `Kept` those of any type that results have as they are."""

    source: Source
    opener: Opener
    chosen: tuple[str, ...]  # the names of the columns that are kept
    schema: pa.Schema
    rows: tuple[int, ...]  # of each row group or record batch
    nulls: Sequence[int | None]  # of each column, as many as the header tells of; None if it does not say
    nbytes: int  # about those of all values
    kind: ClassVar[str] = "columns"
    others: ClassVar[tuple[SkippedArray, ...]] = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns that are kept, in the order of the file."""
        return [name for name in self.schema.names if name in self.chosen]

    def array(
        self, columns: tuple[str, ...], datatype: Datatype, fields: Sequence[str] = (), *, nullable: bool
    ) -> Array:
        """Return a column, or two of pairs, as an array; of a column of structures with the names of the fields."""
        leaves = [Leaf(name, None, self.rows) for name in columns]
        if fields and len(columns) == 1:
            leaves = [Leaf(columns[0], number, self.rows) for number in range(len(fields))]
        metadata = self.schema.field(columns[0]).metadata or {}  # as files of other programs name a unit
        numbers = [self.schema.get_field_index(each) for each in columns]
        # A null of a dictionary is none of the indices that headers count.
        is_encoded = any(pa.types.is_dictionary(self.schema.types[each]) for each in numbers)
        nulls = [None if is_encoded else self.nulls[each] for each in numbers]
        reader = functools.partial(ColumnReader, opener=self.opener, leaves=leaves, errors=(pa.ArrowException,))
        return Array(
            self.source, datatype, sum(self.rows), form_of(datatype, fields), name=",".join(columns), parts=columns,
            reader=reader, isolated=True, memory=_DECODED_NBYTES, fixed_order=True,
            grain=max((1, *self.rows)),  # of a row group only the whole is decoded
            unit=metadata.get(b"units", metadata.get(b"unit", b"")).decode(errors="replace"),
            nulls=None if None in nulls and not any(nulls) else sum(each or 0 for each in nulls), nullable=nullable,
        )  # fmt: skip

    @property
    def most_rows(self) -> int:
        """The most rows of the columns that are kept that are in memory at a time."""
        return max(1, _KEPT_NBYTES // max(1, self.nbytes // max(1, sum(self.rows))))

    def kept_rows(self, count: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield the columns that are kept, `count` rows at a time, and fewer in the end."""
        parts, lacking = list[pa.RecordBatch](), count
        with errors_of(self.source.name), closing(self.opener(self.source)) as file:
            for batch in file.batches(self.names, self.rows):
                rest = batch.select(self.names)
                while rest.num_rows >= lacking:
                    yield _joined([*parts, rest[:lacking]])
                    rest, parts, lacking = rest[lacking:], [], count
                if rest.num_rows:
                    parts.append(rest)
                    lacking -= rest.num_rows
            if parts:
                yield _joined(parts)

    def check_same(self, other: Any, like: str) -> None:
        """Raise `BufferFileError` unless another file has equal ones; messages call this file `like`."""
        for name in self.names:
            kind, mine = (each.schema.field(name).type for each in (other, self))
            if values_type(kind) != values_type(mine):
                reason = f"has column {name!r} of {kind}, but {like} ({self.source.name!r}) of {mine}"
                raise BufferFileError(other.source.name, reason + _NOT_EQUAL)
        start, count = 0, min(self.most_rows, _COMPARED_ROWS)
        with closing(self.kept_rows(count)) as left, closing(other.kept_rows(count)) as right:
            for own, theirs in itertools.zip_longest(left, right):
                if own is None or theirs is None or own.num_rows != theirs.num_rows:
                    raise other.source.changed()
                for name in self.names:  # perhaps in another order
                    arrays = own.column(name), theirs.column(name)
                    if (found := _first_difference(*arrays)) is not None:
                        row, mine, others = found
                        reason = f"row {start + row} of column {name!r} is {others}, but {mine} in {like}"
                        raise BufferFileError(other.source.name, f"{reason} ({self.source.name!r}){_NOT_EQUAL}")
                start += own.num_rows

    def buffers(self, *, fortran_order: bool) -> list[Array]:  # noqa: ARG002 - columns have one dimension
        """Return these columns as arrays."""
        kinds = [value_kind(self.schema.field(name).type) for name in self.names]
        datatypes = [(_datatype(kind) if is_plain(kind) else None) or value_type(str(kind)) for kind in kinds]
        named = zip(self.names, datatypes, strict=True)
        return [self.array((name,), datatype, nullable=True) for name, datatype in named]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all values as NumPy has them: numbers and times with a mask if some are null, else objects."""
        schema = pa.schema(map(self.schema.field, self.names))
        with errors_of(self.source.name), closing(self.opener(self.source)) as file:
            batches = [batch.select(self.names) for batch in file.batches(self.names, self.rows)]
        found = {}
        for name, given in zip(self.names, pa.Table.from_batches(batches, schema).columns, strict=True):
            kind = value_kind(given.type)
            column = given.cast(kind)
            if not is_plain(kind):
                found[name] = objects_of(column.combine_chunks())[0]  # `to_numpy` rounds integers beside nulls
                continue
            values, valid = nullable_values(column.combine_chunks())
            values = np.array(values, np.bool_ if pa.types.is_boolean(kind) else None)  # a copy: callers may change it
            if is_time(kind):
                values = as_times(values, time_type(str(kind)))
            found[name] = values if valid is None else np.ma.MaskedArray(values, mask=~valid)
        return found


def _buffer(table: TableHeader, inputs: InputOptions, columns: tuple[str, ...]) -> Array:
    """Return a column, or two of pairs, as a buffer."""
    source, fields = table.source, [table.schema.field(each) for each in columns]
    what = f"column {','.join(columns)!r} holds"
    kind = value_kind(fields[0].type) if inputs.any_type else fields[0].type
    if inputs.pair:
        kind = pa.struct([(part, field.type) for part, field in zip(FIELDS, fields, strict=True)])
    form = _form(kind)
    names: tuple[str, ...] = ()
    if is_time(kind):
        datatype = time_type(str(kind))
        if inputs.datatype is not None:
            raise inputs.refused(source, inputs.datatype, f"{what} {datatype}")
    elif inputs.any_type and not inputs.pair and _datatype(kind) is None:
        datatype = values_type(kind)
    elif form is None:
        field = next(each for each in fields if each.type not in DTYPES)
        reason = _no_buffer(field.name, field.type)
        raise DatatypeError(source.name, f"{reason}{'; a pair is of two columns of numbers' if inputs.pair else ''}")
    else:
        if inputs.pair and not inputs.named:
            check_pair(source, columns, form, "columns")
        datatype, names = declared(source, inputs._replace(type_order=None), form, what), form.names or ()
    return table.array(columns, datatype, names, nullable=inputs.nullable)


def _form(kind: pa.DataType) -> np.dtype | None:
    """Return NumPy's form of numbers, or of structures of numbers; None of other elements."""
    if not pa.types.is_struct(kind):
        return DTYPES.get(kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if not fields or any(field.type not in DTYPES for field in fields):
        return None
    names = [field.name for field in fields]
    if not all(names) or len(set(names)) < len(names):  # none that NumPy takes
        names = [f"field{i}" for i in range(len(fields))]
    return np.dtype([(name, DTYPES[field.type]) for name, field in zip(names, fields, strict=True)])


def _datatype(kind: pa.DataType) -> Datatype | None:
    """Return the datatype of a column of times, numbers or structures of numbers; None of others."""
    if is_time(kind):
        return time_type(str(kind))
    form = _form(kind)
    with contextlib.suppress(DatatypeError):
        return None if form is None else from_dtype(form)
    return None


def _others(table: TableHeader, inputs: InputOptions) -> list[SkippedArray]:
    """Return the columns that hold no numbers or share a name, unless they are kept."""
    names, nrows = table.schema.names, sum(table.rows)
    counts, others = Counter(names), []
    for field, nulls in zip(table.schema, table.nulls, strict=True):
        name, kind, is_one = field.name, field.type, counts[field.name] == 1
        is_taken = has_arrays(kind) if inputs.any_type else _form(kind) is not None
        if name in table.chosen or (is_one and is_taken):
            continue
        reason, datatype = _no_buffer(name, kind, names), _datatype(kind) if is_one else None
        group = None if datatype is None else datatype.group
        other = SkippedArray(name, str(kind), reason, nrows, label=_in_words(kind), group=group, nulls=nulls)
        others.append(other._replace(keeps=has_arrays(kind)))
    return others


def _no_buffer(name: str, kind: pa.DataType, names: Sequence[str] = ()) -> str:
    """Return why a column is not a buffer; `names` are those of all."""
    if names.count(name) > 1:
        return f"has {names.count(name)} columns named {name!r}; its columns are {some_names(names)}"
    if pa.types.is_decimal(kind):
        return f"column {name!r} is {kind}, and no op takes decimals"
    if is_time(kind):
        return f"column {name!r} is {kind}, and times are combined only if they are chosen"
    return f"column {name!r} holds {kind}, not numbers"


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
        return f"{_in_words(kind.value_type)}{_ENCODED}"
    return DTYPES[kind].name if kind in DTYPES else str(kind)


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of record batches as one."""
    rows = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    return rows.to_batches()[0]


def values_type(kind: pa.DataType) -> Datatype:
    """Return the datatype of the values of a column however they are encoded: as views, by a dictionary, ..."""
    return value_type(_in_words(kind).replace(_ENCODED, ""))


def _first_difference(left: pa.Array, right: pa.Array) -> tuple[int, str, str] | None:
    """Return the first row in which two arrays of one length differ, and both values; a NaN equals a NaN."""
    if left.equals(right):
        return None
    for row, both in enumerate(zip(objects_of(left)[0], objects_of(right)[0], strict=True)):
        mine, theirs = (repr(value) if isinstance(value, str) else str(value) for value in both)
        if mine != theirs:
            return row, shortened(mine, 100), shortened(theirs, 100)
    return None


_NOTE = b"mpired"


def with_provenance(schema: pa.Schema, provenance: Any) -> pa.Schema:
    """Return a schema with what a file says of where it comes from; that of the file it is modelled on is left out."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _NOTE}
    if provenance is not None:
        metadata[_NOTE] = provenance.text.encode(errors="surrogateescape")
    return schema.with_metadata(metadata or None)


def provenance_of(source: Source, opener: Opener) -> str | None:
    """Return the provenance in a file; None if it has none."""
    provenance = (asked(NO_LIMITS, source, opener, SCHEMA).metadata or {}).get(_NOTE)
    return None if provenance is None else provenance.decode(errors="replace")


Layout: TypeAlias = tuple[pa.Schema, list[tuple[str, ...]]]
"""The schema of a result, and the names of the columns of each array in it."""


def encoder(
    model: Model, layout: Layout, new: Callable[[BinaryIO, pa.Schema], Any], rows: int, **options: Any
) -> Encoder:
    """Return the encoder that gives record batches of `rows` rows, and options, to the writer that `new` returns."""
    schema, columns = layout
    kept: TableHeader | None = model.kept
    rows = min(rows, kept.most_rows) if kept else rows

    def encode(results: Sequence[Array], fd: int) -> None:
        with (
            errors_of(model.subject, writes=True),
            os.fdopen(os.dup(fd), "wb") as file,
            new(file, with_provenance(schema, model.provenance)) as writer,
            contextlib.ExitStack() as stack,
        ):
            readers = [stack.enter_context(closing(result.open())) for result in results]
            carried = stack.enter_context(closing(kept.kept_rows(rows))) if kept else None
            for start in track(range(0, results[0].count, rows)):
                count, arrays = min(rows, results[0].count - start), {}
                if kept and carried:
                    batch = next(carried, None)
                    if batch is None or batch.num_rows != count:
                        raise kept.source.changed()
                    own = zip(kept.names, batch.columns, strict=True)
                    arrays = {name: with_kind(column, schema.field(name).type) for name, column in own}
                for names, result, reader in zip(columns, results, readers, strict=True):
                    kinds = [schema.field(name).type for name in names]
                    arrays |= zip(names, _columns_of(reader, result.datatype, start, count, kinds), strict=True)
                batch = pa.record_batch([arrays[each] for each in schema.names], schema=schema)
                writer.write_batch(batch, **options)

    return Encoder(encode)


def _columns_of(reader: Reader, datatype: Datatype, start: int, count: int, kinds: Sequence[pa.DataType]) -> list[Any]:
    """Return elements from `start` on as a column, or as one for each field of pairs."""
    block = np.empty(count, datatype.form)
    valid = reader.read(start, block)
    parts = [block] if len(kinds) == 1 else [block[field] for field in block.dtype.names or ()]
    return [column_of(part, kind, valid) for part, kind in zip(parts, kinds, strict=True)]


def layout_like(model: Model, schema: pa.Schema | None) -> Layout:
    """Return the layout of results with the fields of a schema; without one they are made from the datatypes."""
    kept: TableHeader | None = model.kept
    order = schema.names if schema is not None else kept.schema.names if kept else []
    places = {name: place for place, name in enumerate(order)}
    placed = [(places[name], kept.schema.field(name)) for name in kept.names] if kept else []
    columns = []
    for buffer in model.buffers:
        datatype = buffer.datatype
        if schema is not None:
            fields = [schema.field(name) for name in buffer.columns]
        elif datatype.parts and len(buffer.columns) == len(datatype.parts):  # of values and of indices
            fields = [pa.field(name, _type_of(each)) for each, name in zip(datatype.parts, buffer.columns, strict=True)]
        else:
            fields = [pa.field(buffer.name or "_".join(datatype.fields) or "value", _type_of(datatype))]
        columns.append(tuple(field.name for field in fields))
        for field in fields:
            own = buffer.columns if schema is None else (field.name,)
            place = min((places.get(name, len(places)) for name in own), default=len(places))
            placed.append((place, field.with_nullable(field.nullable or buffer.nullable)))
    check_names([name for own in columns for name in own], kept.names if kept else (), model.format)
    fields = [field for _, field in sorted(placed, key=operator.itemgetter(0))]
    return pa.schema(fields, None if schema is None else schema.metadata), columns


def _type_of(datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for the elements of a datatype."""
    if match := _ZONED.fullmatch(datatype.name):
        return pa.timestamp(*match.groups())
    if datatype.group in TIMES:
        with contextlib.suppress(ValueError):
            return pa.type_for_alias(datatype.name)
        raise DatatypeError(f"{datatype}", "has no column type; use `to='npy'`")
    if datatype.group is Group.VALUE:
        return _copied_type(datatype.form, datatype)
    forms = [datatype.form[part] for part in datatype.fields] if datatype.form.names else [datatype.form]
    if any(each.kind == "c" or each.char == "g" or each.shape for each in forms):
        raise DatatypeError(datatype.label, "has no column type; use `to='npy'` or `to='raw'`")
    types = [pa.bool_() if datatype.is_bool else pa.from_numpy_dtype(each) for each in forms]
    return pa.struct(list(zip(datatype.fields, types, strict=True))) if datatype.form.names else types[0]


def _copied_type(form: np.dtype, datatype: Datatype) -> pa.DataType:
    """Return Arrow's type for elements of any type, or for a part of them, that are only copied."""
    if form.names:
        return pa.struct([(name, _copied_type(form[name], datatype)) for name in form.names])
    if form.subdtype:
        return pa.list_(_copied_type(form.base, datatype), form.itemsize // form.base.itemsize)
    if form.hasobject and not form.metadata:
        return pa.string()
    if form.kind in "SUV":
        return {"S": pa.binary(), "U": pa.string(), "V": pa.binary(form.itemsize)}[form.kind]
    if form.kind not in "biuf" or form.char == "g" or form.metadata:
        raise DatatypeError(datatype.label, "has no column type; use `to='hdf5'`")
    return pa.from_numpy_dtype(form)


def rewrite(source: Source, changed: Sequence[Array], fd: int, opener: Opener) -> None:
    """Write a file again with new elements in some columns."""
    with errors_of(source.name), contextlib.ExitStack() as stack:
        old = stack.enter_context(closing(opener(source)))
        schema, readers = with_provenance(old.schema, None), {}  # the file has other columns now
        for each in changed:
            number = schema.get_field_index(each.name)
            field = schema.field(number)
            schema = schema.set(number, field.with_nullable(field.nullable or each.validity is not None))
            readers[number] = stack.enter_context(closing(each.open())), each.datatype
        start = 0

        def patched(batch: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal start
            arrays = list(batch.columns)
            for number, (reader, datatype) in readers.items():
                kinds = [schema.field(number).type]
                (arrays[number],) = _columns_of(reader, datatype, start, batch.num_rows, kinds)
            start += batch.num_rows
            return pa.record_batch(arrays, schema=schema)

        old.copy(stack.enter_context(os.fdopen(os.dup(fd), "wb")), schema, patched)
