"""What cannot be packed or unpacked."""

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from records import CELL
from rows import check_refused, each

import mpired

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
