"""Pack and unpack: every constructor, the bytes between, formats, files that do not fit, and what a crash leaves."""

import errno
import os
import random
import signal
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typemaps
from command import installed, measured, refused, run, shell, succeeded, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st

import mpired
from mpired.datatypes import parse
from mpired.datatypes.typemap import pieces, transfer
from mpired.errors import CountError, DatatypeError, OutputExistsError, UsageError

CELL = "resized(0,24,struct([1],[8],[double]))"


def overlap(places):
    used = [at for start, nbytes in places for at in range(start, start + nbytes)]
    return len(set(used)) < len(used)


@pytest.mark.parametrize("word", typemaps.WORDS)
def test_pack_and_unpack_leave_the_bytes_between(tmp_path, word):
    """Every byte is followed: with the twin's positions, in files with something before and after."""

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(
        drawn=typemaps.types([*typemaps.BASIC, *typemaps.PAIRS], outermost=word),
        count=st.integers(1, 4),
        before=st.integers(0, 9),
        seed=st.integers(0, 99),
    )
    def there_and_back(drawn, count, before, seed):
        places = typemaps.positions(drawn.twin, count)
        low = min((start for start, _ in places), default=0)
        high = max((start + nbytes for start, nbytes in places), default=0)
        offset = max(0, -low) + before
        draw = random.Random(seed)
        octets = draw.randbytes(offset + max(high, 0) + draw.randrange(9))
        records, packed, target = (tmp_path / name for name in ("records.bin", "packed.bin", "target.bin"))
        records.write_bytes(octets)
        said = {"type": drawn.text, "count": count, "offset": offset}
        mpired.pack(records, output=packed, overwrite=True, **said)
        expected = b"".join(octets[offset + start :][:nbytes] for start, nbytes in places)
        assert packed.read_bytes() == expected
        other = draw.randbytes(len(octets) + 5)
        target.write_bytes(other)
        if overlap(places):
            with pytest.raises(DatatypeError, match="entries overlap"):
                mpired.unpack(packed, into=target, **said)
            assert target.read_bytes() == other
            return
        mpired.unpack(packed, into=target, **said)
        wanted = bytearray(other)
        for start, nbytes in places:
            wanted[offset + start : offset + start + nbytes] = octets[offset + start :][:nbytes]
        assert target.read_bytes() == bytes(wanted)
        mpired.unpack(packed, output=tmp_path / "new.bin", overwrite=True, **said)
        fresh = (tmp_path / "new.bin").read_bytes()
        inside = bytearray(len(wanted))
        for start, nbytes in places:
            inside[offset + start : offset + start + nbytes] = wanted[offset + start :][:nbytes]
        shared = min(len(fresh), len(wanted))
        assert fresh[:shared] == inside[:shared]
        assert len(fresh) >= offset + high

    there_and_back()


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_blocks_do_not_show(tmp_path, monkeypatch, block):
    texts = ["vector(3,2,3,double)", "subarray([9,8,7],[5,4,3],[2,1,3],F,short)", "resized(0,8,vector(9,1,9,double))",
             "indexed([3,1,2],[9,0,5],struct([1,1],[0,9],[double,int8_t]))", "hvector(40,1,-13,byte)",
             "hindexed([1,1],[0,100000],int)"]  # fmt: skip
    for text in texts:
        typemap, count = parse(text)[0].typemap, 9
        low, high = transfer.reach(transfer.Run(typemap, 0, count, typemap.extent))
        offset = max(0, -low)
        octets = np.random.default_rng(3).integers(0, 256, offset + high + 50, dtype=np.uint8).tobytes()
        (tmp_path / "a.bin").write_bytes(octets)
        said = {"type": text, "count": count, "offset": offset}
        for name in ("whole", "cut"):
            monkeypatch.setattr(transfer, "BLOCK_BYTES", 1 << 20 if name == "whole" else block)
            mpired.pack(tmp_path / "a.bin", output=tmp_path / f"{name}.bin", overwrite=True, **said)
            (tmp_path / f"{name}.rec").write_bytes(bytes(len(octets)))
            mpired.unpack(tmp_path / "whole.bin", into=tmp_path / f"{name}.rec", **said)
        assert (tmp_path / "whole.bin").read_bytes() == (tmp_path / "cut.bin").read_bytes()
        assert (tmp_path / "whole.rec").read_bytes() == (tmp_path / "cut.rec").read_bytes()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn=typemaps.types(["int8_t", "short", "double", "short_int"]), count=st.integers(1, 12))
