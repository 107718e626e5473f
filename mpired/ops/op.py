"""The row of an op, and the families of calls that it can be given to."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.ops import kernels
from mpired.ops.identity import Identity
from mpired.ops.kernels import Kernel
from mpired.ops.rules import Rules
from mpired.ops.state import State, combined


class Use(enum.Flag):
    """The families of calls that an op can be given to."""

    REDUCE = enum.auto()
    ACCUMULATE = enum.auto()
    FETCH = enum.auto()


ANY_USE = Use.REDUCE | Use.ACCUMULATE | Use.FETCH


def _of_elements(datatype: Datatype) -> Datatype:
    return datatype


class Op(NamedTuple):
    """One reduction operation: a row of the table.

    An op of MPI keeps the elements combined so far, and needs a kernel alone. A statistic keeps something else, its
    state, and what comes of it may be of another datatype.

    Parameters
    ----------
    name
        The MPI name without its prefix, in capitals.
    kernel
        In place, `inoutvec[i] = invec[i] op inoutvec[i]`, invec the lower rank; returns the one with the result.
    groups
        The datatypes that the op is defined on.
    doc
        One line for the tables.
    section
        Where MPI-4.1 defines it.
    identity
        Gives the identity, as an element; None if the op has none, or a user-defined one declares none.
    nan
        What becomes of NaN, as the summary of a call says it; None if the op takes no datatype that has NaNs, or is
        user-defined.
    commute
        Whether operands may change places; the fold never makes use of it.
    uses
        The families of calls that take the op.
    origin
        Whether a one-sided call reads its origin.
    meant
        Functions of Python and NumPy that mean this op.
    datatypes
        The names of the datatypes that the op takes, where it takes only some of its groups.
    user
        Whether it is a user-defined op.
    isolated
        Whether its code runs in workers only, because it comes from a file or a package.
    rounds
        The datatypes on which the op rounds, so that the order of the ranks shows in the bits.
    exact
        The function of numbers that the op is, where the datatype may be unable to hold its result.
    state
        Makes what the fold keeps of a block, for the op, the datatype and the number of ranks.
    lower
        Returns results of two or more ranks with their bits as they are defined, and may change them.
    gives
        The datatype of the results, for that of the elements.
    takes
        The rules that the op has a meaning for.
    mpi_kernel
        The kernel that MPI's libraries have, where that treats NaN in another way.
    extreme
        The function of the values, of an op on pairs.
    ufunc
        What combines numbers, or the parts of complex ones in a sum, of an op that rounds.
    rules
        What the user has chosen.
    """

    name: str
    kernel: Kernel
    groups: Group
    doc: str
    section: str
    identity: Identity | None
    nan: str | None
    commute: bool = True
    uses: Use = ANY_USE
    origin: bool = True
    meant: tuple[Callable[..., Any], ...] = ()
    datatypes: tuple[str, ...] = ()
    user: bool = False
    isolated: bool = False
    rounds: Group = Group(0)
    exact: Callable[[Any, Any], Any] | None = None
    state: Callable[[Op, Datatype, int], State] = combined
    lower: Callable[[np.ndarray, Datatype], np.ndarray] = kernels.canonical_nan
    gives: Callable[[Datatype], Datatype] = _of_elements
    takes: frozenset[str] = frozenset()
    mpi_kernel: Kernel | None = None
    extreme: np.ufunc | None = None
    ufunc: np.ufunc | None = None
    rules: Rules = Rules()

    def result(self, datatype: Datatype) -> Datatype:
        """Return the datatype of the results, for that of the elements."""
        return self.rules.result or self.gives(datatype)

    @property
    def of_mpi(self) -> bool:
        """Whether the standard defines it."""
        return bool(self.section)

    @property
    def is_function(self) -> bool:
        """Whether it is a function of this process, which is not sent to others."""
        return self.user and not self.isolated

    def begin(self) -> None:
        """Begin with another buffer: a user-defined op is held to its contract on the first elements of each."""
        if self.user:
            cast("Any", self.kernel).try_again()

    def __str__(self) -> str:
        if self.user:
            return self.name
        return f"MPI_{self.name}" if self.of_mpi else self.name.lower()

    def __repr__(self) -> str:
        return f"<op {self}>"

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[object, ...]]:
        # The kernel of a user-defined op knows where its code lies; that of a predefined op is looked up again.
        return (Op, tuple(self)) if self.user else (_known, (self.name, self.rules))


def ruled(op: Op, rules: Rules) -> Op:
    """Return a row of the table with rules, and the kernel that these mean."""
    kernel = op.mpi_kernel if rules.nan == "mpi" and op.mpi_kernel is not None else op.kernel
    if rules.window and rules.nan == "mpi":
        kernel = kernels.swapped(kernel)
    elif rules.window and rules.nan == "ignore":
        kernel = kernels.ignoring(kernel)
    return op._replace(rules=rules, kernel=kernel)


def _known(name: str, rules: Rules) -> Op:
    """Return the predefined op of that name; where it is unpickled, the table is there."""
    from mpired.ops.table import get  # noqa: PLC0415 - the table is made of rows

    return ruled(get(name if rules.quantile is None else f"{name}:{rules.quantile}"), rules)
