"""The messages of an Arrow IPC file, read where they lie: few bytes for each, however many columns there are.

Only what is needed is followed in the flatbuffers (org.apache.arrow.flatbuf: File.fbs, Message.fbs, Schema.fbs),
and every place is checked by reading it: a file that has no such bytes is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpired.buffers.flat import Order
from mpired.buffers.local import DamageError, Extent, read_all
from mpired.errors import BufferFileError
from mpired.sources.source import OpenSource, Source

_MAGIC = b"ARROW1"
_CODECS = ("lz4", "zstd")  # CompressionType
_CONTINUATION = 0xFFFFFFFF
_BLOCK_NBYTES, _NODE_NBYTES, _BUFFER_NBYTES = 24, 16, 16
_NOT_COMPRESSED = -1
_VERSION_5 = 4  # MetadataVersion
_FEATURES = {0, 1, 2}  # Feature
_RESERVED = b"ARROW:"  # so begin the keys that the format keeps for itself; all others are the user's


class Message(NamedTuple):
    """A record batch or a dictionary: where its header is in the file, and where its buffers."""

    header: int
    body: Extent


class Batch(NamedTuple):
    """A record batch, or what a dictionary holds."""

    rows: int
    codec: str | None  # the compression of its buffers
    nodes: Extent  # where these vectors are in the file, each with the number of its elements
    buffers: Extent
    counts: Extent
    body: Extent  # the buffers


class Packed(NamedTuple):
    """A buffer: where its bytes are, how many they are when decompressed, and whether they are compressed."""

    extent: Extent
    nbytes: int
    compressed: bool


class Messages:
    """The messages of a file that is open."""

    def __init__(self, file: OpenSource, source: Source) -> None:
        self._bytes, self._name = file, source.name
        nbytes = source.nbytes
        tail = 4 + len(_MAGIC)
        end = read_all(file, tail, nbytes - tail)
        length = int.from_bytes(end[:4], "little", signed=True)
        if end[4:] != _MAGIC or not 0 < length <= nbytes - tail:
            raise DamageError("there is no footer of arrow at its end, perhaps it is cut off")
        footer = self._table(nbytes - tail - length, 5)
        schema = self._field(footer, 1)
        self._nbytes = nbytes
        self._set_schema(schema)
        self.dictionaries: list[Message] = self._blocks(footer, 2)
        self.batches: list[Message] = self._blocks(footer, 3)

    def _set_schema(self, schema: int) -> None:
        """Take the byte order of a schema, which is 0 if there is none."""
        table = self._table(schema, 4) if schema else 0
        order = self._int(table, 0, "<h") if table else 0
        start, count = self._vector(table, 3) if table else (0, 0)
        if order not in {0, 1} or any(self._unpack("<q", start + 8 * i) not in _FEATURES for i in range(count)):
            raise self._not_read("has a byte order or a feature that mpired does not know")
        self.byte_order: Order = ">" if order else "<"

    def _not_read(self, reason: str) -> BufferFileError:
        return BufferFileError(self._name, f"{reason}; write it again with pyarrow 1.0 or later")

    def _check_meaning(self, table: int) -> None:
        """Refuse what may change the meaning of all else: the version and the metadata of a message."""
        version = self._int(table, 0, "<h")
        if version != _VERSION_5:
            raise self._not_read(f"is of version {version + 1} of Arrow's metadata, and mpired reads version 5")
        start, count = self._vector(table, 4)
        for at in range(start, start + 4 * count, 4):
            key = self._field(self._follow(at), 0)
            if key and self._bytes.read(len(_RESERVED), self._follow(key) + 4) == _RESERVED:
                raise self._not_read("has messages with metadata of Arrow's own, which mpired does not know")

    def _table(self, at: int, nfields: int) -> int:
        """Follow a place to its table, of which `nfields` fields are known."""
        table = self._follow(at)
        if self._unpack("<H", table - self._unpack("<i", table)) > 4 + 2 * nfields:
            raise self._not_read("has messages with fields that mpired does not know")
        return table

    def _unpack(self, form: str, at: int) -> int:
        value: int = struct.unpack(form, read_all(self._bytes, struct.calcsize(form), at))[0]
        return value

    def _field(self, table: int, number: int) -> int:
        """Return where a field of a table is, 0 if it is left out."""
        back = table - self._unpack("<i", table)
        slot = 4 + 2 * number
        offset = self._unpack("<H", back + slot) if slot < self._unpack("<H", back) else 0
        return table + offset if offset else 0

    def _int(self, table: int, number: int, form: str) -> int:
        at = self._field(table, number)
        return self._unpack(form, at) if at else 0

    def _follow(self, at: int) -> int:
        return at + self._unpack("<I", at)

    def _vector(self, table: int, number: int) -> Extent:
        """Return where the elements of a vector are, and their number."""
        at = self._field(table, number)
        if not at:
            return Extent(0, 0)
        at = self._follow(at)
        return Extent(at + 4, self._unpack("<I", at))

    def _blocks(self, footer: int, number: int) -> list[Message]:
        """Return the messages that the footer lists."""
        start, count = self._vector(footer, number)
        if count > self._nbytes // _BLOCK_NBYTES:
            raise DamageError(f"it has no room for {count} messages")
        blocks = read_all(self._bytes, count * _BLOCK_NBYTES, start) if count else b""
        return [self._message(*block) for block in struct.iter_unpack("<qi4xq", blocks)]

    def _message(self, offset: int, head_nbytes: int, body_nbytes: int) -> Message:
        body = Extent(offset + head_nbytes, body_nbytes)
        if min(offset, head_nbytes, body_nbytes) < 0 or body.start + body.nbytes > self._nbytes:
            raise DamageError(f"it has no {body_nbytes} bytes from {body.start} on, perhaps it is cut off")
        return Message(offset, body)

    def batch(self, message: Message) -> Batch:
        """Read the header of a record batch, or of a dictionary."""
        at = message.header + (8 if self._unpack("<I", message.header) == _CONTINUATION else 4)
        table = self._table(at, 5)
        self._check_meaning(table)
        kind, header = self._int(table, 1, "<B"), self._field(table, 2)
        if kind not in _HEADERS or not header:
            raise DamageError(f"the message at {message.header} is not a record batch")
        if kind == _DICTIONARY_BATCH:
            header = self._field(self._table(header, 3), 1)
        batch = self._table(header, 5)
        rows, how = self._int(batch, 0, "<q"), self._field(batch, 3)
        compression = self._table(how, 2) if how else 0
        codec = self._int(compression, 0, "<b") if compression else None
        method = self._int(compression, 1, "<b") if compression else 0
        if rows < 0 or codec not in {None, *range(len(_CODECS))} or method:
            raise DamageError(f"the record batch at {message.header} makes no sense")
        nodes, buffers, counts = (self._vector(batch, number) for number in (1, 2, 4))
        return Batch(rows, None if codec is None else _CODECS[codec], nodes, buffers, counts, message.body)

    def nulls(self, batch: Batch, node: int) -> int:
        """Return how many values of a field are missing."""
        rows, nulls = struct.unpack("<qq", self._elements(batch.nodes, node, _NODE_NBYTES))
        if rows != batch.rows:
            raise DamageError(f"a column has {rows} values in {batch.rows} rows")
        return int(nulls)

    def buffer(self, batch: Batch, number: int) -> Packed:
        """Return where a buffer is."""
        start, nbytes = struct.unpack("<qq", self._elements(batch.buffers, number, _BUFFER_NBYTES))
        if min(start, nbytes) < 0 or start + nbytes > batch.body.nbytes:
            raise DamageError(f"a buffer of {nbytes} bytes is not within its record batch")
        extent = Extent(batch.body.start + start, nbytes)
        if batch.codec is None or not nbytes:
            return Packed(extent, nbytes, compressed=False)
        unpacked = self._unpack("<q", extent.start)
        rest = Extent(extent.start + 8, nbytes - 8)
        if unpacked == _NOT_COMPRESSED:
            return Packed(rest, rest.nbytes, compressed=False)
        if min(unpacked, rest.nbytes) < 0:
            raise DamageError(f"a buffer of {nbytes} bytes is not a compressed buffer")
        return Packed(rest, unpacked, compressed=True)

    def buffers(self, batch: Batch) -> Iterator[Packed]:
        """Yield all buffers."""
        if batch.buffers.nbytes > self._nbytes // _BUFFER_NBYTES:
            raise DamageError(f"it has no room for {batch.buffers.nbytes} buffers")
        return (self.buffer(batch, number) for number in range(batch.buffers.nbytes))

    def variadic(self, batch: Batch, number: int) -> int:
        """Return how many buffers more than two the first columns of views have, so many of them."""
        return int(np.frombuffer(self._elements(batch.counts, 0, 8, number), "<i8").sum()) if number else 0

    def _elements(self, vector: Extent, start: int, nbytes: int, number: int = 1) -> bytes:
        if start + number > vector.nbytes:
            raise DamageError("a record batch lacks columns of the schema")
        return read_all(self._bytes, number * nbytes, vector.start + start * nbytes)


class StreamMessages(Messages):
    """The messages of an open Arrow IPC stream, one after another; raises the errors of `Messages`."""

    def __init__(self, file: OpenSource, source: Source) -> None:
        self._bytes, self._name = file, source.name
        self._nbytes = source.nbytes
        self.dictionaries, self.batches = [], []
        for kind, message in self._messages(self._begin()):
            (self.batches if kind == _RECORD_BATCH else self.dictionaries).append(message)

    def _begin(self) -> int:
        """Read the first message, which has the schema, and return where it ends."""
        end, table, header = self._next(0)
        if not table or self._int(table, 1, "<B") != _SCHEMA or not header:
            raise DamageError("there is no schema of arrow at its start")
        self._check_meaning(table)
        self._set_schema(header)
        return end

    def _messages(self, end: int) -> Iterator[tuple[int, Message]]:
        """Yield all messages from a place on, each with its kind."""
        while True:
            at = end
            end, table, header = self._next(at)
            if not table:
                break
            kind, body = self._int(table, 1, "<B"), self._int(table, 3, "<q")
            if kind not in _HEADERS or not header:
                raise DamageError(f"the message at {at} is not a record batch")
            yield kind, self._message(at, end - at, body)
            end += body
        if self._bytes.read(1, end):
            raise DamageError(f"it goes on behind the end of the stream, which is at {end}")

    def _next(self, at: int) -> tuple[int, int, int]:
        """Return where the header of a message ends, and where its table and its content are; 0 for the last one."""
        mark, length = self._unpack("<I", at), self._unpack("<i", at + 4)
        if mark != _CONTINUATION or length < 0:
            raise DamageError(f"there is no message at {at}")
        table = self._table(at + 8, 5) if length else 0
        return at + 8 + length, table, self._field(table, 2) if table else 0


class ArrivingMessages(StreamMessages):
    """The messages of an Arrow IPC stream that is read forward, of which the header of one is in memory."""

    def __init__(self, file: OpenSource, source: Source) -> None:
        self._headed = _Headed(file)
        self._bytes, self._name, self._nbytes = self._headed, source.name, _ANY_NBYTES
        self._end = self._begin()
        self.schema = self._headed.head
        """The message with the schema."""

    def arriving(self) -> Iterator[Message]:
        """Yield the record batches as they come."""
        return (message for kind, message in self._messages(self._end) if kind == _RECORD_BATCH)

    def _next(self, at: int) -> tuple[int, int, int]:
        self._headed.load(at)
        return super()._next(at)


class _Headed(OpenSource):
    """What is read forward, with the header of a message in memory, in which one goes back and forth."""

    def __init__(self, file: OpenSource) -> None:
        self._file = file
        self._start = 0
        self.head = b""

    def load(self, at: int) -> None:
        """Read the header that begins at a place."""
        mark = read_all(self._file, 8, at)
        length = int.from_bytes(mark[4:], "little", signed=True)
        if not 0 <= length <= _MOST_HEADER_NBYTES:
            raise DamageError(f"there is no message at {at}")
        self._start, self.head = at, mark + (read_all(self._file, length, at + 8) if length else b"")

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        within = offset - self._start
        if not 0 <= within < len(self.head):
            return self._file.read_into(view, offset)
        found = self.head[within : within + len(view)]
        view[: len(found)] = found
        return len(found)


_MOST_HEADER_NBYTES, _ANY_NBYTES = 16 << 20, 1 << 62
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3  # MessageHeader
_HEADERS = {_DICTIONARY_BATCH, _RECORD_BATCH}
