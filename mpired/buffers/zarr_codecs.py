"""The codecs of Zarr's chunks, by which no chunk unfolds to more than its elements take.

numcodecs takes what a chunk declares, or yields, whatever the array is. Of zstd, lz4 and Blosc what they declare is
looked at before anything is decoded, as of texts how many they are; zstd that declares nothing, gzip, zlib, bzip2 and
xz are decoded to a limit. Codecs of other packages (pcodec, zfpy, imagecodecs) are left to themselves.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

from mpired.codecs.arrow import pa

_BLOSC_NBYTES = 16  # of a header: how many bytes the elements take, and at its end how many bytes all are
_LZ4_NBYTES = 4
_COUNT_NBYTES = 4  # before the texts of a chunk how many they are, and before each its length
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_NBYTES = 14  # of the longest header but for the dictionary, which numcodecs has none of

_Decoding: TypeAlias = Callable[[Any, bytes, int], bytes | None]
"""Returns the elements, or one byte more than so many; None to let numcodecs decode what declares no more than that."""


class _Limit:
    """What a chunk that is decoded next may take: the array, and the most bytes."""

    array = ""
    nbytes = 0


def limit(array: str, nbytes: int) -> None:
    """Let no chunk unfold to more bytes from here on."""
    _Limit.array, _Limit.nbytes = array, nbytes


def _check(nbytes: int, verb: str) -> None:
    if nbytes > _Limit.nbytes:
        reason = f"a chunk of array {_Limit.array!r} {verb} {nbytes} bytes"
        raise ValueError(f"{reason}, and {_Limit.nbytes} are the most of its shape")


def _blosc(_codec: Any, octets: bytes, _most: int) -> None:
    if len(octets) < _BLOSC_NBYTES or int.from_bytes(octets[12:_BLOSC_NBYTES], "little") > len(octets):
        raise ValueError("a chunk of Blosc is cut off")  # numcodecs would read what is behind it in memory
    _check(int.from_bytes(octets[4:8], "little"), "declares")


def _lz4(_codec: Any, octets: bytes, _most: int) -> None:
    _check(int.from_bytes(octets[:_LZ4_NBYTES], "little"), "declares")


def _texts(_codec: Any, octets: bytes, _most: int) -> None:
    count = int.from_bytes(octets[:_COUNT_NBYTES], "little")
    if _COUNT_NBYTES * (count + 1) > len(octets):  # numcodecs would take the memory for so many first
        raise ValueError(f"a chunk of array {_Limit.array!r} declares {count} strings, and has {len(octets)} bytes")


def _zstd(_codec: Any, octets: bytes, most: int) -> bytes | None:
    declared = _declared_by_zstd(octets[:_ZSTD_NBYTES])
    if declared is None:
        with pa.input_stream(pa.py_buffer(octets), compression="zstd") as stream:
            found: bytes = stream.read(most + 1)
            return found
    _check(declared, "declares")
    return None


def _declared_by_zstd(head: bytes) -> int | None:
    """Return what the header of a frame says of the bytes of its content (RFC 8878, 3.1.1.1); None for nothing."""
    if head[:4] != _ZSTD_MAGIC or len(head) == len(_ZSTD_MAGIC):
        return 0  # which is for numcodecs to refuse
    flags = head[4]
    is_single = flags >> 5 & 1
    width = (is_single, 2, 4, 8)[flags >> 6]
    at = 6 - is_single + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0) if width else None  # noqa: PLR2004


def _zlib(_codec: Any, octets: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj()
    found = decoder.decompress(octets, most + 1)
    if len(found) <= most and not decoder.eof:
        raise ValueError("a chunk is cut off")
    return found


def _content(file: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, most: int) -> bytes:
    with file:
        return file.read(most + 1)


def _xz(codec: Any, octets: bytes) -> lzma.LZMAFile:
    return lzma.LZMAFile(io.BytesIO(octets), format=codec.format, filters=codec.filters)


_DECODINGS: dict[str, tuple[str, _Decoding]] = {
    "Blosc": ("blosc", _blosc),
    "LZ4": ("lz4", _lz4),
    "Zstd": ("zstd", _zstd),
    "Zlib": ("zlib", _zlib),
    "GZip": ("gzip", lambda _, octets, most: _content(gzip.GzipFile(fileobj=io.BytesIO(octets)), most)),
    "BZ2": ("bz2", lambda _, octets, most: _content(bz2.BZ2File(io.BytesIO(octets)), most)),
    "LZMA": ("lzma", lambda codec, octets, most: _content(_xz(codec, octets), most)),
    "VLenUTF8": ("vlen", _texts),
    "VLenBytes": ("vlen", _texts),
}


@functools.cache
def guard() -> None:
    """Let numcodecs decode no chunk that takes more than the limit."""
    copy = importlib.import_module("numcodecs.compat").ndarray_copy
    for name, (module, decoding) in _DECODINGS.items():
        codec: Any = getattr(importlib.import_module(f"numcodecs.{module}"), name)
        codec.decode = _guarded(codec.decode, decoding, copy)


def _guarded(decode: Any, decoding: _Decoding, copy: Any) -> Any:
    def decode_within(self: Any, buf: Any, out: Any = None) -> Any:
        octets = bytes(memoryview(buf).cast("B"))
        found = decoding(self, octets, _Limit.nbytes)
        if found is None:
            return decode(self, buf, out)
        _check(len(found), "unfolds to")
        return copy(found, out)

    return decode_within
