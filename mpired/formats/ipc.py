"""The record batches of an Arrow IPC file or stream by their headers: pyarrow shows them only by decoding.

The tables are those of org.apache.arrow.flatbuf (File.fbs, Message.fbs); a place that a file does not have is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mpired.formats.local import DamageError, read_all
from mpired.sources.source import OpenSource

MAGIC = b"ARROW1"
_CODECS = ("lz4", "zstd")  # CompressionType
_CONTINUATION = 0xFFFFFFFF  # since Arrow 0.15 before the length of a header
_RECORD_BATCH = 3  # MessageHeader
_MOST_HEADER_NBYTES = 64 << 20


class RecordBatch(NamedTuple):
    """A record batch."""

    rows: int
    nulls: tuple[int, ...]  # of each column, and after it of each of its fields
    codec: str | None  # the compression of its buffers
    nbytes: int  # of its buffers in the file


def batches(file: OpenSource, nbytes: int) -> Iterator[RecordBatch]:
    """Yield the record batches of an open file, as its footer names them, or of a stream, one after another."""
    try:
        for header in _by_footer(file, nbytes) if file.read(len(MAGIC), 0) == MAGIC else _one_by_one(file, nbytes):
            if header.integer(header.root, 1, "<B") == _RECORD_BATCH:
                yield _batch(header)
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
        at = self.field(table, number)
        return at + int(struct.unpack_from("<I", self.data, at)[0]) if at else 0

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
    tail = read_all(file, 4 + len(MAGIC), nbytes - 4 - len(MAGIC))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or not 0 < length <= nbytes:
        raise DamageError("there is no footer of arrow at its end, perhaps it is cut off")
    footer = _MessageHeader(read_all(file, length, nbytes - len(tail) - length))
    for offset, header_nbytes, body_nbytes in footer.structures(footer.root, 3, "<qi4xq"):
        if min(offset, header_nbytes, body_nbytes) < 0 or offset + header_nbytes + body_nbytes > nbytes:
            raise DamageError(f"it has no record batch of {body_nbytes} bytes at {offset}, perhaps it is cut off")
        octets = read_all(file, min(header_nbytes, _MOST_HEADER_NBYTES), offset)
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
        header = _MessageHeader(read_all(file, length, at))
        yield header
        at += length + header.integer(header.root, 3, "<q")
        if at > nbytes:
            raise DamageError(f"its last message should end at {at}, perhaps it is cut off")


def _batch(header: _MessageHeader) -> RecordBatch:
    table = header.table(header.root, 2)
    rows = header.integer(table, 0, "<q")
    nodes = header.structures(table, 1, "<qq")
    if rows < 0 or any(length < 0 or not 0 <= nulls <= length for length, nulls in nodes):
        raise DamageError("a record batch has a negative number of rows, or more nulls than values")
    compression = header.table(table, 3)
    codec = _CODECS[header.integer(compression, 0, "<b")] if compression else None
    return RecordBatch(rows, tuple(nulls for _, nulls in nodes), codec, header.integer(header.root, 3, "<q"))
