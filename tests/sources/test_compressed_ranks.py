"""Compressed ranks: recognised by content, read by every command, and what is damaged."""

import bz2
import functools
import gzip
import lzma
import subprocess

import numpy as np
import pytest
from bad_files import npy_of
from command import reduce, refused, run, unchanged
from needs import needs

from mpired.codecs import CODECS
from mpired.context import Context
from mpired.errors import BufferFileError
from mpired.sources.local import LocalSource
from mpired.sources.stream import CompressedSource

CHANCE = np.random.default_rng(16)
RANKS = [CHANCE.integers(-1000, 1000, (300, 500)).astype("f8") for _ in range(3)]


def by_program(name: str, data: bytes) -> bytes:
    needs(name)
    return subprocess.run([name, "-c"], input=data, capture_output=True, check=True).stdout


PACK = {"gzip": functools.partial(gzip.compress, compresslevel=6), "bzip2": bz2.compress}
PACK |= {"xz": functools.partial(lzma.compress, preset=0)}
PACK |= {name: functools.partial(by_program, name) for name in ("zstd", "lz4")}
assert PACK.keys() == CODECS.keys()
SUFFIXES = {name: row.suffix for name, row in CODECS.items()}
every_codec = pytest.mark.parametrize("codec", PACK)


@every_codec
def test_what_is_damaged_is_told_on_one_line(codec, tmp_path):
    """What is changed may be decompressed to something else before its checksum tells."""
    data, name, npy = PACK[codec](npy_of(RANKS[0])), f"r.npy{SUFFIXES[codec]}", npy_of(RANKS[0])
    place, damaged = len(data) * 3 // 4, f"cannot be decompressed, the {codec} data is damaged ("
    np.save(tmp_path / "a.npy", RANKS[1])
    for content, reason in (
        (data[: len(data) // 2], damaged),
        (data[:place] + b"damaged." + data[place + 8 :], ""),
        (data + b"more", damaged),
        (PACK[codec](npy[:-8]), "has count 149999, but its header declares 150000"),
        (PACK[codec](npy + bytes(8)), "has more than 150000 elements, but its header declares 150000"),
    ):
        (tmp_path / name).write_bytes(content)
        with unchanged(tmp_path):
            refused(run("reduce", "--op", "sum", "a.npy", name, "-o", "out.npy", cwd=tmp_path), 3, f"{name}: {reason}")


@every_codec
def test_names_that_disagree(codec, tmp_path):
    suffix = SUFFIXES[codec]
    other = next(each for each in SUFFIXES.values() if each != suffix)
    npy = npy_of(RANKS[0])
    holds = f"holds {codec} by its first bytes, but its suffix means"
    for name, content, reason in (
        ("r.npy", PACK[codec](npy), f"{holds} npy; rename it, for example to r.npy{suffix}"),
        (f"p.npy{suffix}", npy, f"does not begin as {codec}, but its suffix means {codec}; rename it"),
        (f"o.npy{other}", PACK[codec](npy), holds),
    ):
        (tmp_path / name).write_bytes(content)
        refused(run("reduce", "--op", "sum", name, cwd=tmp_path), 3, f"{name}: {reason}")


def test_what_is_in_it_and_around_it(tmp_path):
    """It may be compressed twice or of another program; there may be zeros behind, fields, and frames to skip."""
    for name, content, reason in (
        ("r.gz", gzip.compress(bytes(64)), "is gzip; decompress it first"),
        ("h.gz", b"\x0e\x03\x13\x01" + bytes(64), "is HDF4; save its numbers"),
    ):
        (tmp_path / name).write_bytes(gzip.compress(content))
        refused(reduce("--op", "sum", "--type", "double", name, cwd=tmp_path), 3, f"{name}: {reason}")
    data = RANKS[0].tobytes()
    with gzip.GzipFile(tmp_path / "named.bin.gz", "wb", mtime=7) as file:
        file.write(data)
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(data) + bytes(200_000) + gzip.compress(data[:8]))
    skipped = bytes.fromhex("532a4d180c000000") + bytes(12)  # as parallel compressors write them (RFC 8878, 3.1.2)
    for codec in ("zstd", "lz4"):
        (tmp_path / f"r.bin{SUFFIXES[codec]}").write_bytes(skipped * 2 + PACK[codec](data))
    words = ("--op", "sum", "--type", "double", "--to", "raw")
    for name in ("named.bin.gz", "zeros.gz", "r.bin.zst", "r.bin.lz4"):
        assert reduce(*words, name, cwd=tmp_path) == (0, data + data[: 8 * (name == "zeros.gz")], "")


@every_codec
def test_ranges_of_any_size_that_go_forward(codec, tmp_path):
    data = CHANCE.bytes(100) + CHANCE.integers(0, 9, 1_500_000, np.uint8).tobytes()
    (tmp_path / "r").write_bytes(PACK[codec](data))
    for jobs in (1, 2):
        source = CompressedSource(LocalSource("r", str(tmp_path / "r")), codec, 0, Context(jobs=jobs))
        file = source.open()
        at = 0
        while at < len(data):
            count = int(CHANCE.choice([8, 4096, 40_000, 262_144]))
            for _ in range(2):  # the last range can be read again
                assert file.read(count, at) == data[at : at + count]
            at += count + int(CHANCE.choice([0, 0, 5000]))
        assert file.read(8, len(data)) == b""
        with pytest.raises(BufferFileError, match="is read forward, and byte 0 is read already"):
            file.read(8, 0)
