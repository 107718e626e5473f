"""Arrow IPC files and streams: pyarrow decodes record batches, and maps local files into memory.

The numbers of rows and nulls come from the headers of record batches, which are parsed here: pyarrow shows them only
after decoding a batch.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from mpired.errors import BufferFileError
from mpired.formats import columns
from mpired.formats.columns import DTYPES, Change, HeaderFields, Table, errors_of, has_array_class
from mpired.formats.layout import Encoder
from mpired.formats.rank import Model
from mpired.formats.streamed import DamageError, TableFile, limit_each
from mpired.sources.source import OpenSource, Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_MAX_MAPPED_COLUMNS = 16
_MAGIC = b"ARROW1"
_CODECS = ("lz4", "zstd")  # values of CompressionType
_CONTINUATION = 0xFFFFFFFF  # precedes the length of a header since Arrow 0.15
_RECORD_BATCH = 3  # a value of MessageHeader
_MAX_HEADER_NBYTES = 64 << 20
_PLAIN_TYPES = pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary  # without offsets or children
_BatchAndMetadata: TypeAlias = tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]


class ArrowFile(Table):
    """An open Arrow IPC file or stream."""

    format = "arrow"

    def begin(self) -> None:
        """Read the schema."""
        self._is_stream = self._bytes.read(len(_MAGIC), 0) != _MAGIC
        self.content = TableFile(self._bytes, self._source.nbytes)
        self._reader = self._open_reader()
        self.schema: pa.Schema = self._reader.schema
        super().begin()

    def _open_reader(self, fields: Sequence[int] = ()) -> Any:
        """Open a reader of the columns with these numbers, or of all if there are none."""
        if self.content.mapped is not None:
            file = pa.BufferReader(self.content.mapped)
        else:
            self.content = TableFile(self._bytes, self._source.nbytes)  # readers have positions of their own
            file = pa.PythonFile(self.content, mode="r")
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
        return (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file, options=options)

    def header_fields(self) -> HeaderFields:
        """Return the fields of the header of the file."""
        batches = list(_headers(self._bytes, self._source.nbytes))
        counts = [columns.count_nodes(field.type, leaves=False) for field in self.schema]
        if any(len(batch.nulls) != sum(counts) for batch in batches):
            raise DamageError("a record batch does not have the columns of the schema")
        # A row of numbers has at least a bit in an uncompressed record batch.
        is_short = any(batch.codec is None and batch.rows > 8 * batch.nbytes for batch in batches)
        if is_short and any(field.type in DTYPES for field in self.schema):
            raise DamageError("a record batch has more rows than values")
        starts = itertools.accumulate(counts, initial=0)
        # A value is missing if it, or one of its fields, is null; null items of a list do not count.
        nodes = [
            slice(start, start + 1 + (field.type.num_fields if pa.types.is_struct(field.type) else 0))
            for start, field in zip(starts, self.schema, strict=False)
        ]
        nulls = [sum(max(batch.nulls[column_nodes]) for batch in batches) for column_nodes in nodes]
        rows = tuple(batch.rows for batch in batches)
        return self.schema, rows, nulls, self._source.nbytes

    def batches(self, names: Sequence[str], rows: Sequence[int], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` on with at least the named columns."""
        first = 0
        while not self._is_stream and first < len(rows) and rows[first] <= start:
            start -= rows[first]
            first += 1
        batches = self._decode(names, first)
        for count in rows[first:]:
            batch, _ = next(batches, (None, None))
            if batch is None or batch.num_rows != count:
                raise DamageError(f"a record batch does not have the {count} rows that its header says")
            if start < count:
                yield batch[start:]
            start = max(0, start - count)

    def _decode(self, names: Sequence[str], first: int = 0) -> Iterator[_BatchAndMetadata]:
        """Yield record batches, from the number `first` on in a file, with at least the named columns."""
        numbers = sorted(itertools.chain(*map(self.schema.get_all_field_indices, set(names))))
        for field in map(self.schema.field, numbers):
            if not has_array_class(field.type):
                reason = f"column {field.name!r} is {field.type}, which pyarrow cannot copy"
                raise BufferFileError(self._source.name, reason)
        # pyarrow copies the bytes of chosen columns, but uses mapped bytes of all columns, if these are not compressed.
        is_short = len(self.schema) <= _MAX_MAPPED_COLUMNS
        is_in_memory = is_short and self.content.mapped is not None and self.compression() is None
        chosen = [] if is_in_memory or len(numbers) == len(self.schema) else numbers
        reader = self._open_reader(chosen)
        if self._is_stream:
            batches = reader.iter_batches_with_custom_metadata()
        else:
            batches = map(reader.get_batch_with_custom_metadata, range(first, reader.num_record_batches))
        places = zip(range(len(numbers)) if chosen else numbers, map(self.schema.field, numbers), strict=True)
        with_offsets = [place for place, field in places if not any(is_type(field.type) for is_type in _PLAIN_TYPES)]
        for batch, metadata in limit_each(self._source.name, self._memory, batches):
            batch.validate()  # the lengths of buffers
            if with_offsets:  # damaged offsets would read memory outside of the buffers
                batch.select(with_offsets).validate(full=True)
            yield batch, metadata
            self.content.forget()

    def copy(self, new: BinaryIO, schema: pa.Schema, change: Change) -> None:
        """Write a copy of the file with changed batches, which keep their metadata."""
        options = pa.ipc.IpcWriteOptions(compression=self.compression(), use_threads=False)
        metadata = getattr(self._reader, "metadata", None)  # metadata of the footer, which old versions of pyarrow lack
        with pa.ipc.new_file(new, schema, options=options, **({"metadata": metadata} if metadata else {})) as writer:
            for batch, batch_metadata in self._decode(self.schema.names):
                writer.write_batch(change(batch), custom_metadata=batch_metadata)

    def compression(self) -> str | None:
        """Return the compression of the first record batch, or None."""
        return next((batch.codec for batch in _headers(self._bytes, self._source.nbytes)), None)


