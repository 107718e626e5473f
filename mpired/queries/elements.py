"""Elements for those who only look at them: components as numbers, places, and the distances of two elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group, from_dtype
from mpired.datatypes.times import as_times, family, numpy_form
from mpired.errors import escaped, shortened
from mpired.formats import Array
from mpired.formats.textual import components
from mpired.ops.rules import has_values_of

_EXACT = Group.LOGICAL | Group.BYTE | Group.CHARACTER | Group.VALUE | TIMES
_NUMBERS = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE | Group.FLOATING_POINT | Group.COMPLEX
_LONGEST = 100  # characters of a value of any type


def numbers(block: np.ndarray, datatype: Datatype) -> list[np.ndarray]:
    """Return the components of elements as numbers; truth values are 0 and 1, and times have NaT."""
    if datatype.group is Group.LOGICAL:
        return [(block != 0).view(np.uint8)]
    if datatype.group in TIMES:
        return [block.view(datatype.compared)]
    return list(components(block, datatype).values())


def index_of(buffer: Array, element: int) -> tuple[int, ...]:
    """Return the index of an element of a buffer: in its shape, or else its number."""
    if buffer.shape is None:
        return (element,)
    order: Any = "F" if buffer.fortran_order else "C"
    return tuple(map(int, np.unravel_index(element, buffer.shape, order)))


def are_nan(values: np.ndarray) -> np.ndarray | None:
    """Return which numbers are NaN or NaT; None if none is."""
    found: np.ndarray | None = np.isnan(values) if values.dtype.kind in "fm" else None
    return None if found is None or not found.any() else found


def as_integers(values: np.ndarray) -> np.ndarray:
    """Return numbers without NaT as integers if they are times, and else as they are."""
    return values.view(np.int64) if values.dtype.kind == "m" else values


def place_text(column: str, index: Sequence[int], field: str = "") -> str:
    """Return the place of an element, or of a field of it: `[3, 0]`, `energy[4]` or `[3].value`."""
    return f"{column}[{', '.join(map(str, index))}]{f'.{field}' if field else ''}"


def in_json(value: Any, *, short: bool = False) -> Any:
    """Return a value as JSON can hold it: numbers without a form in JSON as strings, such as "nan", and so times."""
    # With `short` floats have the digits that tell them from others of their own precision.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: in_json(each, short=short) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(each, short=short) for each in value]
    if value is None or isinstance(value, str):
        return value
    if short and isinstance(value, np.floating) and math.isfinite(float(value)):
        value = float(str(value))
    own = np.longdouble | np.datetime64 | np.timedelta64  # that Python has no number for
    number = value.item() if isinstance(value, np.generic) and not isinstance(value, own) else value
    is_number = isinstance(number, int) or (isinstance(number, float) and math.isfinite(number))
    return number if is_number else str(value)


class Tolerance(NamedTuple):
    """The tolerance: numbers are equal if their bits are, unless one of these is given."""

    ulp: int | None = None  # the most units in the last place
    rtol: float | None = None  # numbers may be `atol + rtol * |b|` apart, as numpy.isclose has it
    atol: float | None = None
    nan_equal: bool = False  # whether a NaN equals every NaN

    @property
    def is_bitwise(self) -> bool:
        """Whether numbers are compared by their bits."""
        return self.ulp is None and self.rtol is None and self.atol is None


class ComponentPair(NamedTuple):
    """One number of each element of two blocks."""

    name: str  # that of the field, such as `value` or `f0[2]`; "" of an element without fields
    a: np.ndarray
    b: np.ndarray
    datatype: Datatype
    narrow: np.dtype | None = None  # their type in both files, if it is one of fewer bits

    @property
    def is_exact(self) -> bool:
        """Whether a tolerance makes no sense: they are not numbers."""
        return self.datatype.group in _EXACT

    def pair(self, element: int) -> tuple[Any, Any]:
        """Return the numbers of an element, as a person reads them."""
        a, b = self.a[element : element + 1], self.b[element : element + 1]
        if self.datatype.group in TIMES:
            a, b = as_times(a, self.datatype), as_times(b, self.datatype)
        return (plain(a[0]), plain(b[0])) if a.dtype.hasobject else (a[0], b[0])


def parts(a: np.ndarray, b: np.ndarray, datatype: Datatype, narrow: np.dtype | None = None) -> Iterator[ComponentPair]:
    """Yield the parts of the elements of two blocks, in the order of the type map; complex halves are two."""
    for name in datatype.fields or ("",):
        one, other = (a[name], b[name]) if name else (a, b)
        for index in np.ndindex(one.shape[1:]):
            label = name + "".join(f"[{i}]" for i in index)
            yield ComponentPair(label, one[:, *index], other[:, *index], datatype, narrow)


def differing(part: ComponentPair, tolerance: Tolerance) -> np.ndarray:
    """Return which numbers differ."""
    a, b = part.a, part.b
    if a.dtype.hasobject:
        return np.fromiter(map(_are_unequal, a, b), np.bool_, len(a))
    if tolerance.is_bitwise or part.is_exact:
        found: np.ndarray = (bits(a) != bits(b)).any(-1)
    elif tolerance.ulp is not None:
        units, known = ulps(a, b, part.narrow)
        found = (a != b) & ~(known & (units <= np.uint64(tolerance.ulp)))
    else:  # infinite numbers are near to none
        size = np.abs(_wide(b))
        near = distance(a, b) <= (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * size
        found = (a != b) & ~(np.isfinite(size) & near)
    if a.dtype.kind in "fc" and tolerance.nan_equal:
        found &= ~(np.isnan(a) & np.isnan(b))
    return found


def _are_unequal(one: Any, other: Any) -> bool:
    """Return whether values of any type differ; zeros by their sign, and a NaN equals a NaN."""
    if isinstance(one, str | bytes) and isinstance(other, str | bytes):
        return one != other and plain(one) != plain(other)
    return repr(plain(one)) != repr(plain(other))


def plain(value: Any) -> Any:
    """Return a value as Python has it: lists for arrays, and text for bytes that are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray | np.generic):
        found = value.tolist()
        return value if isinstance(found, np.generic) else plain(found)  # Python has no long double
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def value_text(value: Any) -> str:
    """Return a value in words; None is one that is missing."""
    if value is None:
        return "missing"
    return shortened(escaped(repr(value) if isinstance(value, str) else str(value)), _LONGEST)


