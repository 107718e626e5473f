"""The predefined ops, one row each, and the gate that every request passes (MPI-4.1, 6.9.2, 12.3.4)."""

from __future__ import annotations

import contextlib
import enum
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from mpired.datatypes import Datatype, Group, unit_of
from mpired.datatypes.named import canonical
from mpired.datatypes.times import TIMES
from mpired.errors import DatatypeError, OpError, UnknownOpError, UsageError, shortened
from mpired.ops import identity, kernels, loc
from mpired.ops.identity import Identity
from mpired.ops.kernels import Kernel


class Use(enum.Flag):
    """The families of calls that an op can be given to."""

    REDUCE = enum.auto()
    ACCUMULATE = enum.auto()
    FETCH = enum.auto()


_ANY_USE = Use.REDUCE | Use.ACCUMULATE | Use.FETCH
_INTEGER = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE
_ORDERED = _INTEGER | Group.FLOATING_POINT
_NUMBER = _ORDERED | Group.COMPLEX
_COMPARED = _ORDERED | Group.TIME | Group.DURATION
_ADDED = _NUMBER | Group.DURATION
_TRUTH = Group.C_INTEGER | Group.LOGICAL
_BITS = _INTEGER | Group.BYTE
_ANY_TYPE = ~Group.DERIVED
_ROUNDED = Group.FLOATING_POINT | Group.COMPLEX
_WITH_NAN = _ROUNDED | Group.PAIR


def _of_elements(datatype: Datatype) -> Datatype:
    return datatype


class Op(NamedTuple):
    """One reduction operation: a row of the table.

    Where the state is not the element, the fold lifts the elements of each rank into states, the kernel combines
    these, and what comes of them is lowered to results. By default all three are the element.

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
        Gives the identity, as a state; None if the op has none, or a user-defined one declares none.
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
    overflow
        What such a result is: "warn" of it, "wrap" as if it were expected, or "error".
    state
        Gives the datatype of the state, for the datatype of the elements.
    lift
        Fills a block of states from a block of elements, whose datatype is the third argument; None where a state is
        an element.
    lower
        Returns the results of a block of states, with which the fold may go on. The second argument is the datatype
        of the elements. Where a state is an element it may change the bits that the kernel leaves undefined, and
        returns the block.
    result
        Gives the datatype of the results, for the datatype of the elements.
    """

    name: str
    kernel: Kernel
    groups: Group
    doc: str
    section: str
    identity: Identity | None
    nan: str | None
    commute: bool = True
    uses: Use = _ANY_USE
    origin: bool = True
    meant: tuple[Callable[..., Any], ...] = ()
    datatypes: tuple[str, ...] = ()
    user: bool = False
    isolated: bool = False
    rounds: Group = Group(0)
    exact: Callable[[Any, Any], Any] | None = None
    overflow: str = "warn"
    state: Callable[[Datatype], Datatype] = _of_elements
    lift: Callable[[np.ndarray, np.ndarray, Datatype], None] | None = None
    lower: Callable[[np.ndarray, Datatype], np.ndarray] = kernels.as_it_is
    result: Callable[[Datatype], Datatype] = _of_elements

    @property
    def is_function(self) -> bool:
        """Whether it is a function of this process, which is not sent to others."""
        return self.user and not self.isolated

    def begin(self) -> None:
        """Begin with another buffer: a user-defined op is held to its contract on the first elements of each."""
        if self.user:
            cast("Any", self.kernel).try_again()

    def __str__(self) -> str:
        return self.name if self.user else f"MPI_{self.name}"

    def __repr__(self) -> str:
        return f"<op {self}>"

    def __reduce__(self) -> tuple[Callable[..., Op], tuple[object, ...]]:
        # The kernel of a user-defined op knows where its code lies; that of a predefined op is looked up again.
        return (Op, tuple(self)) if self.user else (with_overflow, (self.name, self.overflow))


