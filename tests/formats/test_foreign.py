"""Files of other programs are known as such, and no numbers are taken for one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, unchanged
from pyarrow import orc

import mpired
from mpired.codecs import CODECS
from mpired.errors import BufferFileError
from mpired.formats import foreign

NUMBERS = np.arange(1000.0)
RAW = NUMBERS.tobytes()


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", RAW)
    return file.getvalue()


def _tar(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        entry = tarfile.TarInfo("x")
        entry.size = len(RAW)
        archive.addfile(entry, io.BytesIO(RAW))
    return file.getvalue()


def _arrow_stream(columns: int) -> bytes:
    table = pa.table({f"column {i}": NUMBERS for i in range(columns)}, metadata={"k": "v" * columns})
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    return file.getvalue()


def _compressed(codec: str) -> bytes:
    file = pa.BufferOutputStream()
    with pa.CompressedOutputStream(file, codec) as stream:
        stream.write(RAW)
    return file.getvalue().to_pybytes()


def _orc() -> bytes:
    """What has as many bytes as numbers have: the end of the file is its sign."""
    for count in range(1, 1000):
        file = io.BytesIO()
        orc.write_table(pa.table({"x": NUMBERS[:count]}), file)
        if len(file.getvalue()) % 8 == 0:
            return file.getvalue()
    raise AssertionError("no file of that length")


def _old_arrow_stream(columns: int) -> bytes:
    """What a stream is behind its first four bytes, without the -1 that newer versions write before each message."""
    new = _arrow_stream(columns)
    length = int.from_bytes(new[4:8], "little")
    # A message is filled up so that it ends at a multiple of 8.
    return struct.pack("<I", length + 4) + new[8 : 8 + length] + bytes(4) + new[8 + length :]


_HELD = {
    "array": NUMBERS,
    "list": [1.5] * 100,
    "list of one": [7],
    "dict": {"x": 1.5, "y": [2]},
    "dict of one": {"x": 1},
    "tuple": (1.5,) * 100,
    "pair": (7, 8),
    "text": "mpired " * 100,
    "short text": "mpired",
    "bytes": b"mpired " * 100,
    "short bytes": b"mpired",
    "true": True,
    "false": False,
    "nothing": (),
}
# What could be numbers as well.
_COULD_BE_NUMBERS = {("true", 0), ("true", 1), ("false", 0), ("false", 1), ("nothing", 0), ("nothing", 1)}
_COULD_BE_NUMBERS |= {("tuple", 1), ("pair", 1)}


def _pickles():
    for name, value in _HELD.items():
        for protocol in range(6):
            if (name, protocol) not in _COULD_BE_NUMBERS:
                yield f"pickle of a {name}, protocol {protocol}", "a pickle", pickle.dumps(value, protocol)


HDF4 = b"\x0e\x03\x13\x01"
FITS = b"SIMPLE  =                    T / conforms to FITS standard".ljust(
    80
) + b"BITPIX  =                  -64".ljust(80)
FILES = [
    ("zip", "a zip archive", _zip()),
    ("empty zip", "a zip archive", b"PK\5\6" + bytes(18)),
    ("gzip", "gzip", gzip.compress(RAW)),
    ("gzip with a name", "gzip", b"\x1f\x8b\x08\x08\0\0\0\0\x02\xff" + b"r.bin\0" + gzip.compress(RAW)[10:]),
    ("bzip2", "bzip2", bz2.compress(RAW)),
    ("empty bzip2", "bzip2", bz2.compress(b"")),
    ("xz", "xz", lzma.compress(RAW)),
    ("zstd", "zstd", _compressed("zstd")),
    ("lz4", "lz4", _compressed("lz4")),
    ("tar of POSIX", "a tar archive", _tar(tarfile.USTAR_FORMAT)),
    ("tar of GNU", "a tar archive", _tar(tarfile.GNU_FORMAT)),
    ("ROOT", "a ROOT file", b"root\0\0\xf3\xc0\0\0\0d\0\0\x1a\xb4" + RAW),
    ("large ROOT", "a ROOT file", b"root\0\x10\x36\x02\0\0\0d" + RAW),
    ("FITS", "FITS", FITS.ljust(2880) + RAW),
    ("GRIB", "GRIB", b"GRIB\0\0\0\x02" + bytes(8) + RAW),
    ("MATLAB 5", "a MATLAB file", b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\1IM" + RAW),
    ("ORC", "ORC", _orc()),
    ("old Arrow stream", "an Arrow stream", _old_arrow_stream(1)),
    ("old Arrow stream with a long schema", "an Arrow stream", _old_arrow_stream(1000)),
    *_pickles(),
]  # fmt: skip
FIRST_OF_A_KIND = {kind: name for name, kind, _ in reversed(FILES)}
SUFFIXES = ("", ".bin", ".dat", ".npy")
# Each file with one of the suffixes in turn, and the first of each kind with all of them.
CASES = [
    pytest.param(kind, content, suffix, id=f"{name} {suffix}")
    for i, (name, kind, content) in enumerate(FILES)
    if kind not in CODECS
    for suffix in (SUFFIXES if name == FIRST_OF_A_KIND[kind] else SUFFIXES[i % 4 :][:1])
]


@pytest.mark.parametrize(("kind", "content", "suffix"), CASES)
def test_a_file_of_another_program_is_not_raw(kind, content, suffix, tmp_path):
    (tmp_path / f"r{suffix}").write_bytes(content)
    words = ("--op", "sum", "--type", "uint8_t", f"r{suffix}", f"r{suffix}")
    with unchanged(tmp_path):
        outcome = run("reduce", *words, "-o", "out.bin", cwd=tmp_path)
        refused(outcome, 3, f"r{suffix}: is {kind}", ";")
        assert "--from" not in outcome.err
    outcome = run("reduce", "-q", *words, "--from", "raw", "--to", "raw", "--overflow", "wrap", cwd=tmp_path)
    assert outcome == (0, np.add(*[np.frombuffer(content, "u1")] * 2).tobytes(), "")


@pytest.mark.parametrize("command", ["accumulate", "get-accumulate"])
def test_neither_origin_nor_target_is_another_programs(command, tmp_path):
    (tmp_path / "x.dat").write_bytes(HDF4 * 4)
    (tmp_path / "t.bin").write_bytes(bytes(64))
    words = (command, "--op", "sum", "--type", "double")
    with unchanged(tmp_path):
        refused(run(*words, "t.bin", "x.dat", cwd=tmp_path), 3, "x.dat: is HDF4; save its numbers with numpy.save")
        refused(run(*words, "x.dat", "t.bin", cwd=tmp_path), 3, "x.dat: is HDF4; save its numbers with numpy.save")


@pytest.mark.parametrize("name", ["r.h4", "r.tsv", "r.orc"])
def test_a_suffix_that_means_something_else_is_not_raw(name, tmp_path):
    (tmp_path / name).write_bytes(RAW)
    words = ("reduce", "-q", "--op", "sum", "--type", "double", name)
    outcome = run(*words, "--to", "raw", cwd=tmp_path)
    refused(outcome, 3, f"{name}: is", "by its suffix; ")
    assert "--from raw" not in outcome.err
    assert run(*words, "--from", "raw", "--to", "raw", cwd=tmp_path) == (0, RAW, "")


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"PK",
        b"\x1f\x8b",
        b"BZh",
        b"CDF",
        b"ORC",
        b"root\0",
        b"\x80\x02",
        b"\x80\x03",
        b"\x80\x03C",
        b"\x80\x03X",
        b"\x80\x03(",
        b"\x80\x04",
        b"\xff" * 4,
        b"]q\0",
        b"}q\0",
        b"(lp0\n",
        b"(I",
        b"X\x37\0\0\0",
        b"\x0c\0\0\0\x10\0\0\0",
    ],
)
def test_numbers_that_begin_as_a_file_of_another_program(start):
    """A few bytes prove nothing; the seed is fixed, and no bytes of it are a whole magic."""
    chance = np.random.default_rng(7)
    for _ in range(2000):
        content = start + chance.bytes(64)
        assert foreign.by_content(content, len(content)) is None


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<4i", -1, 8, 16, 1) + RAW,
        struct.pack("<10i", -1, *range(16, 160, 16)) + RAW,
        np.full(100, -1, "i4").tobytes(),
        struct.pack("<q", 100) + b"{" + RAW,
        b"PK\0\0" + RAW,
        b"\x80\x02" + RAW,
        b"\x80\x04\x95" + b"\xff" * 8 + RAW,
        b"CDF\x01" + np.full(9, 7, ">i4").tobytes(),
        b"",
    ],
)
def test_numbers_that_look_like_more(content):
    assert foreign.by_content(content, len(content)) is None


@pytest.mark.parametrize("dtype", ["u1", "i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8"])
def test_small_integers_are_nothing_else(dtype):
    """Ranks that begin with any number from -300 to 300, twice or with its neighbours, in any form."""
    signed = np.dtype(dtype).kind != "u"
    for first in range(-300 if signed else 0, 301):
        for step in (0, 1, 8):
            content = (np.arange(64, dtype="i8") * step + first).astype(dtype).tobytes()
            assert foreign.by_content(content, len(content)) is None


def test_hdf5_is_looked_for_by_few_short_reads():
    reads = []

    def read(nbytes: int, start: int) -> bytes:
        reads.append((nbytes, start))
        return bytes(nbytes)

    assert foreign.by_content(bytes(4096), 1 << 40, read) is None
    assert reads == [(8, 4096 << power) for power in range(28)]


RECORDS = [
    pytest.param(kind, content, id=kind)
    for name, kind, content in FILES
    if name == FIRST_OF_A_KIND[kind] and kind not in CODECS
]


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, NUMBERS)
    return file.getvalue()


OWN = [
    ("npy", _npy()),
    ("parquet", b"PAR1" + RAW + b"PAR1"),
    ("arrow", b"ARROW1\0\0" + RAW),
    ("arrows", _arrow_stream(1)),
    ("arrows", _arrow_stream(100)),
]


@pytest.mark.parametrize(("kind", "content"), [*RECORDS, *OWN])
def test_records_are_not_in_a_file_of_something_else(kind, content, tmp_path):
    content += bytes(-len(content) % 8)
    (tmp_path / "x.bin").write_bytes(content)
    (tmp_path / "e.bin").write_bytes(bytes(8))
    way_out = "a file of records is raw binary; save their bytes alone"
    with unchanged(tmp_path):
        words = ("--type", "int64_t", *(() if kind in {"npy", "parquet", "arrow", "arrows"} else ("--offset", "8")))
        for more in (("--from", "raw"), ()):
            refused(
                run("unpack", *words, *more, "e.bin", "--into", "x.bin", cwd=tmp_path), 3, f"x.bin: is {kind}", way_out
            )
        refused(run("pack", *words, "x.bin", "-o", "q.npy", cwd=tmp_path), 3, f"x.bin: is {kind}", way_out)
        outcome = run("pack", *words, "-", "-o", "q.npy", cwd=tmp_path, stdin=content)
        refused(outcome, 3, f"standard input: is {kind}", way_out)
        with pytest.raises(BufferFileError, match=way_out):
            mpired.pack(tmp_path / "x.bin", type="int64_t", output=tmp_path / "q.npy")
        with pytest.raises(BufferFileError, match=way_out):
            mpired.unpack(tmp_path / "e.bin", type="int64_t", into=tmp_path / "x.bin")
        if kind not in {"npy", "parquet", "arrow", "arrows"}:
            outcome = run("unpack", "--type", "int64_t", "x.bin", "-o", "q.bin", cwd=tmp_path)
            refused(outcome, 3, f"x.bin: is {kind}")
    outcome = run("unpack", "-q", "--type", "int64_t", "x.bin", "--from", "raw", cwd=tmp_path)
    assert outcome == (0, content, "")


@pytest.mark.parametrize("name", ["x.nc.0", "x.tar.1", "x.nc.12", "x.h5.0.1", "x.ZIP.3"])
def test_a_number_behind_a_suffix_of_another_program(name, tmp_path):
    np.save(tmp_path / "r.npy", NUMBERS)
    with unchanged(tmp_path):
        refused(run("reduce", "--op", "sum", "r.npy", "-o", name, cwd=tmp_path), 2, name, "by its suffix", "--to")
        refused(run("accumulate", "--op", "sum", "--create", "1000", name, "r.npy", cwd=tmp_path), 2, "--create", name)
        (tmp_path / "raw").write_bytes(RAW)
        refused(run("unpack", "--type", "double", "raw", "-o", name, cwd=tmp_path), 2, name, "by its suffix")
        (tmp_path / "raw").unlink()


@pytest.mark.parametrize("name", ["out.0", "out.npy.0", "out", "0.1", ".0", "tar.1"])
def test_a_number_is_no_suffix(name, tmp_path):
    np.save(tmp_path / "r.npy", NUMBERS)
    assert run("reduce", "-q", "--op", "sum", "r.npy", "-o", name, cwd=tmp_path).status == 0
    assert (tmp_path / name).read_bytes() == (tmp_path / "r.npy").read_bytes()
