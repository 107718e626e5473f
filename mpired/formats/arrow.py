"""Arrow IPC files and streams: pyarrow decodes record batches, those of a file of this machine where they lie."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from mpired.errors import BufferFileError
from mpired.formats import columns
from mpired.formats.arrow_arrays import DTYPES, has_arrays
from mpired.formats.columns import Change, Contents, Table, errors_of
from mpired.formats.layout import Encoder
from mpired.formats.rank import Model
from mpired.formats.streamed import DamageError, TableFile, limited
from mpired.sources.source import OpenSource, Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_FEW_COLUMNS = 16
_MAGIC = b"ARROW1"
_CODECS = ("lz4", "zstd")  # CompressionType
_CONTINUATION = 0xFFFFFFFF  # since Arrow 0.15 before the length of a header
_RECORD_BATCH = 3  # MessageHeader
_MOST_HEADER_NBYTES = 64 << 20
_Decoded: TypeAlias = tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]  # with its metadata


class ArrowFile(Table):
    """An open Arrow IPC file or stream."""

    format = "arrow"

    def begin(self) -> None:
        """Read the schema."""
        self._is_stream = self._bytes.read(len(_MAGIC), 0) != _MAGIC
        self.content = TableFile(self._bytes, self._source.nbytes)
        self._reader = self._opened()
        self.schema: pa.Schema = self._reader.schema
        super().begin()

    def _opened(self, fields: Sequence[int] = ()) -> Any:
        """Open a reader of some columns, or of all."""
        if self.content.mapped is not None:
            file = pa.BufferReader(self.content.mapped)
        else:
            self.content = TableFile(self._bytes, self._source.nbytes)  # each reader has its place
            file = pa.PythonFile(self.content, mode="r")
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=list(fields))
        return (pa.ipc.open_stream if self._is_stream else pa.ipc.open_file)(file, options=options)

    def contents(self) -> Contents:
        """Return the contents of the file."""
        batches = list(_headers(self._bytes, self._source.nbytes))
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
        # The values of other types are found by offsets, indices or children.
        lie_plain = pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary
        kinds = ((place, self.schema.field(number).type) for place, number in places)
        by_offsets = [place for place, kind in kinds if not any(is_plain(kind) for is_plain in lie_plain)]
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
        return next((each.codec for each in _headers(self._bytes, self._source.nbytes)), None)


class _BatchHeader(NamedTuple):
    """The header of a record batch."""

    rows: int
    nulls: tuple[int, ...]  # of each column, and after it of each of its fields
    codec: str | None  # the compression of its buffers
    nbytes: int  # of its buffers in the file


def _headers(file: OpenSource, nbytes: int) -> Iterator[_BatchHeader]:
    """Yield the headers of record batches, as the footer of a file names them, or one after another in a stream."""
    # Of the tables of org.apache.arrow.flatbuf (File.fbs, Message.fbs): pyarrow shows them only by decoding. A place
    # that a file does not have is damage.
    try:
        for header in _by_footer(file, nbytes) if file.read(len(_MAGIC), 0) == _MAGIC else _one_by_one(file, nbytes):
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
    """The bytes of a flatbuffer, whose tables are known by their places."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root: int = struct.unpack_from("<I", data)[0]

    def field(self, table: int, number: int) -> int:
        """Return where a field of a table is; 0 if it is left out."""
        known = table - struct.unpack_from("<i", self.data, table)[0]
        slot = 4 + 2 * number
        if known < 0 or slot >= struct.unpack_from("<H", self.data, known)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self.data, known + slot)[0]
        return table + offset if offset else 0

    def integer(self, table: int, number: int, form: str) -> int:
        """Return a field that is an integer; 0 if it is left out."""
        at = self.field(table, number)
        return int(struct.unpack_from(form, self.data, at)[0]) if at else 0

    def table(self, table: int, number: int) -> int:
        """Return where a field that is a table is; 0 if it is left out."""
        return self.field(table, number) + self.integer(table, number, "<I")

    def structures(self, table: int, number: int, form: str) -> list[tuple[int, ...]]:
        """Return a field that is a vector of structures."""
        at = self.table(table, number)
        count = struct.unpack_from("<I", self.data, at)[0] if at else 0
        octets = self.data[at + 4 : at + 4 + count * struct.calcsize(form)]
        found = list(struct.iter_unpack(form, octets))
        if len(found) < count:
            raise DamageError("a header of a record batch is cut off")
        return found


