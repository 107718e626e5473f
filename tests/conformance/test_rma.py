"""The same bytes as the windows of a real MPI: the accumulate family over ops, datatypes and places.

One process is a window's target and origin at once, which MPI allows and which is one order of events.
Data without NaN and without zeros of both signs, where MPICH keeps whatever its comparison leaves.
"""

from __future__ import annotations

import zlib

import matrix
import numpy as np
import pytest
import reference
from real_mpi import UNNAMED, handle

import mpired

COUNT = 40
NAMED = [name for name in matrix.AVAILABLE if name not in UNNAMED]
CASES = [(op, name) for op, name in matrix.LEGAL_PAIRS if name in NAMED] + [("REPLACE", name) for name in NAMED]


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


def test_accumulate_and_get_accumulate(mpi, directory):
    assert len(CASES) > 300
    for number, (op, name) in enumerate(CASES):
        disp = (0, 13, COUNT - 10)[number % 3]
        extent = reference.FORMS[name][1]
        target, origin = elements(name, COUNT, 1), elements(name, 10, 2)
        (directory / "target.bin").write_bytes(target)
        (directory / "origin.bin").write_bytes(origin)
        datatype, operation = handle(mpi, name), getattr(mpi, op)
        real, old = Real(mpi, target, extent), bytearray(10 * extent)
        place = [disp, 10, datatype]
        real.window.Get_accumulate([bytearray(origin), 10, datatype], [old, 10, datatype], 0, place, operation)
        real.window.Flush(0)
        real.window.Accumulate([origin, 10, datatype], 0, place, operation)
        expected = real.close()
        window = mpired.Window(directory / "target.bin", type=name, commit=("rename", "journal")[number % 2])
        fetched = window.get_accumulate(directory / "origin.bin", op, target_disp=disp)
        window.accumulate(directory / "origin.bin", op, target_disp=disp * extent, disp_unit=1)
        assert same(name, (directory / "target.bin").read_bytes(), expected), (op, name)
        assert same(name, fetched.tobytes(), bytes(old)), (op, name)


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