def table(rows: Iterable[Op]) -> dict[str, Op]:
    """Return the rows by name.

    Raises
    ------
    ValueError
        If two have one name, or a row does not say what is needed of it.
    """
    by_name: dict[str, Op] = {}
    for row in rows:
        if row.name in by_name:
            raise ValueError(f"{row}: two ops have this name")
        if row.groups & _WITH_NAN and row.nan is None:
            raise ValueError(f"{row}: takes datatypes with NaNs, and does not say what becomes of them")
        if row.lift is None and (row.state is not _of_elements or row.result is not _of_elements):
            raise ValueError(f"{row}: its state or its result is not the element, and it has no `lift`")
        if row.lift is not None and row.uses is not Use.REDUCE:
            raise ValueError(f"{row}: a window holds elements, so that it takes no op with another state")
        by_name[row.name] = row
    return by_name


_PLUS, _TIMES = operator.add, operator.mul
_RMA = Use.ACCUMULATE | Use.FETCH
_PROPAGATES, _COPIED = "propagates", "is copied"

OPS: tuple[Op, ...] = (
    Op(
        "MAX",
        kernels.extreme(np.maximum),
        _COMPARED,
        f"maximum; NaN {_PROPAGATES}",
        "6.9.2",
        identity.lowest,
        _PROPAGATES,
        meant=(max, np.max),
    ),
    Op(
        "MIN",
        kernels.extreme(np.minimum),
        _COMPARED,
        f"minimum; NaN {_PROPAGATES}",
        "6.9.2",
        identity.highest,
        _PROPAGATES,
        meant=(min, np.min),
    ),
    Op(
        "SUM",
        kernels.add,
        _ADDED,
        "sum; integers wrap as in C",
        "6.9.2",
        identity.zero,
        _PROPAGATES,
        meant=(sum, np.sum),
        rounds=_ROUNDED,
        exact=_PLUS,
        lower=kernels.canonical_nan,
    ),
    Op(
        "PROD",
        kernels.multiply,
        _NUMBER,
        "product; integers wrap as in C",
        "6.9.2",
        identity.one,
        _PROPAGATES,
        meant=(np.prod,),
        rounds=_ROUNDED,
        exact=_TIMES,
        lower=kernels.canonical_nan,
    ),
    Op("LAND", kernels.logical(np.logical_and), _TRUTH, "logical and; 0 or 1", "6.9.2", identity.one, None),
    Op("BAND", kernels.elementwise(np.bitwise_and), _BITS, "bitwise and", "6.9.2", identity.all_bits, None),
    Op("LOR", kernels.logical(np.logical_or), _TRUTH, "logical or; 0 or 1", "6.9.2", identity.zero, None),
    Op("BOR", kernels.elementwise(np.bitwise_or), _BITS, "bitwise or", "6.9.2", identity.zero, None),
    Op("LXOR", kernels.logical(np.logical_xor), _TRUTH, "logical exclusive or; 0 or 1", "6.9.2", identity.zero, None),
    Op("BXOR", kernels.elementwise(np.bitwise_xor), _BITS, "bitwise exclusive or", "6.9.2", identity.zero, None),
    Op(
        "MAXLOC",
        loc.locate(np.greater),
        Group.PAIR,
        "the pair with the greatest value, then the smallest index",
        "6.9.4",
        identity.lowest,
        _PROPAGATES,
    ),
    Op(
        "MINLOC",
        loc.locate(np.less),
        Group.PAIR,
        "the pair with the smallest value, then the smallest index",
        "6.9.4",
        identity.highest,
        _PROPAGATES,
    ),
    Op(
        "REPLACE",
        kernels.replace,
        _ANY_TYPE,
        "the origin's value; accumulate only",
        "12.3.4",
        None,
        _COPIED,
        commute=False,
        uses=_RMA,
    ),
    Op(
        "NO_OP",
        kernels.no_op,
        _ANY_TYPE,
        "the target's value; fetch only",
        "12.3.4",
        None,
        _COPIED,
        commute=False,
        uses=Use.FETCH,
        origin=False,
    ),
)

