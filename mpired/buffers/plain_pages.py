"""Pages of a parquet file in which the elements lie as they are, behind the compression: no library has to decode them.

pyarrow copies such elements from the page to its levels' values, to a column and to a batch; here they are taken from
the decompressed page. All other pages are left to it: those with dictionaries, nulls or other compressions, and those
of nested columns.
"""

from __future__ import annotations

import zlib

import numpy as np

from mpired.buffers.footer import Chunk, Leaf, Page
from mpired.buffers.local import DamageError, read_into
from mpired.buffers.thrift import Input
from mpired.codecs.arrow import pa
from mpired.sources.source import OpenSource

_CODECS = {"NONE": None, "SNAPPY": "snappy", "ZSTD": "zstd"}  # of these a page that is too short is found out
_LEVELS_NBYTES = 4  # which say how many bytes the levels have
_VARINT_NBYTES = 10
_ALL_PRESENT = {0: b"\x01", 1: b"\xff"}  # the value of a run of one level, and eight levels of one bit each


def values(file: OpenSource, leaf: Leaf, chunk: Chunk, page: Page) -> np.ndarray | None:
    """Return the elements of a page, read-only; None if a library has to decode it."""
    if not (leaf.plain and page.is_plain and page.values and chunk.compression in _CODECS):
        return None
    data = _decompressed(file, chunk, page)
    start = 0
    if leaf.is_optional:
        start = _LEVELS_NBYTES + int.from_bytes(data[:_LEVELS_NBYTES], "little")
        if not are_all_present(bytes(data[_LEVELS_NBYTES:start]), page.values):
            return None
    form = np.dtype(leaf.plain).newbyteorder("<")
    if len(data) < start + page.values * form.itemsize:
        raise DamageError(f"the page at {page.extent.start} has fewer than {page.values} values")
    return np.frombuffer(data, form, page.values, start)


def _decompressed(file: OpenSource, chunk: Chunk, page: Page) -> memoryview:
    """Return the bytes of a page behind its header."""
    body = np.empty(page.extent.nbytes - page.header_nbytes, np.uint8)
    read_into(file, body, page.extent.start + page.header_nbytes)
    if page.crc is not None and zlib.crc32(body.data) != page.crc & 0xFFFFFFFF:
        raise DamageError(f"the page at {page.extent.start} has another CRC than its header says")
    codec = _CODECS[chunk.compression]
    if codec == "snappy":
        _check_nbytes(page, _snappy_nbytes(body))
    data = body.data if codec is None else memoryview(pa.Codec(codec).decompress(body, page.decoded))
    _check_nbytes(page, len(data))
    return data


def _snappy_nbytes(body: np.ndarray) -> int:
    """Return how many bytes a block of Snappy says that it has: one with fewer would leave the rest undefined."""
    try:
        return Input(bytes(body[:_VARINT_NBYTES])).varint()
    except IndexError:
        return -1


def _check_nbytes(page: Page, nbytes: int) -> None:
    """Raise `DamageError` if a page is not as long as its header says."""
    if nbytes != page.decoded:
        raise DamageError(f"the page at {page.extent.start} does not have the {page.decoded} bytes of its header")


def are_all_present(levels: bytes, count: int) -> bool:
    """Tell whether so many definition levels of one bit, in runs of one level and in groups of eight, are all 1."""
    run, there = Input(levels), 0
    try:
        while there < count:
            head = run.varint()
            is_packed, repeats = head & 1, head >> 1
            if not repeats or run.take(repeats if is_packed else 1).strip(_ALL_PRESENT[is_packed]):
                return False
            there += 8 * repeats if is_packed else repeats
    except IndexError:  # the library tells what is wrong
        return False
    return True