def common_type(a: Datatype, b: Datatype, tolerance: Tolerance) -> Datatype | None:
    """Return the datatype that the elements of two datatypes are compared in; None if there is none."""
    forms = [each.form for each in (a, b)]
    if a == b:
        return a
    if a.group in TIMES and b.group in TIMES and family(a) == family(b):  # in the finer unit
        finer = np.promote_types(*map(numpy_form, (a, b)))
        return next((each for each in (a, b) if numpy_form(each) == finer), None)
    if tolerance.is_bitwise or not all(each.group in _NUMBERS for each in (a, b)) or any(each.names for each in forms):
        return None
    wider = np.result_type(*forms), np.result_type(np.longdouble, *forms)
    return next((from_dtype(wide) for wide in wider if all(has_values_of(wide, each) for each in forms)), None)


def bits(numbers: np.ndarray) -> np.ndarray:
    """Return the words that numbers consist of, along a new last axis; padding has to be cleared before."""
    word = math.gcd(numbers.dtype.itemsize, 8)
    return np.ascontiguousarray(numbers).view(f"u{word}").reshape(*numbers.shape, -1)


def _wide(numbers: np.ndarray) -> np.ndarray:
    """Return numbers in a form in which differences of halves and floats are exact; integers as long doubles."""
    forms = {"f": np.float64, "c": np.complex128}
    wide: np.ndarray = numbers.astype(np.result_type(numbers.dtype, forms.get(numbers.dtype.kind, np.longdouble)))
    return wide


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how far numbers are apart, exactly for integers; NaN if one is NaN, 0 for equal infinities."""
    if a.dtype.hasobject:
        return np.full(a.shape, np.nan)
    if a.dtype.kind in "iu":
        one, other = a.astype(np.uint64), b.astype(np.uint64)  # the difference of two fits, their own values wrap
        wrapped: np.ndarray = np.where(a > b, one - other, other - one)
        return wrapped
    found: np.ndarray = np.abs(_wide(a) - _wide(b))
    found[a == b] = 0
    return found


def ulps(a: np.ndarray, b: np.ndarray, narrow: np.dtype | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return how many units in the last place numbers are apart, and which of these are known."""
    # It is the number of steps from one to the other, each to the next number of the type, or of a narrow one that the
    # files have; from -0.0 to 0.0 it is 0. Of complex numbers it is the larger of both components. No step leads from
    # or to a NaN or an infinite number. Of integers and long doubles none is known.
    if a.dtype.kind == "c":
        (real, known), (imag, also_known) = ulps(a.real, b.real), ulps(a.imag, b.imag)
        return np.maximum(real, imag), known & also_known
    if a.dtype.kind != "f" or a.dtype.itemsize > 8:  # noqa: PLR2004 - bytes of a word
        return np.zeros(a.shape, np.uint64), np.zeros(a.shape, bool)
    one, other = (_ordinals(each if narrow is None else each.astype(narrow)) for each in (a, b))
    apart = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
    return apart, (a == b) | (np.isfinite(a) & np.isfinite(b))


def _ordinals(numbers: np.ndarray) -> np.ndarray:
    """Return the place of each number in the order of all, 0 for zeros."""
    bits = numbers.dtype.itemsize * 8
    if numbers.dtype.name == "float8_e8m0fnu":  # which has no sign
        return numbers.view(np.uint8).astype(np.int64)
    signed = np.ascontiguousarray(numbers).view(f"i{bits // 8}").astype(np.int64)
    return np.where(signed < 0, -(signed & np.int64(2 ** (bits - 1) - 1)), signed)
