"""Compressed ranks: recognised by content, read by every command, and what is damaged."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import subprocess

import numpy as np
import pyarrow as pa
import pytest
from command import measured, reduce, refused, run, succeeded, unchanged
from needs import needs
from tables import bytes_of

import mpired
from mpired.codecs import CODECS
from mpired.errors import BufferFileError
from mpired.sources.compressed import CompressedSource
from mpired.sources.local import LocalSource

CHANCE = np.random.default_rng(16)
RANKS = [CHANCE.integers(-1000, 1000, (300, 500)).astype("f8") for _ in range(3)]
SUM = RANKS[0] + RANKS[1] + RANKS[2]


def by_program(name: str, data: bytes) -> bytes:
    needs(name)
    return subprocess.run([name, "-c"], input=data, capture_output=True, check=True).stdout


PACK = {
    "gzip": functools.partial(gzip.compress, compresslevel=6),
    "bzip2": bz2.compress,
    "xz": functools.partial(lzma.compress, preset=0),
    "zstd": functools.partial(by_program, "zstd"),
    "lz4": functools.partial(by_program, "lz4"),
}
UNPACK = {
    "gzip": gzip.decompress,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout,
    "lz4": lambda data: subprocess.run(["lz4", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout,
}
SUFFIXES = {name: row.suffix for name, row in CODECS.items()}
every_codec = pytest.mark.parametrize("codec", PACK)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FORMS = {
    ".npy": npy,
    ".bin": np.ndarray.tobytes,
    ".parquet": lambda array: bytes_of(pa.table({"x": array.ravel()}), "parquet"),
    ".arrow": lambda array: bytes_of(pa.table({"x": array.ravel()}), "arrow"),
}


def test_every_codec_is_tried():
    assert PACK.keys() == UNPACK.keys() == CODECS.keys()


@pytest.mark.parametrize("form", FORMS)
@every_codec
@pytest.mark.sampled(3)
def test_ranks_of_every_format(codec, form, tmp_path):
    names = [f"r{i}{form}{SUFFIXES[codec]}" for i in range(3)]
    for name, array in zip(names, RANKS, strict=True):
        (tmp_path / name).write_bytes(PACK[codec](FORMS[form](array)))
    words = ("--op", "sum", "--type", "double", *names)
    assert reduce(*words, "--to", "raw", cwd=tmp_path) == (0, SUM.tobytes(), "")
    streams = [(tmp_path / name).read_bytes() for name in names]
    assert reduce(*words[:-1], "--to", "raw", "-", cwd=tmp_path, stdin=streams[2]) == (0, SUM.tobytes(), "")


@every_codec
def test_members_one_after_another_any_name_and_an_op_that_reads_twice(codec, folder, tmp_path):
    data = RANKS[0].astype("i2").tobytes()
    (tmp_path / "r.0").write_bytes(PACK[codec](data[:1000]) + PACK[codec](data[1000:]))
    (tmp_path / "r.1").write_bytes(data)
    found = mpired.reduce([tmp_path / "r.0", tmp_path / "r.1"], "prod", type="int16_t", overflow="wrap")
    assert np.array_equal(found, np.frombuffer(data, "i2") ** 2)
    with pytest.raises(mpired.MpiredError, match="overflow"):
        mpired.reduce([tmp_path / "r.0", tmp_path / "r.1"], "prod", type="int16_t", overflow="error")


@pytest.mark.parametrize("damage", ["cut", "changed", "more"])
@every_codec
def test_what_is_damaged_is_told_on_one_line(codec, damage, tmp_path):
    data = bytearray(PACK[codec](npy(RANKS[0])))
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "changed":
        place = len(data) * 3 // 4
        data[place : place + 8] = b"damaged."
    else:
        data += b"more"
    name = f"r.npy{SUFFIXES[codec]}"
    (tmp_path / name).write_bytes(data)
    np.save(tmp_path / "a.npy", RANKS[1])
    with unchanged(tmp_path):
        outcome = run("reduce", "--op", "sum", "a.npy", name, "-o", "out.npy", cwd=tmp_path)
        # What is changed may be decompressed to something else before its checksum tells.
        reason = "" if damage == "changed" else f"cannot be decompressed, the {codec} data is damaged ("
        refused(outcome, 3, f"{name}: {reason}")


@every_codec
def test_a_header_that_promises_other_elements(codec, tmp_path):
    data = npy(RANKS[0])
    for name, content, found in (("s", data[:-8], "found 1199992"), ("l", data + bytes(8), "found more")):
        (tmp_path / name).write_bytes(PACK[codec](content))
        with unchanged(tmp_path):
            outcome = run("reduce", "--op", "sum", name, "-o", "out.npy", cwd=tmp_path)
            refused(outcome, 3, f"{name}: expected 1200000 data bytes for the shape (300, 500), {found}")


@every_codec
def test_names_that_disagree(codec, tmp_path):
    suffix = SUFFIXES[codec]
    (tmp_path / "r.npy").write_bytes(PACK[codec](npy(RANKS[0])))
    (tmp_path / f"p.npy{suffix}").write_bytes(npy(RANKS[0]))
    other = next(each for each in SUFFIXES.values() if each != suffix)
    (tmp_path / f"o.npy{other}").write_bytes(PACK[codec](npy(RANKS[0])))
    for name, reason in (
        (
            "r.npy",
            f"holds {codec} by its first bytes, but its suffix means npy; rename it, for example to r.npy{suffix}",
        ),
        (f"p.npy{suffix}", f"does not begin as {codec}, but its suffix means {codec}; rename it"),
        (f"o.npy{other}", f"holds {codec} by its first bytes, but its suffix means"),
    ):
        refused(run("reduce", "--op", "sum", name, cwd=tmp_path), 3, f"{name}: {reason}")


@every_codec
def test_other_commands_and_targets(codec, tmp_path):
    name = f"r.npy{SUFFIXES[codec]}"
    (tmp_path / name).write_bytes(PACK[codec](npy(RANKS[0])))
    np.save(tmp_path / "r.npy", RANKS[0])
    np.save(tmp_path / "t.npy", RANKS[1])
    np.save(tmp_path / "f.npy", np.asfortranarray(RANKS[1]))
    assert run("diff", name, "r.npy", cwd=tmp_path).status == 0
    located = [run("locate", "--op", "maxloc", "--json", each, cwd=tmp_path).out for each in (name, "r.npy")]
    assert located[0].replace(name.encode(), b"r.npy") == located[1] != b""
    for order in (("f.npy", name), (name, "f.npy")):
        found = mpired.reduce([tmp_path / each for each in order], "sum")
        assert np.array_equal(found, RANKS[0] + RANKS[1])
    with unchanged(tmp_path):
        words = ("--op", "sum", name, "t.npy")
        refused(run("accumulate", *words, cwd=tmp_path), 3, f"{name}: is {codec}; decompress it first")
        refused(
            run("accumulate", "--create", "3", *words[:2], f"new{name}", "t.npy", cwd=tmp_path), 2, "--create", codec
        )
        refused(run("reduce", "--in-place", *words, cwd=tmp_path), 2, "compressed and cannot be replaced")
        refused(run("reduce", *words, "-f", "-o", name, cwd=tmp_path), 2, f"{name}: is the file of rank 0")
    succeeded(run("accumulate", "-q", "--op", "sum", "t.npy", name, cwd=tmp_path))
    assert np.array_equal(np.load(tmp_path / "t.npy"), RANKS[0] + RANKS[1])


def test_what_is_in_it_is_of_another_program_or_compressed_too(tmp_path):
    (tmp_path / "r.gz").write_bytes(gzip.compress(gzip.compress(bytes(64))))
    (tmp_path / "h.gz").write_bytes(gzip.compress(b"\x0e\x03\x13\x01" + bytes(64)))
    for name, reason in (("r.gz", "is gzip; decompress it first"), ("h.gz", "is HDF4; save its numbers")):
        refused(reduce("--op", "sum", "--type", "double", name, cwd=tmp_path), 3, f"{name}: {reason}")


def test_zeros_behind_gzip_and_its_optional_fields(tmp_path):
    data = RANKS[0].tobytes()
    with gzip.GzipFile(tmp_path / "named.bin.gz", "wb", mtime=7) as file:
        file.write(data)
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(data) + bytes(200_000) + gzip.compress(data[:8]))
    words = ("--op", "sum", "--type", "double", "--to", "raw")
    assert reduce(*words, "named.bin.gz", cwd=tmp_path) == (0, data, "")
    assert reduce(*words, "zeros.gz", cwd=tmp_path) == (0, data + data[:8], "")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_bomb_takes_no_memory(codec, tmp_path):
    """Zeros of 256 MiB in some kilobytes."""
    bomb = PACK[codec](
        npy(np.zeros(8, "f8")).replace(b"(8,), }" + b" " * 9, b"(33554432,), }  ")[:128] + bytes(256 << 20)
    )
    assert len(bomb) < 1 << 20
    (tmp_path / f"r.npy{SUFFIXES[codec]}").write_bytes(bomb)
    status, peak, err = measured("reduce", "--op", "max", f"r.npy{SUFFIXES[codec]}", "-o", "out.npy", cwd=tmp_path)
    assert (status, "33554432 x float64" in err) == (0, True), err
    assert peak < 150 << 20


@pytest.mark.parametrize("threads", [0, 2])
@every_codec
def test_ranges_of_any_size_that_go_forward(codec, threads, tmp_path):
    data = CHANCE.bytes(100) + CHANCE.integers(0, 9, 1_500_000, np.uint8).tobytes()
    (tmp_path / "r").write_bytes(PACK[codec](data))
    file = CompressedSource(LocalSource.of("r", str(tmp_path / "r")), codec, 0, threads=threads).open()
    at = 0
    while at < len(data):
        count = int(CHANCE.choice([8, 4096, 40_000, 262_144]))
        for _ in range(2):  # the last range can be read again
            assert file.read(count, at) == data[at : at + count]
        at += count + int(CHANCE.choice([0, 0, 5000]))
    assert file.read(8, len(data)) == b""
    with pytest.raises(BufferFileError, match="is read forward, and byte 0 is read already"):
        file.read(8, 0)


@pytest.mark.parametrize(("codec", "suffix"), [("zstd", ".zst"), ("lz4", ".lz4")])
def test_a_frame_that_is_skipped_may_come_first(codec, suffix, tmp_path):
    """As parallel compressors and indexes write them (RFC 8878, 3.1.2)."""
    array = np.arange(100.0)
    skipped = bytes.fromhex("532a4d180c000000") + bytes(12)
    (tmp_path / f"r.npy{suffix}").write_bytes(skipped * 2 + PACK[codec](npy(array)))
    succeeded(reduce("--op", "sum", f"r.npy{suffix}", "-o", "out.npy", cwd=tmp_path))
    assert np.array_equal(np.load(tmp_path / "out.npy"), array)
