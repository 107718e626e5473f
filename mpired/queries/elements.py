"""Elements in queries: their components as numbers, their indices, and the differences of two elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group, from_dtype
from mpired.datatypes.dtypes import as_times, family, numpy_form
from mpired.errors import escaped, shortened
from mpired.formats import Array
from mpired.formats.textual import components
from mpired.ops.rules import has_values_of

_EXACT = Group.LOGICAL | Group.BYTE | Group.CHARACTER | Group.VALUE | TIMES
_NUMBERS = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE | Group.FLOATING_POINT | Group.COMPLEX
_MAX_CHARACTERS = 100  # of a value of any type


def numbers(block: np.ndarray, datatype: Datatype) -> list[np.ndarray]:
    """Return the components of elements as numbers, truth values as 0 and 1, times as NumPy's times with NaT."""
    if datatype.group is Group.LOGICAL:
        return [(block != 0).view(np.uint8)]
    if datatype.group in TIMES:
        return [block.view(datatype.compared)]
    return list(components(block, datatype).values())


def index_of(buffer: Array, element: int) -> tuple[int, ...]:
    """Return the index of an element in the shape of its buffer, or its number without a shape."""
    if buffer.shape is None:
        return (element,)
    order: Any = "F" if buffer.fortran_order else "C"
    return tuple(map(int, np.unravel_index(element, buffer.shape, order)))


def are_nan(values: np.ndarray) -> np.ndarray | None:
    """Return the mask of NaN and NaT, None if there are none."""
    mask: np.ndarray | None = np.isnan(values) if values.dtype.kind in "fm" else None
    return None if mask is None or not mask.any() else mask


def as_integers(values: np.ndarray) -> np.ndarray:
    """Return times without NaT as integers, and other numbers unchanged."""
    return values.view(np.int64) if values.dtype.kind == "m" else values


def place_text(column: str, index: Sequence[int], field: str = "") -> str:
    """Return the place of an element or its field for messages: `[3, 0]`, `energy[4]` or `[3].value`."""
    return f"{column}[{', '.join(map(str, index))}]{f'.{field}' if field else ''}"


def in_json(value: Any, *, short: bool = False) -> Any:
    """Return a value for JSON: times, and numbers that JSON lacks, such as "nan", as strings."""
    # With `short` a float has the fewest digits that identify it in its own precision.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: in_json(item, short=short) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(item, short=short) for item in value]
    if value is None or isinstance(value, str):
        return value
    if short and isinstance(value, np.floating) and math.isfinite(float(value)):
        value = float(str(value))
    numpy_only = np.longdouble | np.datetime64 | np.timedelta64  # no number of Python has their values
    number = value.item() if isinstance(value, np.generic) and not isinstance(value, numpy_only) else value
    is_number = isinstance(number, int) or (isinstance(number, float) and math.isfinite(number))
    return number if is_number else str(value)


class Tolerance(NamedTuple):
    """The tolerance of a comparison; without `ulp`, `rtol` and `atol` the bits must be equal."""

    ulp: int | None = None  # units in the last place
    rtol: float | None = None  # numbers may differ by `atol + rtol * |b|`, as in numpy.isclose
    atol: float | None = None
    nan_equal: bool = False  # whether a NaN equals every NaN

    @property
    def is_bitwise(self) -> bool:
        """Whether numbers are compared by their bits."""
        return self.ulp is None and self.rtol is None and self.atol is None


class ComponentPair(NamedTuple):
    """A component of the elements of two blocks."""

    name: str  # of the field, such as `value` or `f0[2]`; "" if elements have no fields
    a: np.ndarray
    b: np.ndarray
    datatype: Datatype  # of the elements
    narrow: np.dtype | None = None  # the dtype in both files, if it has fewer bits

    @property
    def is_exact(self) -> bool:
        """Whether the elements are not numbers, so that no tolerance applies."""
        return self.datatype.group in _EXACT

    def pair(self, element: int) -> tuple[Any, Any]:
        """Return the values of an element in both blocks, for printing."""
        a, b = self.a[element : element + 1], self.b[element : element + 1]
        if self.datatype.group in TIMES:
            a, b = as_times(a, self.datatype), as_times(b, self.datatype)
        return (plain(a[0]), plain(b[0])) if a.dtype.hasobject else (a[0], b[0])


def parts(a: np.ndarray, b: np.ndarray, datatype: Datatype, narrow: np.dtype | None = None) -> Iterator[ComponentPair]:
    """Yield the components of the elements of two blocks, in the order of the type map; a complex number is one."""
    for name in datatype.fields or ("",):
        field_a, field_b = (a[name], b[name]) if name else (a, b)
        for index in np.ndindex(field_a.shape[1:]):
            label = name + "".join(f"[{i}]" for i in index)
            yield ComponentPair(label, field_a[:, *index], field_b[:, *index], datatype, narrow)


