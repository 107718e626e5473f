"""The state of a fold: the elements combined so far, or the intermediate results of a statistic.

A fold begins a state for each block of elements. For each rank, in order, it fills the `free_block` of the state
with the rank's elements, and adds them. The result may be asked for after each rank.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group
from mpired.datatypes.times import is_of_numpy
from mpired.ops import native
from mpired.ops.kernels import address_of
from mpired.ops.op import Op, Steps

_PAGE = 4096
# Bytes of temporaries for an element.
_TEMPORARIES = 16
# Elements that are left out are set back where at most one in _ONE_IN is; else the others are chosen.
_ONE_IN = 3

Elements: TypeAlias = tuple[np.ndarray, np.ndarray | None]
"""Elements of a rank, and which of them are there; None if no null is among them."""
Reread: TypeAlias = Callable[[int], Elements]
"""Reads the elements of a rank again, into an array of their own."""


def block_of(count: int, form: np.dtype) -> np.ndarray:
    """Return an array that starts on a page: the kernel copies to there fastest, and SIMD crosses no cache line."""
    if form.hasobject:
        return np.empty(count, form)
    free_block = np.empty(count * form.itemsize + _PAGE, np.uint8)
    start = -free_block.ctypes.data % _PAGE
    return free_block[start : start + count * form.itemsize].view(form)


class State:
    """The state of a block of elements: those of the ranks so far combined, which is all that an op of MPI needs."""

    # There are two blocks. The one in which a kernel leaves its result is the lower rank's for the next; the other one
    # is read into.

    itemsize = 0
    """About the bytes that an element of the block needs, where that is more than one of the datatype."""
    of_none = False
    """Whether there is a result where every element is left out."""
    counts_indices = False
    """Whether it takes the values of pairs alone, and knows their indices."""
    keeps: tuple[str, ...] = ("nadded", "_running")
    """The attributes that are all it knows of the ranks so far: with them another process goes on."""

    def __init__(self, op: Op, datatype: Datatype, nranks: int) -> None:
        self.op = op
        self.datatype = datatype
        self.nranks = nranks
        self.nadded: int | np.ndarray = 0  # the ranks added; an array where some are left out
        self.within = op.rules.accumulate_in or datatype  # the datatype that is computed in
        self.steps = Steps(op, self.within)
        self.reads_only = op.keeps_upper  # whether it leaves the elements in its free block as they are
        self.free_block = block_of(0, datatype.form)  # for the next rank's elements
        self._blocks = [self.free_block] * 2

    def begin(self, _start: int, count: int) -> None:
        """Begin a block of `count` other elements, from an element on."""
        if len(self._blocks[0]) < count:
            self._blocks = [block_of(count, self.datatype.form) for _ in range(2)]
        self.free_block, self._running = (block[:count] for block in self._blocks)
        self.nadded = 0
        self.steps.bounds = None

    def fill(self, block: np.ndarray) -> None:
        """Take the next rank's elements from the free block of another state, where they stay as they are."""
        if self.reads_only and self.nadded:
            self.free_block = block
        else:
            np.copyto(self.free_block, block)

    def add(self, reread: Reread, _not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, and return which of them overflowed; None for none."""
        # The mask is None if no element is null; where nulls are allowed there is another state.
        rank, result, overflowed = int(self.nadded), self.free_block, None
        if rank:
            result, overflowed = self.steps(self._running, self.free_block, lambda: reread(rank)[0])
        self.nadded = rank + 1
        if result is self.free_block:
            self._running, self.free_block = self.free_block, self._running
        return overflowed

    def compiled(self) -> tuple[str, list[np.ndarray]]:
        """Return the name of the compiled step of later ranks, "" if there is none, and the arrays that it changes."""
        is_extreme = self.op.keeps_upper and self.op.rules.nan != "mpi"
        return (self.op.name.lower(), [self._running]) if is_extreme else ("", [])

    def count_rank(self, *, overflows: bool) -> np.ndarray | None:  # noqa: ARG002 - of other states
        """Count a rank that a compiled step has added, and return which of its elements overflowed."""
        self.nadded += 1
        return None

    def result(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return the results of the ranks so far, which are not null, and which the datatype cannot hold."""
        # None for all that are not null, and for none that it cannot hold. The elements of one rank stay as they are,
        # no op touches them (MPI-4.1, 6.9.5).
        return self.op.lower(self._running, self.datatype) if self.nadded > 1 else self._running, None, None

    def snapshot(self) -> dict[str, Any]:
        """Return the state after the ranks so far, in arrays of its own, which can be pickled."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.keeps}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on after the ranks that another state of the same block was given; this one has begun with it."""
        for name, value in snapshot.items():
            setattr(self, name, value)


class Planes(State):
    """The base of states that are some numbers for each element, each kind of them in an array: a plane."""

    # Elements that are left out are not added. `nadded` is the number of the ranks added: one for all elements, as
    # long as it is the same for all, or an array.

    keeps: tuple[str, ...] = ("nadded", "rank", "planes", "_reported", "_nulls")
    compiled_step = ""
    """The name of the compiled form of `step`, if there is one."""

    def __init__(self, op: Op, datatype: Datatype, nranks: int) -> None:
        super().__init__(op, datatype, nranks)
        self.planes: list[np.ndarray] = []
        self.rank = -1
        self._form_of_n = np.min_scalar_type(-nranks - 1)  # short: all are gone through for each rank
        self.reads_only = True
        self.count = 0
        self._reported: np.ndarray | None = None
        self._nulls: np.ndarray | None = None

    @property
    def itemsize(self) -> int:  # type: ignore[override] # an attribute of the class where it is the same for all
        """Bytes of an element, the planes, and temporaries."""
        return self.datatype.itemsize + sum(form.itemsize for form in self.forms()) + _TEMPORARIES

    def forms(self) -> list[np.dtype]:
        """Return the forms of the planes at the beginning."""
        return []

    def step(self, _elements: np.ndarray) -> np.ndarray | None:
        """Add elements to the planes, and return which of them overflowed, where that is not seen in the planes."""
        # `nadded` has them already. They are not written over: they may be the elements of other states, too.
        return None

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the results, where `nadded` is not 0, and which of them overflowed. The planes stay as they are."""
        raise NotImplementedError

    def in_form(self, numbers: np.ndarray, wrapped: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return numbers in the datatype of the results, and which of them that cannot hold, or have wrapped."""
        # Planes stay as they are. Those with two numbers for each element have the parts of complex ones.
        result, is_plane = self.op.result(self.datatype), any(numbers is plane for plane in self.planes)
        results, lost = converted(numbers, result.form if numbers.ndim == 1 else result.component, copy=is_plane)
        if numbers.ndim > 1:
            results, lost = results.reshape(-1).view(result.form), None if lost is None else np.any(lost, axis=1)
        return results, either(lost, wrapped)

    def begin(self, _start: int, count: int) -> None:
        """Begin a block of `count` other elements."""
        if len(self.free_block) != count:
            self.free_block = block_of(count, self.datatype.form)
        self.count = count
        self.planes = [np.zeros(count, form) for form in self.forms()]
        self.nadded, self.rank = 0, -1
        self._reported = self._nulls = self.steps.bounds = None

    def fill(self, block: np.ndarray) -> None:
        """Let the free block be that of the other state."""
        self.free_block = block

    def add(self, reread: Reread, not_null: np.ndarray | None = None) -> np.ndarray | None:
        """Add the elements in the free block, except those that are left out."""
        elements, self._reread = self.free_block, reread
        self.rank += 1
        if not_null is not None and self.op.rules.nulls == "propagate":
            self._nulls = ~not_null if self._nulls is None else self._nulls | ~not_null
        valid, noted = valid_of(elements, not_null, self.datatype, self.op), list[object]()
        with np.errstate(over="call", call=lambda *each: noted.append(each)):
            if valid is None:
                self.nadded = self.nadded + 1
                overflowed = self.step(elements)
            else:
                overflowed = self._step_where(valid, elements)
        if noted and overflowed is None and self.op.rules.overflow != "wrap":
            overflowed = self._infinite()
        if overflowed is not None and self._nulls is not None:  # a result that is null cannot overflow any more
            overflowed &= ~self._nulls
            return overflowed if overflowed.any() else None
        return overflowed

    def compiled(self) -> tuple[str, list[np.ndarray]]:
        """Return the compiled step; it takes all elements, and computes in doubles."""
        rules = self.op.rules
        is_plain = isinstance(self.nadded, int) and not rules.leaves_out and not rules.weights and not rules.exact
        is_double = all(plane.dtype == np.float64 and plane.ndim == 1 for plane in self.planes)
        return (self.compiled_step if is_plain and is_double else "", self.planes)

    def count_rank(self, *, overflows: bool) -> np.ndarray | None:
        """Count a rank, and look for overflow in the planes."""
        self.nadded, self.rank = self.nadded + 1, self.rank + 1
        return self._infinite() if overflows and self.op.rules.overflow != "wrap" else None

    def _step_where(self, valid: np.ndarray, elements: np.ndarray) -> np.ndarray | None:
        """Add some of the elements."""
        if isinstance(self.nadded, int):
            self.nadded = np.full(self.count, self.nadded, self._form_of_n)
        planes, n = self.planes, self.nadded
        (lacking,) = (~valid).nonzero()
        if len(lacking) * _ONE_IN <= self.count:
            return self._step_but(lacking, elements, n)
        (chosen,) = valid.nonzero()
        n[chosen] += 1
        if not len(chosen):
            return None
        self.planes, self.nadded = [plane[chosen] for plane in planes], n[chosen]
        some = self.step(elements[chosen])
        for plane, part in zip(planes, self.planes, strict=True):
            plane[chosen] = part
        self.planes, self.nadded = planes, n
        if some is None:
            return None
        overflowed = np.zeros(self.count, np.bool_)
        overflowed[chosen] = some
        return overflowed

    def _step_but(self, lacking: np.ndarray, elements: np.ndarray, n: np.ndarray) -> np.ndarray | None:
        """Add all elements but a few, which is quicker than to choose the many: for these the planes are set back."""
        filled = elements.copy()  # the free block may be the state itself
        filled[lacking] = np.zeros((), elements.dtype)
        before = [plane[lacking] for plane in self.planes]
        self.nadded = n + 1
        overflowed = self.step(filled)
        self.nadded[lacking] -= 1
        for plane, old in zip(self.planes, before, strict=True):
            plane[lacking] = old
        if overflowed is not None:
            overflowed[lacking] = False
        return overflowed

    def so_far(self) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Yield the elements of each rank so far, read again, and which of them are not left out; None for all."""
        for rank in range(self.rank + 1):
            elements, not_null = self._reread(rank)
            yield elements, valid_of(elements, not_null, self.datatype, self.op)

    def _infinite(self) -> np.ndarray | None:
        """Return which elements are infinite now, though those of all ranks are finite, unless it is known of them."""
        bad = np.logical_or.reduce([~_finite(plane, self.count) for plane in self.planes if plane.dtype.kind == "f"])
        reported = np.zeros(self.count, np.bool_) if self._reported is None else self._reported
        bad &= ~reported
        for elements, valid in self.so_far() if bad.any() else ():
            finite = _finite(numbers_of(elements, self.datatype), self.count)
            bad &= finite if valid is None else finite | ~valid
        self._reported = reported | bad
        return bad if bad.any() else None

    def result(self) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return the results, with a value in the place of absent ones, which are valid if nulls are an error."""
        results, overflowed = self.finished()
        results = self.op.lower(results, self.op.result(self.datatype))
        self._copy_nans_of_one(results)
        none = self._nulls  # a null stands for it, or no rank has the element
        if not isinstance(self.nadded, int) and not self.of_none:
            none = self.nadded == 0 if none is None else none | (self.nadded == 0)
        if none is None or not none.any():
            return results, None, overflowed
        value = absent(self.op.result(self.datatype), self.op)
        results[none] = np.zeros((), results.dtype)[()] if value is None else value
        valid = ~none if self.op.rules.nulls != "error" else None
        return results, valid, None if overflowed is None else overflowed & ~none

    def _copy_nans_of_one(self, results: np.ndarray) -> None:
        """Give each NaN that a single rank has the bits that it has there, if results are of the same datatype."""
        if results.dtype != self.datatype.form or self.datatype.group not in Group.FLOATING_POINT | Group.COMPLEX:
            return
        single = np.equal(self.nadded, 1).reshape(-1, 1)
        numbers = numbers_of(results, self.datatype).reshape(self.count, -1)
        single = single & np.isnan(numbers) if single.any() else single
        for elements, valid in self.so_far() if single.any() else ():
            theirs = numbers_of(elements, self.datatype).reshape(self.count, -1)
            copied = single & np.isnan(theirs) & (True if valid is None else valid.reshape(-1, 1))
            numbers[copied] = theirs[copied]


def _finite(plane: np.ndarray, count: int) -> np.ndarray:
    """Return the elements of which all numbers in a plane are finite."""
    finite: np.ndarray = np.isfinite(plane).reshape(count, -1).all(axis=1)
    return finite


def numbers_of(elements: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Return the numbers in elements: of complex ones the real and imaginary parts, of pairs the values."""
    if datatype.group is Group.COMPLEX:
        return elements.view(datatype.component)
    return elements[datatype.form.names[0]] if datatype.group is Group.PAIR and datatype.form.names else elements


def valid_of(elements: np.ndarray, not_null: np.ndarray | None, datatype: Datatype, op: Op) -> np.ndarray | None:
    """Return the mask of the elements that count, which are `not_null`; None for all."""
    rules = op.rules
    if rules.nan != "ignore" and rules.missing is None:
        return None if not_null is None or not_null.all() else not_null
    numbers = numbers_of(elements, datatype)
    out = np.zeros(len(numbers), np.bool_)
    if rules.nan == "ignore" and datatype.group in TIMES:
        out |= np.isnan(numbers.view(datatype.compared))  # which is so of NaT
    elif rules.nan == "ignore" and numbers.dtype.kind == "f":
        np.isnan(numbers, out=out)
    if rules.missing is not None:
        out |= numbers == np.array(rules.missing).astype(numbers.dtype)  # in their own precision
    valid: np.ndarray = ~np.any(out.reshape(len(elements), -1), axis=1)
    if not_null is not None:
        valid &= not_null
    return None if valid.all() else valid


def absent(result: Datatype, op: Op) -> object:
    """Return what a result is where formats need a value, and there is none: NaN, NaT, or what stands for missing."""
    # The index of a pair is -1, or else the largest; the imaginary part of a complex number is 0. None if the datatype
    # of the results has no such value.
    form, number = result.form, op.rules.missing
    value = form[0] if result.group in Group.PAIR | Group.COMPLEX and form.names else form
    if number is None and value.kind in "fc":
        number = np.nan
    elif number is None and result.group in TIMES and is_of_numpy(result):
        number = int(np.datetime64("NaT").astype("i8"))
    second = -1 if result.group is Group.PAIR else 0
    return number if number is None or form.names is None else (number, np.array(second).astype(form[1]))


def may_be_null(op: Op, datatype: Datatype, lacking: Sequence[bool]) -> bool:
    """Return whether a result may be null; `lacking` says for each rank whether it may lack elements."""
    rules = op.rules
    if rules.nulls == "error" or not lacking:
        return False
    if rules.nulls == "propagate" and any(lacking):
        return True
    floating = numbers_of(np.empty(0, datatype.form), datatype).dtype.kind == "f"
    left_out = rules.missing is not None or (rules.nan == "ignore" and floating)
    return (left_out or all(lacking)) and not state_of(op, datatype, len(lacking)).of_none


def stands_for_null(op: Op, datatype: Datatype) -> bool:
    """Return whether results of elements of a datatype have a value that stands for null where a format has none."""
    return absent(op.result(datatype), op) is not None


class Chosen(Planes):
    """The elements combined so far by an op of MPI, but those left out; they may be combined in another datatype."""

    def forms(self) -> list[np.dtype]:
        """Return the form that is computed in."""
        return [self.within.form]

    def step(self, elements: np.ndarray) -> np.ndarray | None:
        """Combine the elements so far with others; the first of each is copied."""
        upper, lost = converted(elements, self.within.form)
        if isinstance(self.nadded, int) and self.nadded == 1:
            self.planes = [upper]
            return lost
        if not isinstance(self.nadded, int):
            self.steps.bounds = None  # they are those of other elements
        (running,) = self.planes
        result, overflowed = self.steps(running, upper, lambda: elements.astype(self.within.form))
        if not isinstance(self.nadded, int):
            first = self.nadded == 1
            if first.any():
                np.copyto(result, elements.astype(self.within.form), where=first)
            if overflowed is not None:
                overflowed &= ~first
        self.planes = [result]
        return either(lost, overflowed)

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements in the datatype of the results."""
        return self.in_form(self.planes[0])


class Located(State):
    """MINLOC or MAXLOC of plain values with indices that are counted: the best values so far, and their indices."""

    # The result is that of the pairs (MPI-4.1, 6.9.4), without building a pair of each element of each rank.

    counts_indices = True
    keeps: tuple[str, ...] = ("nadded", "_best", "_from")

    def __init__(self, op: Op, datatype: Datatype, firsts: Sequence[int], *, counting: bool) -> None:
        super().__init__(op, datatype, len(firsts))
        assert op.extreme is not None  # noqa: S101 - no other op takes pairs
        self._extreme = op.extreme
        self._better = np.greater if op.extreme is np.maximum else np.less
        self._firsts, self._counting = firsts, counting  # the first index of each rank; whether it rises by one
        self._rises = all(a < b for a, b in itertools.pairwise(firsts))
        value, index = datatype.form[0], datatype.form[1]
        self._values = [block_of(0, value)] * 3
        self._indices = [block_of(0, index)] * 2
        self._pairs = block_of(0, datatype.form)

    def begin(self, start: int, count: int) -> None:
        """Begin a block of `count` other elements."""
        if len(self._values[0]) < count:
            self._values = [block_of(count, each.dtype) for each in self._values]
            self._indices = [block_of(count, each.dtype) for each in self._indices]
            self._pairs = np.zeros(count, self.datatype.form)
        self._best, self.free_block, self._spare = (each[:count] for each in self._values)
        self._from, self._change = (each[:count] for each in self._indices)
        self._counted = np.arange(start, start + count) if self._counting else 0
        self.nadded = 0

    def add(self, _reread: Reread, _not_null: np.ndarray | None = None) -> None:
        """Let the values in the free block win or not."""
        index = np.asarray(self._firsts[int(self.nadded)] + self._counted).astype(self._from.dtype)
        self.nadded += 1
        if self.nadded == 1:
            self._best, self.free_block = self.free_block, self._best
            self._from[...] = index
            return
        best, values = self._best, self.free_block
        takes = self._better(values, best)
        self._extreme(best, values, out=self._spare)
        doubtful = self._spare == 0
        if values.dtype.kind == "f":
            # A NaN wins, and is not better than another.
            takes |= np.isnan(values) & ~np.isnan(best)
            doubtful |= np.isnan(self._spare)
        if not self._rises:
            tied = (values == best) | (doubtful & (values != values) & (best != best))  # noqa: PLR0124 - both are NaN
            takes |= tied & (index < self._from)
        if doubtful.any():  # which bits a zero or a NaN has, is that of the one that wins
            np.copyto(self._spare, np.where(takes, values, best), where=doubtful)
        np.subtract(index, self._from, out=self._change)
        self._change *= takes
        self._from += self._change
        self._best, self._spare = self._spare, self._best

    def result(self) -> tuple[np.ndarray, None, None]:
        """Return the pairs."""
        value, index = self.datatype.form.names or ()
        pairs = self._pairs[: len(self._best)]
        pairs[value], pairs[index] = self._best, self._from
        return pairs, None, None


class Chain:
    """The states with compiled steps among some that have begun: they share one pass through the elements of a rank."""

    def __init__(self, states: Sequence[State], block: np.ndarray) -> None:
        self.states: list[State] = []
        steps = []
        for state in states if block.nbytes >= native.LEAST_BYTES else ():
            name, planes = state.compiled()
            if name and state.datatype.form == block.dtype and (add := native.step(name, state.datatype)):
                places = (ctypes.c_void_p * 2)(address_of(planes[0]), address_of(planes[-1]))
                steps.append(native.Step(add, places, planes[0].itemsize))
                self.states.append(state)
        self._steps = (native.Step * len(steps))(*steps)

    def add(self, block: np.ndarray, valid: np.ndarray | None) -> bool:
        """Add the elements of the next rank, all of which are valid, and return whether a number overflowed."""
        if valid is not None:
            self.states = []
        if not self.states:
            return False
        n = int(self.states[0].nadded) + 1
        return native.chain(self._steps, address_of(block), block.itemsize, len(block), n)


def converted(numbers: np.ndarray, form: np.dtype, *, copy: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
    """Return numbers in another form, and which of them are beyond its bounds, where integers wrap; None for none."""
    results = numbers.astype(form, copy=copy)
    if np.can_cast(numbers.dtype, form):
        return results, None
    if form.kind not in "iu":
        lost = np.isfinite(numbers) & ~np.isfinite(results)
    elif numbers.dtype.kind in "iu":
        limits = np.iinfo(form)
        lost = (numbers < limits.min) | (numbers > limits.max)
    else:  # the largest integer may round to the next one
        limits = np.iinfo(form)
        lost = ~((numbers >= limits.min) & (numbers < float(limits.max + 1)))
        if lost.any():  # C does not define these
            rest = np.fmod(np.nan_to_num(numbers[lost], posinf=0, neginf=0), 2.0**64)
            whole = np.abs(rest).astype("u8")
            results[lost] = np.where(rest < 0, -whole, whole).astype(form)
    return results, lost if lost.any() else None


def either(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """Return which elements are in one of two masks; None for none."""
    mask = one if other is None else other if one is None else one | other
    return None if mask is None or not mask.any() else mask


def state_of(op: Op, datatype: Datatype, nranks: int) -> State:
    """Return the state of a block."""
    rules = op.rules
    kind = (op.exact_state if rules.exact else None) or op.state
    if kind is None:  # an op of MPI
        chosen = rules.leaves_out or rules.accumulate_in is not None or rules.result_type is not None
        kind = Chosen if chosen else State
    state: State = kind(op, datatype, nranks)
    return state
