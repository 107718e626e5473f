"""Pack and unpack as a user meets them: formats, pipes, named datatypes, Python, memory, and what is refused."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budgets import watched
from command import installed, measured, run, succeeded
from records import CELL, records
from rows import check_refused, each

import mpired
from mpired.datatypes import parse
from mpired.errors import CountError, OutputExistsError, UsageError


def test_a_strided_field_can_be_reduced(folder):
    (folder / "rank1.rec").write_bytes(records()[::-1].tobytes())
    for rank in "01":
        succeeded(run("pack", "-q", "--type", CELL, f"rank{rank}.rec", "-o", f"rank{rank}.npy", cwd=folder))
    assert np.load(folder / "rank0.npy").tolist() == [0, 0.25, 0.5, 0.75, 1]
    result = mpired.reduce([folder / "rank0.npy", folder / "rank1.npy"], "max")
    assert result.tolist() == [1, 0.75, 0.5, 0.75, 1]


@each("missing", [0, 1, 8, 9, 15, 23])
def test_a_file_may_end_after_the_last_entry_and_not_before(missing, folder):
    (folder / "short.rec").write_bytes(records().tobytes()[: 5 * 24 - missing])
    if missing > 8:
        words = f"pack --type {CELL} short.rec -o out.npy"
        check_refused(folder, words, 3, "short.rec", "bytes are left after 4 elements", "--count")
    count = {"count": 4} if missing > 8 else {}
    assert (
        mpired.pack(folder / "short.rec", type=CELL, **count).tolist()
        == [0, 0.25, 0.5, 0.75, 1][: count.get("count", 5)]
    )


FORMS = {
    "double": ("<f8", ()), "vector(2,1,2,double)": ("<f8", (2,)), "struct([1,1],[8,0],[double,int])": ("f8,i4", ()),
    "contiguous(3,double_int)": ("f8,i4", (3,)), "resized(0,24,2int)": ("i4,i4", ()),
    "contiguous(2,2int)": ("i4,i4", (2,)), "struct([1,1,1],[0,4,8],[int,short,double])": ("i4,i2,f8", ()),
    "c_double_complex": ("<c16", ()), "contiguous(2,c_bool)": ("?", (2,)),
}  # fmt: skip


@each("text", FORMS)
def test_npy_has_a_value_or_a_row_an_element(text, tmp_path):
    codes, row = FORMS[text]
    typemap = parse(text)[0].typemap
    octets = np.random.default_rng(1).integers(0, 2, 4 * typemap.extent, dtype=np.uint8).tobytes()
    (tmp_path / "a.bin").write_bytes(octets)
    mpired.pack(tmp_path / "a.bin", type=text, output=tmp_path / "a.npy", overwrite=True)
    loaded = np.load(tmp_path / "a.npy")
    assert loaded.shape == (4, *row)
    kinds = [loaded.dtype] if loaded.dtype.names is None else [loaded.dtype[name] for name in loaded.dtype.names]
    assert [kind.str[1:] for kind in kinds] == [np.dtype(code).str[1:] for code in codes.split(",")]
    np.testing.assert_array_equal(mpired.pack(tmp_path / "a.bin", type=text), loaded)
    (tmp_path / "b.bin").write_bytes(bytes([9]) * len(octets))
    mpired.unpack(tmp_path / "a.npy", type=text, into=tmp_path / "b.bin")
    mpired.pack(tmp_path / "b.bin", type=text, output=tmp_path / "b.npy", overwrite=True)
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


@each("suffix", ["npy", "parquet", "arrow", "bin"])
@each("text", [CELL, "resized(0,24,struct([1,1],[8,0],[double,int]))"])
def test_there_and_back_by_every_format(suffix, text, folder):
    packed = folder / f"packed.{suffix}"
    mpired.pack(folder / "rank0.rec", type=text, output=packed, overwrite=True)
    zeros = np.zeros(5, records().dtype)
    (folder / "target.rec").write_bytes(b"\xff" * 120)
    mpired.unpack(packed, type=text, into=folder / "target.rec")
    back = np.frombuffer((folder / "target.rec").read_bytes(), zeros.dtype)
    assert back["d"].tolist() == records()["d"].tolist()
    assert back["i"].tolist() == (records()["i"].tolist() if "int" in text else [-1] * 5)


def test_big_endian_records(tmp_path):
    (tmp_path / "a.rec").write_bytes(struct.pack(">ixxxxdixxxxd", 1, 1.5, 2, -2.5))
    text = "struct([1,1],[8,0],[double,int])"
    said = {"type": text, "byte_order": "big"}
    result = mpired.pack(tmp_path / "a.rec", **said)
    assert result.tolist() == [(1.5, 1), (-2.5, 2)]
    mpired.pack(tmp_path / "a.rec", output=tmp_path / "a.npy", **said)
    assert np.load(tmp_path / "a.npy").tolist() == [(1.5, 1), (-2.5, 2)]
    assert np.load(tmp_path / "a.npy").dtype[0].str == ">f8"
    mpired.pack(tmp_path / "a.rec", output=tmp_path / "a.bin", **said)
    assert (tmp_path / "a.bin").read_bytes() == struct.pack(">didi", 1.5, 1, -2.5, 2)
    for packed in ("a.npy", "a.bin"):
        mpired.unpack(tmp_path / packed, output=tmp_path / "b.rec", overwrite=True, **said)
        assert (tmp_path / "b.rec").read_bytes() == (tmp_path / "a.rec").read_bytes()
    mpired.unpack(tmp_path / "a.npy", type=text, output=tmp_path / "little.rec")
    assert (tmp_path / "little.rec").read_bytes() == struct.pack("<ixxxxdixxxxd", 1, 1.5, 2, -2.5)


def test_a_named_type(folder):
    (folder / "cells.toml").write_text(f'cell = "{CELL}"\nrow = "contiguous(2,cell)"\n')
    words = ["--types", "cells.toml", "--count", "2"]
    succeeded(run("pack", "-q", *words, "--type", "row", "rank0.rec", "-o", "row.npy", cwd=folder))
    assert np.load(folder / "row.npy").tolist() == [[0, 0.25], [0.5, 0.75]]
    succeeded(run("unpack", "-q", *words, "--type", "row", "row.npy", "--into", "rank0.rec", cwd=folder))
    assert (folder / "rank0.rec").read_bytes() == records().tobytes()


def test_pipes(folder):
    whole = (folder / "rank0.rec").read_bytes()
    packed = installed("pack", "-q", "--type", CELL, "-", input=whole, stdin=None)
    assert packed.out == records()["d"].tobytes()
    back = installed("unpack", "-q", "--type", CELL, "-", input=packed.out, stdin=None)
    assert back.out == np.pad(records()["d"].reshape(5, 1), ((0, 0), (1, 1))).tobytes()


def test_memory_does_not_grow_with_the_file(tmp_path):
    np.arange(40 << 17, dtype="<f8").tofile(tmp_path / "big.bin")  # 40 MiB, of which every other number
    peaks = {}
    for count in (1, 40 << 16):
        words = "--type", "resized(0,16,double)", "--count", str(count)
        status, peaks[count], err = measured("pack", "-q", *words, "big.bin", "-f", "-o", "half.npy", cwd=tmp_path)
        assert (status, err) == (0, "")
        status, back, err = measured("unpack", "-q", *words, "half.npy", "--into", "big.bin", cwd=tmp_path)
        assert (status, err) == (0, "")
        peaks[count] = max(back, peaks[count])
    assert peaks[40 << 16] - peaks[1] < 16 << 20
    assert np.load(tmp_path / "half.npy")[-1] == (40 << 17) - 2
    assert np.fromfile(tmp_path / "big.bin", "<f8").tolist() == list(range(40 << 17))


def test_a_column_can_be_chosen(folder):
    pq.write_table(pa.table({"x": [1.0, 2.0], "name": ["a", "b"]}), folder / "two.parquet")
    words = "unpack -q --type double two.parquet -o out"
    check_refused(folder, words, 3, "name", "not numbers")
    succeeded(run(*words.split(), "--columns", "x", cwd=folder))
    assert (folder / "out").read_bytes() == struct.pack("<2d", 1, 2)


def test_in_python(folder):
    with pytest.raises(UsageError, match="name a new file"):
        mpired.unpack("d.npy", type=CELL)
    with pytest.raises(UsageError, match="are for a file"):
        mpired.pack(folder / "rank0.rec", type=CELL, datarep="external32")
    with pytest.raises(TypeError, match="'jobs'"):
        mpired.pack(folder / "rank0.rec", type=CELL, jobs=2)
    with pytest.raises(UsageError, match="is missing"):
        mpired.pack(folder / "rank0.rec")
    with pytest.raises(CountError):
        mpired.pack(folder / "rank0.rec", type=CELL, count=9)
    mpired.pack(folder / "rank0.rec", type=CELL, output=folder / "d.npy")
    with pytest.raises(OutputExistsError):
        mpired.pack(folder / "rank0.rec", type=CELL, output=folder / "d.npy")


def test_the_summary_counts_what_was_taken(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    outcome = run("unpack", "--type", "int64_t", "--count", "2", "a.npy", "-o", "b.bin", cwd=tmp_path)
    assert outcome.err == "mpired: unpacked 2 x MPI_INT64_T (int64), 2 x MPI_INT64_T (int64) -> b.bin (raw)\n"


def test_compressed_files_and_streams_are_decompressed_first(folder):
    content = gzip.compress(records().tobytes())
    (folder / "records.gz").write_bytes(content)
    words = ("pack", "-q", "--type", CELL, "-f", "-o", "out.npy")
    for more, count in (([], 5), (["--count", "3"], 3)):
        for name in ("records.gz", "-"):
            succeeded(run(*words, *more, name, cwd=folder, stdin=content))
            np.testing.assert_array_equal(np.load(folder / "out.npy"), records()["d"][:count])
    (folder / "out.npy.gz").write_bytes(gzip.compress((folder / "out.npy").read_bytes()))
    succeeded(run("unpack", "-q", "--type", "double", "out.npy.gz", "-o", "out.bin", cwd=folder))
    np.testing.assert_array_equal(np.fromfile(folder / "out.bin"), records()["d"][:3])
    check_refused(folder, "unpack --type double out.npy --into records.gz", 3, "records.gz", "is gzip")


COUNT = 1 << 17
TYPE = ("--type", "resized(0,16,double)")
# What a command needs, as its refusal says: to write a result of that suffix, and to read it.
LEAST = {
    ".bin": ("60M", "60M"),
    ".npy": ("60M", "60M"),
    ".parquet": ("172M", "188M"),
    ".arrow": ("76M", "188M"),
    ".txt": ("60M", None),
    ".bin.xz": ("155M", None),
}


@pytest.mark.parametrize("suffix", LEAST)
@pytest.mark.sampled(2)
def test_memory_is_kept(suffix, tmp_path):
    np.random.default_rng(16).standard_normal(2 * COUNT).tofile(tmp_path / "records.bin")
    packed = f"packed{suffix}"
    calls = [("pack", "records.bin", "-o", packed), ("unpack", packed, "-o", "again.bin")]
    for (verb, *words), allowed in zip(calls, LEAST[suffix], strict=True):
        if allowed is None:
            continue
        peaks = watched(verb, *TYPE, *words, "--max-memory", allowed, cwd=tmp_path)
        assert peaks.status == 0, peaks.err
        assert peaks.memory <= int(allowed[:-1]) << 20


@each("suffix, least", [(".npy", 60), (".parquet", 172)])
def test_less_than_is_needed_is_refused(suffix, least, tmp_path):
    np.zeros(4).tofile(tmp_path / "records.bin")
    words = ("pack", *TYPE, "records.bin", "-o", f"packed{suffix}", "--max-memory", f"{least - 1}M")
    check_refused(tmp_path, words, 2, "--max-memory", f"needs {least}M")


WRONG = [
    ("--type vector(3,1,double) rank0.rec", 2, "vector(3,1,^double)"),
    (f"--type {CELL} --count 6 rank0.rec", 3, "6 elements of"),
    (f"--type {CELL} --count -1 rank0.rec", 2, "--count"),
    (f"--type {CELL} --offset 999 rank0.rec", 3, "fewer than --offset 999"),
    (f"--type {CELL} --byte-order little --datarep external32 rank0.rec", 2, "--datarep"),
    (f"--type {CELL} --datarep external32 --to npy rank0.rec", 2, "add --to raw"),
    (f"--type {CELL} /dev/zero", 2, "/dev/zero"),
    ("--type resized(0,8,hindexed([1],[-8],double)) rank0.rec", 2, "8 bytes before the file"),
    (f"--type {CELL} --types missing.toml rank0.rec", 4, "missing.toml"),
    ("--type c_double_complex two.rec --to parquet", 3, "no column type"),
]  # fmt: skip


@each("words, status, reason", WRONG)
def test_what_cannot_be_packed(words, status, reason, folder):
    (folder / "two.rec").write_bytes(bytes(32))
    check_refused(folder, f"pack {words} -o out", status, reason)


WRONG_BACK = [
    ("--type int d.npy -o out", 3, "which is not MPI_INT"),
    ("--type vector(2,1,2,double) d.npy -o out", 3, "5 x MPI_DOUBLE (float64) is not a multiple of 2"),
    ("--type resized(0,4,double) d.npy -o out", 3, "entries overlap"),
    ("--type vector(2,1,0,double) --count 1 d.npy -o out", 3, "entries overlap"),
    ("--type resized(0,25,double) d.npy --into small.rec", 3, "small.rec", "end at byte 108"),
    ("--type double --count 6 d.npy -o out", 3, "has 5 elements, fewer than --count 6"),
    ("--type double d.npy -o rank0.rec", 2, "already exists; --force"),
    ("--type double d.npy -o out --into rank0.rec", 2, "leave --output out"),
    ("--type double d.npy --into missing.rec", 4, "missing.rec"),
    ("--type double d.npy --into /dev/null", 2, "is a stream"),
    ("--type double d.npy --into -", 2, "is a stream"),
    ("--type double --byte-order little --datarep external32 d.npy -o out", 2, "--datarep"),
    ("--type double two.parquet -o out", 2, "choose one with --columns"),
    ("--type double --columns z two.parquet -o out", 3, "no column 'z'"),
    ("--type double odd.bin -o out", 3, "is not a multiple of 8"),
    ("--type hindexed([1],[-8],double) --count 1 d.npy -o out", 2, "8 bytes before the file"),
    ("--type resized(0,9223372036854775800,double) d.npy -o out", 3, "files end at byte 2**63 - 1"),
    ("--type double --offset 9223372036854775800 --count 1 d.npy -o out", 3, "2**63 - 1"),
    ("--type hindexed([1],[9223372036854775799],double) d.npy -o out", 3, "2**63 - 1"),
    ("--type hindexed([1],[9223372036854775799],double) d.npy --into rank0.rec", 3, "end at byte"),
    ("--type contiguous(2,double) fortran.npy -o out", 3, "Fortran order", "numpy.ascontiguousarray"),
    ("--type double fortran.npy -o out", 3, "Fortran order"),
    ("--type contiguous(0,double) odd.bin --from raw -o out", 3, "has 17 bytes"),
    ("--type contiguous(0,double) odd.bin --from raw --into rank0.rec", 3, "has 17 bytes"),
]  # fmt: skip


@each("row", WRONG_BACK)
def test_what_cannot_be_unpacked(row, folder):
    words, status, *reasons = row
    np.save(folder / "d.npy", np.arange(5.0))
    (folder / "small.rec").write_bytes(bytes(50))
    (folder / "odd.bin").write_bytes(bytes(17))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    pq.write_table(pa.table({"x": [1.0], "y": [2.0]}), folder / "two.parquet")
    check_refused(folder, f"unpack {words}", status, *reasons)


def test_fortran_order_of_one_row_or_column_is_no_other_order(folder):
    header = "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 1), }"
    octets = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<3d", 1, 2, 3)
    (folder / "column.npy").write_bytes(octets)
    mpired.unpack(folder / "column.npy", type="double", output=folder / "out")
    assert (folder / "out").read_bytes() == struct.pack("<3d", 1, 2, 3)
