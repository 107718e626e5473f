"""The slow obvious twin of each reduce op: one element at a time, in plain Python.

An element is its bytes in little-endian order. Integers are Python's, wrapped to the width as in C;
floats are decoded, combined and rounded once a step; what only chooses returns the bytes of the
chosen operand. The fold is from the left, over ranks in order.
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# The components of an element as (code, offset), and the bytes from one element to the next. The
# codes: i and u are integers, f floats, g is the x87 long double, and the digit counts bytes.
Form = tuple[tuple[tuple[str, int], ...], int]


# The types of one component by its code, and of two.
_ONE = {
    "i1": "SIGNED_CHAR INT8_T INTEGER1 LOGICAL1 CHAR",
    "u1": "UNSIGNED_CHAR UINT8_T C_BOOL CXX_BOOL BYTE CHARACTER PACKED",
    "i2": "SHORT INT16_T INTEGER2 LOGICAL2",
    "u2": "UNSIGNED_SHORT UINT16_T",
    "i4": "INT INT32_T INTEGER INTEGER4 LOGICAL LOGICAL4 WCHAR",
    "u4": "UNSIGNED UINT32_T",
    "i8": "LONG LONG_LONG_INT INT64_T INTEGER8 LOGICAL8 AINT OFFSET COUNT",
    "u8": "UNSIGNED_LONG UNSIGNED_LONG_LONG UINT64_T",
    "f2": "REAL2",
    "f4": "FLOAT REAL REAL4",
    "f8": "DOUBLE DOUBLE_PRECISION REAL8",
    "g": "LONG_DOUBLE",
}
_TWO = {
    "f2": "COMPLEX4",
    "f4": "C_COMPLEX CXX_FLOAT_COMPLEX COMPLEX COMPLEX8 2REAL",
    "f8": "C_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16 2DOUBLE_PRECISION",
    "g": "C_LONG_DOUBLE_COMPLEX CXX_LONG_DOUBLE_COMPLEX",
    "i4": "2INT 2INTEGER",
}

# Bytes of a component that carry its value. A long double has 10 in 16.
VALUE_BYTES = {
    "i1": 1, "u1": 1, "i2": 2, "u2": 2, "i4": 4, "u4": 4, "i8": 8, "u8": 8, "f2": 2, "f4": 4, "f8": 8, "g": 10
}  # fmt: skip
STORED_BYTES = VALUE_BYTES | {"g": 16}
FORMS: dict[str, Form] = {
    **{name: (((code, 0),), STORED_BYTES[code]) for code, names in _ONE.items() for name in names.split()},
    **{
        name: (((code, 0), (code, STORED_BYTES[code])), 2 * STORED_BYTES[code])
        for code, names in _TWO.items()
        for name in names.split()
    },
    "FLOAT_INT": ((("f4", 0), ("i4", 4)), 8),
    "DOUBLE_INT": ((("f8", 0), ("i4", 8)), 16),
    "LONG_INT": ((("i8", 0), ("i4", 8)), 16),
    "SHORT_INT": ((("i2", 0), ("i4", 4)), 8),
    "LONG_DOUBLE_INT": ((("g", 0), ("i4", 16)), 32),
}

# The one quiet NaN of all that computes with numbers or chooses one.
_QUIET = {"f2": "007e", "f4": "0000c07f", "f8": "000000000000f87f", "g": "00000000000000c0ff7f"}
QUIET_NAN = {code: bytes.fromhex(text) for code, text in _QUIET.items()}


def decode(code: str, octets: bytes) -> Any:
    """Return the number that the bytes of a component are."""
    if code[0] in "iu":
        return int.from_bytes(octets, "little", signed=code[0] == "i")
    if code == "g":
        return np.frombuffer(octets[:10] + bytes(6), np.longdouble)[0]
    return struct.unpack({"f2": "<e", "f4": "<f", "f8": "<d"}[code], octets)[0]


def encode(code: str, number: Any) -> bytes:
    """Return the bytes of a number: an integer wraps, a float is rounded to the nearest, a NaN is the quiet one."""
    nbytes = VALUE_BYTES[code]
    if code[0] in "iu":
        return (number % 256**nbytes).to_bytes(nbytes, "little")
    if number != number:  # noqa: PLR0124 - only NaN is not itself, in long double too
        return QUIET_NAN[code]
    if code == "g":
        return number.tobytes()[:10]
    with np.errstate(over="ignore", under="ignore"):
        return {"f2": np.float16, "f4": np.float32, "f8": np.float64}[code](number).tobytes()


def rounded(code: str, number: Any) -> Any:
    """Round to the precision of the component.

    A sum or product of two binary16 or binary32 numbers, taken in double and rounded again, is the one
    that is rounded once: 53 bits are more than 2 * 24 + 2.
    """
    return decode(code, encode(code, number))


def is_nan(number: Any) -> bool:
    return isinstance(number, float | np.floating) and bool(number != number)  # noqa: PLR0124 - in long double too


def add(code: str, lower: Any, upper: Any) -> Any:
    return rounded(code, lower + upper)


def multiply(code: str, lower: Any, upper: Any) -> Any:
    return rounded(code, lower * upper)


def maximum(lower: Any, upper: Any) -> bool:
    """Tell whether the lower rank's number is MAX: NaN wins, and on a tie the lower rank's."""
    if is_nan(lower) or is_nan(upper):
        return is_nan(lower)
    return lower >= upper


def minimum(lower: Any, upper: Any) -> bool:
    """Tell whether the lower rank's number is MIN: NaN wins, and on a tie the lower rank's."""
    if is_nan(lower) or is_nan(upper):
        return is_nan(lower)
    return lower <= upper


def maxloc(lower: tuple[Any, Any], upper: tuple[Any, Any], *, least: bool = False) -> bool:
    """Tell whether the lower rank's pair is MAXLOC: greatest value, then smallest index, then lower rank."""
    if is_nan(lower[0]) != is_nan(upper[0]):
        return is_nan(lower[0])
    if not is_nan(lower[0]) and lower[0] != upper[0]:
        return lower[0] < upper[0] if least else lower[0] > upper[0]
    return not upper[1] < lower[1]