MAX, MIN, SUM, PROD, LAND, BAND, LOR, BOR, LXOR, BXOR, MAXLOC, MINLOC, REPLACE, NO_OP = OPS

COMPARE_AND_SWAP = Op(
    "COMPARE_AND_SWAP",
    kernels.replace,
    _INTEGER | Group.LOGICAL | Group.BYTE,
    "the origin's value where the target's is the one expected",
    "12.3.5",
    None,
    None,
    commute=False,
    uses=Use.FETCH,
)
"""What combines in a call of its own (MPI-4.1, 12.3.5); whether the element is as expected, the transaction tells."""

_BY_NAME = table(OPS)


def user_op(name: str, kernel: Kernel, *, isolated: bool) -> Op:
    """Return the row of a user-defined op: any datatype of MPI, but for reductions only (MPI-4.1, 12.3.4)."""
    row = Op(name, kernel, ~TIMES, "", "6.9.5", None, None, commute=False, uses=Use.REDUCE)
    return row._replace(user=True, isolated=isolated, rounds=row.groups)


def get(name: str) -> Op:
    """Return the predefined op of that name, in any case, with or without `MPI_`.

    Raises
    ------
    UnknownOpError
        If there is none.
    """
    op = _BY_NAME.get(canonical(name))
    if op is None:
        import difflib  # noqa: PLC0415 - only for an error

        close = difflib.get_close_matches(canonical(name), _BY_NAME, n=2)
        hint = f"did you mean {' or '.join(close).lower()}?" if close else f"the ops are {_listed(OPS)}"
        if meant := _ELSEWHERE.get(name.lower()):
            hint = f"use {meant}"
        raise UnknownOpError(shortened(name) or "''", f"is not an MPI op; {hint}")
    return op


_ELSEWHERE = {
    "argmax": "maxloc, on pairs of value and index",
    "argmin": "minloc, on pairs of value and index",
    "maximum": "max",
    "minimum": "min",
    "fmax": "max, which gives NaN where a rank has NaN",
    "fmin": "min, which gives NaN where a rank has NaN",
    "add": "sum",
    "total": "sum",
    "+": "sum",
    "multiply": "prod",
    "product": "prod",
    "mul": "prod",
    "*": "prod",
    "all": "land",
    "and": "land, or band bit by bit",
    "&": "band",
    "any": "lor",
    "or": "lor, or bor bit by bit",
    "|": "bor",
    "xor": "lxor, or bxor bit by bit",
    "^": "bxor",
    "mean": "sum, and divide by the number of ranks",
    "avg": "sum, and divide by the number of ranks",
    "average": "sum, and divide by the number of ranks",
}
"""What other programs call an op, and what it is here."""


def meant_by(function: Callable[..., Any]) -> Op | None:
    """Return the predefined op that a function of Python or NumPy means, None if it means none."""
    return next((op for op in OPS if any(function is each for each in op.meant)), None)


def neutral(op: Op, datatype: Datatype) -> np.ndarray:
    """Return the identity of an op on a datatype, as a state without dimensions.

    Raises
    ------
    OpError
        If the op has none: REPLACE, NO_OP, and a user-defined op that declares none, or one that the datatype cannot
        hold.
    """
    if op.identity is None and op.user:
        raise OpError(str(op), "says of no neutral element; an op in Python gets one by @mpired.op(identity=...)")
    if op.identity is None:
        raise OpError(str(op), "has no identity to fill a new file with; make the file first")
    if datatype.group is Group.TIME:
        raise OpError(str(op), f"has no neutral element that is a {datatype}")
    try:
        return op.identity(op.state(datatype))
    except (TypeError, ValueError, OverflowError):
        reason = f"says that its neutral element is {op.identity}, which is no {datatype.label}"
        raise OpError(str(op), reason) from None


OVERFLOWS = ("warn", "wrap", "error")
"""The words for what a result is that its datatype cannot hold."""


