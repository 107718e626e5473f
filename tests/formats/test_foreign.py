"""Files of other programs are known as such, and no numbers are taken for one."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from bad_files import npy_of, zip_of
from command import refused, run, unchanged
from rows import together

import mpired
from mpired.errors import BufferFileError
from mpired.formats import foreign

NUMBERS = np.arange(1000.0)
RAW = NUMBERS.tobytes()


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


_HELD = {
    "array": NUMBERS,
    "list": [1.5] * 100,
    "list of one": [7],
    "dict": {"x": 1.5, "y": [2]},
    "dict of one": {"x": 1},
}


def _pickles():
    for name, value in _HELD.items():
        for protocol in range(0 if name == "array" else 2, 6):
            yield f"pickle of a {name}, protocol {protocol}", "a pickle", pickle.dumps(value, protocol)
    for protocol in (4, 5):
        yield f"pickle of a tuple, protocol {protocol}", "a pickle", pickle.dumps((1.5,) * 100, protocol)


HDF4 = b"\x0e\x03\x13\x01"
FITS = b"SIMPLE  =                    T / conforms to FITS standard".ljust(
    80
) + b"BITPIX  =                  -64".ljust(80)
FILES = [
    ("zip", "a zip archive", zip_of(("x", RAW))),
    ("empty zip", "a zip archive", b"PK\5\6" + bytes(18)),
    ("tar of POSIX", "a tar archive", _tar(tarfile.USTAR_FORMAT)),
    ("tar of GNU", "a tar archive", _tar(tarfile.GNU_FORMAT)),
    ("ROOT", "a ROOT file", b"root\0\0\xf3\xc0\0\0\0d\0\0\x1a\xb4" + RAW),
    ("large ROOT", "a ROOT file", b"root\0\x10\x36\x02\0\0\0d" + RAW),
    ("FITS", "FITS", FITS.ljust(2880) + RAW),
    ("GRIB", "GRIB", b"GRIB\0\0\0\x02" + bytes(8) + RAW),
    ("MATLAB 5", "a MATLAB file", b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\1IM" + RAW),
    ("compress", "compress", b"\x1f\x9d\x90" + RAW),
    *_pickles(),
]  # fmt: skip
FIRST_OF_A_KIND = {kind: name for name, kind, _ in reversed(FILES)}
FIRST = {name: (kind, content) for name, kind, content in FILES if name == FIRST_OF_A_KIND[kind]}
SUFFIXES = ("", ".bin", ".dat", ".npy")


def test_a_file_of_another_program_is_not_raw(tmp_path):
    """Each file with one of the suffixes in turn, and the first of each kind with all of them."""
    with together(tmp_path) as case:
        for i, (name, kind, content) in enumerate(FILES):
            for suffix in SUFFIXES if name in FIRST else SUFFIXES[i % 4 :][:1]:
                with case(name, suffix) as folder:
                    (path := folder / f"r{suffix}").write_bytes(content)
                    with unchanged(folder), pytest.raises(BufferFileError, match=f"r{suffix}: is {kind}.*;") as error:
                        mpired.reduce([path] * 2, "sum", type="uint8_t", output=folder / "out.bin")
                    assert "format" not in str(error.value)  # no way to take it as raw is shown
                    found = mpired.reduce([path] * 2, "sum", type="uint8_t", format="raw", overflow="wrap")
                    assert np.array_equal(found, np.add(*[np.frombuffer(content, "u1")] * 2))


def test_neither_origin_nor_target_is_another_programs(tmp_path):
    (tmp_path / "x.dat").write_bytes(HDF4 * 4)
    (tmp_path / "t.bin").write_bytes(bytes(64))
    reason = "x.dat: is HDF4; save its numbers with numpy.save"
    for command in ("accumulate", "get-accumulate"):
        for files in (("t.bin", "x.dat"), ("x.dat", "t.bin")):
            with unchanged(tmp_path):
                refused(run(command, "--op", "sum", "--type", "double", *files, cwd=tmp_path), 3, reason)


def test_suffixes_that_mean_something_else(tmp_path):
    """A number behind such a suffix changes nothing; alone it is no suffix."""
    np.save(tmp_path / "r.npy", NUMBERS)
    (tmp_path / "raw").write_bytes(RAW)
    with together(tmp_path) as case:
        for name in ("r.h4", "r.tsv", "r.orc", "r.npy.Z", "r.lzma", "r.br"):
            with case(name) as folder:
                (folder / name).write_bytes(RAW)
                words = ("reduce", "-q", "--op", "sum", "--type", "double", name, "--to", "raw")
                outcome = run(*words, cwd=folder)
                refused(outcome, 3, f"{name}: is", "by its suffix; ")
                assert "--from raw" not in outcome.err
                assert run(*words, "--from", "raw", cwd=folder) == (0, RAW, "")
        for name in ("x.nc.0", "x.tar.1", "x.nc.12", "x.h5.0.1", "x.ZIP.3"):
            for words, *reasons in (
                (("reduce", "--op", "sum", "r.npy", "-o", name), "by its suffix", "--to"),
                (("accumulate", "--op", "sum", "--create", "1000", name, "r.npy"), "--create"),
                (("unpack", "--type", "double", "raw", "-o", name), "by its suffix"),
            ):
                with case(*words), unchanged(tmp_path):
                    refused(run(*words, cwd=tmp_path), 2, name, *reasons)
        for name in ("out.0", "out.npy.0", "out", "0.1", ".0", "tar.1"):
            with case(name):
                assert run("reduce", "-q", "--op", "sum", "r.npy", "-o", name, cwd=tmp_path).status == 0
                assert (tmp_path / name).read_bytes() == (tmp_path / "r.npy").read_bytes()


STARTS = (
    b"", b"PK", b"\x1f\x8b", b"BZh", b"CDF", b"ORC", b"root\0", b"\x80\x02", b"\x80\x03", b"\x80\x03C", b"\x80\x03X",
    b"\x80\x03(", b"\x80\x04", b"\xff" * 4, b"]q\0", b"}q\0", b"(lp0\n", b"(I", b"X\x37\0\0\0", b"\x0c\0\0\0\x10\0\0\0",
)  # fmt: skip
MORE = (
    struct.pack("<4i", -1, 8, 16, 1) + RAW,
    struct.pack("<10i", -1, *range(16, 160, 16)) + RAW,
    np.full(100, -1, "i4").tobytes(),
    struct.pack("<q", 100) + b"{" + RAW,
    b"PK\0\0" + RAW,
    b"\x80\x02" + RAW,
    b"\x80\x04\x95" + b"\xff" * 8 + RAW,
    b"CDF\x01" + np.full(9, 7, ">i4").tobytes(),
    b"",
)
FORMS = ("u1", "i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8")


def _numbers():
    """Yield any bytes behind a few that prove nothing, and small numbers of any form, alike or with neighbours."""
    yield from MORE
    for start in STARTS:
        chance = np.random.default_rng(7)  # no bytes of it complete a magic
        yield from (start + chance.bytes(64) for _ in range(500))
    for form in FORMS:
        for first in range(-300 if form != "u1" else 0, 301):
            for step in (0, 1, 8):
                yield (np.arange(64, dtype="i8") * step + first).astype(form).tobytes()


def test_numbers_are_of_no_other_program():
    known = {content: found for content in _numbers() if (found := foreign.by_content(content, len(content)))}
    assert known == {}


OWN = {
    "npy": ("npy", npy_of(NUMBERS)),
    "parquet": ("parquet", b"PAR1" + RAW + b"PAR1"),
    "arrow": ("arrow", b"ARROW1\0\0" + RAW),
    "arrows": ("arrows", _arrow_stream(1)),
    "long arrows": ("arrows", _arrow_stream(100)),
}


def test_records_are_not_in_a_file_of_something_else(tmp_path):
    """Each kind with one of the ways to name such a file in turn."""
    way_out = "a file of records is raw binary; save their bytes alone"
    (tmp_path / "e.bin").write_bytes(bytes(8))
    with together(tmp_path) as case:
        for number, (name, (kind, content)) in enumerate((FIRST | OWN).items()):
            whole = content + bytes(-len(content) % 8)
            (tmp_path / "x.bin").write_bytes(whole)
            is_foreign = name in FIRST
            words = ("--type", "int64_t", *(("--offset", "8") if is_foreign else ()))
            into = ("unpack", *words, "e.bin", "--into", "x.bin")
            ways = into, (*into, "--from", "raw"), ("pack", *words, "x.bin"), ("pack", *words, "-")
            command = ways[number % len(ways)]
            with case(name, command), unchanged(tmp_path):
                outcome = run(*command, cwd=tmp_path, stdin=whole)
                subject = "standard input" if "-" in command else "x.bin"
                refused(outcome, 3, f"{subject}: is {kind}", way_out)
            with case(name, "unpack"):
                words = ("unpack", "-q", "--type", "int64_t", "x.bin")
                if is_foreign:
                    refused(run(*words, "-o", "q.bin", cwd=tmp_path), 3, f"x.bin: is {kind}")
                assert run(*words, "--from", "raw", cwd=tmp_path) == (0, whole, "")
