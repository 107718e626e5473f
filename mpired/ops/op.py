"""The row of an op with its rules, the families of calls that take it, and the steps of a fold.

Each step of a fold with SUM or PROD is checked for overflow: integers that wrap, and floating-point results that are
infinite although the operands are finite. The check does not change the bits of the result, and its findings are the
same for any number of workers. Elements are checked one by one only if a step may overflow:

- Integers: the bounds of the partial result and of the next operand do not exclude it.
- Floating-point numbers: the processor has set its flag for overflow.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired import log
from mpired.datatypes import Datatype, Group
from mpired.errors import OverflowWarning, ResultOverflowError
from mpired.ops import kernels
from mpired.ops.kernels import Kernel


class Use(enum.Flag):
    """The families of calls that take an op."""

    REDUCE = enum.auto()
    ACCUMULATE = enum.auto()
    FETCH = enum.auto()


ANY_USE = Use.REDUCE | Use.ACCUMULATE | Use.FETCH


class Rules(NamedTuple):
    """The rules of an op for values: the options of a call that change the result of an op."""

    overflow: str = "warn"  # on overflow: "warn", "wrap" without a warning, or "error"
    nan: str = "propagate"  # NaN: "propagate", "ignore", or "mpi", as in the kernels of MPI libraries
    nulls: str = "error"  # nulls: "error", "ignore", or "propagate", which makes the result null
    missing: float | int | None = None  # the value of elements that are left out, or None
    accumulate_in: Datatype | None = None  # the datatype of the arithmetic, or None for that of the elements
    result_type: Datatype | None = None  # the datatype of the results, or None for the default of the op
    exact: bool = False  # whether sums are rounded once
    ddof: int = 0  # subtracted from the number of ranks in the divisor of a variance
    weights: tuple[float, ...] = ()  # the factor of each rank in a mean; empty if all are 1
    quantile: float | None = None  # the probability of a quantile; None for the median
    window: bool = False  # whether an origin is combined with the elements of a window
    leaves_out: bool = False  # whether a rule above may leave out elements


Identity: TypeAlias = Callable[[Datatype], np.ndarray]
"""A function that returns the identity for a datatype, as an array without dimensions.

