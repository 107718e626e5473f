"""Compression and decompression: the codecs, one row each."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

Read: TypeAlias = Callable[[int], bytes]  # returns the next bytes, at most the argument; b"" at the end
Fill: TypeAlias = Callable[[memoryview], int]  # fills a view with the next bytes; returns their number
_CHUNK_NBYTES = 64 << 10
# The maximum memory for decompression; level 9 of xz needs 65 MiB, and the limit of the zstd library is lower.
_MAX_MEMORY = 256 << 20


class Codec(NamedTuple):
    """A codec: a row of the table."""

    name: str
    suffix: str
    magic: bytes
    begin: bytes  # regular expression for the first bytes, which excludes raw numbers that begin with `magic`
    levels: range
    level: int  # default
    unpacker: Callable[[Read], Fill]
    packer: Callable[[int], Any]  # called with a level; `compress(data)` and `flush()` return compressed bytes
    unpacking_nbytes: int  # memory needed for decompression, without the window
    packing_megabytes: Mapping[int, int]  # memory needed for compression, by the lowest level with this need
    library_nbytes: int = 0  # memory needed for the library if it is not loaded
    # Returns the window in bytes that the first bytes of a file declare; None if `unpacking_nbytes` includes it.
    window: Callable[[bytes], int] | None = None

    def unpacking_nbytes_of(self, head: bytes) -> int:
        """Return the memory needed to decompress a file with this head, in bytes; damage is an error later."""
        try:
            window = self.window(_skip_frames(head)) if self.window else 0
        except (IndexError, ValueError):
            window = 0
        return self.unpacking_nbytes + min(window, _MAX_MEMORY)


def _unpacker(make: Callable[[], Any], errors: type[Exception], read: Read) -> Fill:
    """Return the function that fills a view with decompressed bytes; `make` returns a decompressor for each member."""
    member: Any = None
    unused, is_first = b"", True

    def fill(view: memoryview) -> int:
        nonlocal member, unused, is_first
        filled = 0
        while filled < len(view):
            if member is None:  # zeros may follow a member
                if not (unused := unused or read(_CHUNK_NBYTES)):
                    break
                if not is_first and not (unused := unused.lstrip(b"\0")):
                    continue
                member, is_first = make(), False
            data, needed = b"", getattr(member, "needs_input", True)
            if needed:
                data = unused or read(_CHUNK_NBYTES)
            try:
                content: bytes = member.decompress(data, len(view) - filled)
            except errors as error:
                raise ValueError(str(error)) from None
            view[filled : filled + len(content)] = content
            filled += len(content)
            unused = getattr(member, "unconsumed_tail", b"")  # zlib; other decompressors keep unused input
            if member.eof:
                member, unused = None, member.unused_data
            elif needed and not data and not content:
                raise ValueError("it is cut off")
        return filled

    return fill


def _load(library: str, make: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return a function that imports a library, and calls `make` with the library and its argument."""
    return lambda argument: make(importlib.import_module(library), argument)


