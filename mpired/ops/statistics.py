"""The statistics over ranks: their states and results.

They are not ops of MPI: a state is not an element, and the result need not be of the same datatype. All of them go
through the ranks in order and round as described here, so that the bits are the same for any cut into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import starmap

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.datatypes.dtypes import get
from mpired.ops import exact
from mpired.ops.state import Chosen, Planes, Reread, converted, either, numbers_of, valid_of


def number(datatype: Datatype) -> Datatype:
    """Return the datatype of a mean: that of the elements, double for integers."""
    return datatype if datatype.group in Group.FLOATING_POINT | Group.COMPLEX else get("DOUBLE")


def real(datatype: Datatype) -> Datatype:
    """Return the datatype of a variance: that of a mean, or of its parts if it is complex."""
    if datatype.group is not Group.COMPLEX:
        return number(datatype)
    names = {np.dtype("f2"): "REAL2", np.dtype("f4"): "FLOAT", np.dtype("f8"): "DOUBLE"}
    return get(names.get(datatype.component, "LONG_DOUBLE"))


def integer(_datatype: Datatype) -> Datatype:
    """Return the datatype of a count, a signed integer of 64 bits."""
    return get("INT64_T")


class _Numbers(Planes):
    """The base of statistics that compute in wide numbers: double, or long double for elements of that."""

    @cached_property
    def wide(self) -> np.dtype:
        """The form that is computed in."""
        if self.op.rules.accumulate_in is not None:
            return self.op.rules.accumulate_in.form
        form = self.datatype.component if self.datatype.group is Group.COMPLEX else self.datatype.form
        return form if form.kind == "f" and form.itemsize > np.dtype("f8").itemsize else np.dtype("f8")

    @cached_property
    def lanes(self) -> np.dtype:
        """The form of a plane: one wide number for an element, two for a complex one."""
        return np.dtype((self.wide, (2,))) if self.datatype.group is Group.COMPLEX else self.wide

    def wide_of(self, elements: np.ndarray) -> np.ndarray:
        """Return the numbers of elements, wide, in the shape of a plane; they are the elements if these are wide."""
        numbers = numbers_of(elements, self.datatype).astype(self.wide, copy=False)
        return numbers.reshape(len(elements), 2) if self.datatype.group is Group.COMPLEX else numbers

    def counts(self) -> int | np.ndarray:
        """Return the number of ranks, in the shape of a plane."""
        return (
            self.nadded
            if isinstance(self.nadded, int) or self.datatype.group is not Group.COMPLEX
            else self.nadded[:, np.newaxis]
        )

    def of_squares(self, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Divide by the degrees of freedom, the parts of a complex number together, and take the root for STD."""
        free = np.subtract(self.nadded, self.op.rules.ddof, dtype=self.wide)
        total: np.ndarray = squares if squares.ndim == 1 else squares.sum(axis=1)
        variances = total / np.where(free > 0, free, np.nan)
        return self.in_form(variances if self.op.ufunc is None else self.op.ufunc(variances))


