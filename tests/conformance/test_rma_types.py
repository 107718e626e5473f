"""Derived datatypes in one-sided calls: the same windows as those of a real MPI, in both byte orders."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from one_sided import Both, Side, same, spelled, true_extent, values

import mpired


@pytest.mark.parametrize("kind", ["call", "element"])
def test_random_calls(mpi, tmp_path, long, record_property, kind):
    both, wanted = Both(mpi, tmp_path), 4000 if long else 60
    first = random.SystemRandom().randrange(2**32) if long else 0
    for number in itertools.count():
        getattr(both, kind)(f"{first} {number}")
        if both.calls == wanted:
            break
    record_property("tried", both.calls)


@pytest.mark.parametrize("verb", ["accumulate", "get_accumulate"])
@pytest.mark.parametrize(
    "case",
    [
        # the elements of the origin closer than they are long, the last at the end of the file
        ("DOUBLE_INT", (1, "contiguous(3,double_int)"), 0, (3, "resized(0,10,double_int)"), 32),
        ("DOUBLE", (3, "contiguous(3,double)"), 0, (9, "resized(0,3,double)"), 33),
        # nothing, into a window with too few bytes for an element
        ("DOUBLE", (0, "vector(2,1,2,double)"), 0, (0, "double"), 0),
        ("DOUBLE", (0, "vector(2,1,2,double)"), 0, (0, "vector(2,1,2,double)"), 3),
        # an origin of no whole number of elements
        ("INT16_T", (3, "int16_t"), 4, (1, "struct([1,1,1],[0,2,5],[int16_t,int16_t,int16_t])"), 7),
        ("INT", (2, "int"), 1, (2, "resized(-1,5,hindexed([1],[1],int))"), 10),
        # the padding of an element beyond the end of the window, and under the next element
        ("DOUBLE_INT", (1, "double_int"), 20, (1, "double_int"), 16),
        ("DOUBLE_INT", (2, "resized(0,12,double_int)"), 3, (2, "double_int"), 32),
        ("LONG_DOUBLE_INT", (1, "hindexed([1,1],[20,0],long_double_int)"), 0, (2, "long_double_int"), 64),
    ],
)
def test_legal_calls_at_the_edges(verb, case, mpi, tmp_path):
    """What MPI takes is taken, whether bytes of padding are there or not."""
    name, target, start, origin, size = case
    rng, both = random.Random(name), Both(mpi, tmp_path)
    where, given = (spelled(mpi, name, text) for _, text in (target, origin))
    nbytes = max([start + disp + i * where.extent for i in range(target[0]) for disp in where.disps], default=0)
    window = rng.randbytes(nbytes + true_extent(name) if target[0] else size)
    sides = [
        Side(name, kind, count, at, octets, [at + i * kind.extent + disp for i in range(count) for disp in kind.disps])
        for kind, count, at, octets in ((where, target[0], start, window), (given, origin[0], 0, rng.randbytes(size)))
    ]
    expected = both.theirs(*sides, "REPLACE", verb)
    for order in ("little", "big") if sides[1].apart else ("little",):
        found, fetched = both.ours(*sides, "REPLACE", verb, order=order)
        assert same(sides[0], found if order == "little" else sides[0].swapped(found), expected[0])
        assert values(name, fetched) == values(name, expected[1])


def test_matrix_plus_its_transpose(mpi, tmp_path):
    """The standard's transpose: a column is a vector, and the columns one after another are the transpose."""
    size = 7
    matrix_ = np.arange(49.0).reshape(size, size)
    (tmp_path / "a.bin").write_bytes(matrix_.tobytes())
    column = mpi.DOUBLE.Create_vector(size, 1, size)
    transpose = column.Create_resized(0, 8).Create_contiguous(size).Commit()
    memory = mpi.Alloc_mem(8 * size * size)
    memory[:] = matrix_.tobytes()
    real = mpi.Win.Create(memory, 8, comm=mpi.COMM_SELF)
    real.Lock(0)
    real.Accumulate([matrix_.tobytes(), 1, transpose], 0, [0, size * size, mpi.DOUBLE], mpi.SUM)
    real.Unlock(0)
    expected = bytes(memory)
    real.Free()
    columns = f"contiguous({size},resized(0,8,vector({size},1,{size},double)))"
    window = mpired.Window(tmp_path / "a.bin", type="double")
    with pytest.warns(mpired.errors.SameFileWarning):
        window.accumulate(tmp_path / "a.bin", "sum", origin_type=columns)
    assert (tmp_path / "a.bin").read_bytes() == expected == (matrix_ + matrix_.T).tobytes()