def differing(part: ComponentPair, tolerance: Tolerance) -> np.ndarray:
    """Return the mask of components that differ."""
    a, b = part.a, part.b
    if a.dtype.hasobject:
        return np.fromiter(map(_are_unequal, a, b), np.bool_, len(a))
    if tolerance.is_bitwise or part.is_exact:
        differs: np.ndarray = (bits(a) != bits(b)).any(-1)
    elif tolerance.ulp is not None:
        units, known = ulps(a, b, part.narrow)
        differs = (a != b) & ~(known & (units <= np.uint64(tolerance.ulp)))
    else:  # an infinite number is close only to itself
        size = np.abs(_widen(b))
        close = distance(a, b) <= (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * size
        differs = (a != b) & ~(np.isfinite(size) & close)
    if a.dtype.kind in "fc" and tolerance.nan_equal:
        differs &= ~(np.isnan(a) & np.isnan(b))
    return differs


def _are_unequal(a: Any, b: Any) -> bool:
    """Return whether values of any type differ; 0.0 and -0.0 do, NaN and NaN do not."""
    if isinstance(a, str | bytes) and isinstance(b, str | bytes):
        return a != b and plain(a) != plain(b)
    return repr(plain(a)) != repr(plain(b))


def plain(value: Any) -> Any:
    """Return a value as objects of Python: lists for arrays, strings for bytes in UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray | np.generic):
        converted = value.tolist()
        return value if isinstance(converted, np.generic) else plain(converted)  # Python has no long double
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def value_text(value: Any) -> str:
    """Return a value for printing; None is a missing element."""
    if value is None:
        return "missing"
    return shortened(escaped(repr(value) if isinstance(value, str) else str(value)), _MAX_CHARACTERS)


def common_type(a: Datatype, b: Datatype, tolerance: Tolerance) -> Datatype | None:
    """Return the datatype in which elements of two datatypes are compared, None if there is none."""
    both, forms = (a, b), [a.form, b.form]
    if a == b:
        return a
    if a.group in TIMES and b.group in TIMES and family(a) == family(b):
        finer = np.promote_types(*map(numpy_form, both))
        return next((datatype for datatype in both if numpy_form(datatype) == finer), None)
    has_fields = any(form.names for form in forms)
    if tolerance.is_bitwise or has_fields or not all(datatype.group in _NUMBERS for datatype in both):
        return None
    wider = np.result_type(*forms), np.result_type(np.longdouble, *forms)
    return next((from_dtype(wide) for wide in wider if all(has_values_of(wide, form) for form in forms)), None)


def bits(numbers: np.ndarray) -> np.ndarray:
    """Return the bits of numbers as unsigned integers, along a new last axis; padding must be cleared before."""
    nbytes = math.gcd(numbers.dtype.itemsize, 8)
    return np.ascontiguousarray(numbers).view(f"u{nbytes}").reshape(*numbers.shape, -1)


def _widen(numbers: np.ndarray) -> np.ndarray:
    """Return numbers in a dtype with exact differences of halves and floats; integers become long doubles."""
    forms = {"f": np.float64, "c": np.complex128}
    wide: np.ndarray = numbers.astype(np.result_type(numbers.dtype, forms.get(numbers.dtype.kind, np.longdouble)))
    return wide


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the absolute differences of numbers, exact for integers, NaN for NaN, 0 for equal infinities."""
    if a.dtype.hasobject:
        return np.full(a.shape, np.nan)
    if a.dtype.kind in "iu":
        unsigned_a, unsigned_b = a.astype(np.uint64), b.astype(np.uint64)  # wrap, but their difference is exact
        exact: np.ndarray = np.where(a > b, unsigned_a - unsigned_b, unsigned_b - unsigned_a)
        return exact
    differences: np.ndarray = np.abs(_widen(a) - _widen(b))
    differences[a == b] = 0
    return differences


def ulps(a: np.ndarray, b: np.ndarray, narrow: np.dtype | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences of numbers in units in the last place, and the mask of those that are defined."""
    # The unit is the step to the next number of the dtype, or of `narrow`, the dtype in the files; -0.0 and 0.0 are one
    # number. A complex number has the larger difference of its components. NaN, infinities, integers and long doubles
    # have none.
    if a.dtype.kind == "c":
        (real, has_real), (imag, has_imag) = ulps(a.real, b.real), ulps(a.imag, b.imag)
        return np.maximum(real, imag), has_real & has_imag
    if a.dtype.kind != "f" or a.dtype.itemsize > 8:  # noqa: PLR2004 - bytes of a double
        return np.zeros(a.shape, np.uint64), np.zeros(a.shape, bool)
    ordinals = [_ordinals(numbers if narrow is None else numbers.astype(narrow)) for numbers in (a, b)]
    steps = np.maximum(*ordinals).astype(np.uint64) - np.minimum(*ordinals).astype(np.uint64)
    return steps, (a == b) | (np.isfinite(a) & np.isfinite(b))


def _ordinals(numbers: np.ndarray) -> np.ndarray:
    """Return the position of each number in the sequence of all numbers of its dtype, 0 for zeros."""
    bits = numbers.dtype.itemsize * 8
    if numbers.dtype.name == "float8_e8m0fnu":  # has no sign
        return numbers.view(np.uint8).astype(np.int64)
    signed = np.ascontiguousarray(numbers).view(f"i{bits // 8}").astype(np.int64)
    return np.where(signed < 0, -(signed & np.int64(2 ** (bits - 1) - 1)), signed)