class Sum(_Numbers):
    """The sum of some terms of the ranks: rounded at each step, or once where the rules say so."""

    def forms(self) -> list[np.dtype]:
        """Return the sum, or what an exact one consists of."""
        return exact.forms(self.lanes) if self.op.rules.exact else [self.lanes]

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return what a rank adds: wide numbers whose sum is the term, one unless it has more digits."""
        del rank
        if self.op.rules.exact and elements.dtype.kind in "iu" and elements.itemsize == self.wide.itemsize:
            high = elements >> 32
            return [high.astype(self.wide) * 2**32, (elements - (high << 32)).astype(self.wide)]
        return [self.wide_of(elements)]

    def step(self, elements: np.ndarray) -> None:
        """Add the terms."""
        for term in self.terms(elements, self.rank):
            if self.op.rules.exact:
                exact.add(self.planes, term)
            elif isinstance(self.nadded, int) and self.nadded == 1:
                self.planes[0][...] = term  # not added to 0, which has a sign
            elif isinstance(self.nadded, int):
                self.planes[0] += term
            else:
                self.planes[0] = np.where(self.counts() == 1, term, self.planes[0] + term)

    def total(self, form: np.dtype | None = None) -> np.ndarray:
        """Return the sum, in a form if it is rounded once."""
        if not self.op.rules.exact:
            return self.planes[0]
        return exact.rounded(self.planes, form or self.wide, self._all_terms())

    def _all_terms(self) -> Iterator[np.ndarray]:
        """Yield the terms of the ranks so far, 0 for elements that are left out."""
        for rank, (elements, valid) in enumerate(self.so_far()):
            for term in self.terms(elements, rank):
                yield _zeroed(term, valid)

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the sum in the datatype of the results, to which it is rounded."""
        result = self.op.result(self.datatype)
        return self.in_form(self.total(result.component if result.group is Group.COMPLEX else result.form))

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return planes as results, and which overflowed: of exact sums those that are infinite and no rank is."""
        if self.op.rules.exact:
            finite = (self.planes[0] == 0).reshape(self.count, -1).all(axis=1)
            wrapped = finite & np.isinf(numbers).reshape(self.count, -1).any(axis=1)
        return super().in_form(numbers, wrapped)


class Mean(Sum):
    """The sum by the number of ranks; or the sum of weighted elements by that of the weights."""

    compiled_step = "mean"

    def forms(self) -> list[np.dtype]:
        """Return the sum, and with weights theirs."""
        return [*super().forms(), *([self.wide] if self.op.rules.weights else [])]

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return the weighted elements."""
        terms, weights = super().terms(elements, rank), self.op.rules.weights
        return [term * self.wide.type(weights[rank]) for term in terms] if weights else terms

    def step(self, elements: np.ndarray) -> None:
        """Add the terms, and the weight."""
        super().step(elements)
        if self.op.rules.weights:
            self.planes[-1] += self.wide.type(self.op.rules.weights[self.rank])

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Divide."""
        total = self.total()
        if not self.op.rules.weights:
            return self.in_form(total / self.counts())
        return self.in_form(total / (self.planes[-1] if total.ndim == 1 else self.planes[-1][:, np.newaxis]))


class RootMeanSquare(Sum):
    """The square root of the mean of the squares, each of which is rounded."""

    def terms(self, elements: np.ndarray, rank: int) -> list[np.ndarray]:
        """Return the squares."""
        del rank
        numbers = self.wide_of(elements)
        return [numbers * numbers]

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Divide, and take the root."""
        total = self.total()
        squares = total if total.ndim == 1 else total.sum(axis=1)
        return self.in_form(np.sqrt(squares / self.nadded))


