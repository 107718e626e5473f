"""The same bytes as the windows of a real MPI: the accumulate family over ops, datatypes and places.

One process is a window's target and origin at once, which MPI allows and which is one order of events.
Data without NaN and without zeros of both signs, where MPICH keeps whatever its comparison leaves.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference

import mpired

COUNT = 40
RENAMED = {"LONG_LONG_INT": "LONG_LONG", "2INT": "TWOINT"}
# No name in mpi4py.
UNNAMED = {
    "REAL2",
    "COMPLEX4",
    "LOGICAL1",
    "LOGICAL2",
    "LOGICAL4",
    "LOGICAL8",
    "2REAL",
    "2DOUBLE_PRECISION",
    "2INTEGER",
}
NAMED = [name for name in matrix.AVAILABLE if name not in UNNAMED]
CASES = [(op, name) for op, name in matrix.LEGAL_PAIRS if name in NAMED] + [("REPLACE", name) for name in NAMED]


def handle(mpi, name):
    return getattr(mpi, RENAMED.get(name, name))


def elements(name: str, count: int, seed: int) -> bytes:
    """Draw elements: ordinary numbers of both signs with ties, never zero if floating, and no bits in the padding."""
    draw = np.random.default_rng(zlib.crc32(f"{name} {seed}".encode()))
    parts, extent = reference.FORMS[name]
    octets = np.zeros((count, extent), np.uint8)
    for code, at in parts:
        numbers = draw.integers(1, 9, count).astype(code)
        if code[0] != "u":
            numbers = (numbers * draw.choice([-1, 1], count)).astype(code)
        if code[0] in "iu" and name not in {"C_BOOL", "CXX_BOOL"}:
            numbers[::5] = np.iinfo(code).max
        if name in {"C_BOOL", "CXX_BOOL", "LOGICAL"}:
            numbers = draw.integers(0, 2, count).astype(code)
        octets[:, at : at + numbers.itemsize] = numbers.view(np.uint8).reshape(count, -1)
        if code == "g":
            octets[:, at + 10 : at + 16] = 0
    return octets.tobytes()


class Real:
    """A window of a real MPI over a buffer."""

    def __init__(self, mpi, buffer: bytes, unit: int) -> None:
        self.memory = mpi.Alloc_mem(len(buffer))
        self.memory[:] = buffer
        self.window = mpi.Win.Create(self.memory, unit, comm=mpi.COMM_SELF)
        self.window.Lock(0)

    def close(self) -> bytes:
        self.window.Unlock(0)
        result = bytes(self.memory)
        self.window.Free()
        return result


def same(name: str, mine: bytes, theirs: bytes) -> bool:
    """Compare elements, without the bytes that carry no value."""
    return all(
        reference.without_padding(name, a) == reference.without_padding(name, b)
        for a, b in zip(reference.elements(name, mine), reference.elements(name, theirs), strict=True)
    )


@pytest.mark.parametrize(("op", "name"), CASES)
def test_accumulate_and_get_accumulate(op, name, mpi, directory):
    extent = reference.FORMS[name][1]
    target, origin = elements(name, COUNT, 1), elements(name, 10, 2)
    (directory / "target.bin").write_bytes(target)
    (directory / "origin.bin").write_bytes(origin)
    datatype, operation = handle(mpi, name), getattr(mpi, op)
    for disp in (0, 13, COUNT - 10):
        real = Real(mpi, (directory / "target.bin").read_bytes(), extent)
        old = bytearray(10 * extent)
        real.window.Get_accumulate(
            [bytearray(origin), 10, datatype], [old, 10, datatype], 0, [disp, 10, datatype], operation
        )
        real.window.Flush(0)
        real.window.Accumulate([origin, 10, datatype], 0, [disp, 10, datatype], operation)
        expected = real.close()
        window = mpired.Window(directory / "target.bin", type=name, commit=("rename", "journal")[disp % 2])
        fetched = window.get_accumulate(directory / "origin.bin", op, target_disp=disp)
        window.accumulate(directory / "origin.bin", op, target_disp=disp * extent, disp_unit=1)
        assert same(name, (directory / "target.bin").read_bytes(), expected)
        assert same(name, fetched.tobytes(), bytes(old))


@pytest.mark.parametrize(
    ("op", "name"), [case for case in CASES if case[1] in matrix.C_INTEGER + matrix.FLOATING_POINT]
)
def test_fetch_and_op(op, name, mpi, directory):
    extent = reference.FORMS[name][1]
    target, origin = elements(name, COUNT, 3), elements(name, 1, 4)
    (directory / "target.bin").write_bytes(target)
    (directory / "origin.bin").write_bytes(origin)
    real, old = Real(mpi, target, extent), bytearray(extent)
    real.window.Fetch_and_op([origin, 1, handle(mpi, name)], [old, 1, handle(mpi, name)], 0, 7, getattr(mpi, op))
    expected = real.close()
    window = mpired.Window(directory / "target.bin", type=name)
    found = window.fetch_and_op(directory / "origin.bin", op, target_disp=7)
    assert same(name, (directory / "target.bin").read_bytes(), expected)
    assert same(name, np.asarray(found).tobytes(), bytes(old))


@pytest.mark.parametrize("name", ["INT", "UNSIGNED_CHAR", "LONG", "INT16_T", "UINT64_T", "INTEGER", "AINT", "BYTE"])
@pytest.mark.parametrize("equal", [True, False])
# MPICH refuses LOGICAL, which the standard allows.
def test_compare_and_swap(name, equal, mpi, directory):
    extent = reference.FORMS[name][1]
    target, origin = elements(name, COUNT, 5), elements(name, 1, 6)
    compare = target[9 * extent : 10 * extent] if equal else bytes([17] * extent)
    for path, content in (("target", target), ("origin", origin), ("compare", compare)):
        (directory / f"{path}.bin").write_bytes(content)
    real, old = Real(mpi, target, extent), bytearray(extent)
    datatype = handle(mpi, name)
    real.window.Compare_and_swap([origin, 1, datatype], [compare, 1, datatype], [old, 1, datatype], 0, 9)
    expected = real.close()
    window = mpired.Window(directory / "target.bin", type=name)
    found = window.compare_and_swap(directory / "compare.bin", directory / "origin.bin", target_disp=9)
    assert (directory / "target.bin").read_bytes() == expected
    assert np.asarray(found).tobytes() == bytes(old)


# Derived datatypes on both sides: the k-th element of one goes to the k-th of the other, in the order of the map


def _types(mpi, name: str) -> dict[str, tuple[object, int]]:
    """Return some datatypes of 6 elements, by their text, with the count of elements that they span."""
    basic, extent = handle(mpi, name), reference.FORMS[name][1]
    low = name.lower()
    return {
        f"vector(3,2,4,{low})": (basic.Create_vector(3, 2, 4), 10),
        f"indexed([1,2,3],[8,4,0],{low})": (basic.Create_indexed([1, 2, 3], [8, 4, 0]), 9),
        f"indexed_block(2,[6,0,3],{low})": (basic.Create_indexed_block(2, [6, 0, 3]), 8),
        f"hindexed([3,3],[{5 * extent},0],{low})": (basic.Create_hindexed([3, 3], [5 * extent, 0]), 8),
        f"subarray([4,5],[2,3],[1,1],C,{low})": (basic.Create_subarray([4, 5], [2, 3], [1, 1]), 20),
        f"contiguous(2,vector(3,1,2,{low}))": (basic.Create_vector(3, 1, 2).Create_contiguous(2), 10),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["DOUBLE", "SHORT", "C_DOUBLE_COMPLEX", "DOUBLE_INT", "LONG_DOUBLE_INT"])
@pytest.mark.parametrize("number", range(6))
def test_derived_datatypes(name, number, mpi, directory):
    op = "MAXLOC" if name.endswith("_INT") else "SUM"
    extent = reference.FORMS[name][1]
    types = _types(mpi, name)
    (target_text, (target_type, _)), (origin_text, (origin_type, span)) = (
        [*types.items()][number],
        [*types.items()][-1 - number],
    )
    target, origin = elements(name, COUNT, 7), elements(name, span, 8)
    (directory / "target.bin").write_bytes(target)
    (directory / "origin.bin").write_bytes(origin)
    for made in (target_type, origin_type):
        made.Commit()
    real = Real(mpi, target, extent)
    real.window.Accumulate([origin, 1, origin_type], 0, [5, 1, target_type], getattr(mpi, op))
    expected = real.close()
    mpired.Window(directory / "target.bin").accumulate(
        directory / "origin.bin", op, target_disp=5, target_type=target_text, target_count=1, origin_type=origin_text,
        origin_count=1,
    )  # fmt: skip
    assert same(name, (directory / "target.bin").read_bytes(), expected)


def test_matrix_plus_its_transpose(mpi, directory):
    """The standard's transpose: a column is a vector, and the columns one after another are the transpose."""
    size = 7
    matrix_ = np.arange(49.0).reshape(size, size)
    (directory / "a.bin").write_bytes(matrix_.tobytes())
    column = mpi.DOUBLE.Create_vector(size, 1, size)
    transpose = column.Create_resized(0, 8).Create_contiguous(size).Commit()
    real = Real(mpi, matrix_.tobytes(), 8)
    real.window.Accumulate([matrix_.tobytes(), 1, transpose], 0, [0, size * size, mpi.DOUBLE], mpi.SUM)
    expected = real.close()
    columns = f"contiguous({size},resized(0,8,vector({size},1,{size},double)))"
    window = mpired.Window(directory / "a.bin", type="double")
    with pytest.warns(mpired.errors.SameFileWarning):
        window.accumulate(directory / "a.bin", "sum", origin_type=columns)
    assert (directory / "a.bin").read_bytes() == expected == (matrix_ + matrix_.T).tobytes()


