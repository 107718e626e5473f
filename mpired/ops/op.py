"""The row of an op, the families of calls that it can be given to, and the steps of a fold by it.

Each step of the left fold is checked for overflow of SUM and PROD: integers that wrap, and floating-point numbers that
finite operands make infinite. So the findings are exact, and the same for any number of workers. The bits of the result
do not depend on it. The cost is small:

- Integers: the bounds of the partial result and of the next operand show whether a step can overflow at all. Only
  where it can, each element is checked.
- Floating-point numbers: the processor notes that something overflowed. Only then each element is checked.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired import log
from mpired.datatypes import Datatype, Group
from mpired.errors import OverflowWarning, ResultOverflowError
from mpired.ops import kernels
from mpired.ops.identity import Identity
from mpired.ops.kernels import Kernel


class Use(enum.Flag):
    """The families of calls that an op can be given to."""

    REDUCE = enum.auto()
    ACCUMULATE = enum.auto()
    FETCH = enum.auto()


ANY_USE = Use.REDUCE | Use.ACCUMULATE | Use.FETCH


class Rules(NamedTuple):
    """The rules of a row of the table of ops."""

    # what a result is that its datatype cannot hold: "warn" of it, "wrap" as if it were expected, or "error"
    overflow: str = "warn"
    # whether a NaN makes the result one, is left out, or is treated as the kernels of MPI's libraries do
    nan: str = "propagate"
    nulls: str = "error"  # whether a null is an error, is left out, or makes the result null
    missing: float | int | None = None  # the elements with this value are left out; None for none
    accumulate_in: Datatype | None = None  # the datatype that is computed in, if it is not that of the elements
    result_type: Datatype | None = None  # the datatype of the results, if it is not the usual one
    exact: bool = False  # whether sums are rounded once
    ddof: int = 0  # subtracted from the number of ranks in the divisor of a variance
    weights: tuple[float, ...] = ()  # what each rank's elements are multiplied with in a mean; empty for 1 each
    quantile: float | None = None  # which quantile is wanted; None for the median
    # whether elements of a window are combined with an origin's, and nothing is kept of earlier ones
    window: bool = False
    leaves_out: bool = False  # whether some elements may be left out, by one of the rules above


class Op(NamedTuple):
    """A reduction operation, such as `mpired.SUM`."""

    # An op of MPI keeps the combined elements. A statistic keeps a state of its own, and its results may have another
    # datatype.

    name: str  # that of MPI without its prefix, in capitals
    # computes `inoutvec[i] = invec[i] op inoutvec[i]`, where invec is of the lower rank, and returns the result
    kernel: Kernel
    groups: Group  # the groups of datatypes that the op takes
    doc: str  # a description in one line
    section: str  # of MPI-4.1, which defines it; "" for a statistic, which MPI does not have
    identity: Identity | None  # that of a datatype, if there is one
    # how the op treats NaN, for the summary of a call. None if its datatypes have no NaN, or it is user-defined
    nan: str | None
    # makes the `State` of a block, for the op, the datatype and the number of ranks; None for the elements combined
    state: Callable[[Op, Datatype, int], Any] | None
    commute: bool = True  # whether the op commutes. The fold keeps the order of the ranks in any case
    uses: Use = ANY_USE  # the families of calls that take the op: reductions, accumulate, fetch
    origin: bool = True  # whether a one-sided call reads its origin
    synonyms: tuple[Callable[..., Any], ...] = ()  # functions of Python and NumPy that are synonyms of the op
    datatypes: tuple[str, ...] = ()  # the names of the datatypes that the op takes. Empty for all of its groups
    user: bool = False
    isolated: bool = False  # whether the code runs in workers only, because it is from a file or a package
    is_function: bool = False  # whether it is a function of this process, which workers do not get
    # the groups of datatypes on which the op rounds, so that the order of the ranks changes the last bits
    rounds: Group = Group(0)
    exact: Callable[[Any, Any], Any] | None = None  # the op on Python numbers, for ops that can overflow
    # makes the state where sums are rounded once, if that is another one
    exact_state: Callable[[Op, Datatype, int], Any] | None = None
    # returns results of two or more ranks with defined bits, perhaps in place
    lower: Callable[[np.ndarray, Datatype], np.ndarray] = kernels.canonical_nan
    # returns the datatype of the results for one of the elements; None if it is the same
    gives: Callable[[Datatype], Datatype] | None = None
    takes: frozenset[str] = frozenset()  # the names of the rules that change the op, such as exact
    mpi_kernel: Kernel | None = None  # the kernel that treats NaN like MPI libraries, if that is different
    extreme: np.ufunc | None = None  # the function that chooses among the values of pairs
    keeps_upper: bool = False  # whether its kernels leave inoutvec as it is
    ufunc: np.ufunc | None = None  # the NumPy function of an op that rounds, or of the last step of a statistic
    method: str = ""  # its name among the methods of cells in CF (appendix E); "" if it has none
    power: int | None = 1  # of the units of the elements that its results have; None for one of each rank
    is_within: bool = False  # whether its results are within the range of the elements
    rules: Rules = Rules()  # those in use: the options of values

    def result(self, datatype: Datatype) -> Datatype:
        """Return the datatype of the results for a datatype of the elements."""
        return self.rules.result_type or (datatype if self.gives is None else self.gives(datatype))

    def __str__(self) -> str:
        if self.user:
            return self.name
        return f"MPI_{self.name}" if self.section else self.name.lower()

    def __repr__(self) -> str:
        return f"<op {self}>"


def ruled(op: Op, rules: Rules) -> Op:
    """Return a row of the table with rules, and the kernel that these mean."""
    leaves_out = rules.nan == "ignore" or rules.nulls != "error" or rules.missing is not None
    rules = rules._replace(leaves_out=leaves_out)
    kernel = op.mpi_kernel if rules.nan == "mpi" and op.mpi_kernel is not None else op.kernel
    if rules.window and rules.nan == "mpi":  # in MPI's libraries invec is the origin, and inoutvec the target
        return op._replace(rules=rules, kernel=lambda invec, inoutvec, datatype: kernel(inoutvec, invec, datatype))
    return op._replace(rules=rules, kernel=kernel)


def run(op: Op, block: np.ndarray, datatype: Datatype) -> None:
    """Combine each element of a block with all before it, in place: `block[i] = block[i - 1] op block[i]`."""
    # The bits are those of one step after another, also where the steps are taken otherwise: NumPy's `accumulate` goes
    # from element to element, and where nothing is rounded the operands may be grouped in any way.
    as_propagated = not op.user and op.rules.nan != "mpi"
    if as_propagated and op.ufunc is not None and (datatype.group is not Group.COMPLEX or op.ufunc is np.add):
        numbers = block.view(datatype.added)
        width = len(numbers) // max(1, len(block))
        for lane in range(width):  # the parts of complex numbers
            op.ufunc.accumulate(numbers[lane::width], out=numbers[lane::width])
    elif as_propagated and datatype.group not in op.rounds:
        step = 1
        while step < len(block):  # each step doubles how many elements a result is of
            block[step:] = op.kernel(block[:-step].copy(), block[step:].copy(), datatype)
            step *= 2
    else:
        for i in range(1, len(block)):
            block[i : i + 1] = op.kernel(block[i - 1 : i].copy(), block[i : i + 1].copy(), datatype)


class Overflow(NamedTuple):
    """Overflow: the number of steps, and the place of the first one."""

    times: int  # how many steps overflowed: an element combined with that of the next rank is one
    buffer: int  # the first of them: the smallest buffer, then element, then rank
    element: int
    rank: int
    op: int = 0  # the number of the op in its call

    @classmethod
    def at(cls, overflowed: np.ndarray, start: int, rank: int, op: int = 0) -> Overflow:
        """Return the overflow of one step, of whose elements, from `start` on, some overflowed."""
        return cls(int(np.count_nonzero(overflowed)), 0, start + int(overflowed.argmax()), rank, op)


def by_op(found: Iterable[Overflow]) -> tuple[Overflow, ...]:
    """Return the overflow of several parts of the work, of each op that has some."""
    parts: dict[int, list[Overflow]] = {}
    for each in found:
        parts.setdefault(each.op, []).append(each)
    firsts = {op: min(each, key=lambda each: each[1:]) for op, each in sorted(parts.items())}
    return tuple(first._replace(times=sum(each.times for each in parts[op])) for op, first in firsts.items())


class Steps:
    """The steps of a fold, one after another, which look for overflow if the op can and the user wants to know."""

    bounds: tuple[int, int] | None = None
    """Bounds of the partial result, if they are known; None where a fold begins with other elements."""
    _is_negative = False  # whether an element was

    def __init__(self, op: Op, datatype: Datatype) -> None:
        self.op, self.datatype = op, datatype

    def __call__(
        self, invec: np.ndarray, inoutvec: np.ndarray, reread: Callable[[], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the operand that holds the result, and which elements overflowed; None for none."""
        # `reread` reads the upper operand again, which the kernel has written over.
        exact = None if self.op.rules.overflow == "wrap" else self.op.exact
        if exact is None:
            return self.op.kernel(invec, inoutvec, self.datatype), None
        if self.datatype.form.kind in "iu":
            return self._of_integers(invec, inoutvec, exact)
        noted: list[object] = []
        with np.errstate(over="call", call=lambda *each: noted.append(each)):
            result = self.op.kernel(invec, inoutvec, self.datatype)
        if not noted:
            return result, None
        # Infinities, or NaNs of a complex product, that finite operands gave.
        infinite = self._finite(invec) & self._finite(reread()) & ~self._finite(result)
        infinite = infinite.any(axis=1)
        return result, infinite if infinite.any() else None

    def _of_integers(
        self, invec: np.ndarray, inoutvec: np.ndarray, compute: Callable[[Any, Any], Any]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Combine, and look at each element if the bounds of the operands do not exclude that one wraps."""
        limits, upper = np.iinfo(self.datatype.form), self._range(inoutvec)
        for bounds in (self.bounds, None):
            # Both ops have the bounds of their results at the corners.
            corners = list(itertools.starmap(compute, itertools.product(bounds or self._range(invec), upper)))
            low, high = min(corners), max(corners)
            if limits.min <= low and high <= limits.max:
                self.bounds = low, high
                return self.op.kernel(invec, inoutvec, self.datatype), None
        self.bounds = None
        exact = compute(invec.astype(np.float64), inoutvec.astype(np.float64))
        result = self.op.kernel(invec, inoutvec, self.datatype)
        exact -= result
        # Rounding is far below the modulus, of which a wrapped result is a multiple away.
        wrapped = np.abs(exact, out=exact) > 2.0**limits.bits / 2
        return result, wrapped if wrapped.any() else None

    def _range(self, block: np.ndarray) -> tuple[int, int]:
        """Return bounds of the elements, by one pass as long as none is negative."""
        if not self._is_negative:
            high = int(np.maximum.reduce(block.view(f"u{block.itemsize}"), initial=0))
            if high <= np.iinfo(block.dtype).max:
                return 0, high
            self._is_negative = True
        return int(np.minimum.reduce(block)), int(np.maximum.reduce(block))

    def _finite(self, block: np.ndarray) -> np.ndarray:
        """Return which elements are finite, or which of their parts where the op does not mix these."""
        numbers = block.view(self.datatype.component) if self.datatype.group is Group.COMPLEX else block
        finite: np.ndarray = np.isfinite(numbers).reshape(len(block), -1)
        return finite if self.op.exact is operator.add else np.logical_and.reduce(finite, axis=1, keepdims=True)


def _wider(op: Op, datatype: Datatype) -> str:
    """Return how the op can compute in a wider datatype, for a message; "" if it cannot."""
    if op.rules.window or "accumulate_in" not in op.takes or datatype.group in Group.PAIR | Group.COMPLEX:
        return ""
    is_long, is_real = datatype.itemsize >= 8, datatype.form.kind == "f"  # noqa: PLR2004 - bytes
    wide = ("longdouble" if is_long else "double") if is_real else "double" if is_long else "int64_t"
    names = [f"`{name}='{wide}'`" for name in ("accumulate_in", "result_type") if getattr(op.rules, name) is None]
    return f"compute with {' and '.join(names)}; " if names and datatype.itemsize < 16 else ""  # noqa: PLR2004


def tell_overflow(op: Op, datatype: Datatype, found: Overflow | None, files: Sequence[str], buffer: str = "") -> None:
    """Warn of overflow, or refuse it."""
    if found is None or op.rules.overflow == "wrap":
        return
    file = files[found.rank]
    times = "once" if found.times == 1 else f"{found.times} times"
    column = f" of {buffer!r}" if buffer else ""
    where = f"first in element {found.element}{column} with rank {found.rank} ({file})"
    text = f"overflowed {times}, {where}"
    wider = _wider(op, datatype)
    if op.rules.overflow == "error":
        raise ResultOverflowError(str(op), f"{text}; {wider}`overflow='wrap'` keeps the result as it is")
    details = {"count": found.times, "element": found.element, "rank": found.rank, "file": file, "buffer": buffer}
    way = f"{wider}`overflow='error'` refuses that, `overflow='wrap'` expects it"
    log.warn(OverflowWarning(f"{op} {text}; {way}", details))