def with_overflow(op: str | Op, word: str | None) -> Op:
    """Return a predefined op that warns of overflow, wraps or raises an error; None for the default.

    Raises
    ------
    UsageError
        If the word is none of `OVERFLOWS`, or the op is a user-defined one, which nothing is known of.
    """
    row = get(op) if isinstance(op, str) else op
    if word is None:
        return row
    if word not in OVERFLOWS:
        raise UsageError("`overflow`", f"{word!r} is none of {', '.join(OVERFLOWS)}")
    if row.user:
        raise UsageError("`overflow`", f"is for predefined ops; {row} is user-defined")
    return row._replace(overflow=word)


def check_buffers(op: Op, buffers: Iterable[tuple[str, Datatype]], use: Use) -> None:
    """Let a legal request pass on buffers, which have names if they are columns; the one gate of files.

    Raises
    ------
    OpError
        As of `check`; it names the column, and those that the op takes.
    """
    check_use(op, use)
    taken: list[str] = []
    refused: list[OpError] = []
    for name, datatype in buffers:
        try:
            check(op, datatype, use, f"column {name!r}, " if name else "")
            taken.append(name)
        except OpError as error:
            refused.append(error)
    if refused:
        way_out = f"; choose with `columns='{','.join(taken)}'`" if taken else ""
        if Group.PAIR in op.groups and len(refused) > 1:
            way_out = "; `pair='VALUE,INDEX'` makes pairs of two columns"
        raise OpError(refused[0].subject, f"{refused[0].reason}{way_out}")


def check(op: Op, datatype: Datatype, use: Use, where: str = "") -> None:
    """Let a legal request pass; the one gate, before anything is opened for writing.

    `where` is put before the datatype in a message.

    Raises
    ------
    OpError
        If the op is not for this use, or not defined for the datatype.
    """
    check_use(op, use)
    if op.datatypes and str(datatype) not in op.datatypes:
        raise OpError(str(op), f"is not defined for {where}{datatype.label}; it takes {', '.join(op.datatypes)}")
    if datatype.group not in op.groups:
        others = [row for row in _for(use) if datatype.group in row.groups]
        hint = f"{datatype.label} takes {_listed(others)}" if others else f"{datatype.label} takes no predefined op"
        if datatype.group is Group.DERIVED:
            pair = _pair_like(datatype) if Group.PAIR in op.groups else None
            numbers = "`op='FILE.py:FUNCTION'`, or numbers out of it by `mpired pack`"
            way_out = numbers if pair is None else f"`type='{pair}'`, which has the same layout"
            hint = f"{datatype} is derived, and takes user-defined ops only (MPI-4.1, 6.9.2); use {way_out}"
        what = f"{where}{datatype.label}, {datatype.group.title}"
        raise OpError(str(op), f"is not defined for {what}; it takes {op.groups.title}; {hint}")


def _pair_like(datatype: Datatype) -> Datatype | None:
    """Return the pair of value and index that lies as one element of a structure does, None if there is none."""
    with contextlib.suppress(DatatypeError):
        pair = unit_of(datatype)
        maps = (datatype.typemap, pair.typemap)
        first, second = ([(entry.name, entry.disp) for entry in each.unit or ()] for each in maps)
        if pair.group is Group.PAIR and first == second and maps[0].size == maps[1].size:
            return pair if maps[0].extent == maps[1].extent else None
    return None


_CALLS = {Use.REDUCE: "reductions", Use.ACCUMULATE: "accumulate", Use.FETCH: "fetch"}


def check_use(op: Op, use: Use) -> None:
    """Raise `OpError` unless the op is for this family of calls."""
    if use not in op.uses:
        families = [name for each, name in _CALLS.items() if each in op.uses]
        calls = " and ".join(families)
        raise OpError(str(op), f"is for {calls} only (MPI-4.1, 12.3.4); use one of {_listed(_for(use))}")


def _for(use: Use) -> list[Op]:
    return [op for op in OPS if use in op.uses]


def _listed(ops: tuple[Op, ...] | list[Op]) -> str:
    return ", ".join(op.name.lower() for op in ops)
