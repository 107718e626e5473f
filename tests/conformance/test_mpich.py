"""The same bytes as a real MPI: `MPI_Reduce_local`, applied rank by rank, is the left fold.

The data holds no NaN and no zeros of both signs where an op chooses between operands, because there
MPICH keeps whatever its comparison leaves in the buffer, which depends on the order of evaluation.
mpired has a rule instead: NaN propagates, and on a tie the lower rank's bits stay; with `nan="mpi"` it has none.
"""

import functools
import zlib

import matrix
import numpy as np
import reference
from real_mpi import handle, left_fold

import mpired

NRANKS = 4
COUNT = 1000
# MPICH multiplies pairs of binary16 in binary32 and rounds once, because its compiler does; here every step is rounded.
MPICH_DIFFERS = {("PROD", "COMPLEX4")}


def mpired_reduce(directory, op, name, ranks, **options):
    paths = [directory / f"rank{i}.bin" for i in range(len(ranks))]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
    return mpired.reduce(paths, op, type=name, **options).tobytes()


def numbers(code, count, draw):
    """Draw components of `count` elements: of many magnitudes, with ties, and never zero if floating."""
    if code[0] in "iu":
        wide = np.frombuffer(draw.bytes(count * reference.VALUE_BYTES[code]), code)
        return np.where(draw.random(count) < 0.5, wide, draw.integers(0, 4, count).astype(code))
    # So that the product of four, or of four complex numbers, neither overflows nor vanishes.
    span = {"f2": 3, "f4": 28, "f8": 250, "g": 4000}[code]
    dtype = np.dtype(code)
    fractions = draw.uniform(0.5, 1, count).astype(dtype) + draw.uniform(0, 1e-9, count).astype(dtype)
    scaled = np.ldexp(fractions * draw.choice([-1, 1], count).astype(dtype), draw.integers(-span, span, count))
    return np.where(draw.random(count) < 0.7, scaled, draw.integers(1, 3, count)).astype(dtype)


def doubtful_numbers(code, count, draw):
    """Draw components among which are NaNs and zeros of both signs."""
    values = [np.nan, 0.0, -0.0, 1.0, np.inf, -1.0]
    return (draw.choice(values, count) if code[0] in "fg" else draw.integers(0, 9, count)).astype(code)


@functools.cache
def buffers(name, drawn=numbers):
    """Return the ranks' buffers; what lies in the padding is arbitrary."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    parts, extent = reference.FORMS[name]
    ranks = []
    for _ in range(NRANKS):
        octets = np.frombuffer(bytearray(draw.bytes(COUNT * extent)), np.uint8).reshape(COUNT, extent)
        for code, at in parts:
            used = reference.VALUE_BYTES[code]
            octets[:, at : at + used] = drawn(code, COUNT, draw).view(np.uint8).reshape(COUNT, -1)[:, :used]
        ranks.append(octets.tobytes())
    return ranks


def without_padding(name, result):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, result))


def test_every_datatype_has_the_size_and_the_extents_of_mpi(mpi):
    rows = {row.name: row for row in mpired.DATATYPES}
    mine = {name: (rows[name].size, (0, rows[name].extent), (0, rows[name].true_extent)) for name in matrix.AVAILABLE}
    types = {name: handle(mpi, name) for name in matrix.AVAILABLE}
    assert mine == {name: (each.Get_size(), each.Get_extent(), each.Get_true_extent()) for name, each in types.items()}


def test_legal_pairs_give_the_bytes_of_mpi(mpi, directory, either_kernel):
    wrong = []
    for op, name in matrix.LEGAL_PAIRS if either_kernel == "numpy" else matrix.COMPILED_PAIRS:
        theirs = without_padding(name, left_fold(mpi, op, name, buffers(name)))
        if mpired_reduce(directory, op, name, buffers(name)) != theirs:
            wrong.append((op, name))
    assert {*wrong} == MPICH_DIFFERS


def test_nan_as_the_library_has_it(mpi, directory):
    """With `nan="mpi"` the bytes are those of `MPI_Reduce_local`, where there are NaNs and zeros of both signs too."""
    for name in "FLOAT", "DOUBLE", "LONG_DOUBLE", "REAL2", "FLOAT_INT", "DOUBLE_INT":
        ranks = buffers(name, doubtful_numbers)
        for op in ("MAXLOC", "MINLOC") if name.endswith("_INT") else ("MAX", "MIN"):
            expected = without_padding(name, left_fold(mpi, op, name, ranks))
            assert mpired_reduce(directory, op, name, ranks, nan="mpi") == expected, (op, name)
            assert mpired_reduce(directory, op, name, ranks) != expected, (op, name)
