"""Arrow IPC files and streams: pyarrow decodes record batches, those of a file of this machine where they lie."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeAlias

from mpired.errors import BufferFileError
from mpired.formats import columns, ipc
from mpired.formats.array import UNKNOWN_COUNT, Array
from mpired.formats.arrow_arrays import DTYPES, has_arrays
from mpired.formats.columns import Contents, Leaf, Table, errors_of
from mpired.formats.format import Encoder
from mpired.formats.local import DamageError, TableFile
from mpired.formats.rank import Model
from mpired.formats.streamed import limited
from mpired.sources.source import Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_PIECE_ROWS = 512 << 10
_FEW_COLUMNS = 16
_Decoded: TypeAlias = tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]  # with its metadata


class ArrowFile(Table):
    """An open Arrow IPC file or stream."""

    format = "arrow"

    def begin(self) -> None:
        """Read the schema."""
        self._is_stream = self._bytes.read(len(ipc.MAGIC), 0) != ipc.MAGIC
        self._file = TableFile(self._bytes, self._source.nbytes)
        self._reader = self._opened()
        self.schema: pa.Schema = self._reader.schema
        super().begin()

    def _opened(self, fields: Sequence[int] = ()) -> Any:
        """Open a reader of some columns, or of all."""
        if self._file.mapped is not None:
            file = pa.BufferReader(self._file.mapped.content)
        else:
            self._file = TableFile(self._bytes, self._source.nbytes)  # each reader has its place
            file = pa.PythonFile(self._file, mode="r")
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
        return (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file, options=options)

    def contents(self) -> Contents:
        """Return the contents; the number of rows of a stream is known only at its end."""
        if self._source.is_forward:
            return Contents(self.schema, (), UNKNOWN_COUNT, [0] * len(self.schema), 0)
        batches = list(ipc.batches(self._bytes, self._source.nbytes))
        counts = [columns.count_of(field.type, leaves=False) for field in self.schema]
        if any(len(batch.nulls) != sum(counts) for batch in batches):
            raise DamageError("a record batch does not have the columns of the schema")
        if any(field.type in DTYPES for field in self.schema) and not all(map(_has_room, batches)):
            raise DamageError("a record batch has more rows than values")
        starts = itertools.accumulate(counts, initial=0)
        # A value is missing if it is null, or one of its fields is; values within a list do not count.
        nodes = [
            slice(start, start + 1 + (field.type.num_fields if pa.types.is_struct(field.type) else 0))
            for start, field in zip(starts, self.schema, strict=False)
        ]
        nulls = [sum(max(batch.nulls[own]) for batch in batches) for own in nodes]
        rows = tuple(batch.rows for batch in batches)
        return Contents(self.schema, rows, sum(rows), nulls, self._source.nbytes)

    def values(self, leaf: Leaf, start: int) -> Iterator[pa.Array]:
        """Yield the values of a leaf from the row `start` on, nulls too."""
        skipped = 0
        if not self._is_stream:
            starts = list(itertools.accumulate(leaf.rows, initial=0))
            skipped = next((number for number, end in enumerate(starts[1:]) if start < end), len(leaf.rows))
            start -= starts[skipped]
        # Of chosen columns pyarrow copies the bytes; of all it takes them where they are mapped, if none is compressed.
        is_plain = len(self.schema) <= _FEW_COLUMNS and self._file.mapped is not None and self.compression() is None
        reader = self._opened([] if is_plain else [self.schema.get_field_index(leaf.column)])
        batches = (batch for batch, _ in self._decoded(reader, skipped))
        for column in columns.behind(start, _counted(batches, leaf.rows[skipped:]) if leaf.rows else batches, leaf):
            for at in range(0, len(column), _PIECE_ROWS):
                yield column[at : at + _PIECE_ROWS]
                self._file.forget()

    def _decoded(self, reader: Any, start: int = 0) -> Iterator[_Decoded]:
        """Yield record batches, whose buffers have the lengths that their columns need, and their metadata."""
        if self._is_stream:
            batches = reader.iter_batches_with_custom_metadata()
        else:
            batches = map(reader.get_batch_with_custom_metadata, range(start, reader.num_record_batches))
        for batch, metadata in limited(self._source.name, self._memory, batches):
            batch.validate()
            yield batch, metadata
            self._file.forget()
        if self._source.is_forward and self._file.read(1):
            raise DamageError("it goes on behind the end of the stream")

    def batches(self) -> Iterator[_Decoded]:
        """Yield every record batch with all columns, and its metadata."""
        for batch, metadata in self._decoded(self._reader):
            # Offsets are the file's word: without this a damaged one reads foreign memory.
            batch.validate(full=True)
            yield batch, metadata

    def columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with all columns."""
        self.check_copied(names)
        for batch, _ in self.batches():
            yield batch

    def check_copied(self, names: Sequence[str]) -> None:
        """Raise `BufferFileError` if a column cannot be read as it is."""
        for field in self.schema:
            if field.name in names and not has_arrays(field.type):
                reason = f"column {field.name!r} is {field.type}, which pyarrow cannot copy"
                raise BufferFileError(self._source.name, reason)

    def compression(self) -> str | None:
        """Return the compression of the first record batch, None if there is none."""
        return next((each.codec for each in ipc.batches(self._bytes, self._source.nbytes)), None)

    @property
    def metadata(self) -> Mapping[bytes, bytes] | None:
        """The metadata of the footer; a pyarrow that cannot keep it shows none."""
        metadata: Mapping[bytes, bytes] | None = getattr(self._reader, "metadata", None)
        return metadata


