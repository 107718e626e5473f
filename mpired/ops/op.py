"""The row of an op, and the families of calls that it can be given to."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpired.datatypes import Datatype, Group
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
