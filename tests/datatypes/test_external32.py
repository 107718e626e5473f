"""external32: the bytes that a real MPI packs, the binary128 of gcc, and what does not fit."""

import struct
from fractions import Fraction

import matrix
import numpy as np
import pytest
import reference
import values
from mpi4py import MPI
from rows import check_refused, each

import mpired
from mpired.datatypes import parse
from mpired.errors import ConversionError, CountError, UsageError

SCALARS = [name for name in matrix.AVAILABLE if name not in matrix.PAIR]
COUNT = 203

# MPICH stops the process at these, and takes the last for two doubles; its long doubles are compared apart.
MPICH_CANNOT = {"WCHAR", "REAL2", "COMPLEX4", "LOGICAL1", "LOGICAL2", "LOGICAL4", "LOGICAL8", "CXX_LONG_DOUBLE_COMPLEX"}
# In external32 these have fewer bytes (MPI-4.1, 14.5.2).
NARROW = {"LONG": "i4", "UNSIGNED_LONG": "u4", "WCHAR": "u2"}


def fitting(name, nranks=1):
    """Draw ranks of elements; those of the narrow types fit."""
    drawn = values.ranks(name, nranks, COUNT)
    if name not in NARROW:
        return drawn
    (code, _), nbytes = reference.FORMS[name][0][0], reference.FORMS[name][1]
    limits = np.iinfo(NARROW[name])
    lists = [np.frombuffer(rank, f"{code[0]}{nbytes}").copy() for rank in drawn]
    for numbers in lists:
        np.remainder(numbers, limits.max, out=numbers)
        numbers[: min(4, COUNT)] = [limits.min, limits.max, 0, 1]
    return [numbers.tobytes() for numbers in lists]


def binary128(octets):
    """Return the binary128, big-endian, of an x87 number, worked out with fractions."""
    significand = int.from_bytes(octets[:8], "little")
    sign, exponent = divmod(int.from_bytes(octets[8:10], "little"), 1 << 15)
    if exponent == 0x7FFF:
        return (sign << 127 | exponent << 112 | (significand & (1 << 63) - 1) << 49).to_bytes(16, "big")
    value = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - 16383 - 63)
    if not value:
        return (sign << 127).to_bytes(16, "big")
    power = value.numerator.bit_length() - value.denominator.bit_length()
    power -= value < Fraction(2) ** power
    power = max(power, -16382)
    units = value / Fraction(2) ** (power - 112)
    assert units.denominator == 1
    normal = units.numerator >= 1 << 112
    fraction = units.numerator - (1 << 112 if normal else 0)
    return (sign << 127 | (power + 16383 if normal else 0) << 112 | fraction).to_bytes(16, "big")


def external(name, buffer):
    """Return the bytes in external32 of elements, component by component."""
    packed = b""
    for element in reference.elements(name, buffer):
        for code, at in reference.FORMS[name][0]:
            component = element[at : at + reference.VALUE_BYTES[code]]
            if code == "g":
                packed += binary128(component)
            elif name in NARROW:
                packed += component[: np.dtype(NARROW[name]).itemsize][::-1]
            else:
                packed += component[::-1]
    return packed


def packed_by_mpired(tmp_path, name, buffer, **options):
    (tmp_path / "native.bin").write_bytes(buffer)
    output = tmp_path / "packed.ext"
    mpired.pack(tmp_path / "native.bin", type=name, output=output, datarep="external32", overwrite=True, **options)
    return output.read_bytes()


# The value of LONG_INT has four bytes there: see test_pairs.
@each("name", [name for name in (*SCALARS, *matrix.PAIR) if name != "LONG_INT"])
def test_pack_and_unpack(name, tmp_path):
    (buffer,) = fitting(name)
    assert packed_by_mpired(tmp_path, name, buffer).hex(" ", 8) == external(name, buffer).hex(" ", 8)
    mpired.unpack(
        tmp_path / "packed.ext", type=name, output=tmp_path / "again.bin", datarep="external32", overwrite=True
    )
    again = (tmp_path / "again.bin").read_bytes()
    expected = b"".join(reference.without_padding(name, element) for element in reference.elements(name, buffer))
    assert again.hex(" ", 8) == expected.hex(" ", 8)


@each("name", [name for name in SCALARS if name not in MPICH_CANNOT])
def test_the_bytes_are_those_of_a_real_mpi(name, tmp_path):
    renamed = {"LONG_LONG_INT": "LONG_LONG"}.get(name, name)
    real = getattr(MPI, renamed)
    (buffer,) = fitting(name)
    if "LONG_DOUBLE" in name:  # the library's conversion makes signalling NaNs quiet
        buffer = b"".join([each for each in reference.elements(name, buffer) if not reference.has_nan(name, each)])
    ours = packed_by_mpired(tmp_path, name, buffer)
    theirs = bytearray(len(ours))
    assert real.Pack_external_size("external32", COUNT) == COUNT * parse(name)[0].typemap.external
    assert real.Pack_external("external32", bytearray(buffer), theirs, 0) == len(ours)
    assert ours.hex(" ", 8) == theirs.hex(" ", 8)
    back = bytearray(len(buffer))
    real.Unpack_external("external32", theirs, 0, back)
    mpired.unpack(
        tmp_path / "packed.ext", type=name, output=tmp_path / "again.bin", datarep="external32", overwrite=True
    )
    ours = (tmp_path / "again.bin").read_bytes()
    cleared = [b"".join(reference.without_padding(name, e) for e in reference.elements(name, b)) for b in (ours, back)]
    assert cleared[0] == cleared[1]