_RANKS = """
import sys
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
memory = MPI.Alloc_mem(8 * 30 if comm.rank == 0 else 0)
window = MPI.Win.Create(memory, 8, comm=comm)
if comm.rank == 0:
    memory[:] = np.zeros(30, np.int64).tobytes()
comm.Barrier()
window.Lock(0, MPI.LOCK_SHARED)
for i in range(20):
    origin = np.arange(10, dtype=np.int64) * (comm.rank + 1)
    column = MPI.LONG.Create_vector(10, 1, 3).Commit()
    window.Accumulate([origin, 10, MPI.LONG], 0, [i % 3, 1, column], MPI.SUM)
window.Unlock(0)
comm.Barrier()
if comm.rank == 0:
    open(sys.argv[1], "wb").write(bytes(memory))
"""


def test_several_processes_at_one_window(directory):
    """The same requests from four ranks of a real job, and from four processes of ours."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    subprocess.run(
        [mpiexec, "-n", "4", sys.executable, "-c", _RANKS, directory / "expected.bin"], check=True, timeout=60
    )
    (directory / "shared.bin").write_bytes(bytes(8 * 30))
    script = (
        "import sys, mpired, numpy as np\n"
        "window, rank = mpired.Window(sys.argv[1]), int(sys.argv[2])\n"
        "for i in range(20):\n"
        "    window.accumulate(np.arange(10) * (rank + 1), 'sum', target_disp=i % 3, target_type='vector(10,1,3,long)',"
        " origin_count=10)\n"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", script, directory / "shared.bin", str(rank)]) for rank in range(4)]
    assert [rank.wait(60) for rank in ranks] == [0] * 4
    assert (directory / "shared.bin").read_bytes() == (directory / "expected.bin").read_bytes()
