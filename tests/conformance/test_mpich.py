"""The same bytes as a real MPI: `MPI_Reduce_local`, applied rank by rank, is the left fold.

The data holds no NaN and no zeros of both signs where an op chooses between operands, because there
MPICH keeps whatever its comparison leaves in the buffer, which depends on the order of evaluation.
mpired has a rule instead: NaN propagates, and on a tie the lower rank's bits stay. The last tests
hold that difference.
"""

import zlib

import matrix
import numpy as np
import pytest
import reference

import mpired
from mpired.errors import OpError

NRANKS = 4
COUNT = 1000

# Datatypes without a name in mpi4py, with their size in bytes. MPICH's handle of a predefined type is
# 0x4c000000 + size * 256 + a number of its own.
UNNAMED = {"REAL2": 2, "COMPLEX4": 4, "LOGICAL1": 1, "LOGICAL2": 2, "LOGICAL4": 4, "LOGICAL8": 8,
           "2REAL": 8, "2DOUBLE_PRECISION": 16, "2INTEGER": 8}  # fmt: skip
RENAMED = {"LONG_LONG_INT": "LONG_LONG", "2INT": "TWOINT"}
# Of mpired's datatypes those that MPICH does not have.
NOT_REACHED = set()

# Pairs that the standard does not define and MPICH computes all the same.
MPICH_TAKES = {
    ("MAX", "CHAR"), ("MIN", "CHAR"), ("SUM", "CHAR"), ("PROD", "CHAR"), ("LAND", "CHAR"), ("BAND", "CHAR"),
    ("LOR", "CHAR"), ("BOR", "CHAR"), ("LXOR", "CHAR"), ("BXOR", "CHAR"),
    ("LAND", "AINT"), ("LAND", "OFFSET"), ("LAND", "COUNT"),
    ("LOR", "AINT"), ("LOR", "OFFSET"), ("LOR", "COUNT"),
    ("LXOR", "AINT"), ("LXOR", "OFFSET"), ("LXOR", "COUNT"),
}  # fmt: skip

# MPICH multiplies pairs of binary16 in binary32 and rounds once, because its compiler does; here every step is rounded.
MPICH_DIFFERS = {("PROD", "COMPLEX4")}


def handle(mpi, name):
    """Return the datatype of that name, None if the library has none."""
    if name in UNNAMED:
        return _unnamed(mpi, name)
    found = getattr(mpi, RENAMED.get(name, name))
    return None if found == mpi.DATATYPE_NULL else found


def _unnamed(mpi, name):
    for number in range(256):
        try:
            found = mpi.Datatype.f2py(0x4C000000 | UNNAMED[name] << 8 | number)
            if found.Get_name() == f"MPI_{name}":
                return found
        except mpi.Exception:  # not a datatype
            continue
    return None


def left_fold(mpi, op, name, ranks):
    """Return ((r0 op r1) op r2) ... by MPI."""
    datatype, operation = handle(mpi, name), getattr(mpi, op)
    count = len(ranks[0]) // reference.FORMS[name][1]
    result = bytearray(ranks[0])
    for rank in ranks[1:]:
        inout = bytearray(rank)
        operation.Reduce_local([result, count, datatype], [inout, count, datatype])
        result = inout
    return bytes(result)


def mpired_reduce(directory, op, name, ranks, **options):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.bin")
        paths[-1].write_bytes(rank)
    output = directory / "result.bin"
    mpired.reduce(paths, op, output=output, overwrite=True, type=name, **options)
    return output.read_bytes()


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