def test_overlaps_are_found(drawn, count):
    places = typemaps.positions(drawn.twin, count)
    assert pieces.overlaps(parse(drawn.text)[0].typemap, count) == overlap(places), drawn.text


def test_a_matrix_of_any_size_is_seen_to_be_free_of_overlaps():
    assert pieces.overlaps(parse("resized(0,8,vector(100000,1,100000,double))")[0].typemap, 100_000) is False
    assert pieces.overlaps(parse("resized(0,8,vector(100000,1,100000,double))")[0].typemap, 100_001) is True
    assert pieces.overlaps(parse("contiguous(1000000,vector(1000000,1,2,double))")[0].typemap, 1000) is False
    two = "struct([90000000,80000000],[0,{}],[resized(0,16,double),resized(0,16,double)])"
    assert pieces.overlaps(parse(two.format(8))[0].typemap, 1) is False
    assert pieces.overlaps(parse(two.format(-88))[0].typemap, 3) is False
    assert pieces.overlaps(parse(two.format(7))[0].typemap, 1) is None
    assert pieces.overlaps(parse(two.format(8))[0].typemap, 0) is False


def records(count=5):
    """Return records of 24 bytes: an int at 0, a double at 8, and junk between."""
    form = np.dtype({"names": ["i", "d"], "formats": ["<i4", "<f8"], "offsets": [0, 8], "itemsize": 24})
    block = np.frombuffer(bytearray(range(24)) * count, form)  # a copy would lose what lies between
    block["i"], block["d"] = np.arange(count) * 3, np.arange(count) / 4
    return block


@pytest.fixture
def folder(tmp_path):
    """A folder with one file of records."""
    (tmp_path / "rank0.rec").write_bytes(records().tobytes())
    return tmp_path


def test_a_strided_field_can_be_reduced(folder):
    (folder / "rank1.rec").write_bytes(records()[::-1].tobytes())
    for rank in "01":
        succeeded(run("pack", "-q", "--type", CELL, f"rank{rank}.rec", "-o", f"rank{rank}.npy", cwd=folder))
    assert np.load(folder / "rank0.npy").tolist() == [0, 0.25, 0.5, 0.75, 1]
    result = mpired.reduce([folder / "rank0.npy", folder / "rank1.npy"], "max")
    assert result.tolist() == [1, 0.75, 0.5, 0.75, 1]


@pytest.mark.parametrize("missing", [0, 1, 8])
def test_a_file_may_end_after_the_last_entry(folder, missing):
    octets = records().tobytes()
    (folder / "short.rec").write_bytes(octets[: len(octets) - missing])
    assert mpired.pack(folder / "short.rec", type=CELL).tolist() == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize("missing", [9, 15, 23])
def test_a_file_that_ends_before_is_refused(folder, missing):
    octets = records().tobytes()
    (folder / "short.rec").write_bytes(octets[: len(octets) - missing])
    with unchanged(folder):
        outcome = run("pack", "--type", CELL, "short.rec", "-o", "out.npy", cwd=folder)
        refused(outcome, 3, "short.rec", "bytes are left after 4 elements", "--count")
    assert len(mpired.pack(folder / "short.rec", type=CELL, count=4)) == 4