class _BatchHeader(NamedTuple):
    """The header of a record batch."""

    rows: int
    nulls: tuple[int, ...]  # number of nulls in each node: a column is followed by its fields
    codec: str | None  # compression of its buffers
    nbytes: int  # size of its buffers in the file


def _headers(file: OpenSource, nbytes: int) -> Iterator[_BatchHeader]:
    """Yield the headers of record batches in the order of the footer of a file, or of a stream."""
    # The numbers of fields are those of the tables of org.apache.arrow.flatbuf (File.fbs, Message.fbs).
    messages = _messages_of_file if file.read(len(_MAGIC), 0) == _MAGIC else _messages_of_stream
    try:
        for header in messages(file, nbytes):
            if header.integer(header.root, 1, "<B") != _RECORD_BATCH:
                continue
            table = header.table(header.root, 2)
            rows, nodes = header.integer(table, 0, "<q"), header.structures(table, 1, "<qq")
            if rows < 0 or any(length < 0 or not 0 <= nulls <= length for length, nulls in nodes):
                raise DamageError("a record batch has a negative number of rows, or more nulls than values")
            compression = header.table(table, 3)
            codec = _CODECS[header.integer(compression, 0, "<b")] if compression else None
            yield _BatchHeader(rows, tuple(nulls for _, nulls in nodes), codec, header.integer(header.root, 3, "<q"))
    except (struct.error, IndexError) as error:
        raise DamageError(f"a header of a record batch makes no sense ({error})") from None


