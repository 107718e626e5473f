"""Statistics over ranks: their states and results.

They are not ops of MPI: a state is not an element, and results may have another datatype. All statistics take the ranks
in order, and round as described here, so that the bits are the same for any cut into blocks.

Exact sums are rounded once: they are the nearest numbers to the sums of the ranks, in any order. An exact sum is
represented by four numbers, its parts. A new number is added to the first part, the rounding error of this addition to
the second part, and so on: the errors are floating-point numbers (Knuth, The Art of Computer Programming, volume 2,
4.2.2, theorem B). If four parts are too few, because the sum has more than about 200 binary digits or is near overflow,
the sum is computed with Python integers from the elements, which are read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.datatypes.dtypes import get
from mpired.ops.state import Planes, Reread, RuledState, converted, numbers_of, union, valid_of

if TYPE_CHECKING:
    from fractions import Fraction

_PARTS = 4  # of an exact sum
# Sums of 2**60 numbers up to this magnitude do not overflow.
_MAX_MAGNITUDE = 2.0**900


def mean_type(datatype: Datatype) -> Datatype:
    """Return the datatype of a mean: that of the elements, double for integers."""
    return datatype if datatype.group in Group.FLOATING_POINT | Group.COMPLEX else get("DOUBLE")


def variance_type(datatype: Datatype) -> Datatype:
    """Return the datatype of a variance: that of the mean, or of the parts of a complex mean."""
    if datatype.group is not Group.COMPLEX:
        return mean_type(datatype)
    names = {np.dtype("f2"): "REAL2", np.dtype("f4"): "FLOAT", np.dtype("f8"): "DOUBLE"}
    return get(names.get(datatype.component, "LONG_DOUBLE"))


def count_type(_datatype: Datatype) -> Datatype:
    """Return the datatype of a count, a signed integer of 64 bits."""
    return get("INT64_T")


class _Numbers(Planes):
    """The base of statistics with wide arithmetic: double, or long double for long double elements."""

    @cached_property
    def wide(self) -> np.dtype:
        """The form of the arithmetic."""
        if self.op.rules.accumulate_in is not None:
            return self.op.rules.accumulate_in.form
        form = self.datatype.component if self.datatype.group is Group.COMPLEX else self.datatype.form
        return form if form.kind == "f" and form.itemsize > np.dtype("f8").itemsize else np.dtype("f8")

    @cached_property
    def lanes(self) -> np.dtype:
        """The form of a plane: a wide number for each element, or two for complex elements."""
        return np.dtype((self.wide, (2,))) if self.datatype.group is Group.COMPLEX else self.wide

    def widen(self, elements: np.ndarray) -> np.ndarray:
        """Return elements in the form of a plane, without a copy if they have it."""
        numbers = numbers_of(elements, self.datatype).astype(self.wide, copy=False)
        return numbers.reshape(len(elements), 2) if self.datatype.group is Group.COMPLEX else numbers

    def counts(self) -> int | np.ndarray:
        """Return the number of added ranks in a shape that broadcasts to a plane."""
        if isinstance(self.nadded, int) or self.datatype.group is not Group.COMPLEX:
            return self.nadded
        return self.nadded[:, np.newaxis]

    def variances_of(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return variances from sums of squares, or their roots for STD; the parts of a complex number are added."""
        free = np.subtract(self.nadded, self.op.rules.ddof, dtype=self.wide)
        total: np.ndarray = squares if squares.ndim == 1 else squares.sum(axis=1)
        variances = total / np.where(free > 0, free, np.nan)
        return self.in_form(variances if self.op.ufunc is None else self.op.ufunc(variances))