FORMS = {
    "double": ("<f8", ()), "vector(2,1,2,double)": ("<f8", (2,)), "struct([1,1],[8,0],[double,int])": ("f8,i4", ()),
    "contiguous(3,double_int)": ("f8,i4", (3,)), "resized(0,24,2int)": ("i4,i4", ()),
    "contiguous(2,2int)": ("i4,i4", (2,)), "struct([1,1,1],[0,4,8],[int,short,double])": ("i4,i2,f8", ()),
    "c_double_complex": ("<c16", ()), "contiguous(2,c_bool)": ("?", (2,)),
}  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_npy_has_a_value_or_a_row_an_element(tmp_path, text):
    codes, row = FORMS[text]
    typemap = parse(text)[0].typemap
    octets = np.random.default_rng(1).integers(0, 2, 4 * typemap.extent, dtype=np.uint8).tobytes()
    (tmp_path / "a.bin").write_bytes(octets)
    mpired.pack(tmp_path / "a.bin", type=text, output=tmp_path / "a.npy")
    loaded = np.load(tmp_path / "a.npy")
    assert loaded.shape == (4, *row)
    kinds = [loaded.dtype] if loaded.dtype.names is None else [loaded.dtype[name] for name in loaded.dtype.names]
    assert [kind.str[1:] for kind in kinds] == [np.dtype(code).str[1:] for code in codes.split(",")]
    np.testing.assert_array_equal(mpired.pack(tmp_path / "a.bin", type=text), loaded)
    (tmp_path / "b.bin").write_bytes(bytes([9]) * len(octets))
    mpired.unpack(tmp_path / "a.npy", type=text, into=tmp_path / "b.bin")
    mpired.pack(tmp_path / "b.bin", type=text, output=tmp_path / "b.npy")
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
@pytest.mark.parametrize("text", [CELL, "resized(0,24,struct([1,1],[8,0],[double,int]))"])
def test_there_and_back_by_every_format(folder, suffix, text):
    packed = folder / f"packed.{suffix}"
    mpired.pack(folder / "rank0.rec", type=text, output=packed)
    zeros = np.zeros(5, records().dtype)
    (folder / "target.rec").write_bytes(b"\xff" * 120)
    mpired.unpack(packed, type=text, into=folder / "target.rec")
    back = np.frombuffer((folder / "target.rec").read_bytes(), zeros.dtype)
    assert back["d"].tolist() == records()["d"].tolist()
    assert back["i"].tolist() == (records()["i"].tolist() if "int" in text else [-1] * 5)


@pytest.mark.parametrize("to", ["csv", "json", "text", "table"])
def test_for_a_person(folder, to):
    outcome = run("pack", "-q", "--type", CELL, "rank0.rec", "--to", to, cwd=folder)
    assert outcome.status == 0
    assert "0.25" in outcome.out.decode()


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


def test_types_that_are_no_array_go_into_raw_files(tmp_path):
    text = f"struct([1,{1200}],[0,8],[double,struct([1,1],[0,2],[short,byte])])"
    octets = np.random.default_rng(2).integers(0, 256, parse(text)[0].typemap.extent, dtype=np.uint8).tobytes()
    (tmp_path / "a.bin").write_bytes(octets)
    mpired.pack(tmp_path / "a.bin", type=text, output=tmp_path / "packed.bin")
    expected = octets[:8] + b"".join(octets[8 + 4 * i : 11 + 4 * i] for i in range(1200))
    assert (tmp_path / "packed.bin").read_bytes() == expected
    (tmp_path / "b.bin").write_bytes(bytes(len(octets)))
    mpired.unpack(tmp_path / "packed.bin", type=text, into=tmp_path / "b.bin")
    mpired.pack(tmp_path / "b.bin", type=text, output=tmp_path / "again.bin")
    assert (tmp_path / "again.bin").read_bytes() == expected
    for words in (["-o", "a.npy"], ["--datarep", "external32", "-o", "a.ext"]):
        refused(run("pack", "--type", text, "a.bin", *words, cwd=tmp_path), 3, "2401 entries are no structure")


@pytest.mark.parametrize("extent", [0, -8])
def test_extents_that_go_nowhere_or_back(tmp_path, extent):
    (tmp_path / "a.bin").write_bytes(struct.pack("<3d", 1, 2, 3))
    text = f"resized(0,{extent},double)"
    with pytest.raises(UsageError, match=f"is needed: the extent of .* is {extent}"):
        mpired.pack(tmp_path / "a.bin", type=text)
    result = mpired.pack(tmp_path / "a.bin", type=text, count=3, offset=16)
    assert result.tolist() == ([3, 3, 3] if extent == 0 else [3, 2, 1])


