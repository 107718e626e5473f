"""The same bytes as a real MPI: `MPI_Reduce_local`, applied rank by rank, is the left fold.

The data holds no NaN and no zeros of both signs where an op chooses between operands, because there
MPICH keeps whatever its comparison leaves in the buffer, which depends on the order of evaluation.
mpired has a rule instead: NaN propagates, and on a tie the lower rank's bits stay. The last tests
hold that difference.
"""

import functools
import itertools
import zlib

import matrix
import numpy as np
import reference
from real_mpi import handle, left_fold

import mpired

NRANKS = 4
COUNT = 1000

# Pairs that the standard does not define and MPICH computes all the same.
MPICH_TAKES = {
    *itertools.product(("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR"), ("CHAR",)),
    *itertools.product(("LAND", "LOR", "LXOR"), ("AINT", "OFFSET", "COUNT")),
}
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


def test_mpich_multiplies_complex4_with_one_rounding_and_mpired_rounds_every_step(mpi, directory, either_kernel):
    ranks = buffers("COMPLEX4")
    (a, b), *others = (np.frombuffer(rank, np.float16).astype(np.float32).reshape(-1, 2).T for rank in ranks)
    for c, d in others:
        real, imag = a * c - b * d, a * d + b * c
        a, b = (part.astype(np.float16).astype(np.float32) for part in (real, imag))
    once = np.stack([a, b], axis=1).astype(np.float16).tobytes()
    assert left_fold(mpi, "PROD", "COMPLEX4", ranks) == once
    assert mpired_reduce(directory, "PROD", "COMPLEX4", ranks) == reference.reduce("PROD", "COMPLEX4", ranks) != once


def test_the_order_of_ranks_shows_in_the_data(directory):
    for op, name in itertools.product(("SUM", "PROD"), (*matrix.FLOATING_POINT, *matrix.COMPLEX)):
        both = buffers(name), buffers(name)[::-1]
        assert len({mpired_reduce(directory, op, name, ranks) for ranks in both}) == 2, (op, name)


def test_illegal_pairs_are_refused_by_mpi_too(mpi):
    """With the class of error that mpired's has; MPICH takes some beyond the standard."""
    for_windows = itertools.product(matrix.RMA_OPS, ("INT", "DOUBLE", "BYTE", "CHAR", "DOUBLE_INT"))
    classes = {}
    for op, name in (*matrix.ILLEGAL_PAIRS, *for_windows):
        try:
            left_fold(mpi, op, name, [bytes(reference.FORMS[name][1])] * 2)
        except mpi.Exception as error:
            classes[op, name] = error.Get_error_class()
        else:
            classes[op, name] = mpi.SUCCESS
    assert {pair for pair, each in classes.items() if each == mpi.SUCCESS} == MPICH_TAKES
    assert {pair: each for pair, each in classes.items() if each not in {mpi.SUCCESS, mpi.ERR_OP}} == {}


def test_nan_as_the_library_has_it(mpi, directory):
    """With `nan="mpi"` the bytes are those of `MPI_Reduce_local`, where there are NaNs and zeros of both signs too."""
    for name in "FLOAT", "DOUBLE", "LONG_DOUBLE", "REAL2", "FLOAT_INT", "DOUBLE_INT":
        ranks = buffers(name, doubtful_numbers)
        for op in ("MAXLOC", "MINLOC") if name.endswith("_INT") else ("MAX", "MIN"):
            expected = without_padding(name, left_fold(mpi, op, name, ranks))
            assert mpired_reduce(directory, op, name, ranks, nan="mpi") == expected, (op, name)
            assert mpired_reduce(directory, op, name, ranks) != expected, (op, name)


NAN = float("nan")
LISTS = ([5, 5, NAN], [NAN, NAN, 5], [1, 5, 1])
# The op, the elements of each rank, and the results of mpired and of MPICH.
DIFFERENCES = [
    ("MAX", LISTS, ["nan", "nan", "nan"], ["5.0", "5.0", "nan"]),
    ("MIN", LISTS, ["nan", "nan", "nan"], ["1.0", "5.0", "nan"]),
    ("MAXLOC", [(NAN, 9), (5.0, 8), (1.0, 7)], ["(nan, 9)"], ["(5.0, 8)"]),
    ("MAXLOC", [(-0.0, 0), (0.0, 1)], ["(-0.0, 0)"], ["(0.0, 0)"]),  # the value of one rank with the index of another
]


def test_mpired_has_a_rule_for_nans_and_ties_where_mpich_has_none(mpi, directory, either_kernel):
    for op, elements, ours, theirs in DIFFERENCES:
        name = "DOUBLE_INT" if op == "MAXLOC" else "DOUBLE"
        form = np.dtype([("value", "f8"), ("index", "i4")], align=True) if op == "MAXLOC" else np.dtype("f8")
        ranks = [np.array([each] if op == "MAXLOC" else each, form).tobytes() for each in elements]
        both = mpired_reduce(directory, op, name, ranks), left_fold(mpi, op, name, ranks)
        assert [list(map(str, np.frombuffer(result, form).tolist())) for result in both] == [ours, theirs]