class Sum(_Numbers):
    """The sum of a term of each rank, rounded at each step, or once with `exact`."""

    def forms(self) -> list[np.dtype]:
        """Return the form of the sum, or the forms of an exact sum."""
        return _exact_forms(self.lanes) if self.op.rules.exact else [self.lanes]

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return wide numbers whose sum is the term of a rank: two for integers of 64 bits, else one."""
        del rank
        if self.op.rules.exact and elements.dtype.kind in "iu" and elements.itemsize == self.wide.itemsize:
            high = elements >> 32
            return [high.astype(self.wide) * 2**32, (elements - (high << 32)).astype(self.wide)]
        return [self.widen(elements)]

    def step(self, elements: np.ndarray) -> None:
        """Add the term of a rank."""
        for term in self.terms(elements, self.rank):
            if self.op.rules.exact:
                _add_exactly(self.planes, term)
            elif isinstance(self.nadded, int) and self.nadded == 1:
                self.planes[0][...] = term  # not added to 0, which has a sign
            elif isinstance(self.nadded, int):
                self.planes[0] += term
            else:
                self.planes[0] = np.where(self.counts() == 1, term, self.planes[0] + term)

    def total(self, form: np.dtype | None = None) -> np.ndarray:
        """Return the sum; an exact sum is rounded to a form."""
        if not self.op.rules.exact:
            return self.planes[0]
        ranks = enumerate(self.so_far())
        terms = (_zeroed(term, valid) for rank, (elements, valid) in ranks for term in self.terms(elements, rank))
        return _rounded(self.planes, form or self.wide, terms)

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the sum, rounded to the datatype of the results."""
        result = self.op.result(self.datatype)
        return self.in_form(self.total(result.component if result.group is Group.COMPLEX else result.form))

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers as results; exact sums overflow if they are infinite although all ranks are finite."""
        if self.op.rules.exact:
            finite = (self.planes[0] == 0).reshape(self.count, -1).all(axis=1)
            wrapped = finite & np.isinf(numbers).reshape(self.count, -1).any(axis=1)
        return super().in_form(numbers, wrapped)


class Mean(Sum):
    """The sum divided by the number of ranks, or the weighted sum divided by the sum of the weights."""

    compiled_step = "mean"

    def forms(self) -> list[np.dtype]:
        """Return the form of the sum, and with weights that of their sum."""
        return [*super().forms(), *([self.wide] if self.op.rules.weights else [])]

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return the weighted elements."""
        terms, weights = super().terms(elements, rank), self.op.rules.weights
        return [term * self.wide.type(weights[rank]) for term in terms] if weights else terms

    def step(self, elements: np.ndarray) -> None:
        """Add the term, and the weight."""
        super().step(elements)
        if self.op.rules.weights:
            self.planes[-1] += self.wide.type(self.op.rules.weights[self.rank])

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the sum divided by the number of ranks, or by the sum of the weights."""
        total = self.total()
        if not self.op.rules.weights:
            return self.in_form(total / self.counts())
        return self.in_form(total / (self.planes[-1] if total.ndim == 1 else self.planes[-1][:, np.newaxis]))


class RootMeanSquare(Sum):
    """The square root of the mean of the squares, each of which is rounded."""

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return the squares."""
        del rank
        numbers = self.widen(elements)
        return [numbers * numbers]

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the root of the mean square; the squares of the parts of a complex number are added."""
        total = self.total()
        squares = total if total.ndim == 1 else total.sum(axis=1)
        return self.in_form(np.sqrt(squares / self.nadded))


class Variance(_Numbers):
    """Welford's recurrence in rank order: the mean, and the sum of the squared deviations."""

    # With x the n-th number: d = x - mean, mean += d / n, squares += d * (x - mean); each step is rounded.

    compiled_step = "var"

    def forms(self) -> list[np.dtype]:
        """Return the forms of the mean and of the squares."""
        return [self.lanes, self.lanes]

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` elements, with temporaries for the steps."""
        if self.count != count:
            self._changes, self._steps = np.empty((2, count), self.lanes)
        super().begin(start, count)

    def step(self, elements: np.ndarray) -> None:
        """Take a step of the recurrence."""
        mean, squares = self.planes
        numbers, count = self.widen(elements), len(elements)
        change = np.subtract(numbers, mean, out=self._changes[:count])
        step = np.divide(change, self.counts(), out=self._steps[:count])
        mean += step
        change *= np.subtract(numbers, mean, out=step)
        squares += change

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the variances; without degrees of freedom they are NaN."""
        return self.variances_of(self.planes[1])


class Count(Planes):
    """The number of ranks whose element is not left out, which is `nadded`."""

    has_empty_result = True

    def finished(self) -> tuple[np.ndarray, None]:
        """Return the counts."""
        return np.full(self.count, self.nadded, np.int64), None


class Range(Planes):
    """The maximum minus the minimum."""

    def forms(self) -> list[np.dtype]:
        """Return the forms of minimum and maximum."""
        return [self.wide_type.form] * 2

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Keep both extremes; NaN propagates."""
        elements, lost = converted(elements, self.wide_type.form, copy=False)
        for extreme, plane in zip((np.minimum, np.maximum), self.planes, strict=True):
            np.copyto(plane, np.where(np.equal(self.nadded, 1), elements, extreme(plane, elements)))
        return lost

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the differences; a difference of zeros is +0."""
        minimum, maximum = self.planes
        numbers = maximum - minimum + self.wide_type.form.type(0)
        if numbers.dtype.kind == "f":
            return self.in_form(numbers, np.isinf(numbers) & np.isfinite(minimum) & np.isfinite(maximum))
        return self.in_form(numbers, numbers < 0)


class Magnitude(RuledState):
    """The maximum or minimum of the magnitudes: elements without their sign."""

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Keep the extreme of the magnitudes; that of the minimum integer overflows."""
        elements, lost = converted(elements, self.wide_type.form, copy=False)
        magnitudes = np.abs(elements)
        super().step(magnitudes)
        return union(lost, magnitudes < 0 if magnitudes.dtype.kind == "i" else None)


class _Gathered(_Numbers):
    """The base of statistics that need the elements of all ranks, and keep them in memory."""

    snapshot_fields: tuple[str, ...] = (*Planes.snapshot_fields, "_ranks")

    @property
    def itemsize(self) -> int:  # type: ignore[override] # as in the base
        """Bytes of the elements of all ranks, and of three wide numbers for each of them."""
        return self.nranks * (self.datatype.itemsize + 3 * self.wide.itemsize)

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` elements."""
        super().begin(start, count)
        self._ranks: list[tuple[np.ndarray, np.ndarray | None]] = []  # elements, and the mask of those not null

    def fill(self, block: np.ndarray) -> None:
        """Copy the elements, because the other state reads the next rank into its free block."""
        np.copyto(self.free_block, block)

    def add(self, reread: Reread, not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, and keep them."""
        self._ranks.append((self.free_block, not_null))
        overflowed = super().add(reread, not_null)
        self.free_block = np.empty_like(self.free_block)
        return overflowed

    def so_far(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the elements of each rank so far, and the mask of those that are not left out."""
        for elements, not_null in self._ranks:
            yield elements, valid_of(elements, not_null, self.datatype, self.op)


class Quantile(_Gathered):
    """A quantile of the sorted numbers x[0], ..., x[n - 1], interpolated at the position h = (n - 1) q."""

    # Between neighbours a and b the quantile is a + (b - a) t, or b - (b - a) (1 - t) from t = 1/2 on, where t is the
    # fractional part of h.

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the quantiles; NaN that is not left out gives NaN."""
        rows, masks = zip(*self.so_far(), strict=True)
        numbers = np.stack([*map(self.widen, rows)], axis=1)
        is_nan = np.isnan(numbers)
        for rank, mask in enumerate(masks):
            if mask is not None:
                numbers[~mask, rank] = np.nan
                is_nan[~mask, rank] = False
        numbers.sort(axis=1, kind="stable")  # this defines the order of zeros of different sign
        quantile = 0.5 if self.op.rules.quantile is None else self.op.rules.quantile
        position = np.maximum(np.subtract(self.nadded, 1), 0) * self.wide.type(quantile)
        below = np.floor(position).astype(np.intp)
        lines = np.arange(len(numbers))
        low = numbers[lines, below]
        high = numbers[lines, np.minimum(below + 1, np.maximum(np.subtract(self.nadded, 1), 0))]
        results = _interpolated(low, high, position - below)
        results[is_nan.any(axis=1)] = np.nan
        return self.in_form(results)


def _interpolated(low: np.ndarray, high: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Interpolate between two numbers, which may be large and of different sign; `t` is from 0 to 1."""
    step = high - low
    numbers = np.where(t < 0.5, low + step * t, high - step * (1 - t))  # noqa: PLR2004 - a half
    numbers = np.where(np.isfinite(step), numbers, low * (1 - t) + high * t)
    return np.where((t == 0) | (low == high), low, numbers)


class ExactVariance(_Gathered):
    """The variance from two exact sums: of the numbers, for the mean, and of the squared deviations from the mean."""

    # Each sum, the mean, each deviation and each square are rounded once.

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the variance."""
        ranks = [(self.widen(elements), valid) for elements, valid in self.so_far()]
        mean = _exact_sum([*starmap(_zeroed, ranks)]) / self.counts()
        return self.variances_of(_exact_sum([_zeroed((row - mean) ** 2, valid) for row, valid in ranks]))

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers as results, which overflow if they are infinite although all ranks are finite."""
        infinite = np.isinf(numbers)
        for elements, _ in self.so_far() if infinite.any() else ():
            infinite &= np.isfinite(self.widen(elements)).reshape(self.count, -1).all(axis=1)
        return super().in_form(numbers, union(wrapped, infinite))


def _zeroed(numbers: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return numbers with 0 where they are not valid."""
    if valid is None:
        return numbers
    zeroed = numbers.copy()
    zeroed[~valid] = 0
    return zeroed


def _exact_sum(rows: list[np.ndarray]) -> np.ndarray:
    """Return the exact sum of arrays, rounded once."""
    forms = _exact_forms(np.dtype((rows[0].dtype, rows[0].shape[1:])))
    sums = [np.zeros(len(rows[0]), form) for form in forms]
    for row in rows:
        _add_exactly(sums, row)
    return _rounded(sums, rows[0].dtype, rows)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sums and their errors, exactly."""
    total = a + b
    part = total - a
    error = total - part
    np.subtract(a, error, out=error)
    np.subtract(b, part, out=part)
    error += part
    return total, error


def _exact_forms(form: np.dtype) -> list[np.dtype]:
    """Return the forms of the planes of exact sums: sums of non-finite numbers, the mask of hard sums, and parts."""
    # A hard sum is not represented by its parts.
    return [form, np.dtype((np.bool_, form.shape)), *[form] * _PARTS]


def _add_exactly(planes: list[np.ndarray], numbers: np.ndarray) -> None:
    """Add a number to each sum."""
    special, hard, *_ = planes
    if not (
        numbers.max(initial=0) <= _MAX_MAGNITUDE and numbers.min(initial=0) >= -_MAX_MAGNITUDE
    ):  # true for NaN, too
        usual = np.abs(numbers) <= _MAX_MAGNITUDE
        finite = np.isfinite(numbers)
        special += np.where(finite, 0, numbers)
        hard |= finite & ~usual
        numbers = np.where(usual, numbers, 0)
    for i in range(len(planes) - _PARTS, len(planes)):
        planes[i], numbers = _two_sum(planes[i], numbers)
        if not numbers.any():
            return
    hard |= numbers != 0


def _rounded(planes: Sequence[np.ndarray], form: np.dtype, terms: Iterable[np.ndarray]) -> np.ndarray:
    """Return the sums, rounded once to a form; hard sums are computed from the terms. A sum of zero is +0."""
    special, hard, *parts = planes
    if any(part.any() for part in parts[2:]):
        for _ in range(_PARTS - 1):
            parts = _renormalise(parts)
        total, (first, second) = parts[0], _remainders(parts[1:])
        hard = hard | (total + first != total) | (first + second != first)
    else:
        total, first = _two_sum(parts[0], parts[1])
        second = parts[2]
    total = _odd(total, first) if form.itemsize < total.itemsize else _nearest(total, first, second)
    finite = special == 0
    hard &= finite
    if hard.any():
        is_narrower = form.itemsize < total.itemsize
        total[hard] = [_to_float(number, odd=is_narrower) for number in _fractions(terms, hard)]
    return np.where(finite, total + 0.0, special).astype(form)


def _fractions(terms: Iterable[np.ndarray], mask: np.ndarray) -> Sequence[Fraction]:
    """Return the exact sums of the masked elements of the terms."""
    from fractions import Fraction  # noqa: PLC0415 - it takes time to load, and few sums need it

    totals = [Fraction(0)] * int(np.count_nonzero(mask))
    for term in terms:
        totals = [total + Fraction(number) for total, number in zip(totals, term[mask].tolist(), strict=True)]
    return totals


def _renormalise(parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return parts with the same sum, and with a first part that is nearer to the sum."""
    errors = []
    running = parts[-1]
    for part in reversed(parts[:-1]):
        running, error = _two_sum(part, running)
        errors.append(error)
    return [running, *reversed(errors)]


def _remainders(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second part of each element that are not 0."""
    first, second = (np.zeros_like(parts[0]) for _ in range(2))
    for part in parts:
        second = np.where((first != 0) & (second == 0), part, second)
        first = np.where(first == 0, part, first)
    return first, second


def _nearest(total: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the nearest number to a sum of three parts, of which `first` may be half a unit in the last place."""
    twice = first * 2
    other = total + twice
    return np.where((first * np.sign(second) > 0) & (other - total == twice), other, total)


def _odd(total: np.ndarray, remainder: np.ndarray) -> np.ndarray:
    """Return sums rounded to odd, so that another rounding to a narrower form gives the nearest number."""
    even = (total.view(np.int64) & 1) == 0
    return np.where((remainder != 0) & even, np.nextafter(total, np.copysign(np.inf, remainder)), total)


def _to_float(number: Fraction, *, odd: bool) -> float:
    """Return the nearest float, or with `odd` the float rounded to odd; infinity beyond the range of floats."""
    try:
        nearest = number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    remainder = number - type(number)(nearest)
    if not odd or not remainder:
        return nearest
    return float(_odd(np.array([nearest]), np.array([1.0 if remainder > 0 else -1.0]))[0])