def _xz_window(head: bytes) -> int:
    """Return the dictionary size of the last filter of the first block, LZMA2 (The .xz File Format, 3.1, 5.3.1)."""
    fields = head[14 : 8 + 4 * (head[12] + 1)]  # header of the block, between flags and checksum
    bits = fields[fields.rindex(b"\x21\1") + 2] & 0x3F
    return (2 | bits & 1) << (bits // 2 + 11)


def _zstd_window(head: bytes) -> int:
    """Return the window size of the first frame (RFC 8878, 3.1.1.1)."""
    descriptor = head[4]
    if not descriptor & 0x20:
        exponent, mantissa = divmod(head[5], 8)
        return (8 + mantissa) << (exponent + 7)
    start = 5 + (0, 1, 2, 4)[descriptor & 3]
    nbytes = 1 << (descriptor >> 6)  # of the content size, which is the window of a single segment
    return int.from_bytes(head[start : start + nbytes], "little") + (256 if nbytes == 2 else 0)  # noqa: PLR2004


_ARROW, _ARROW_NBYTES = "mpired.codecs.arrow", 32 << 20
_ROWS = (
    Codec("gzip", ".gz", b"\x1f\x8b\x08", rb"...[\0-\x1f].{5}[\0-\x0d\xff]", levels=range(1, 10), level=6,
        unpacker=_load("zlib", lambda zlib, read: _unpacker(
            lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error, read)),
        # The header has no name and no time, so equal results have equal bytes.
        packer=_load("zlib", lambda zlib, level: zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS | 16)),
        unpacking_nbytes=1 << 20, packing_megabytes={1: 1}),
    Codec("bzip2", ".bz2", b"BZh", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", levels=range(1, 10), level=9,
        unpacker=_load("bz2", lambda bz2, read: _unpacker(bz2.BZ2Decompressor, OSError, read)),
        packer=_load("bz2", lambda bz2, level: bz2.BZ2Compressor(level)), unpacking_nbytes=4 << 20,
        packing_megabytes={1: 8}),
    Codec("xz", ".xz", b"\xfd7zXZ\0", b"", levels=range(10), level=6,
        unpacker=_load("lzma", lambda lzma, read: _unpacker(
            lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MAX_MEMORY), lzma.LZMAError, read)),
        packer=_load("lzma", lambda lzma, level: lzma.LZMACompressor(preset=level)), unpacking_nbytes=1 << 20,
        packing_megabytes={0: 4, 1: 10, 2: 18, 3: 33, 4: 49, 5: 95, 7: 187, 8: 371, 9: 675}, window=_xz_window),
    Codec("zstd", ".zst", b"\x28\xb5\x2f\xfd", b"", levels=range(1, 23), level=3,
        unpacker=_load(_ARROW, lambda arrow, read: arrow.decompressor("zstd", read)),
        packer=_load(_ARROW, lambda arrow, level: arrow.ArrowCompressor("zstd", level)), unpacking_nbytes=6 << 20,
        packing_megabytes={1: 20, 4: 32, 10: 88}, library_nbytes=_ARROW_NBYTES, window=_zstd_window),
    Codec("lz4", ".lz4", b"\x04\x22\x4d\x18", b"", levels=range(1, 13), level=1,
        unpacker=_load(_ARROW, lambda arrow, read: arrow.decompressor("lz4", read)),
        packer=_load(_ARROW, lambda arrow, level: arrow.ArrowCompressor("lz4", level)), unpacking_nbytes=5 << 20,
        packing_megabytes={1: 8}, library_nbytes=_ARROW_NBYTES),
)  # fmt: skip
CODECS = {row.name: row for row in _ROWS}
# Magic numbers of skippable frames of zstd and lz4, which pzstd and indexing tools write: 4 bytes, the length, content.
_SKIPPABLE = tuple(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60))
_BY_SUFFIX = {row.suffix: row for row in _ROWS}
SUFFIXES = tuple(_BY_SUFFIX)
# So that the first byte shows for most files that they are not compressed.
_FIRST_BYTES = frozenset({row.magic[0] for row in _ROWS} | {frame[0] for frame in _SKIPPABLE})


def by_content(head: bytes) -> Codec | None:
    """Return the codec of a file with these first bytes, or None."""
    if not head or head[0] not in _FIRST_BYTES:
        return None
    head = _skip_frames(head)
    rows = (row for row in _ROWS if head.startswith(row.magic) and re.match(row.begin, head, re.DOTALL))
    return next(rows, None)


def _skip_frames(head: bytes) -> bytes:
    """Return the bytes after skippable frames."""
    while head.startswith(_SKIPPABLE) and len(head) > 8 + (nbytes := int.from_bytes(head[4:8], "little")):
        head = head[8 + nbytes :]
    return head


def by_suffix(path: str) -> Codec | None:
    """Return the codec of the suffix of a path, or None."""
    return _BY_SUFFIX.get(os.path.splitext(path)[1].lower())


def strip_suffix(path: str) -> str:
    """Return a path without the suffix of a codec."""
    return os.path.splitext(path)[0] if path.lower().endswith(SUFFIXES) else path