def _by_footer(file: OpenSource, nbytes: int) -> Iterator[_MessageHeader]:
    """Yield the headers of a file's record batches."""
    tail = _read_all(file, 4 + len(_MAGIC), nbytes - 4 - len(_MAGIC))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < length <= nbytes:
        raise DamageError("there is no footer of arrow at its end, perhaps it is cut off")
    footer = _MessageHeader(_read_all(file, length, nbytes - len(tail) - length))
    for offset, header_nbytes, body_nbytes in footer.structures(footer.root, 3, "<qi4xq"):
        if min(offset, header_nbytes, body_nbytes) < 0 or offset + header_nbytes + body_nbytes > nbytes:
            raise DamageError(f"it has no record batch of {body_nbytes} bytes at {offset}, perhaps it is cut off")
        octets = _read_all(file, min(header_nbytes, _MOST_HEADER_NBYTES), offset)
        yield _MessageHeader(octets[8 if octets[:4] == b"\xff" * 4 else 4 :])


def _one_by_one(file: OpenSource, nbytes: int) -> Iterator[_MessageHeader]:
    """Yield the headers of a stream's messages; it ends by a length of 0, or where its bytes end."""
    at = 0
    while head := file.read(8, at):
        if len(head) < 8 and head != bytes(4):  # noqa: PLR2004 - by such a length of 0 old streams end
            raise DamageError(f"there is no message at {at}, perhaps it is cut off")
        mark, length = struct.unpack("<II", head.ljust(8, b"\0"))
        at, length = (at + 8, length) if mark == _CONTINUATION else (at + 4, mark)
        if not length:
            if file.read(1, at):
                raise DamageError(f"it goes on behind the end of the stream, which is at {at}")
            break
        if length > _MOST_HEADER_NBYTES:
            raise DamageError(f"there is no message at {at}")
        header = _MessageHeader(_read_all(file, length, at))
        yield header
        at += length + header.integer(header.root, 3, "<q")
        if at > nbytes:
            raise DamageError(f"its last message should end at {at}, perhaps it is cut off")


def _read_all(file: OpenSource, nbytes: int, start: int) -> bytes:
    """Read `nbytes` bytes of a file."""
    data = file.read(nbytes, start) if start >= 0 else b""
    if len(data) < nbytes:
        raise DamageError(f"it has no {nbytes} bytes from {start} on, perhaps it is cut off")
    return data


inspect = functools.partial(columns.inspect, opener=ArrowFile)
provenance = functools.partial(columns.provenance_of, opener=ArrowFile)
rewrite = functools.partial(columns.rewrite, opener=ArrowFile)


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a batch, old and new."""
    with errors_of(source.name), closing(source.open()) as file:  # pyarrow would start a thread, which prevents forks
        return 2 * max((0, *(batch.nbytes for batch in _headers(file, source.nbytes))))


def prepare(model: Model) -> Encoder:
    """Say how a result like `model` is written: as a file or a stream, with the schema of the file that it is like."""
    schema = None
    if model.source:
        schema = columns.query(model.context, model.source, ArrowFile, columns.SCHEMA)
    new = globals()[f"new_{model.format}"]
    return columns.encoder(model, columns.result_schema(model, schema), new, _BATCH_ROWS)


new_arrow, new_arrows = pa.ipc.new_file, pa.ipc.new_stream  # by the names of the formats
