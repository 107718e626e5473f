"""Arrow IPC files: columns are read where they lie, and record batches are checked whole before they are copied."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpired.buffers import columns
from mpired.buffers.arrow_arrays import DTYPES, integers_of, is_time
from mpired.buffers.columns import Column, Contents, explaining
from mpired.buffers.flat import UNKNOWN_COUNT, FlatBuffer, Order
from mpired.buffers.format import Encoder
from mpired.buffers.ipc import ArrivingMessages, Batch, Message, Messages, Packed, StreamMessages
from mpired.buffers.local import DamageError, Extent, OpenBytes, Spliced, read_into
from mpired.buffers.missing import NullsError
from mpired.buffers.model import Model
from mpired.buffers.rank import Values
from mpired.buffers.streamed import DECODED_NBYTES, Nullable
from mpired.sources.source import Source

import pyarrow as pa  # isort: skip - after columns, which sets it up

_BATCH_ROWS = 64 << 10
_MAGIC_NBYTES = 8
_STREAM_NBYTES = 1 << 20  # so much of a buffer is read at a time, a multiple of every size of a value


class Leaf(NamedTuple):
    """A column of plain values: one of the file, or a field of a column of structures."""

    dtype: np.dtype  # the form of its values in the file; truth values are bits
    # the numbers of its node and of those that it is in, each with the number of its first buffer, in a record batch
    nodes: tuple[tuple[int, int], ...]
    # how many columns of views come before it: each has more buffers, whose number only the record batch says
    views: int


class ArrowFile(OpenBytes):
    """An open Arrow IPC file, of which single leaves are read without pyarrow; it is never mapped into memory."""

    messages: ClassVar[type[Messages]] = Messages

    def __init__(self, source: Source, _memory: int = DECODED_NBYTES) -> None:
        super().__init__(source)
        self._messages = self.messages(self._bytes, source)

    def arrays(self, wanted: Leaf | Nullable, start: int) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on."""
        leaf = wanted.leaf if isinstance(wanted, Nullable) else wanted
        expected = False
        for message in self._batches():
            batch = self._messages.batch(message)
            if start < batch.rows:
                expected = expected or self._expect(message, batch, leaf)
                if not any(self._nulls(batch, leaf)):
                    for packed in self._bitmaps(batch, leaf):
                        if not all(bits.all() for bits in self._bits(batch, packed, 0)):
                            raise DamageError("a column has nulls that its header does not tell of")
                    yield from ((values, None) for values in self._values(batch, leaf, start))
                elif isinstance(wanted, Nullable):
                    yield from self._nullable(batch, leaf, start)
                else:
                    raise NullsError(self._count_nulls(leaf, batch))
            start = max(0, start - batch.rows)

    def _batches(self) -> Iterator[Message]:
        return iter(self._messages.batches)

    def _expect(self, message: Message, batch: Batch, leaf: Leaf) -> bool:
        """Say what will be read: of this record batch the leaf, or if that is most of it all that comes; tell which."""
        extent = _packed(self._messages, batch, leaf).extent
        if 2 * extent.nbytes < message.body.nbytes:
            self._bytes.expect([extent])
            return False
        whole = (each for each in self._messages.batches if each.header >= message.header)
        self._bytes.expect((each.header, each.body.start + each.body.nbytes - each.header) for each in whole)
        return True

    def _nulls(self, batch: Batch, leaf: Leaf) -> list[int]:
        return [self._messages.nulls(batch, node) for node, _ in leaf.nodes]

    def _count_nulls(self, leaf: Leaf, _first: Batch) -> int:
        """Return how many values are missing; those of a structure are missing in each of its fields."""
        return sum(max(self._nulls(self._messages.batch(each), leaf)) for each in self._messages.batches)

    def _values(self, batch: Batch, leaf: Leaf, start: int) -> Iterator[np.ndarray]:
        """Yield the values of a leaf in a record batch from a row on."""
        packed = _packed(self._messages, batch, leaf)
        if leaf.dtype == np.bool_:
            yield from self._bits(batch, packed, start)
            return
        size = leaf.dtype.itemsize
        for octets in self._octets(batch, packed, Extent(start * size, (batch.rows - start) * size)):
            yield octets.view(leaf.dtype)

    def _nullable(self, batch: Batch, leaf: Leaf, start: int) -> Iterator[Values]:
        """Yield the values of a leaf in a record batch from a row on, and which of them are there."""
        bitmaps = self._bitmaps(batch, leaf)
        if not bitmaps:
            raise DamageError("a column lacks the bits that tell which values are missing")
        bits = zip(*(self._bits(batch, packed, start) for packed in bitmaps), strict=True)
        there = np.empty(0, np.bool_)
        for values in self._values(batch, leaf, start):
            while len(there) < len(values):
                there = np.concatenate([there, np.bitwise_and.reduce(next(bits)).view(np.bool_)])
            yield values, there[: len(values)]
            there = there[len(values) :]

    def _bitmaps(self, batch: Batch, leaf: Leaf) -> list[Packed]:
        """Return what tells of a leaf, and of what it is in, which values are there; empty if all are."""
        more = self._messages.variadic(batch, leaf.views)
        found = [self._messages.buffer(batch, first + more) for _, first in leaf.nodes]
        for packed in (bitmaps := [packed for packed in found if packed.nbytes]):
            _check_length(packed, batch, 1)
        return bitmaps

    def _bits(self, batch: Batch, packed: Packed, start: int) -> Iterator[np.ndarray]:
        """Yield the bits of a buffer that are of the rows from `start` on, as bytes."""
        for octets in self._octets(batch, packed, Extent(start // 8, -(-batch.rows // 8) - start // 8)):
            bits = np.unpackbits(octets, bitorder="little")[: batch.rows - start // 8 * 8]
            yield bits[start % 8 :]
            start += len(bits) - start % 8

    def _octets(self, batch: Batch, packed: Packed, wanted: Extent) -> Iterator[np.ndarray]:
        """Yield some bytes of a buffer, in blocks."""
        stream = None
        if packed.compressed:
            stream = pa.CompressedInputStream(pa.PythonFile(Spliced(self._bytes, [packed.extent])), batch.codec)
            for count in _blocks(wanted.start):
                _read_from(stream, count)
        at = packed.extent.start + wanted.start
        for count in _blocks(wanted.nbytes):
            if stream is not None:
                yield _read_from(stream, count)
                continue
            block = np.empty(count, np.uint8)
            read_into(self._bytes, block, at)
            at += count
            yield block


def _packed(messages: Messages, batch: Batch, leaf: Leaf) -> Packed:
    """Return where the values of a leaf are in a record batch, when they are as many as its rows."""
    packed = messages.buffer(batch, leaf.nodes[-1][1] + messages.variadic(batch, leaf.views) + 1)
    _check_length(packed, batch, 1 if leaf.dtype == np.bool_ else 8 * leaf.dtype.itemsize)
    return packed


def _check_length(packed: Packed, batch: Batch, bits: int) -> None:
    if packed.nbytes < -(-batch.rows * bits // 8):
        raise DamageError(f"a buffer of {packed.nbytes} bytes is too short for {batch.rows} rows")


def _blocks(nbytes: int) -> Iterator[int]:
    """Cut a number of bytes."""
    return (min(_STREAM_NBYTES, nbytes - at) for at in range(0, nbytes, _STREAM_NBYTES))


def _read_from(stream: pa.NativeFile, nbytes: int) -> np.ndarray:
    block = np.frombuffer(stream.read(nbytes), np.uint8)
    if len(block) < nbytes:
        raise DamageError("a compressed buffer is shorter than it says")
    return block


class WholeFile(OpenBytes):
    """An open Arrow IPC file, to be written again; its record batches are checked before their values are touched."""

    messages: ClassVar[type[Messages]] = Messages
    magic_nbytes: ClassVar[int] = _MAGIC_NBYTES

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._messages = self.messages(self._bytes, source)
        self._whole = Extent(0, source.nbytes)
        # A reader of the whole file would start a thread, and a process with threads cannot fork.
        after_magic = Extent(self.magic_nbytes, max(0, source.nbytes - self.magic_nbytes))
        self.schema = pa.ipc.read_schema(pa.PythonFile(Spliced(self._bytes, [after_magic])))

    def contents(self) -> Contents:
        """Return what it holds; columns of other types than numbers and times have no leaves."""
        places = _Places(self._messages.byte_order)
        own, leaves = [], []  # the node of each column, and its leaves
        for field in self.schema:
            own.append(places.node)
            leaves.append(places.leaves(field.type))
        first = next((leaf for mine in leaves for leaf in mine), None)
        rows, nulls = 0, [0] * len(leaves)
        for message in self._messages.batches:
            batch = self._messages.batch(message)
            rows += batch.rows
            if first is not None:  # the number of rows is the header's word until the values are seen
                _packed(self._messages, batch, first)
            for number, mine in enumerate(leaves):
                nodes = {own[number], *(node for leaf in mine for node, _ in leaf.nodes)}
                nulls[number] += max(self._messages.nulls(batch, node) for node in nodes)
        return Contents(self.schema, leaves, rows, nulls, self._whole.nbytes)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]]:
        """Yield every record batch with all columns, and its metadata."""
        self.check_memory()
        for batch, metadata in self._decoded():
            # Lengths and offsets are the file's word: without this a patched one reads foreign memory.
            batch.validate(full=True)
            yield batch, metadata

    def _decoded(self) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]]:
        """Yield every record batch as it is decoded, and its metadata."""
        for i in range(self._reader.num_record_batches):
            yield self._reader.get_batch_with_custom_metadata(i)

    def columns(self, _names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with all columns."""
        return (batch for batch, _ in self.batches())

    @functools.cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        file = pa.PythonFile(Spliced(self._bytes, [self._whole]))
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False))
        if not reader.schema.equals(self.schema):
            raise DamageError("its footer has another schema than its start")
        return reader

    @property
    def largest(self) -> int:
        """The bytes of the largest record batch, decompressed."""
        messages = self._messages
        sizes = (sum(packed.nbytes for packed in messages.buffers(messages.batch(each))) for each in messages.batches)
        return max((0, *sizes))

    def check_memory(self) -> None:
        """Raise `BufferFileError` if a record batch cannot be decompressed at once."""
        for message in (*self._messages.dictionaries, *self._messages.batches):
            buffers = self._messages.buffers(self._messages.batch(message))
            unpacked = sum(packed.nbytes for packed in buffers if packed.compressed)
            if unpacked > DECODED_NBYTES:
                raise columns.too_large(self._source.name, "a record batch", unpacked, DECODED_NBYTES)

    def compression(self) -> str | None:
        """Return the compression of the first record batch, None if there is none."""
        return next((self._messages.batch(each).codec for each in self._messages.batches), None)

    @property
    def metadata(self) -> Mapping[bytes, bytes] | None:
        """The metadata of the footer; a pyarrow that cannot keep it shows none."""
        metadata: Mapping[bytes, bytes] | None = getattr(self._reader, "metadata", None)
        return metadata


class _Places:
    """Counts the nodes and buffers of the columns of a schema in a record batch, in their order."""

    def __init__(self, byte_order: Order) -> None:
        self._order = byte_order
        self.node = self._buffer = self._views = 0  # the numbers of the next ones

    def leaves(self, kind: pa.DataType, above: tuple[tuple[int, int], ...] = ()) -> tuple[Leaf, ...]:
        """Return the leaves of the next column, of that type."""
        if isinstance(kind, pa.BaseExtensionType):
            return self.leaves(kind.storage_type, above)
        nodes, views = (*above, (self.node, self._buffer)), self._views
        self.node += 1
        self._buffer += _NBUFFERS.get(kind.id, 2)
        self._views += kind.id in _VIEWS
        if is_time(kind) or kind in DTYPES:
            dtype = DTYPES[integers_of(kind) if is_time(kind) else kind]
            return (Leaf(dtype.newbyteorder(self._order), nodes, views),)
        if pa.types.is_dictionary(kind):  # its values are elsewhere
            return ()
        children = [self.leaves(kind.field(i).type, nodes) for i in range(kind.num_fields)]
        return tuple(leaf for leaves in children for leaf in leaves) if pa.types.is_struct(kind) else ()


def _ids(**counts: int) -> dict[int, int]:
    """Return how many buffers types have, by the number of a type; an old pyarrow does not know all."""
    numbers = {getattr(pa.lib, f"Type_{name}", None): count for name, count in counts.items()}
    return {number: count for number, count in numbers.items() if number is not None}


_VIEWS = _ids(STRING_VIEW=2, BINARY_VIEW=2)
# What is missing, and the values; with offsets or types there are others.
_NBUFFERS = _ids(
    NA=0, STRING=3, BINARY=3, LARGE_STRING=3, LARGE_BINARY=3, FIXED_SIZE_LIST=1, STRUCT=1, LIST_VIEW=3,
    LARGE_LIST_VIEW=3, SPARSE_UNION=1, DENSE_UNION=2, RUN_END_ENCODED=0,
)  # fmt: skip


class StreamFile(ArrowFile):
    """An open Arrow IPC stream, of which single leaves are read as of a file."""

    messages = StreamMessages


class ArrivingFile(ArrowFile):
    """An Arrow IPC stream that is read forward, of which one leaf is read, once."""

    def __init__(self, source: Source) -> None:
        OpenBytes.__init__(self, source)
        self._messages: ArrivingMessages = ArrivingMessages(self._bytes, source)

    @property
    def schema(self) -> pa.Schema:
        """Arrow's schema of the stream."""
        return pa.ipc.read_schema(pa.BufferReader(self._messages.schema))

    def contents(self) -> Contents:
        """Return what its schema says; how many rows there are shows at its end."""
        places, schema = _Places(self._messages.byte_order), self.schema
        return Contents(schema, [places.leaves(field.type) for field in schema], UNKNOWN_COUNT, [0] * len(schema), 0)

    def _batches(self) -> Iterator[Message]:
        return self._messages.arriving()

    def _expect(self, _message: Message, _batch: Batch, _leaf: Leaf) -> bool:
        return True  # all of it, as it comes

    def _count_nulls(self, leaf: Leaf, first: Batch) -> int:
        return max(self._nulls(first, leaf))


class WholeStream(WholeFile):
    """An open Arrow IPC stream, whose record batches are checked before their values are touched."""

    messages = StreamMessages
    magic_nbytes = 0

    def _decoded(self) -> Iterator[tuple[pa.RecordBatch, Mapping[bytes, bytes] | None]]:
        """Yield every record batch as it is decoded, and its metadata."""
        file = pa.PythonFile(Spliced(self._bytes, [self._whole]))
        with pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            yield from reader.iter_batches_with_custom_metadata()


_COLUMN = Column("arrow", WholeFile, ArrowFile, WholeFile)


inspect = functools.partial(columns.inspect, column=_COLUMN)
note = functools.partial(columns.note_of, whole=WholeFile)


def prepare(model: Model) -> Encoder:
    """Say how a result like `model` becomes an Arrow IPC file."""
    return prepared(model, WholeFile, pa.ipc.new_file)


def prepared(model: Model, opener: Callable[[Source], Any], new: Callable[..., Any]) -> Encoder:
    """Say how a result like `model` is written by what `new` returns, with the schema of the file that it is like."""
    schema = None
    if model.source:
        with explaining(model.source.name), closing(opener(model.source)) as old:
            schema = old.schema
    layout = columns.layout_like(model, schema)

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        with (
            os.fdopen(os.dup(fd), "wb") as file,
            new(file, columns.with_note(layout.schema, model.note)) as writer,
            closing(layout.batches(results, layout.most_rows(_BATCH_ROWS))) as batches,
        ):
            for batch in batches:
                writer.write_batch(batch)

    return encode


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some columns, record batch by record batch."""
    with (
        columns.patching(source, WholeFile, changed) as (old, schema, patched),
        os.fdopen(os.dup(fd), "wb") as new,
        ExitStack() as stack,
    ):
        options = pa.ipc.IpcWriteOptions(compression=old.compression(), use_threads=False)
        footer = {"metadata": metadata} if (metadata := old.metadata) else {}
        writer = stack.enter_context(pa.ipc.new_file(new, schema, options=options, **footer))
        for batch, said in old.batches():
            writer.write_batch(patched(batch), custom_metadata=said)


def rewriting(source: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written again: a batch, old and new."""
    with explaining(source.name), closing(WholeFile(source)) as file:
        file.check_memory()
        return 2 * file.largest