It raises `TypeError`, `ValueError` or `OverflowError` if the datatype cannot hold the identity."""


class Op(NamedTuple):
    """A reduction operation, such as `mpired.SUM`."""

    name: str  # the MPI name without its prefix, in capitals
    kernel: Kernel  # computes `inoutvec[i] = invec[i] op inoutvec[i]`, with the lower rank in invec
    groups: Group  # the groups of datatypes that the op takes
    doc: str  # a description in one line
    section: str  # the section of MPI-4.1 with the definition; "" for a statistic, which MPI does not have
    identity: Identity | None  # returns the identity for a datatype; None if the op has no identity
    nan: str | None  # the effect on NaN in summaries; None if the datatypes have no NaN, or the op is user-defined
    # makes the `State` of a block from the op, the datatype and the number of ranks; None for an op of MPI
    state: Callable[[Op, Datatype, int], Any] | None
    commute: bool = True  # whether the op commutes. The fold keeps the order of the ranks in any case
    uses: Use = ANY_USE  # the families of calls that take the op: reductions, accumulate, fetch
    origin: bool = True  # whether a one-sided call reads its origin
    synonyms: tuple[Callable[..., Any], ...] = ()  # functions of Python and NumPy that are synonyms of the op
    datatypes: tuple[str, ...] = ()  # the names of the datatypes that the op takes; empty for all of its groups
    user: bool = False  # whether the op is user-defined
    isolated: bool = False  # whether the code runs in workers only, because it is from a file or a package
    is_function: bool = False  # whether the op is a function of this process, which workers do not get
    rounds: Group = Group(0)  # the groups of datatypes on which the op rounds, so that the order of ranks matters
    exact: Callable[[Any, Any], Any] | None = None  # the op on Python numbers, for ops that can overflow
    exact_state: Callable[[Op, Datatype, int], Any] | None = None  # makes the state of sums that are rounded once
    # defines the bits of results of two or more ranks, perhaps in place
    lower: Callable[[np.ndarray, Datatype], np.ndarray] = kernels.canonical_nan
    # returns the datatype of the results for that of the elements; None if both are the same
    gives: Callable[[Datatype], Datatype] | None = None
    takes: frozenset[str] = frozenset()  # the names of the rules that change the op, such as exact
    mpi_kernel: Kernel | None = None  # the kernel that treats NaN like MPI libraries, or None for `kernel`
    extreme: np.ufunc | None = None  # the function that chooses among the values of pairs
    keeps_upper: bool = False  # whether the kernels do not change inoutvec
    ufunc: np.ufunc | None = None  # the NumPy function of an op that rounds, or of the last step of a statistic
    method: str = ""  # the name of the op in CF `cell_methods` (appendix E); "" if it has none
    power: int | None = 1  # the power of the units in the results; None for the number of ranks
    is_within: bool = False  # whether results are within the range of the elements
    rules: Rules = Rules()  # the rules in use

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
    """Return an op with rules, and with the kernel for them."""
    leaves_out = rules.nan == "ignore" or rules.nulls != "error" or rules.missing is not None
    rules = rules._replace(leaves_out=leaves_out)
    kernel = op.mpi_kernel if rules.nan == "mpi" and op.mpi_kernel is not None else op.kernel
    if rules.window and rules.nan == "mpi":  # in MPI libraries invec is the origin, and inoutvec the target
        return op._replace(rules=rules, kernel=lambda invec, inoutvec, datatype: kernel(inoutvec, invec, datatype))
    return op._replace(rules=rules, kernel=kernel)


def run(op: Op, block: np.ndarray, datatype: Datatype) -> None:
    """Combine each element of a block with all elements before it, in place: `block[i] = block[i - 1] op block[i]`."""
    # The bits are those of single steps. NumPy's `accumulate` takes these steps; without rounding, operands may be
    # grouped.
    has_default_kernel = not op.user and op.rules.nan != "mpi"
    if has_default_kernel and op.ufunc is not None and (datatype.group is not Group.COMPLEX or op.ufunc is np.add):
        numbers = block.view(datatype.added)
        width = len(numbers) // max(1, len(block))
        for lane in range(width):  # real and imaginary parts
            op.ufunc.accumulate(numbers[lane::width], out=numbers[lane::width])
    elif has_default_kernel and datatype.group not in op.rounds:
        step = 1
        while step < len(block):  # each step doubles the number of elements that a result combines
            block[step:] = op.kernel(block[:-step].copy(), block[step:].copy(), datatype)
            step *= 2
    else:
        for i in range(1, len(block)):
            block[i : i + 1] = op.kernel(block[i - 1 : i].copy(), block[i : i + 1].copy(), datatype)


class Overflow(NamedTuple):
    """Overflow of an op: the number of steps, and the first place in the order of buffer, element and rank."""

    times: int  # the number of steps, each of which combines an element of two ranks
    buffer: int
    element: int
    rank: int
    op: int = 0  # the index of the op in its call

    @classmethod
    def at(cls, overflowed: np.ndarray, start: int, rank: int, op: int = 0) -> Overflow:
        """Return the overflow of the step of a rank, from the mask of its elements, which begin at `start`."""
        return cls(int(np.count_nonzero(overflowed)), 0, start + int(overflowed.argmax()), rank, op)


def by_op(overflows: Iterable[Overflow]) -> tuple[Overflow, ...]:
    """Return the overflow of each op: the total number of steps, and the first place."""
    groups: dict[int, list[Overflow]] = {}
    for overflow in overflows:
        groups.setdefault(overflow.op, []).append(overflow)
    return tuple(
        min(group, key=lambda overflow: overflow[1:])._replace(times=sum(overflow.times for overflow in group))
        for _, group in sorted(groups.items())
    )


class Steps:
    """The steps of a fold. Each step is checked for overflow, unless overflow is expected."""

    bounds: tuple[int, int] | None = None
    """Bounds of the partial result; None if they are unknown, such as at the start of a block."""
    _has_negative = False  # whether an element so far is negative

    def __init__(self, op: Op, datatype: Datatype) -> None:
        self.op, self.datatype = op, datatype

    def __call__(
        self, invec: np.ndarray, inoutvec: np.ndarray, reread: Callable[[], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the operand with the result, and the mask of overflowed elements, or None if there are none."""
        # The kernel overwrites the upper operand; `reread` reads it again.
        exact = None if self.op.rules.overflow == "wrap" else self.op.exact
        if exact is None:
            return self.op.kernel(invec, inoutvec, self.datatype), None
        if self.datatype.form.kind in "iu":
            return self._combine_integers(invec, inoutvec, exact)
        flags: list[object] = []
        with np.errstate(over="call", call=lambda *error: flags.append(error)):
            result = self.op.kernel(invec, inoutvec, self.datatype)
        if not flags:
            return result, None
        # Finite operands gave infinity, or NaN in a complex product.
        infinite = self._finite(invec) & self._finite(reread()) & ~self._finite(result)
        infinite = infinite.any(axis=1)
        return result, infinite if infinite.any() else None

    def _combine_integers(
        self, invec: np.ndarray, inoutvec: np.ndarray, compute: Callable[[Any, Any], Any]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Combine integers, and check each element if the bounds of the operands do not exclude overflow."""
        limits, upper = np.iinfo(self.datatype.form), self._range(inoutvec)
        for bounds in (self.bounds, None):
            # The bounds of a sum or product are results of bounds of the operands.
            corners = list(itertools.starmap(compute, itertools.product(bounds or self._range(invec), upper)))
            low, high = min(corners), max(corners)
            if limits.min <= low and high <= limits.max:
                self.bounds = low, high
                return self.op.kernel(invec, inoutvec, self.datatype), None
        self.bounds = None
        exact = compute(invec.astype(np.float64), inoutvec.astype(np.float64))
        result = self.op.kernel(invec, inoutvec, self.datatype)
        exact -= result
        # A wrapped result differs by a multiple of the modulus, which is far above the errors of rounding.
        wrapped = np.abs(exact, out=exact) > 2.0**limits.bits / 2
        return result, wrapped if wrapped.any() else None

    def _range(self, block: np.ndarray) -> tuple[int, int]:
        """Return bounds of the elements, in one pass as long as no element is negative."""
        if not self._has_negative:
            high = int(np.maximum.reduce(block.view(f"u{block.itemsize}"), initial=0))
            if high <= np.iinfo(block.dtype).max:
                return 0, high
            self._has_negative = True
        return int(np.minimum.reduce(block)), int(np.maximum.reduce(block))

    def _finite(self, block: np.ndarray) -> np.ndarray:
        """Return the mask of finite elements; for sums of complex elements the mask of their parts."""
        numbers = block.view(self.datatype.component) if self.datatype.group is Group.COMPLEX else block
        finite: np.ndarray = np.isfinite(numbers).reshape(len(block), -1)
        return finite if self.op.exact is operator.add else np.logical_and.reduce(finite, axis=1, keepdims=True)


def _wider(op: Op, datatype: Datatype) -> str:
    """Return a hint on how to compute an op in a wider datatype; "" if it cannot."""
    if op.rules.window or "accumulate_in" not in op.takes or datatype.group in Group.PAIR | Group.COMPLEX:
        return ""
    is_long, is_real = datatype.itemsize >= 8, datatype.form.kind == "f"  # noqa: PLR2004 - bytes
    wide = ("longdouble" if is_long else "double") if is_real else "double" if is_long else "int64_t"
    names = [f"`{name}='{wide}'`" for name in ("accumulate_in", "result_type") if getattr(op.rules, name) is None]
    return f"compute with {' and '.join(names)}; " if names and datatype.itemsize < 16 else ""  # noqa: PLR2004


def warn_of_overflow(
    op: Op, datatype: Datatype, overflow: Overflow | None, files: Sequence[str], buffer: str = ""
) -> None:
    """Warn of overflow, or raise an error, as the rules of the op request."""
    if overflow is None or op.rules.overflow == "wrap":
        return
    file = files[overflow.rank]
    times = "once" if overflow.times == 1 else f"{overflow.times} times"
    column = f" of {buffer!r}" if buffer else ""
    where = f"first in element {overflow.element}{column} with rank {overflow.rank} ({file})"
    text = f"overflowed {times}, {where}"
    wider = _wider(op, datatype)
    if op.rules.overflow == "error":
        raise ResultOverflowError(str(op), f"{text}; {wider}`overflow='wrap'` keeps the result as it is")
    place = {"element": overflow.element, "rank": overflow.rank, "file": file, "buffer": buffer}
    hint = f"{wider}`overflow='error'` refuses that, `overflow='wrap'` expects it"
    log.warn(OverflowWarning(f"{op} {text}; {hint}", {"count": overflow.times, **place}))