def buffers(name):
    """Return the ranks' buffers; what lies in the padding is arbitrary."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    parts, extent = reference.FORMS[name]
    ranks = []
    for _ in range(NRANKS):
        octets = np.frombuffer(bytearray(draw.bytes(COUNT * extent)), np.uint8).reshape(COUNT, extent)
        for code, at in parts:
            used = reference.VALUE_BYTES[code]
            values = numbers(code, COUNT, draw).view(np.uint8).reshape(COUNT, -1)
            octets[:, at : at + used] = values[:, :used]
        ranks.append(octets.tobytes())
    return ranks


def without_padding(name, result):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, result))


def padding_is_zero(name, result):
    return result == without_padding(name, result)


def test_every_datatype_is_reached(mpi):
    missing = {name for name in matrix.AVAILABLE if handle(mpi, name) is None}
    assert missing == NOT_REACHED


@pytest.mark.parametrize("name", matrix.AVAILABLE)
def test_sizes_and_extents_are_those_of_mpi(mpi, name):
    (row,) = (row for row in mpired.DATATYPES if row.name == name)
    datatype = handle(mpi, name)
    assert (row.size, (0, row.extent)) == (datatype.Get_size(), datatype.Get_extent())
    assert (0, row.true_extent) == datatype.Get_true_extent()


@pytest.mark.parametrize(("op", "name"), [pair for pair in matrix.LEGAL_PAIRS if pair not in MPICH_DIFFERS])
def test_legal_pair_gives_the_bytes_of_mpi(mpi, directory, either_kernel, op, name):
    ranks = buffers(name)
    result = mpired_reduce(directory, op, name, ranks)
    assert padding_is_zero(name, result)
    assert result == without_padding(name, left_fold(mpi, op, name, ranks))


def test_mpich_multiplies_complex4_with_one_rounding_and_mpired_rounds_every_step(mpi, directory, either_kernel):
    ranks = buffers("COMPLEX4")
    (a, b), *others = (np.frombuffer(rank, np.float16).astype(np.float32).reshape(-1, 2).T for rank in ranks)
    for c, d in others:
        real, imag = a * c - b * d, a * d + b * c
        a, b = (part.astype(np.float16).astype(np.float32) for part in (real, imag))
    once = np.stack([a, b], axis=1).astype(np.float16).tobytes()
    assert left_fold(mpi, "PROD", "COMPLEX4", ranks) == once
    assert mpired_reduce(directory, "PROD", "COMPLEX4", ranks) == reference.reduce("PROD", "COMPLEX4", ranks) != once


@pytest.mark.parametrize("name", [*matrix.FLOATING_POINT, *matrix.COMPLEX])
def test_the_order_of_ranks_shows_in_the_data(directory, name):
    ranks = buffers(name)
    for op in ("SUM", "PROD"):
        assert mpired_reduce(directory, op, name, ranks) != mpired_reduce(directory, op, name, ranks[::-1])


@pytest.mark.parametrize(
    ("op", "name"), [pair for pair in matrix.ILLEGAL_PAIRS if pair not in MPICH_TAKES and pair[1] not in NOT_REACHED]
)
def test_illegal_pair_is_refused_by_mpi_too(mpi, op, name):
    with pytest.raises(mpi.Exception) as caught:
        left_fold(mpi, op, name, [bytes(reference.FORMS[name][1])] * 2)
    assert caught.value.Get_error_class() == mpi.ERR_OP


@pytest.mark.parametrize(("op", "name"), sorted(MPICH_TAKES))
def test_what_mpich_takes_beyond_the_standard_is_refused_here(mpi, directory, op, name):
    ranks = [b"\x03" * reference.FORMS[name][1]] * 2
    assert len(left_fold(mpi, op, name, ranks)) == len(ranks[0])
    with pytest.raises(OpError):
        mpired_reduce(directory, op, name, ranks)


@pytest.mark.parametrize("op", matrix.RMA_OPS)
@pytest.mark.parametrize("name", ["INT", "DOUBLE", "BYTE", "CHAR", "DOUBLE_INT"])
def test_ops_for_windows_are_refused_by_mpi_too(mpi, op, name):
    with pytest.raises(mpi.Exception) as caught:
        left_fold(mpi, op, name, [bytes(reference.FORMS[name][1])] * 2)
    assert caught.value.Get_error_class() == mpi.ERR_OP


@pytest.mark.parametrize("name", ["FLOAT", "DOUBLE", "LONG_DOUBLE", "REAL2", "FLOAT_INT", "DOUBLE_INT"])
def test_nan_as_the_library_has_it(mpi, directory, name):
    """With `nan="mpi"` the bytes are those of `MPI_Reduce_local`, where there are NaNs and zeros of both signs too."""
    draw, (parts, extent) = np.random.default_rng(9), reference.FORMS[name]
    values = [np.nan, 0.0, -0.0, 1.0, np.inf, -1.0]
    ranks = []
    for _ in range(NRANKS):
        octets = np.zeros((COUNT, extent), np.uint8)
        for code, at in parts:
            used = reference.VALUE_BYTES[code]
            drawn = draw.choice(values, COUNT) if code[0] in "fg" else draw.integers(0, 9, COUNT)
            octets[:, at : at + used] = drawn.astype(code).view(np.uint8).reshape(COUNT, -1)[:, :used]
        ranks.append(octets.tobytes())
    for op in ("MAXLOC", "MINLOC") if len(parts) > 1 else ("MAX", "MIN"):
        expected = without_padding(name, left_fold(mpi, op, name, ranks))
        assert mpired_reduce(directory, op, name, ranks, nan="mpi") == expected
        assert mpired_reduce(directory, op, name, ranks) != expected


def floats(*rows):
    return [np.array(row, np.float64).tobytes() for row in rows]


def doubles(result):
    return [str(number) for number in np.frombuffer(result, np.float64)]


def pairs(*elements):
    """Return one rank for each (value, index)."""
    form = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    return [np.array([element], form).tobytes() for element in elements]


def pair(result):
    value, index = reference.numbers("DOUBLE_INT", result)
    return str(value), index


NAN = float("nan")


@pytest.mark.parametrize(("op", "mpich"), [("MAX", ["5.0", "5.0", "nan"]), ("MIN", ["1.0", "5.0", "nan"])])
def test_nan_propagates_through_max_and_min_where_mpich_may_drop_it(mpi, directory, op, mpich):
    ranks = floats([5, 5, NAN], [NAN, NAN, 5], [1, 5, 1])
    assert doubles(mpired_reduce(directory, op, "DOUBLE", ranks)) == ["nan", "nan", "nan"]
    assert doubles(left_fold(mpi, op, "DOUBLE", ranks)) == mpich


@pytest.mark.parametrize("op", ["MAXLOC", "MINLOC"])
@pytest.mark.parametrize(
    ("values", "index"),
    [((NAN, 5.0, 1.0), 9), ((5.0, NAN, 1.0), 8), ((5.0, 1.0, NAN), 7), ((5.0, NAN, NAN), 7), ((NAN, NAN, 5.0), 8)],
)
def test_nan_wins_in_maxloc_and_minloc_whatever_its_index(directory, op, values, index):
    ranks = pairs(*zip(values, (9, 8, 7), strict=True))
    assert pair(mpired_reduce(directory, op, "DOUBLE_INT", ranks)) == ("nan", index)


def test_nan_wins_in_maxloc_where_mpich_loses_it(mpi, directory, either_kernel):
    ranks = pairs((NAN, 9), (5.0, 8), (1.0, 7))
    assert pair(left_fold(mpi, "MAXLOC", "DOUBLE_INT", ranks)) == ("5.0", 8)
    assert pair(mpired_reduce(directory, "MAXLOC", "DOUBLE_INT", ranks)) == ("nan", 9)


def test_the_pair_of_a_tie_is_one_ranks_pair_where_mpich_mixes_two(mpi, directory, either_kernel):
    ranks = pairs((-0.0, 0), (0.0, 1))
    assert pair(mpired_reduce(directory, "MAXLOC", "DOUBLE_INT", ranks)) == ("-0.0", 0)
    assert pair(left_fold(mpi, "MAXLOC", "DOUBLE_INT", ranks)) == ("0.0", 0)


def test_the_lower_ranks_zero_stays_in_a_tie(mpi, directory, either_kernel):
    ranks = floats([-0.0, 0.0], [0.0, -0.0])
    for op in ("MAX", "MIN"):
        assert doubles(mpired_reduce(directory, op, "DOUBLE", ranks)) == ["-0.0", "0.0"]


def test_the_error_has_the_class_that_mpi_gives_it(mpi, directory):
    with pytest.raises(mpi.Exception) as theirs:
        left_fold(mpi, "LAND", "DOUBLE", [bytes(8), bytes(8)])
    with pytest.raises(OpError) as ours:
        mpired_reduce(directory, "LAND", "DOUBLE", [bytes(8), bytes(8)])
    assert theirs.value.Get_error_class() == getattr(mpi, ours.value.mpi_class.removeprefix("MPI_"))
