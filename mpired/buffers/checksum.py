"""CRC-32 of a range of a file, of which several threads take a part each: the parts are combined as polynomials."""

from __future__ import annotations

import zlib
from functools import reduce
from itertools import pairwise

from mpired.storage import calls

_POLYNOMIAL = 0xEDB88320  # the highest coefficient is the lowest bit (ISO 3309)
_ONE, _X = 1 << 31, 1 << 30
# What is less is not worth a thread.
_PART_NBYTES = 4 << 20


def crc32(fd: int, start: int, stop: int, nthreads: int) -> int:
    """Return the checksum of the bytes from `start` to `stop`."""
    nparts = max(1, min(nthreads, (stop - start) // _PART_NBYTES))
    borders = [start + (stop - start) * i // nparts for i in range(nparts + 1)]
    parts = list(pairwise(borders))
    if nparts == 1:
        return _of_part(fd, *parts[0])
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only for large files

    with ThreadPoolExecutor(nparts) as threads:
        sums = threads.map(lambda part: (_of_part(fd, *part), part[1] - part[0]), parts)
        return reduce(_joined, sums, (0, 0))[0]


def _of_part(fd: int, start: int, stop: int) -> int:
    crc = 0
    for block in calls.blocks(fd, start, stop):
        crc = zlib.crc32(block, crc)
    return crc


def _joined(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """Return the checksum and the number of bytes of two pieces, one behind the other."""
    crc, nbytes = second
    return _product(_power(8 * nbytes), first[0]) ^ crc, first[1] + nbytes


def _product(a: int, b: int) -> int:
    """Multiply polynomials."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power(exponent: int) -> int:
    """Return a power of x."""
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square, exponent = _product(square, square), exponent >> 1
    return result
