"""Arrow IPC files and streams: pyarrow decodes record batches, those of a file of this machine where they lie."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, BinaryIO, TypeAlias

from mpired.errors import BufferFileError
from mpired.formats import columns, ipc
from mpired.formats.arrow_arrays import DTYPES, has_arrays, has_offsets
from mpired.formats.columns import Change, Contents, Table, errors_of
from mpired.formats.format import Encoder
from mpired.formats.local import DamageError, TableFile
from mpired.formats.rank import Model
from mpired.formats.streamed import limited
from mpired.sources.source import Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_FEW_COLUMNS = 16
_Decoded: TypeAlias = tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]  # with its metadata


class ArrowFile(Table):
    """An open Arrow IPC file or stream."""

    format = "arrow"

    def begin(self) -> None:
        """Read the schema."""
        self._is_stream = self._bytes.read(len(ipc.MAGIC), 0) != ipc.MAGIC
        self.content = TableFile(self._bytes, self._source.nbytes)
        self._reader = self._opened()
        self.schema: pa.Schema = self._reader.schema
        super().begin()

    def _opened(self, fields: Sequence[int] = ()) -> Any:
        """Open a reader of some columns, or of all."""
        if self.content.mapped is not None:
            file = pa.BufferReader(self.content.mapped.content)
        else:
            self.content = TableFile(self._bytes, self._source.nbytes)  # each reader has its place
            file = pa.PythonFile(self.content, mode="r")
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
        return (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file, options=options)

    def contents(self) -> Contents:
        """Return the contents of the file."""
        batches = list(ipc.batches(self._bytes, self._source.nbytes))
        counts = [columns.count_of(field.type, leaves=False) for field in self.schema]
        if any(len(batch.nulls) != sum(counts) for batch in batches):
            raise DamageError("a record batch does not have the columns of the schema")
        # A record batch has at least a bit for each row of numbers; of a compressed one the size does not show that.
        is_short = any(each.codec is None and each.rows > 8 * each.nbytes for each in batches)
        if is_short and any(field.type in DTYPES for field in self.schema):
            raise DamageError("a record batch has more rows than values")
        starts = itertools.accumulate(counts, initial=0)
        # A value is missing if it is null, or one of its fields is; values within a list do not count.
        nodes = [
            slice(start, start + 1 + (field.type.num_fields if pa.types.is_struct(field.type) else 0))
            for start, field in zip(starts, self.schema, strict=False)
        ]
        nulls = [sum(max(batch.nulls[own]) for batch in batches) for own in nodes]
        rows = tuple(batch.rows for batch in batches)
        return self.schema, rows, nulls, self._source.nbytes

    def batches(self, names: Sequence[str], rows: Sequence[int], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` on with at least some columns."""
        skipped = 0
        while not self._is_stream and skipped < len(rows) and rows[skipped] <= start:
            start -= rows[skipped]
            skipped += 1
        decoded = self._decoded(names, skipped)
        for count in rows[skipped:]:
            batch, _ = next(decoded, (None, None))
            if batch is None or batch.num_rows != count:
                raise DamageError(f"a record batch does not have the {count} rows that its header says")
            if start < count:
                yield batch[start:]
            start = max(0, start - count)

    def _decoded(self, names: Sequence[str], skipped: int = 0) -> Iterator[_Decoded]:
        """Yield record batches with at least some columns, and their metadata."""
        numbers = sorted(itertools.chain(*map(self.schema.get_all_field_indices, set(names))))
        for field in map(self.schema.field, numbers):
            if not has_arrays(field.type):
                reason = f"column {field.name!r} is {field.type}, which pyarrow cannot copy"
                raise BufferFileError(self._source.name, reason)
        # Of chosen columns pyarrow copies the bytes; of all it takes them where they are mapped, if none is compressed.
        is_there = len(self.schema) <= _FEW_COLUMNS and self.content.mapped is not None and self.compression() is None
        chosen = [] if is_there or len(numbers) == len(self.schema) else numbers
        reader = self._opened(chosen)
        if self._is_stream:
            batches = reader.iter_batches_with_custom_metadata()
        else:
            batches = map(reader.get_batch_with_custom_metadata, range(skipped, reader.num_record_batches))
        places = zip(range(len(numbers)) if chosen else numbers, numbers, strict=True)
        by_offsets = [place for place, number in places if has_offsets(self.schema.field(number).type)]
        for batch, metadata in limited(self._source.name, self._memory, batches):
            batch.validate()  # buffers have the lengths that the columns need
            if by_offsets:  # they are the file's word: without this a damaged one reads foreign memory
                batch.select(by_offsets).validate(full=True)
            yield batch, metadata
            self.content.forget()

    def copy(self, new: BinaryIO, schema: pa.Schema, change: Change) -> None:
        """Write the file again, record batch by record batch, with the metadata of each."""
        options = pa.ipc.IpcWriteOptions(compression=self.compression(), use_threads=False)
        metadata = getattr(self._reader, "metadata", None)  # of the footer; a pyarrow that cannot keep it shows none
        with pa.ipc.new_file(new, schema, options=options, **({"metadata": metadata} if metadata else {})) as writer:
            for batch, custom in self._decoded(self.schema.names):
                writer.write_batch(change(batch), custom_metadata=custom)

    def compression(self) -> str | None:
        """Return the compression of the first record batch, None if there is none."""
        return next((each.codec for each in ipc.batches(self._bytes, self._source.nbytes)), None)


inspect = functools.partial(columns.inspect, opener=ArrowFile)
note = functools.partial(columns.note_of, opener=ArrowFile)
rewrite = functools.partial(columns.rewrite, opener=ArrowFile)


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a batch, old and new."""
    with errors_of(source.name), closing(source.open()) as file:  # pyarrow would start a thread, which prevents forks
        return 2 * max((0, *(batch.nbytes for batch in ipc.batches(file, source.nbytes))))


def prepare(model: Model, new: Callable[[BinaryIO, pa.Schema], Any] = pa.ipc.new_file) -> Encoder:
    """Say how a result like `model` is written by what `new` returns, with the schema of the file that it is like."""
    schema = columns.asked(model.context, model.source, ArrowFile, columns.SCHEMA) if model.source else None
    return columns.encoder(model, columns.layout_like(model, schema), new, _BATCH_ROWS)


prepare_stream = functools.partial(prepare, new=pa.ipc.new_stream)