def _has_room(batch: ipc.RecordBatch) -> bool:
    """Return whether a record batch may have a bit for each row; the size of a compressed one does not show that."""
    return batch.codec is not None or batch.rows <= 8 * batch.nbytes


def _counted(batches: Iterator[pa.RecordBatch], rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield record batches that have the rows that their headers say."""
    for count in rows:
        batch = next(batches, None)
        if batch is None or batch.num_rows != count:
            raise DamageError(f"a record batch does not have the {count} rows that its header says")
        yield batch


inspect = functools.partial(columns.inspect, opener=ArrowFile)
note = functools.partial(columns.note_of, opener=ArrowFile)


def prepare(model: Model, new: Callable[..., Any] = pa.ipc.new_file) -> Encoder:
    """Say how a result like `model` is written by what `new` returns, with the schema of the file that it is like."""
    schema = None
    if model.source:
        schema = columns.asked(model.context, model.source, ArrowFile, columns.SCHEMA)
    layout = columns.layout_like(model, schema)

    name = model.source.name if model.source else "the result"

    def encode(results: Sequence[Array], fd: int) -> None:
        with (
            errors_of(name, writes=True),
            os.fdopen(os.dup(fd), "wb") as file,
            new(file, columns.with_note(layout.schema, model.note)) as writer,
            closing(layout.batches(results, layout.most_rows(_BATCH_ROWS))) as batches,
        ):
            for batch in batches:
                writer.write_batch(batch)

    return encode


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some columns, record batch by record batch."""
    with (
        columns.patching(source, ArrowFile, changed) as (old, schema, patched),
        os.fdopen(os.dup(fd), "wb") as new,
        ExitStack() as stack,
    ):
        old.check_copied(old.schema.names)
        options = pa.ipc.IpcWriteOptions(compression=old.compression(), use_threads=False)
        footer = {"metadata": metadata} if (metadata := old.metadata) else {}
        writer = stack.enter_context(pa.ipc.new_file(new, schema, options=options, **footer))
        for batch, custom in old.batches():
            writer.write_batch(patched(batch), custom_metadata=custom)


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a batch, old and new."""
    with errors_of(source.name), closing(source.open()) as file:
        return 2 * max((0, *(batch.nbytes for batch in ipc.batches(file, source.nbytes))))