def read_binary128(tmp_path, octets):
    (tmp_path / "x.ext").write_bytes(bytes.fromhex(octets))
    return mpired.reduce([tmp_path / "x.ext"], "max", type="long_double", datarep="external32", format="raw")


@each("octets", [
    "3fff0000000000000000000000000001",
    "3fff0000000000000001000000000000",  # half of the last digit that fits
    "00000000000000000000000000000001",
    "00000000000000000001ffffffffffff",
    "7ffeffffffffffffffffffffffffffff",
    "3ffd5555555555555555555555555555",  # a third
])  # fmt: skip
def test_a_binary128_with_too_many_digits_is_an_error(octets, tmp_path):
    with pytest.raises(ConversionError, match=rf"x\.ext: element 1: the binary128 number .* {octets} has more digits"):
        read_binary128(tmp_path, "3fff" + "00" * 14 + octets)


@each("octets", ["7fff0000000000000000000000000001", "ffff0000000000000001000000000000"])
def test_a_nan_is_one_with_fewer_digits_too(octets, tmp_path):
    assert np.isnan(read_binary128(tmp_path, octets)).all()


@each("exponent", [1, 0x3FFF, 0x7FFF])
def test_what_is_no_long_double_is_an_error(exponent, tmp_path):
    octets = struct.pack("<QH6x", 1 << 62, exponent)
    with pytest.raises(ConversionError, match=rf"element 0: the bytes {octets[:10].hex()} are not a long double"):
        packed_by_mpired(tmp_path, "long_double", octets)
    subnormal = struct.pack("<QH6x", 3 << 62, 0)  # as which the least normal number may be written
    assert packed_by_mpired(tmp_path, "long_double", subnormal).hex() == "0001" + "80" + "00" * 13


LIMITS = {
    "LONG": ("q", -(2**31), 2**31 - 1), "UNSIGNED_LONG": ("Q", 0, 2**32 - 1), "WCHAR": ("i", 0, 2**16 - 1),
}  # fmt: skip


@each("name", LIMITS)
def test_what_does_not_fit_names_file_element_and_value(name, tmp_path):
    code, low, high = LIMITS[name]
    outside = [number for number in (low - 1, high + 1) if number >= 0 or code != "Q"]
    for number in outside:
        numbers = [low, high, 0, number, 1, number]
        (tmp_path / "a.bin").write_bytes(struct.pack(f"6{code}", *numbers))
        words = f"pack --type {name} --datarep external32 a.bin -o out.ext"
        check_refused(tmp_path, words, 3, "out.ext: element 3", f"{number} does not fit")
    for fits in (low, high):
        assert packed_by_mpired(tmp_path, name, struct.pack(code, fits)) == fits.to_bytes(
            np.dtype(NARROW[name]).itemsize, "big", signed=fits < 0
        )


PAIRS = [
    ("float_int", "fi", ">fi"), ("double_int", "di4x", ">di"), ("long_int", "qi4x", ">ii"), ("2int", "ii", ">ii"),
    ("short_int", "hi", ">hi"), ("2real", "ff", ">ff"), ("2double_precision", "dd", ">dd"), ("2integer", "ii", ">ii"),
    ("pair(double,int64_t)", "dq", ">dq"), ("pair(long,unsigned_long)", "qQ", ">iI"),
    ("pair(int8_t,long)", "bq", ">bi"), ("pair(uint64_t,int8_t)", "Qb7x", ">Qb"), ("pair(aint,count)", "qq", ">qq"),
]  # fmt: skip


@each("name, native, there", PAIRS)
def test_pairs(name, native, there, tmp_path):
    elements = [(3, 7), (5, 1), (100, 127)]
    buffer = b"".join(struct.pack(native, *element) for element in elements)
    expected = b"".join(struct.pack(there, *element) for element in elements)
    assert packed_by_mpired(tmp_path, name, buffer) == expected
    assert parse(name)[0].typemap.external == struct.calcsize(there)


@each("options, error, reason", [
    ({"byte_order": "little"}, UsageError, "big-endian, not little"),
    ({"type": "<i4"}, UsageError, "big-endian, not little"),
    ({"type": "=i4"}, UsageError, "big-endian, not native"),
    ({"datarep": "internal"}, UsageError, "none of native, external32"),
    ({"type": "double_int"}, CountError, "is not a multiple of 12, the bytes of MPI_DOUBLE_INT in external32"),
])  # fmt: skip
def test_wrong_words(options, error, reason, tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(16))
    with pytest.raises(error, match=reason):
        mpired.info(tmp_path / "a.bin", **{"type": "int", "datarep": "external32"} | options)