def test_a_type_without_entries(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match="its size 0"):
        mpired.pack(tmp_path / "a.bin", type="contiguous(0,int)")
    mpired.pack(tmp_path / "a.bin", type="contiguous(0,int)", count=7, output=tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == b""
    mpired.unpack(tmp_path / "b.bin", type="contiguous(0,int)", count=7, into=tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_bytes() == b"x"


def test_one_huge_element_is_read_where_its_entries_are(tmp_path):
    with open(tmp_path / "sparse.bin", "wb") as file:
        for i in range(3):
            os.pwrite(file.fileno(), struct.pack("<d", i + 0.5), i << 33)
    text = f"hvector(3,1,{1 << 33},double)"
    status, peak, err = measured("pack", "-q", "--type", text, tmp_path / "sparse.bin", "-o", tmp_path / "out.npy")
    assert (status, err) == (0, "")
    assert np.load(tmp_path / "out.npy").tolist() == [[0.5, 1.5, 2.5]]
    assert peak < 200 << 20


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


WRONG = [
    (["--type", "vector(3,1,double)", "rank0.rec"], 2, "vector(3,1,^double)"),
    (["--type", "real16", "rank0.rec"], 3, "is not available"),
    (["--type", CELL, "missing.rec"], 4, "missing.rec"),
    (["--type", CELL, "."], 3, "is a directory"),
    (["--type", CELL, "--count", "6", "rank0.rec"], 3, "6 elements of"),
    (["--type", CELL, "--count", "-1", "rank0.rec"], 2, "--count"),
    (["--type", CELL, "--offset", "999", "rank0.rec"], 3, "fewer than --offset 999"),
    (["--type", CELL, "--byte-order", "little", "--datarep", "external32", "rank0.rec"], 2, "--datarep"),
    (["--type", CELL, "--datarep", "external32", "--to", "npy", "rank0.rec"], 2, "add --to raw"),
    (["--type", CELL, "/dev/zero"], 2, "/dev/zero"),
    (["--type", "resized(0,8,hindexed([1],[-8],double))", "rank0.rec"], 2, "8 bytes before the file"),
    (["--type", CELL, "--types", "missing.toml", "rank0.rec"], 4, "missing.toml"),
    (["--type", "c_double_complex", "rank0.rec", "--to", "parquet"], 3, "no column type"),
    (["rank0.rec"], 2, "--type"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "status", "reason"), WRONG)
def test_what_cannot_be_packed(folder, words, status, reason):
    if "c_double_complex" in words:
        (folder / "rank0.rec").write_bytes(bytes(32))
    with unchanged(folder):
        refused(run("pack", *words, "-o", "out", cwd=folder), status, reason)


WRONG_BACK = [
    (["--type", "int", "d.npy", "-o", "out"], 3, "which is not MPI_INT"),
    (["--type", "vector(2,1,2,double)", "d.npy", "-o", "out"], 3, "5 x MPI_DOUBLE is not a multiple of 2"),
    (["--type", "resized(0,4,double)", "d.npy", "-o", "out"], 3, "entries overlap"),
    (["--type", "vector(2,1,0,double)", "--count", "1", "d.npy", "-o", "out"], 3, "entries overlap"),
    (["--type", "resized(0,25,double)", "d.npy", "--into", "small.rec"], 3, "small.rec", "end at byte 108"),
    (["--type", "double", "--count", "6", "d.npy", "-o", "out"], 3, "has 5 elements, fewer than --count 6"),
    (["--type", "double", "d.npy", "-o", "rank0.rec"], 2, "is there already; --force"),
    (["--type", "double", "d.npy", "-o", "out", "--into", "rank0.rec"], 2, "leave --output out"),
    (["--type", "double", "d.npy", "--into", "missing.rec"], 4, "missing.rec"),
    (["--type", "double", "d.npy", "--into", "/dev/null"], 2, "is a stream"),
    (["--type", "double", "d.npy", "--into", "-"], 2, "is a stream"),
    (["--type", "double", "--byte-order", "little", "--datarep", "external32", "d.npy", "-o", "out"], 2, "--datarep"),
    (["--type", "double", "two.parquet", "-o", "out"], 2, "choose one with --columns"),
    (["--type", "double", "--columns", "z", "two.parquet", "-o", "out"], 3, "no column 'z'"),
    (["--type", "double", "odd.bin", "-o", "out"], 3, "is not a multiple of 8"),
    (["--type", "hindexed([1],[-8],double)", "--count", "1", "d.npy", "-o", "out"], 2, "8 bytes before the file"),
    (["--type", "resized(0,9223372036854775800,double)", "d.npy", "-o", "out"], 3, "files end at byte 2**63 - 1"),
    (["--type", "double", "--offset", "9223372036854775800", "--count", "1", "d.npy", "-o", "out"], 3, "2**63 - 1"),
    (["--type", "hindexed([1],[9223372036854775799],double)", "d.npy", "-o", "out"], 3, "2**63 - 1"),
    (["--type", "hindexed([1],[9223372036854775799],double)", "d.npy", "--into", "rank0.rec"], 3, "end at byte"),
    (["--type", "contiguous(2,double)", "fortran.npy", "-o", "out"], 3, "Fortran order", "numpy.ascontiguousarray"),
    (["--type", "double", "fortran.npy", "-o", "out"], 3, "Fortran order"),
    (["--type", "contiguous(0,double)", "odd.bin", "--from", "raw", "-o", "out"], 3, "has 17 bytes"),
    (["--type", "contiguous(0,double)", "odd.bin", "--from", "raw", "--into", "rank0.rec"], 3, "has 17 bytes"),
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_BACK, ids=lambda row: " ".join(row[0]))
def test_what_cannot_be_unpacked(folder, row):
    words, status, *reasons = row
    np.save(folder / "d.npy", np.arange(5.0))
    (folder / "small.rec").write_bytes(bytes(50))
    (folder / "odd.bin").write_bytes(bytes(17))
    np.save(folder / "fortran.npy", np.asfortranarray(np.arange(6.0).reshape(3, 2)))
    pq.write_table(pa.table({"x": [1.0], "y": [2.0]}), folder / "two.parquet")
    with unchanged(folder):
        refused(run("unpack", *words, cwd=folder), status, *reasons)


def test_fortran_order_of_one_row_or_column_is_no_other_order(folder):
    header = "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 1), }"
    octets = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<3d", 1, 2, 3)
    (folder / "column.npy").write_bytes(octets)
    mpired.unpack(folder / "column.npy", type="double", output=folder / "out")
    assert (folder / "out").read_bytes() == struct.pack("<3d", 1, 2, 3)


def test_a_column_can_be_chosen(folder):
    pq.write_table(pa.table({"x": [1.0, 2.0], "name": ["a", "b"]}), folder / "two.parquet")
    refused(run("unpack", "--type", "double", "two.parquet", "-o", "out", cwd=folder), 3, "name", "no number")
    succeeded(run("unpack", "-q", "--type", "double", "--columns", "x", "two.parquet", "-o", "out", cwd=folder))
    assert (folder / "out").read_bytes() == struct.pack("<2d", 1, 2)


def test_the_target_is_replaced_in_one_step_and_keeps_what_it_is(folder):
    np.save(folder / "d.npy", -np.arange(5.0))
    target = folder / "rank0.rec"
    target.chmod(0o640)
    (folder / "link.rec").symlink_to("rank0.rec")
    with open(target, "rb") as before:
        succeeded(run("unpack", "-q", "--type", CELL, "d.npy", "--into", "link.rec", cwd=folder))
        assert before.read() == records().tobytes()
    assert (folder / "link.rec").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    wanted = records()
    wanted["d"] = -np.arange(5.0)
    assert target.read_bytes() == wanted.tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["d.npy", "link.rec", "rank0.rec"]


def test_a_full_disk_leaves_the_target(mounted):
    place = mounted("size=1m")
    np.arange(80_000, dtype="<f8").tofile(place / "a.rec")
    np.arange(1000, dtype="<f8").tofile(place / "d.bin")
    with unchanged(place):
        words = "--type", "resized(0,16,double)", "--count", "1000", "d.bin", "--into", "a.rec"
        refused(run("unpack", *words, cwd=place), 4, "No space left")


WRITING = ("pwrite", "fsync", "link", "replace", "posix_fallocate", "ftruncate", "fchmod", "fchown")


def at_call(number, happen):
    """Return a setup that lets something happen before the writing call of that number."""
    count = 0

    def counted(call):
        def wrapper(*arguments, **keywords):
            nonlocal count
            count += 1
            if count == number:
                happen()
            return call(*arguments, **keywords)

        return wrapper

    def setup():
        for name in WRITING:
            setattr(os, name, counted(getattr(os, name)))

    return setup


def fail():
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("happen", [fail, die])
def test_whatever_happens_the_target_is_the_old_or_the_new(folder, happen):
    np.save(folder / "d.npy", -np.arange(5.0))
    old, new = records(), records()
    new["d"] = -np.arange(5.0)
    target = folder / "rank0.rec"
    outcomes = []
    for number in range(1, 21):
        target.write_bytes(old.tobytes())
        words = "unpack", "-q", "--type", CELL, "d.npy", "--into", "rank0.rec"
        outcome = run(*words, cwd=folder, setup=at_call(number, happen))
        found = target.read_bytes()
        assert found in (old.tobytes(), new.tobytes())
        outcomes.append(outcome.status)
        if happen is fail:
            assert found == (old.tobytes() if outcome.status == 4 else new.tobytes())
            assert sorted(path.name for path in folder.iterdir()) == ["d.npy", "rank0.rec"]
    assert outcomes[-1] == 0
    assert set(outcomes) == ({0, 4, 6} if happen is fail else {0, -signal.SIGKILL})
    assert sum(status != 0 for status in outcomes) >= 6


def test_a_file_that_grows_meanwhile_is_noticed(folder, monkeypatch):
    from mpired.packing import pack as module

    def grows(run_, *arguments):
        with open(folder / "rank0.rec", "ab") as file:
            file.write(b"x")
        return cut(run_, *arguments)

    cut = transfer.cut
    monkeypatch.setattr(module.transfer, "cut", grows)
    with pytest.raises(mpired.MpiredError, match=r"rank0\.rec: "):
        mpired.pack(folder / "rank0.rec", type=CELL, output=folder / "out.npy")
    assert not (folder / "out.npy").exists()


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


def test_the_environment_is_never_silent(folder):
    outcome = run("pack", "-q", "rank0.rec", "-o", "d.npy", cwd=folder, env={"MPIRED_TYPE": CELL})
    assert (outcome.status, outcome.err) == (0, "mpired: from the environment: --type (MPIRED_TYPE)\n")


@pytest.mark.parametrize("apart", [1 << 28, 1 << 30])
def test_holes_stay_holes(tmp_path, apart):
    """Four numbers far apart: whatever is done to them, nobody writes the zeros between."""
    far = f"hvector(4,1,{apart},double)"
    of_each = "def add(a, b, count, datatype):\n    for name in a.dtype.names:\n        b[name] += a[name]\n"
    (tmp_path / "add.py").write_text(of_each)
    np.save(tmp_path / "four.npy", np.arange(1.0, 5.0))
    for name in ("old.bin", "other.bin"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 4 * apart)
        mpired.unpack(tmp_path / "four.npy", into=tmp_path / name, type=far, count=1)
    mpired.unpack(tmp_path / "four.npy", output=tmp_path / "new.bin", type=far)
    said = {"type": far, "count": 1, "op": f"{tmp_path}/add.py:add"}
    mpired.reduce([tmp_path / "old.bin", tmp_path / "other.bin"], in_place=True, **said)
    mpired.reduce([tmp_path / "old.bin", tmp_path / "other.bin"], output=tmp_path / "sum.bin", **said)
    for name, wanted in {"old.bin": [2, 4, 6, 8], "new.bin": [1, 2, 3, 4], "sum.bin": [3, 6, 9, 12]}.items():
        with open(tmp_path / name, "rb") as file:
            assert [np.frombuffer(os.pread(file.fileno(), 8, i * apart))[0] for i in range(4)] == wanted
            assert os.fstat(file.fileno()).st_blocks * 512 < 1 << 20
    assert (tmp_path / "old.bin").stat().st_size == 4 * apart


@pytest.mark.parametrize("form", ["npy", "parquet", "arrow"])
@pytest.mark.parametrize(
    "text",
    [
        "vector(2,1,2,double)",
        "resized(0,8,vector(2,1,3,double))",
        "struct([1,1],[16,0],[double,double])",
        "struct([1,1,2],[8,0,12],[int,double,int8_t])",
    ],
)
def test_elements_that_a_reduction_has_written_are_put_back(tmp_path, text, form):
    """By way of another format comes what the reduction writes to raw."""

    def add(a, b):
        return np.array([tuple(x + y for x, y in zip(*pair, strict=True)) for pair in zip(a, b, strict=True)], b.dtype)

    for rank in range(2):
        (np.arange(12.0) + rank).tofile(tmp_path / f"{rank}.bin")
    ranks = [tmp_path / "0.bin", tmp_path / "1.bin"]
    for output in ("sum.bin", f"sum.{form}"):
        mpired.reduce(ranks, add, type=text, count=2, output=tmp_path / output)
    mpired.unpack(tmp_path / f"sum.{form}", type=text, output=tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "sum.bin").read_bytes()
    outcome = shell(f'cat sum.{form} | "$@" -', "unpack", "-q", "--type", text, cwd=tmp_path)
    assert outcome == (0, (tmp_path / "sum.bin").read_bytes(), "")


@pytest.mark.parametrize("verb", ["reduce", "scan", "reduce_scatter"])
def test_holes_around_replaced_elements_stay(tmp_path, verb):
    """Ten numbers in the middle of a large file without any others, in place."""
    paths = [tmp_path / "0.bin", tmp_path / "1.bin"]
    for path in paths:
        with open(path, "wb") as file:
            file.seek(100 << 20)
            file.write(np.arange(10.0).tobytes())
            file.truncate(200 << 20)
    arguments = [[6, 4]] if verb == "reduce_scatter" else []
    said = {"type": "double", "offset": 100 << 20, "count": 10, "in_place": True}
    getattr(mpired, verb)(paths, "sum", *arguments, **said)
    for path in paths[: 1 if verb == "reduce" else 2]:
        assert path.stat().st_blocks * 512 < 1 << 20
    first = {"reduce": 2.0, "scan": 1.0, "reduce_scatter": 2.0}[verb] * np.arange(10.0)
    kept = 6 if verb == "reduce_scatter" else 10
    octets = paths[0].read_bytes()
    assert len(octets) == (200 << 20) - 8 * (10 - kept)
    assert octets.strip(b"\0") == first[:kept].tobytes().strip(b"\0")
    assert octets[100 << 20 :][: 8 * kept] == first[:kept].tobytes()


@pytest.mark.parametrize("words", [
    "unpack --type int64_t s.bin --from raw",
    "unpack --type int64_t --datarep external32 s.bin",
    "unpack --type vector(2,1,2,int64_t) s.bin",
    "unpack --type int64_t s.bin --into z.bin",
    "pack --type int64_t s.bin --to raw",
    "pack --type int64_t --offset 5 s.bin --to raw",
    "reduce --op sum --type int64_t --offset 5 s.bin s.bin --to raw",
    "accumulate --op sum --type int64_t --offset 5 s.bin z.bin",
    "accumulate --op sum --type int64_t --offset 5 z.bin s.bin",
])  # fmt: skip
def test_no_elements_of_a_file_that_has_none(words, tmp_path):
    """A count of 0 is legal (MPI-4.1, 5.2 and 12.3.4), however few bytes there are."""
    (tmp_path / "s.bin").write_bytes(b"abc")
    (tmp_path / "z.bin").write_bytes(bytes(16))
    assert run(*words.split(), "-q", "--count", "0", cwd=tmp_path) == (0, b"", "")
    assert [(tmp_path / name).read_bytes() for name in ("s.bin", "z.bin")] == [b"abc", bytes(16)]
    with unchanged(tmp_path):
        refused(run(*words.split(), "--count", "1", cwd=tmp_path), 3)


def test_the_summary_counts_what_was_taken(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    outcome = run("unpack", "--type", "int64_t", "--count", "2", "a.npy", "-o", "b.bin", cwd=tmp_path)
    assert outcome.err == "mpired: unpacked 2 x MPI_INT64_T, 2 x MPI_INT64_T -> b.bin (raw)\n"
