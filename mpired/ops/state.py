"""The state of a fold: the combined elements of the ranks so far, or the intermediate results of a statistic.

A fold begins a state for each block of elements. For each rank, in order, it reads the elements of the rank into the
`free_block` of the state, and adds them. The state has a result after each rank.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group
from mpired.datatypes.dtypes import has_numpy_type
from mpired.ops import native
from mpired.ops.kernels import address_of
from mpired.ops.op import Op, Steps

_PAGE = 4096
_TEMPORARIES = 16  # bytes for an element
# A step adds all elements and restores those that are left out, if these are at most one in _RESTORE_RATIO. Otherwise
# it adds the other elements only.
_RESTORE_RATIO = 3

Elements: TypeAlias = tuple[np.ndarray, np.ndarray | None]
"""Elements of a rank, and the mask of those that are not null, or None if none is null."""
Reread: TypeAlias = Callable[[int], Elements]
"""A function that reads the elements of a rank again, into a new array."""


def allocate_block(count: int, form: np.dtype) -> np.ndarray:
    """Return an array at the start of a page, for fast reads, and for SIMD that crosses no cache line."""
    if form.hasobject:
        return np.empty(count, form)
    octets = np.empty(count * form.itemsize + _PAGE, np.uint8)
    start = -octets.ctypes.data % _PAGE
    return octets[start : start + count * form.itemsize].view(form)


class State:
    """The state of an op of MPI: the combined elements of the ranks so far. It is the base of all states."""

    # There are two blocks. A kernel leaves its result in one of them; the next rank is read into the other block.

    itemsize = 0
    """Estimated bytes for an element of the block; 0 if the state has only its two blocks."""
    has_empty_result = False
    """Whether an element that all ranks leave out has a result."""
    computes_indices = False
    """Whether the state takes the values of pairs, and computes their indices."""
    snapshot_fields: tuple[str, ...] = ("nadded", "_running")
    """The attributes of a snapshot, with which another process continues."""

    def __init__(self, op: Op, datatype: Datatype, nranks: int) -> None:
        self.op = op
        self.datatype = datatype
        self.nranks = nranks
        self.nadded: int | np.ndarray = 0  # the number of added ranks; an array if elements are left out
        self.wide_type = op.rules.accumulate_in or datatype  # the datatype of the arithmetic
        self.steps = Steps(op, self.wide_type)
        self.reads_only = op.keeps_upper  # whether `add` does not change the free block
        self.free_block = allocate_block(0, datatype.form)  # for the next rank's elements
        self._blocks = [self.free_block] * 2

    def begin(self, _start: int, count: int) -> None:
        """Begin a block of `count` elements; `_start` is the index of the first element."""
        if len(self._blocks[0]) < count:
            self._blocks = [allocate_block(count, self.datatype.form) for _ in range(2)]
        self.free_block, self._running = (block[:count] for block in self._blocks)
        self.nadded = 0
        self.steps.bounds = None

    def fill(self, block: np.ndarray) -> None:
        """Take the elements of the next rank from the free block of another state, which must not change."""
        if self.reads_only and self.nadded:
            self.free_block = block
        else:
            np.copyto(self.free_block, block)

    def add(self, reread: Reread, _not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, and return the mask of overflowed elements; None if there are none."""
        # Nulls are not allowed in this state.
        rank, result, overflowed = int(self.nadded), self.free_block, None
        if rank:
            result, overflowed = self.steps(self._running, self.free_block, lambda: reread(rank)[0])
        self.nadded = rank + 1
        if result is self.free_block:
            self._running, self.free_block = self.free_block, self._running
        return overflowed

    def compiled(self) -> tuple[str, list[np.ndarray]]:
        """Return the name of the compiled step for the next ranks, "" if there is none, and the arrays it changes."""
        is_extreme = self.op.keeps_upper and self.op.rules.nan != "mpi"
        return (self.op.name.lower(), [self._running]) if is_extreme else ("", [])

    def count_rank(self, *, overflows: bool) -> np.ndarray | None:  # noqa: ARG002 - for other states
        """Count a rank that the compiled step has added, and return the mask of overflowed elements."""
        self.nadded += 1
        return None

    def result(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return the results of the ranks so far, the mask of valid results, and the mask of overflowed results."""
        # The masks are None if all results are valid, and if none overflowed. No op is applied to the elements of a
        # single rank (MPI-4.1, 6.9.5).
        return self.op.lower(self._running, self.datatype) if self.nadded > 1 else self._running, None, None

    def snapshot(self) -> dict[str, Any]:
        """Return a picklable copy of the state after the ranks so far."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.snapshot_fields}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue after the ranks of a snapshot of the same block; `begin` was called."""
        for name, value in snapshot.items():
            setattr(self, name, value)


class Planes(State):
    """The base of states with planes: arrays with a number for each element, such as the mean so far.

    `nadded` is an integer until elements are left out, and then an array with the number of ranks of each element.
    """

    snapshot_fields: tuple[str, ...] = ("nadded", "rank", "planes", "_reported", "_nulls")
    compiled_step = ""
    """The name of the compiled `step`, "" if there is none."""

    def __init__(self, op: Op, datatype: Datatype, nranks: int) -> None:
        super().__init__(op, datatype, nranks)
        self.planes: list[np.ndarray] = []
        self.rank = -1
        self._nadded_form = np.min_scalar_type(-nranks - 1)  # narrow, because each rank changes the array
        self.reads_only = True
        self.count = 0
        self._reported: np.ndarray | None = None  # mask of elements whose infinity was reported as overflow
        self._nulls: np.ndarray | None = None  # mask of elements that are null in a rank, if nulls propagate

    @property
    def itemsize(self) -> int:  # type: ignore[override] # a class attribute in the base
        """Bytes of an element, of the planes, and of temporaries."""
        return self.datatype.itemsize + sum(form.itemsize for form in self.forms()) + _TEMPORARIES

    def forms(self) -> list[np.dtype]:
        """Return the forms of the planes."""
        return []

    def step(self, _elements: np.ndarray) -> np.ndarray | None:
        """Add elements to the planes, and return the mask of overflow that infinities in the planes do not show."""
        # `nadded` includes the rank. The elements are shared with other states, and must not change.
        return None

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the results where `nadded` is not 0, and the mask of overflowed results. The planes do not change."""
        raise NotImplementedError

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers in the datatype of the results, and the mask of those that overflow or have wrapped."""
        # Planes do not change. Numbers with two columns are the parts of complex numbers.
        result, is_plane = self.op.result(self.datatype), any(numbers is plane for plane in self.planes)
        results, lost = converted(numbers, result.form if numbers.ndim == 1 else result.component, copy=is_plane)
        if numbers.ndim > 1:
            results, lost = results.reshape(-1).view(result.form), None if lost is None else np.any(lost, axis=1)
        return results, union(lost, wrapped)

    def begin(self, _start: int, count: int) -> None:
        """Begin a block of `count` elements."""
        if len(self.free_block) != count:
            self.free_block = allocate_block(count, self.datatype.form)
        self.count = count
        self.planes = [np.zeros(count, form) for form in self.forms()]
        self.nadded, self.rank = 0, -1
        self._reported = self._nulls = self.steps.bounds = None

    def fill(self, block: np.ndarray) -> None:
        """Use the free block of another state."""
        self.free_block = block

    def add(self, reread: Reread, not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, except those that are left out."""
        elements, self._reread = self.free_block, reread
        self.rank += 1
        if not_null is not None and self.op.rules.nulls == "propagate":
            self._nulls = ~not_null if self._nulls is None else self._nulls | ~not_null
        valid, flags = valid_of(elements, not_null, self.datatype, self.op), list[object]()
        with np.errstate(over="call", call=lambda *error: flags.append(error)):
            if valid is None:
                self.nadded = self.nadded + 1
                overflowed = self.step(elements)
            else:
                overflowed = self._step_where(valid, elements)
        if flags and overflowed is None and self.op.rules.overflow != "wrap":
            overflowed = self._infinite()
        if overflowed is not None and self._nulls is not None:  # a null result cannot overflow
            overflowed &= ~self._nulls
            return overflowed if overflowed.any() else None
        return overflowed

    def compiled(self) -> tuple[str, list[np.ndarray]]:
        """Return the compiled step if no rule excludes it: it adds all elements, in doubles."""
        rules = self.op.rules
        is_plain = isinstance(self.nadded, int) and not rules.leaves_out and not rules.weights and not rules.exact
        is_double = all(plane.dtype == np.float64 and plane.ndim == 1 for plane in self.planes)
        return (self.compiled_step if is_plain and is_double else "", self.planes)

    def count_rank(self, *, overflows: bool) -> np.ndarray | None:
        """Count a rank, and check the planes for overflow."""
        self.nadded, self.rank = self.nadded + 1, self.rank + 1
        return self._infinite() if overflows and self.op.rules.overflow != "wrap" else None

    def _step_where(self, valid: np.ndarray, elements: np.ndarray) -> np.ndarray | None:
        """Add the valid elements."""
        if isinstance(self.nadded, int):
            self.nadded = np.full(self.count, self.nadded, self._nadded_form)
        planes, n = self.planes, self.nadded
        (excluded,) = (~valid).nonzero()
        if len(excluded) * _RESTORE_RATIO <= self.count:
            return self._step_and_restore(excluded, elements, n)
        (included,) = valid.nonzero()
        n[included] += 1
        if not len(included):
            return None
        self.planes, self.nadded = [plane[included] for plane in planes], n[included]
        partial = self.step(elements[included])
        for plane, part in zip(planes, self.planes, strict=True):
            plane[included] = part
        self.planes, self.nadded = planes, n
        if partial is None:
            return None
        overflowed = np.zeros(self.count, np.bool_)
        overflowed[included] = partial
        return overflowed

    def _step_and_restore(self, excluded: np.ndarray, elements: np.ndarray, n: np.ndarray) -> np.ndarray | None:
        """Add all elements, and restore the planes at the excluded elements; this is faster if few are excluded."""
        filled = elements.copy()  # other states may share the free block
        filled[excluded] = np.zeros((), elements.dtype)
        saved = [plane[excluded] for plane in self.planes]
        self.nadded = n + 1
        overflowed = self.step(filled)
        self.nadded[excluded] -= 1
        for plane, numbers in zip(self.planes, saved, strict=True):
            plane[excluded] = numbers
        if overflowed is not None:
            overflowed[excluded] = False
        return overflowed

    def so_far(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Read each rank so far again, and yield its elements with the mask of valid elements, or None for all."""
        for rank in range(self.rank + 1):
            elements, not_null = self._reread(rank)
            yield elements, valid_of(elements, not_null, self.datatype, self.op)

    def _infinite(self) -> np.ndarray | None:
        """Return the mask of elements that are infinite for the first time although those of all ranks are finite."""
        planes = [plane for plane in self.planes if plane.dtype.kind == "f"]
        infinite = np.logical_or.reduce([~_finite(plane, self.count) for plane in planes])
        reported = np.zeros(self.count, np.bool_) if self._reported is None else self._reported
        infinite &= ~reported
        for elements, valid in self.so_far() if infinite.any() else ():
            finite = _finite(numbers_of(elements, self.datatype), self.count)
            infinite &= finite if valid is None else finite | ~valid
        self._reported = reported | infinite
        return infinite if infinite.any() else None

    def result(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return the results; a result without elements is a fill value, and null if nulls are allowed."""
        results, overflowed = self.finished()
        results = self.op.lower(results, self.op.result(self.datatype))
        self._restore_single_nans(results)
        null = self._nulls
        if not isinstance(self.nadded, int) and not self.has_empty_result:
            null = self.nadded == 0 if null is None else null | (self.nadded == 0)
        if null is None or not null.any():
            return results, None, overflowed
        value = fill_value(self.op.result(self.datatype), self.op)
        results[null] = np.zeros((), results.dtype)[()] if value is None else value
        valid = ~null if self.op.rules.nulls != "error" else None
        return results, valid, None if overflowed is None else overflowed & ~null

    def _restore_single_nans(self, results: np.ndarray) -> None:
        """Restore the bits of NaN in results of a single rank, if results have the datatype of the elements."""
        if results.dtype != self.datatype.form or self.datatype.group not in Group.FLOATING_POINT | Group.COMPLEX:
            return
        single = np.equal(self.nadded, 1).reshape(-1, 1)
        numbers = numbers_of(results, self.datatype).reshape(self.count, -1)
        single = single & np.isnan(numbers) if single.any() else single
        for elements, valid in self.so_far() if single.any() else ():
            originals = numbers_of(elements, self.datatype).reshape(self.count, -1)
            copied = single & np.isnan(originals) & (True if valid is None else valid.reshape(-1, 1))
            numbers[copied] = originals[copied]


def _finite(plane: np.ndarray, count: int) -> np.ndarray:
    """Return the mask of elements whose numbers in a plane are finite."""
    finite: np.ndarray = np.isfinite(plane).reshape(count, -1).all(axis=1)
    return finite


def numbers_of(elements: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return the numbers in elements: real and imaginary parts, the values of pairs, or the elements."""
    if datatype.group is Group.COMPLEX:
        return elements.view(datatype.component)
    return elements[datatype.form.names[0]] if datatype.group is Group.PAIR and datatype.form.names else elements


def valid_of(elements: np.ndarray, not_null: np.ndarray | None, datatype: Datatype, op: Op) -> np.ndarray | None:
    """Return the mask of elements that are not null and not left out by the rules; None if these are all."""
    rules = op.rules
    if rules.nan != "ignore" and rules.missing is None:
        return None if not_null is None or not_null.all() else not_null
    numbers = numbers_of(elements, datatype)
    left_out = np.zeros(len(numbers), np.bool_)
    if rules.nan == "ignore" and datatype.group in TIMES:
        left_out |= np.isnan(numbers.view(datatype.compared))  # true for NaT
    elif rules.nan == "ignore" and numbers.dtype.kind == "f":
        np.isnan(numbers, out=left_out)
    if rules.missing is not None:
        left_out |= numbers == np.array(rules.missing).astype(numbers.dtype)  # in the precision of the elements
    valid: np.ndarray = ~np.any(left_out.reshape(len(elements), -1), axis=1)
    if not_null is not None:
        valid &= not_null
    return None if valid.all() else valid


def fill_value(result: Datatype, op: Op) -> object:
    """Return the fill value of results without elements: NaN, NaT, or the value of `missing`; None if there is none."""
    # The index of a pair is -1, or the largest unsigned integer; the imaginary part of a complex number is 0.
    form, number = result.form, op.rules.missing
    dtype = form[0] if result.group in Group.PAIR | Group.COMPLEX and form.names else form
    if number is None and dtype.kind in "fc":
        number = np.nan
    elif number is None and result.group in TIMES and has_numpy_type(result):
        number = int(np.datetime64("NaT").astype("i8"))
    second = -1 if result.group is Group.PAIR else 0
    return number if number is None or form.names is None else (number, np.array(second).astype(form[1]))


def may_be_null(op: Op, datatype: Datatype, nullable: Sequence[bool]) -> bool:
    """Return whether a result may be null; `nullable` is true for each rank that may have nulls."""
    rules = op.rules
    if rules.nulls == "error" or not nullable:
        return False
    if rules.nulls == "propagate" and any(nullable):
        return True
    is_floating = numbers_of(np.empty(0, datatype.form), datatype).dtype.kind == "f"
    leaves_out = rules.missing is not None or (rules.nan == "ignore" and is_floating)
    return (leaves_out or all(nullable)) and not make_state(op, datatype, len(nullable)).has_empty_result


def has_fill_value(op: Op, datatype: Datatype) -> bool:
    """Return whether results have a fill value, for formats without nulls."""
    return fill_value(op.result(datatype), op) is not None


class RuledState(Planes):
    """The state of an op of MPI with rules: elements may be left out, and combined in a wider datatype."""

    def forms(self) -> list[np.dtype]:
        """Return the form of the arithmetic."""
        return [self.wide_type.form]

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Combine the elements so far with those of a rank; the first element is copied."""
        upper, lost = converted(elements, self.wide_type.form)
        if isinstance(self.nadded, int) and self.nadded == 1:
            self.planes = [upper]
            return lost
        if not isinstance(self.nadded, int):
            self.steps.bounds = None  # the bounds are of other elements
        (running,) = self.planes
        result, overflowed = self.steps(running, upper, lambda: elements.astype(self.wide_type.form))
        if not isinstance(self.nadded, int):
            first = self.nadded == 1
            if first.any():
                np.copyto(result, elements.astype(self.wide_type.form), where=first)
            if overflowed is not None:
                overflowed &= ~first
        self.planes = [result]
        return union(lost, overflowed)

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements in the datatype of the results."""
        return self.in_form(self.planes[0])


class IndexedExtreme(State):
    """The state of MINLOC or MAXLOC on values with computed indices: the best values so far, and their indices."""

    # The results are those of pairs (MPI-4.1, 6.9.4), but only results become pairs.

    computes_indices = True
    snapshot_fields: tuple[str, ...] = ("nadded", "_best", "_best_index")

    def __init__(self, op: Op, datatype: Datatype, firsts: Sequence[int], *, counting: bool) -> None:
        super().__init__(op, datatype, len(firsts))
        assert op.extreme is not None  # noqa: S101 - no other op takes pairs
        self._extreme = op.extreme
        self._better = np.greater if op.extreme is np.maximum else np.less
        self._firsts = firsts  # the first index of each rank
        self._counting = counting  # whether the index increases with the element
        self._rises = all(a < b for a, b in itertools.pairwise(firsts))
        value, index = datatype.form[0], datatype.form[1]
        self._values = [allocate_block(0, value)] * 3
        self._indices = [allocate_block(0, index)] * 2
        self._pairs = allocate_block(0, datatype.form)

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` elements; `start` is the index of the first element."""
        if len(self._values[0]) < count:
            self._values = [allocate_block(count, values.dtype) for values in self._values]
            self._indices = [allocate_block(count, indices.dtype) for indices in self._indices]
            self._pairs = np.zeros(count, self.datatype.form)
        self._best, self.free_block, self._spare = (values[:count] for values in self._values)
        self._best_index, self._change = (indices[:count] for indices in self._indices)
        self._counted = np.arange(start, start + count) if self._counting else 0
        self.nadded = 0

    def add(self, _reread: Reread, _not_null: np.ndarray | None = None) -> None:
        """Keep the better of the values so far and the values in the free block, with their indices."""
        index = np.asarray(self._firsts[int(self.nadded)] + self._counted).astype(self._best_index.dtype)
        self.nadded += 1
        if self.nadded == 1:
            self._best, self.free_block = self.free_block, self._best
            self._best_index[...] = index
            return
        best, values = self._best, self.free_block
        takes = self._better(values, best)
        self._extreme(best, values, out=self._spare)
        doubtful = self._spare == 0
        if values.dtype.kind == "f":
            # NaN wins against numbers, but not against another NaN.
            takes |= np.isnan(values) & ~np.isnan(best)
            doubtful |= np.isnan(self._spare)
        if not self._rises:
            tied = (values == best) | (doubtful & (values != values) & (best != best))  # noqa: PLR0124 - both are NaN
            takes |= tied & (index < self._best_index)
        if doubtful.any():  # the bits of a zero or NaN are those of the winner
            np.copyto(self._spare, np.where(takes, values, best), where=doubtful)
        np.subtract(index, self._best_index, out=self._change)
        self._change *= takes
        self._best_index += self._change
        self._best, self._spare = self._spare, self._best

    def result(self) -> tuple[np.ndarray, None, None]:
        """Return the pairs."""
        value, index = self.datatype.form.names or ()
        pairs = self._pairs[: len(self._best)]
        pairs[value], pairs[index] = self._best, self._best_index
        return pairs, None, None


class Chain:
    """The compiled steps of several states, which share one pass through the elements of a rank."""

    def __init__(self, states: Sequence[State], block: np.ndarray) -> None:
        self.states: list[State] = []
        steps = []
        for state in states:
            name, planes = state.compiled()
            if name and state.datatype.form == block.dtype and (add := native.step(name, state.datatype)):
                pointers = (ctypes.c_void_p * 2)(address_of(planes[0]), address_of(planes[-1]))
                steps.append(native.Step(add, pointers, planes[0].itemsize))
                self.states.append(state)
        self._steps = (native.Step * len(steps))(*steps)

    def add(self, block: np.ndarray, valid: np.ndarray | None) -> bool:
        """Add the elements of the next rank, and return whether a number overflowed; a mask ends the chain."""
        if valid is not None:
            self.states = []
        if not self.states:
            return False
        n = int(self.states[0].nadded) + 1
        return native.chain(self._steps, address_of(block), block.itemsize, len(block), n)


def converted(numbers: np.ndarray, form: np.dtype, *, copy: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """Return numbers in another form, with integers that wrap, and the mask of numbers beyond its bounds, or None."""
    results = numbers.astype(form, copy=copy)
    if np.can_cast(numbers.dtype, form):
        return results, None
    if form.kind not in "iu":
        lost = np.isfinite(numbers) & ~np.isfinite(results)
    elif numbers.dtype.kind in "iu":
        limits = np.iinfo(form)
        lost = (numbers < limits.min) | (numbers > limits.max)
    else:  # the maximum integer may round up
        limits = np.iinfo(form)
        lost = ~((numbers >= limits.min) & (numbers < float(limits.max + 1)))
        if lost.any():  # C does not define their conversion
            remainders = np.fmod(np.nan_to_num(numbers[lost], posinf=0, neginf=0), 2.0**64)
            magnitudes = np.abs(remainders).astype("u8")
            results[lost] = np.where(remainders < 0, -magnitudes, magnitudes).astype(form)
    return results, lost if lost.any() else None


def union(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Return the union of two masks; None stands for an empty mask."""
    mask = a if b is None else b if a is None else a | b
    return None if mask is None or not mask.any() else mask


def make_state(op: Op, datatype: Datatype, nranks: int) -> State:
    """Return the state of an op with its rules, for elements of a datatype in `nranks` ranks."""
    rules = op.rules
    kind = (op.exact_state if rules.exact else None) or op.state
    if kind is None:  # an op of MPI
        has_rules = rules.leaves_out or rules.accumulate_in is not None or rules.result_type is not None
        kind = RuledState if has_rules else State
    state: State = kind(op, datatype, nranks)
    return state