class _MessageHeader:
    """The bytes of a flatbuffer. A table is given by its offset."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root: int = struct.unpack_from("<I", data)[0]

    def field(self, table: int, number: int) -> int:
        """Return the offset of a field of a table, or 0 if the table omits it."""
        vtable = table - struct.unpack_from("<i", self.data, table)[0]
        slot = 4 + 2 * number
        if vtable < 0 or slot >= struct.unpack_from("<H", self.data, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self.data, vtable + slot)[0]
        return table + offset if offset else 0

    def integer(self, table: int, number: int, form: str) -> int:
        """Return the value of an integer field, or 0 if the table omits it."""
        offset = self.field(table, number)
        return int(struct.unpack_from(form, self.data, offset)[0]) if offset else 0

    def table(self, table: int, number: int) -> int:
        """Return the offset of a table or vector in a field, or 0 if the table omits it."""
        return self.field(table, number) + self.integer(table, number, "<I")

    def structures(self, table: int, number: int, form: str) -> list[tuple[int, ...]]:
        """Return the items of a field that is a vector of structures."""
        offset = self.table(table, number)
        count = struct.unpack_from("<I", self.data, offset)[0] if offset else 0
        octets = self.data[offset + 4 : offset + 4 + count * struct.calcsize(form)]
        items = list(struct.iter_unpack(form, octets))
        if len(items) < count:
            raise DamageError("a header of a record batch is cut off")
        return items


def _messages_of_file(file: OpenSource, nbytes: int) -> Iterator[_MessageHeader]:
    """Yield the headers of the record batches that the footer lists."""
    tail = _read_all(file, 4 + len(_MAGIC), nbytes - 4 - len(_MAGIC))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < length <= nbytes:
        raise DamageError("there is no footer of arrow at its end, perhaps it is cut off")
    footer = _MessageHeader(_read_all(file, length, nbytes - len(tail) - length))
    for offset, header_nbytes, body_nbytes in footer.structures(footer.root, 3, "<qi4xq"):
        if min(offset, header_nbytes, body_nbytes) < 0 or offset + header_nbytes + body_nbytes > nbytes:
            raise DamageError(f"it has no record batch of {body_nbytes} bytes at {offset}, perhaps it is cut off")
        octets = _read_all(file, min(header_nbytes, _MAX_HEADER_NBYTES), offset)
        yield _MessageHeader(octets[8 if octets[:4] == b"\xff" * 4 else 4 :])


def _messages_of_stream(file: OpenSource, nbytes: int) -> Iterator[_MessageHeader]:
    """Yield the headers of the messages of a stream, which ends with a length of 0 or with the file."""
    offset = 0
    while head := file.read(8, offset):
        if len(head) < 8 and head != bytes(4):  # noqa: PLR2004 - old streams end with these 4 bytes
            raise DamageError(f"there is no message at {offset}, perhaps it is cut off")
        mark, length = struct.unpack("<II", head.ljust(8, b"\0"))
        offset, length = (offset + 8, length) if mark == _CONTINUATION else (offset + 4, mark)
        if not length:
            if file.read(1, offset):
                raise DamageError(f"it goes on behind the end of the stream, which is at {offset}")
            break
        if length > _MAX_HEADER_NBYTES:
            raise DamageError(f"there is no message at {offset}")
        header = _MessageHeader(_read_all(file, length, offset))
        yield header
        offset += length + header.integer(header.root, 3, "<q")
        if offset > nbytes:
            raise DamageError(f"its last message should end at {offset}, perhaps it is cut off")


def _read_all(file: OpenSource, nbytes: int, start: int) -> bytes:
    """Read `nbytes` bytes of a file; raise `DamageError` if it has fewer."""
    data = file.read(nbytes, start) if start >= 0 else b""
    if len(data) < nbytes:
        raise DamageError(f"it has no {nbytes} bytes from {start} on, perhaps it is cut off")
    return data


inspect = functools.partial(columns.inspect, opener=ArrowFile)
provenance = functools.partial(columns.provenance_of, opener=ArrowFile)
rewrite = functools.partial(columns.rewrite, opener=ArrowFile)


def rewrite_nbytes(source: Source) -> int:
    """Return the approximate bytes of memory for rewriting a file: its largest batch, twice."""
    with errors_of(source.name), closing(source.open()) as file:  # pyarrow would start a thread, which prevents forks
        return 2 * max((0, *(batch.nbytes for batch in _headers(file, source.nbytes))))


def prepare(model: Model) -> Encoder:
    """Return the encoder of a result like `model`, a file or a stream."""
    schema = None
    if model.source:
        schema = columns.query(model.context, model.source, ArrowFile, columns.SCHEMA)
    new = globals()[f"new_{model.format.name}"]
    return columns.encoder(model, columns.result_schema(model, schema), new, _BATCH_ROWS)


new_arrow, new_arrows = pa.ipc.new_file, pa.ipc.new_stream  # the writers of the formats with these names