class Variance(_Numbers):
    """Welford's recurrence in rank order: the mean so far, and the squares of the deviations so far."""

    # With x the n-th number: d = x - mean, mean += d / n, squares += d * (x - mean); each step is rounded.

    compiled_step = "var"

    def forms(self) -> list[np.dtype]:
        """Return the mean and the squares."""
        return [self.lanes, self.lanes]

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` other elements, with room for what each step computes."""
        if self.count != count:
            self._changes, self._steps = np.empty((2, count), self.lanes)
        super().begin(start, count)

    def step(self, elements: np.ndarray) -> None:
        """Go on with the recurrence."""
        mean, squares = self.planes
        numbers, count = self.wide_of(elements), len(elements)
        change = np.subtract(numbers, mean, out=self._changes[:count])
        step = np.divide(change, self.counts(), out=self._steps[:count])
        mean += step
        change *= np.subtract(numbers, mean, out=step)
        squares += change

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Divide; a divisor that is not positive gives NaN."""
        return self.of_squares(self.planes[1])


class Count(Planes):
    """The number of ranks whose element is not left out, which may be 0: all of it is in `nadded`."""

    of_none = True

    def finished(self) -> tuple[np.ndarray, None]:
        """Return the counts."""
        return np.full(self.count, self.nadded, np.int64), None


class Range(Planes):
    """The maximum minus the minimum."""

    def forms(self) -> list[np.dtype]:
        """Return the minimum and the maximum."""
        return [self.within.form] * 2

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Keep both extremes; NaN propagates."""
        elements, lost = converted(elements, self.within.form, copy=False)
        for extreme, plane in zip((np.minimum, np.maximum), self.planes, strict=True):
            np.copyto(plane, np.where(np.equal(self.nadded, 1), elements, extreme(plane, elements)))
        return lost

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Subtract; a difference of zeros is +0."""
        least, greatest = self.planes
        numbers = greatest - least + self.within.form.type(0)
        if numbers.dtype.kind == "f":
            return self.in_form(numbers, np.isinf(numbers) & np.isfinite(least) & np.isfinite(greatest))
        return self.in_form(numbers, numbers < 0)


class Magnitude(Chosen):
    """The maximum or minimum of the magnitudes: elements without their sign."""

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Keep the extreme of the magnitudes; the smallest integer has none."""
        elements, lost = converted(elements, self.within.form, copy=False)
        magnitudes = np.abs(elements)
        super().step(magnitudes)
        return either(lost, magnitudes < 0 if magnitudes.dtype.kind == "i" else None)


class _Gathered(_Numbers):
    """The base of statistics that need the elements of all ranks at once, and keep them where they were read."""

    keeps: tuple[str, ...] = (*Planes.keeps, "_ranks")

    @property
    def itemsize(self) -> int:  # type: ignore[override] # as in the base
        """Bytes of an element of each rank, the same wide, and the temporaries of that."""
        return self.nranks * (self.datatype.itemsize + 3 * self.wide.itemsize)

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` other elements."""
        super().begin(start, count)
        self._ranks: list[tuple[np.ndarray, np.ndarray | None]] = []  # elements of each, and which are not null

    def fill(self, block: np.ndarray) -> None:
        """Copy the elements: the free block of another state has other ones later."""
        np.copyto(self.free_block, block)

    def add(self, reread: Reread, not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, and keep them."""
        self._ranks.append((self.free_block, not_null))
        overflowed = super().add(reread, not_null)
        self.free_block = np.empty_like(self.free_block)
        return overflowed

    def so_far(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the elements of each rank so far, which are kept, and which of them are not left out."""
        for elements, not_null in self._ranks:
            yield elements, valid_of(elements, not_null, self.datatype, self.op)


class Quantile(_Gathered):
    """A quantile of the sorted numbers x[0], ..., x[n - 1]: that at the position h = (n - 1) q, interpolated."""

    # Between neighbours a and b it is a + (b - a) t, or b - (b - a) (1 - t) from t = 1/2 on, with t what h has behind
    # the point.

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Sort, and interpolate; a NaN that is not left out gives NaN."""
        rows, masks = zip(*self.so_far(), strict=True)
        numbers = np.stack([*map(self.wide_of, rows)], axis=1)
        poisoned = np.isnan(numbers)
        for rank, mask in enumerate(masks):
            if mask is not None:
                numbers[~mask, rank] = np.nan
                poisoned[~mask, rank] = False
        numbers.sort(axis=1, kind="stable")  # so that the order of equal zeros of two signs is defined
        quantile = 0.5 if self.op.rules.quantile is None else self.op.rules.quantile
        position = np.maximum(np.subtract(self.nadded, 1), 0) * self.wide.type(quantile)
        below = np.floor(position).astype(np.intp)
        lines = np.arange(len(numbers))
        low = numbers[lines, below]
        high = numbers[lines, np.minimum(below + 1, np.maximum(np.subtract(self.nadded, 1), 0))]
        results = _interpolated(low, high, position - below)
        results[poisoned.any(axis=1)] = np.nan
        return self.in_form(results)


def _interpolated(low: np.ndarray, high: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return numbers between others, without overflow between large ones of different sign."""
    step = high - low
    near = np.where(at < 0.5, low + step * at, high - step * (1 - at))  # noqa: PLR2004 - a half
    near = np.where(np.isfinite(step), near, low * (1 - at) + high * at)
    return np.where((at == 0) | (low == high), low, near)


class ExactVariance(_Gathered):
    """The variance by exact sums: that of the numbers for their mean, and that of the squared deviations from it."""

    # The mean, each deviation and each square are rounded.

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the variance."""
        ranks = [(self.wide_of(elements), valid) for elements, valid in self.so_far()]
        mean = _exact_sum([*starmap(_zeroed, ranks)]) / self.counts()
        return self.of_squares(_exact_sum([_zeroed((row - mean) ** 2, valid) for row, valid in ranks]))

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers as results, and which of them overflowed: those that are infinite though no rank is."""
        infinite = np.isinf(numbers)
        for elements, _ in self.so_far() if infinite.any() else ():
            infinite &= np.isfinite(self.wide_of(elements)).reshape(self.count, -1).all(axis=1)
        return super().in_form(numbers, either(wrapped, infinite))


def _zeroed(numbers: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return numbers with 0 in the place of those that are left out."""
    if valid is None:
        return numbers
    zeroed = numbers.copy()
    zeroed[~valid] = 0
    return zeroed


def _exact_sum(rows: list[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays, rounded once."""
    forms = exact.forms(np.dtype((rows[0].dtype, rows[0].shape[1:])))
    sums = [np.zeros(len(rows[0]), form) for form in forms]
    for row in rows:
        exact.add(sums, row)
    return exact.rounded(sums, rows[0].dtype, rows)
