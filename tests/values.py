"""Elements to reduce: the values that bite, and ordinary ones."""

import contextlib
import functools
import os
import random
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import reference

# Three ranks of three doubles.
A, B, C = (np.array(values) for values in ([1.5, 2.0, -3.0], [10.0, 0.25, 5.0], [-0.5, 8.0, 4.0]))


def _integers(code: str) -> list[bytes]:
    nbits, signed = 8 * int(code[1]), code[0] == "i"
    low, high = (-(1 << nbits - 1), (1 << nbits - 1) - 1) if signed else (0, (1 << nbits) - 1)
    chosen = [low, low + 1, high - 1, high, 0, 1, 2, 3, -1 if signed else 1 << nbits - 1, high // 2]
    return [value.to_bytes(nbits // 8, "little", signed=signed) for value in chosen]


def _x87(sign: int, exponent: int, fraction: int) -> bytes:
    return fraction.to_bytes(8, "little") + (sign << 15 | exponent).to_bytes(2, "little")


# Limits, both zeros, infinities, neighbours of 1, and NaNs: quiet with several payloads and signs, and signalling.
BITING: dict[str, list[bytes]] = {
    **{code: _integers(code) for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")},
    "f2": [
        struct.pack("<H", bits)
        for bits in (0, 0x8000, 0x3C00, 0xBC00, 0x3C01, 1, 0x8001, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7E05,
                     0xFE07, 0x7C01)
    ],
    "f4": [
        struct.pack("<I", bits)
        for bits in (0, 0x80000000, 0x3F800000, 0xBF800000, 0x3F800001, 1, 0x80000001, 0x7F7FFFFF, 0xFF7FFFFF,
                     0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC12345, 0xFFC54321, 0x7F800001)
    ],
    "f8": [
        struct.pack("<Q", bits)
        for bits in (0, 1 << 63, 0x3FF << 52, 0xBFF << 52, (0x3FF << 52) + 1, 1, (1 << 63) + 1, (0x7FF << 52) - 1,
                     (0xFFF << 52) - 1, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, (0x7FF8 << 48) + 12345,
                     (0xFFF8 << 48) + 54321, (0x7FF << 52) + 1)
    ],
    "g": [
        _x87(sign, exponent, fraction)
        for sign, exponent, fraction in (
            (0, 0, 0), (1, 0, 0), (0, 0x3FFF, 1 << 63), (1, 0x3FFF, 1 << 63), (0, 0x3FFF, (1 << 63) + 1), (0, 0, 1),
            (1, 0, 1), (0, 0x7FFE, (1 << 64) - 1), (1, 0x7FFE, (1 << 64) - 1), (0, 0x7FFF, 1 << 63),
            (1, 0x7FFF, 1 << 63), (0, 0x7FFF, 3 << 62), (0, 0x7FFF, (3 << 62) + 12345),
            (1, 0x7FFF, (3 << 62) + 54321), (0, 0x7FFF, (1 << 63) + 1))
    ],
}  # fmt: skip


def _any_bits(code: str, draw: random.Random) -> bytes:
    if code == "g":  # the integer bit is explicit: not all bits are a number
        return _x87(draw.getrandbits(1), draw.randrange(1, 0x7FFF), draw.getrandbits(63) | 1 << 63)
    return draw.randbytes(reference.VALUE_BYTES[code])


def _ordinary(code: str, draw: random.Random) -> bytes:
    """Return a small integer or a float of a few binary magnitudes, so that sums really round."""
    if code[0] in "iu":
        return reference.encode(code, draw.randrange(0, 7))
    value = draw.uniform(-1, 1) * 2.0 ** draw.randrange(-6, 7)
    return reference.encode(code, np.longdouble(value) / 3 if code == "g" else value)


def element(name: str, draw: random.Random) -> bytes:
    """Draw an element; what lies in its padding is arbitrary."""
    parts, extent = reference.FORMS[name]
    octets = bytearray(draw.randbytes(extent))
    for code, at in parts:
        kind = draw.random()
        if kind < 0.4:
            value = draw.choice(BITING[code])
        else:
            value = _any_bits(code, draw) if kind < 0.6 else _ordinary(code, draw)
        octets[at : at + len(value)] = value
    return bytes(octets)


@functools.cache
def ranks(name: str, nranks: int, count: int) -> tuple[bytes, ...]:
    """Return the buffers of so many ranks, the same ones every time."""
    draw = random.Random(zlib.crc32(name.encode()) + nranks)
    return tuple(b"".join(element(name, draw) for _ in range(count)) for _ in range(nranks))


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Give a folder for thousands of small files, each synced: on a disk that takes minutes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mpired-test-", dir=memory) as folder:
        yield Path(folder)


def one_value(path: Path) -> float | int | None:
    """Return the value of all elements of a file, None if they differ."""
    elements = np.load(path)
    return elements[0].item() if (elements == elements[0]).all() else None
