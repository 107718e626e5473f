"""Pack and unpack as a user meets them: formats, pipes, named datatypes, Python, memory, and what is refused."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budgets import watched
from command import run, succeeded
from rows import check_refused, each

import mpired
from mpired.datatypes import transfer
from mpired.errors import CountError, OutputExistsError, UsageError

CELL = "resized(0,24,struct([1],[8],[double]))"


def records(count=5):
    """Return records of 24 bytes: an int at 0, a double at 8, and junk between."""
    form = np.dtype({"names": ["i", "d"], "formats": ["<i4", "<f8"], "offsets": [0, 8], "itemsize": 24})
    block = np.frombuffer(bytearray(range(24)) * count, form)  # a copy would lose what lies between
    block["i"], block["d"] = np.arange(count) * 3, np.arange(count) / 4
    return block


@pytest.fixture
def folder(tmp_path):
    """A folder with a file of records."""
    (tmp_path / "rank0.rec").write_bytes(records().tobytes())
    return tmp_path


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


TYPE = ("--type", "resized(0,16,double)")


def test_memory_is_kept(tmp_path):
    """That which a command needs, as its refusal says: to write a result, and to read it."""
    np.random.default_rng(16).standard_normal(1 << 18).tofile(tmp_path / "records.bin")
    for suffix, *allowed in ((".bin", "60M", "60M"), (".parquet", "172M", "188M")):
        calls = ("pack", "records.bin", "-o", f"packed{suffix}"), ("unpack", f"packed{suffix}", "-f", "-o", "again.bin")
        for (verb, *words), most in zip(calls, allowed, strict=True):
            peaks = watched(verb, *TYPE, *words, "--max-memory", most, cwd=tmp_path)
            assert peaks.status == 0, peaks.err
            assert peaks.memory <= int(most[:-1]) << 20


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
    ("--type c_double_complex two.rec --to parquet", 3, "no column type"),
]  # fmt: skip


@each("words, status, reason", WRONG)
def test_what_cannot_be_packed(words, status, reason, folder):
    (folder / "two.rec").write_bytes(bytes(32))
    check_refused(folder, f"pack {words} -o out", status, reason)


WRONG_BACK = [
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


def test_a_file_that_grows_meanwhile_is_noticed(folder, monkeypatch):
    def grows(run_, *arguments):
        with open(folder / "rank0.rec", "ab") as file:
            file.write(b"x")
        return cut(run_, *arguments)

    cut = transfer.cut
    monkeypatch.setattr(transfer, "cut", grows)
    with pytest.raises(mpired.MpiredError, match=r"rank0\.rec: "):
        mpired.pack(folder / "rank0.rec", type=CELL, output=folder / "out.npy")
    assert not (folder / "out.npy").exists()