def minloc(lower: tuple[Any, Any], upper: tuple[Any, Any]) -> bool:
    """Tell whether the lower rank's pair is MINLOC: smallest value, then smallest index, then lower rank."""
    return maxloc(lower, upper, least=True)


def total(code: str, lower: Sequence[Any], upper: Sequence[Any]) -> list[Any]:
    """Add, complex numbers by component."""
    return [add(code, a, b) for a, b in zip(lower, upper, strict=True)]


def product(code: str, lower: Sequence[Any], upper: Sequence[Any]) -> list[Any]:
    """Multiply, complex numbers by the textbook formula with every step rounded."""
    if len(lower) == 1:
        return [multiply(code, lower[0], upper[0])]
    (a, b), (c, d) = lower, upper
    real = rounded(code, multiply(code, a, c) - multiply(code, b, d))
    return [real, add(code, multiply(code, a, d), multiply(code, b, c))]


CHOICES: dict[str, Callable[[Any, Any], bool]] = {"MAX": maximum, "MIN": minimum, "MAXLOC": maxloc, "MINLOC": minloc}
ARITHMETIC = {"SUM": total, "PROD": product}
INTEGRAL: dict[str, Callable[[int, int], int]] = {
    "LAND": lambda a, b: int(a != 0 and b != 0),
    "LOR": lambda a, b: int(a != 0 or b != 0),
    "LXOR": lambda a, b: int((a != 0) != (b != 0)),
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
}


def combine(op: str, name: str, lower: bytes, upper: bytes) -> bytes:
    """Return `lower op upper` for one element of the datatype."""
    parts = FORMS[name][0]
    code = parts[0][0]
    a, b = numbers(name, lower), numbers(name, upper)
    if op in CHOICES:
        takes = CHOICES[op](a, b) if len(parts) > 1 else CHOICES[op](a[0], b[0])
        chosen = lower if takes else upper
        return chosen if len(parts) > 1 or not has_nan(name, chosen) else assemble(name, [QUIET_NAN[code]])
    results = ARITHMETIC[op](code, a, b) if op in ARITHMETIC else [INTEGRAL[op](a[0], b[0])]
    return assemble(name, [encode(code, number) for number in results])


def numbers(name: str, element: bytes) -> tuple[Any, ...]:
    """Return the components of an element."""
    return tuple(decode(code, element[at : at + VALUE_BYTES[code]]) for code, at in FORMS[name][0])


def assemble(name: str, components: Sequence[bytes]) -> bytes:
    """Return the element with these components, and zeros in all other bytes."""
    parts, extent = FORMS[name]
    element = bytearray(extent)
    for (_, at), component in zip(parts, components, strict=True):
        element[at : at + len(component)] = component
    return bytes(element)


def without_padding(name: str, element: bytes) -> bytes:
    """Return the element with zeros in the bytes that carry no value."""
    return assemble(name, [element[at : at + VALUE_BYTES[code]] for code, at in FORMS[name][0]])


def elements(name: str, buffer: bytes) -> list[bytes]:
    """Cut a buffer into elements."""
    extent = FORMS[name][1]
    return [buffer[at : at + extent] for at in range(0, len(buffer), extent)]


def reduce(op: str, name: str, ranks: Sequence[bytes]) -> bytes:
    """Return the left fold over ranks; that of one rank is its copy. Padding comes out as zeros."""
    results = []
    with np.errstate(all="ignore"):
        for operands in zip(*(elements(name, rank) for rank in ranks), strict=True):
            result = operands[0]
            for operand in operands[1:]:
                result = combine(op, name, result, operand)
            results.append(without_padding(name, result))
    return b"".join(results)


def has_nan(name: str, element: bytes) -> bool:
    return any(is_nan(number) and math.isnan(number) for number in numbers(name, element))


def swapped(name: str, buffer: bytes) -> bytes:
    """Return a buffer with the bytes of every component in the opposite order, as a big-endian machine has them."""
    octets = bytearray(buffer)
    parts, extent = FORMS[name]
    for start in range(0, len(buffer), extent):
        for code, at in parts:
            component = slice(start + at, start + at + STORED_BYTES[code])
            octets[component] = octets[component][::-1]
    return bytes(octets)
