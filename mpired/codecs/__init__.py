"""Compression and decompression: the codecs, one row each."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

Read: TypeAlias = Callable[[int], bytes]  # returns the next bytes, at most a number of them; b"" at the end
Fill: TypeAlias = Callable[[memoryview], int]  # fills a view with the next bytes; returns how many before the end
_CHUNK_NBYTES = 64 << 10
# The most that is decompressed, a file says how much it needs: 65 MiB with level 9 of xz; zstd's library takes no more.
_MOST_MEMORY = 256 << 20


class Codec(NamedTuple):
    """A codec: a row of the table."""

    name: str
    suffix: str
    magic: bytes
    begin: bytes  # what such bytes begin with, as a regular expression: long enough that no numbers have it by chance
    levels: range
    level: int  # the usual one
    unpacker: Callable[[Read], Fill]
    packer: Callable[[int], Any]  # with a level; `compress(data)` and `flush()` of it return compressed bytes
    unpacking: int  # bytes of memory that decompressing a file takes, beside its window
    packing: Mapping[int, int]  # megabytes of memory that making one takes, from each of these levels on
    library: int = 0  # bytes of memory that the library takes, unless it is there
    # returns the bytes of the window that the first bytes of a file ask for; None if it is in `unpacking`
    window: Callable[[bytes], int] | None = None

    def unpacking_of(self, head: bytes) -> int:
        """Return the memory that decompressing a file with this beginning takes; damage is an error later."""
        try:
            window = self.window(_first_frame(head)) if self.window else 0
        except (IndexError, ValueError):
            window = 0
        return self.unpacking + min(window, _MOST_MEMORY)


def _members(make: Callable[[], Any], errors: type[Exception], read: Read) -> Fill:
    """Return what fills a view with the contents of one member after another, as a library decompresses each."""
    member: Any = None
    rest, is_first = b"", True

    def fill(view: memoryview) -> int:
        nonlocal member, rest, is_first
        done = 0
        while done < len(view):
            if member is None:  # behind the first there may be zeros
                if not (rest := rest or read(_CHUNK_NBYTES)):
                    break
                if not is_first and not (rest := rest.lstrip(b"\0")):
                    continue
                member, is_first = make(), False
            data, needed = b"", getattr(member, "needs_input", True)
            if needed:
                data = rest or read(_CHUNK_NBYTES)
            try:
                found: bytes = member.decompress(data, len(view) - done)
            except errors as error:
                raise ValueError(str(error)) from None
            view[done : done + len(found)] = found
            done += len(found)
            rest = getattr(member, "unconsumed_tail", b"")  # of zlib; the others keep it
            if member.eof:
                member, rest = None, member.unused_data
            elif needed and not data and not found:
                raise ValueError("it is cut off")
        return done

    return fill


def _by(library: str, make: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return a function of a library, which is imported at the first call."""
    return lambda given: make(importlib.import_module(library), given)


def _xz_window(head: bytes) -> int:
    """Return the dictionary of the last filter of the first block, LZMA2 (The .xz File Format, 3.1, 5.3.1)."""
    fields = head[14 : 8 + 4 * (head[12] + 1)]  # of the block's header, between its flags and its checksum
    bits = fields[fields.rindex(b"\x21\1") + 2] & 0x3F
    return (2 | bits & 1) << (bits // 2 + 11)


def _zstd_window(head: bytes) -> int:
    """Return what the first frame says (RFC 8878, 3.1.1.1)."""
    descriptor = head[4]
    if not descriptor & 0x20:
        exponent, mantissa = divmod(head[5], 8)
        return (8 + mantissa) << (exponent + 7)
    start = 5 + (0, 1, 2, 4)[descriptor & 3]
    nbytes = 1 << (descriptor >> 6)  # the content in one segment is the window
    return int.from_bytes(head[start : start + nbytes], "little") + (256 if nbytes == 2 else 0)  # noqa: PLR2004


_FRAMES = "mpired.codecs.arrow"
_ARROW = 32 << 20
_ROWS = (
    Codec("gzip", ".gz", b"\x1f\x8b\x08", rb"...[\0-\x1f].{5}[\0-\x0d\xff]", levels=range(1, 10), level=6,
        unpacker=_by("zlib", lambda zlib, read: _members(
            lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error, read)),
        # without a name and a time
        packer=_by("zlib", lambda zlib, level: zlib.compressobj(level, zlib.DEFLATED, zlib.MAX_WBITS | 16)),
        unpacking=1 << 20, packing={1: 1}),
    Codec("bzip2", ".bz2", b"BZh", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", levels=range(1, 10), level=9,
        unpacker=_by("bz2", lambda bz2, read: _members(bz2.BZ2Decompressor, OSError, read)),
        packer=_by("bz2", lambda bz2, level: bz2.BZ2Compressor(level)), unpacking=4 << 20, packing={1: 8}),
    Codec("xz", ".xz", b"\xfd7zXZ\0", b"", levels=range(10), level=6,
        unpacker=_by("lzma", lambda lzma, read: _members(
            lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MOST_MEMORY), lzma.LZMAError, read)),
        packer=_by("lzma", lambda lzma, level: lzma.LZMACompressor(preset=level)), unpacking=1 << 20,
        packing={0: 4, 1: 10, 2: 18, 3: 33, 4: 49, 5: 95, 7: 187, 8: 371, 9: 675}, window=_xz_window),
    Codec("zstd", ".zst", b"\x28\xb5\x2f\xfd", b"", levels=range(1, 23), level=3,
        unpacker=_by(_FRAMES, lambda frames, read: frames.unframing("zstd", read)),
        packer=_by(_FRAMES, lambda frames, level: frames.Framing("zstd", level)), unpacking=6 << 20,
        packing={1: 20, 4: 32, 10: 88}, library=_ARROW, window=_zstd_window),
    Codec("lz4", ".lz4", b"\x04\x22\x4d\x18", b"", levels=range(1, 13), level=1,
        unpacker=_by(_FRAMES, lambda frames, read: frames.unframing("lz4", read)),
        packer=_by(_FRAMES, lambda frames, level: frames.Framing("lz4", level)), unpacking=5 << 20, packing={1: 8},
        library=_ARROW),
)  # fmt: skip
CODECS = {row.name: row for row in _ROWS}
# A frame that zstd and lz4 skip, as pzstd and tools that index write first: 4 bytes, the length, the content.
_SKIPPED = tuple(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60))
_BY_SUFFIX = {row.suffix: row for row in _ROWS}
SUFFIXES = tuple(_BY_SUFFIX)
# Most ranks are not compressed, which one byte shows.
_FIRST_BYTES = frozenset({row.magic[0] for row in _ROWS} | {frame[0] for frame in _SKIPPED})


def by_content(head: bytes) -> Codec | None:
    """Return the codec of bytes that begin so, None if they are not compressed."""
    if not head or head[0] not in _FIRST_BYTES:
        return None
    head = _first_frame(head)
    rows = (row for row in _ROWS if head.startswith(row.magic) and re.match(row.begin, head, re.DOTALL))
    return next(rows, None)


def _first_frame(head: bytes) -> bytes:
    """Return the bytes behind frames that are skipped."""
    while head.startswith(_SKIPPED) and len(head) > 8 + (nbytes := int.from_bytes(head[4:8], "little")):
        head = head[8 + nbytes :]
    return head


def by_suffix(path: str) -> Codec | None:
    """Return the codec that the ending of a name means, None if it means none."""
    return _BY_SUFFIX.get(os.path.splitext(path)[1].lower())


def stripped(path: str) -> str:
    """Return a name without the ending that means a codec."""
    return os.path.splitext(path)[0] if path.lower().endswith(SUFFIXES) else path
