"""The predefined ops and the statistics, one row each (MPI-4.1, 6.9.2, 12.3.4), and their identities.

An identity combined with any element, from either side, gives this element. An exclusive scan can give it to rank 0
(MPI-4.1, 6.11.2), and a new target is filled with it.
"""

from __future__ import annotations

import copyreg
import difflib
import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpired.datatypes import TIMES, Datatype, Group
from mpired.datatypes.predefined import canonical
from mpired.errors import OpError, UnknownOpError, shortened
from mpired.ops import kernels, statistics
from mpired.ops.kernels import Kernel, twinned
from mpired.ops.op import ANY_USE, Identity, Op, Rules, Use, ruled
from mpired.ops.state import RuledState, State
from mpired.values import NUMBER

if TYPE_CHECKING:  # few ops are user-defined
    from mpired.ops.user import UserKernel

_INTEGER = Group.C_INTEGER | Group.FORTRAN_INTEGER | Group.MULTI_LANGUAGE
ORDERED = _INTEGER | Group.FLOATING_POINT
_NUMBER = ORDERED | Group.COMPLEX
_COMPARED = ORDERED | Group.TIME | Group.DURATION
_ADDED = _NUMBER | Group.DURATION
_TRUTH = Group.C_INTEGER | Group.LOGICAL
_BITS = _INTEGER | Group.BYTE
_ANY_TYPE = ~(Group.DERIVED | Group.VALUE)
_ROUNDED = Group.FLOATING_POINT | Group.COMPLEX
_PLUS, _TIMES = operator.add, operator.mul
_RMA = Use.ACCUMULATE | Use.FETCH
_PROPAGATES, _COPIED, _COUNTED = "propagates", "is copied", "is counted"
_WITHIN = frozenset({"accumulate_in"})
_WIDER = _WITHIN | {"result_type"}
_SUMS = _WIDER | {"exact"}
_SPREAD = _SUMS | {"ddof"}


def _highest(form: np.dtype) -> Any:
    return np.inf if form.kind == "f" else np.iinfo(form).max


def _element(datatype: Datatype, number: Callable[[np.dtype], Any]) -> np.ndarray:
    """Return an element with a number for each form; the index of a pair is the largest."""
    form = datatype.form
    element = np.zeros((), form)
    if datatype.group is Group.PAIR:
        value, index = form.names or ()
        element[value], element[index] = number(form[value]), _highest(form[index])
    elif form.names is not None:  # a complex number that is a structure of two numbers
        element[form.names[0]] = number(form[0])
    else:
        element[()] = number(form)
    return element


def _lowest(datatype: Datatype) -> np.ndarray:
    """Return the lowest value; for pairs with the largest index, which loses each tie."""
    above = int(datatype.group is Group.DURATION)  # the minimum integer is NaT
    return _element(datatype, lambda form: -np.inf if form.kind == "f" else np.iinfo(form).min + above)


_HIGHEST: Identity = partial(_element, number=_highest)  # for pairs with the largest index
_ZERO: Identity = partial(_element, number=lambda form: form.type(0))
_ONE: Identity = partial(_element, number=lambda form: form.type(1))
_ALL_BITS: Identity = partial(_element, number=lambda form: ~form.type(0))


class UserIdentity:
    """The identity of a user-defined op: a number, or a list with a number for each field."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)

    def __call__(self, datatype: Datatype) -> np.ndarray:
        """Return the identity as an element; two numbers may be a complex number."""
        value: Any = tuple(self.value) if isinstance(self.value, list) else self.value
        if datatype.group is Group.COMPLEX and isinstance(value, tuple) and datatype.form.names is None:
            value = np.array(value, datatype.component).view(datatype.form)[0] if len(value) == 2 else value  # noqa: PLR2004 - real, imag
        element = np.zeros((), datatype.form)
        element[()] = value
        return element


def _op(name: str, kernel: Kernel, groups: Group, doc: str, identity: Identity | None, **fields: Any) -> Op:
    """Return the row of an op of MPI."""
    nan = _PROPAGATES if groups & (_ROUNDED | Group.PAIR) else None
    return Op(name, kernel, groups, doc, "6.9.2", identity, nan, None)._replace(**fields)


def _statistic(name: str, groups: Group, doc: str, state: Callable[[Op, Datatype, int], State], **fields: Any) -> Op:
    """Return the row of a statistic, which collectives take; its state combines elements, perhaps with a kernel."""
    row = Op(name, kernels.no_op, groups, doc, "", None, _PROPAGATES, state, commute=False, uses=Use.REDUCE)
    return row._replace(**fields)


OPS: tuple[Op, ...] = (
    _op("MAX", twinned("max", kernels.extreme(np.maximum), keeps_upper=True), _COMPARED,
        "maximum; NaN propagates", _lowest, keeps_upper=True, synonyms=(max, np.max), method="maximum",
        takes=_WITHIN, mpi_kernel=kernels.mpi_extreme(np.greater), is_within=True),
    _op("MIN", twinned("min", kernels.extreme(np.minimum), keeps_upper=True), _COMPARED,
        "minimum; NaN propagates", _HIGHEST, keeps_upper=True, synonyms=(min, np.min), method="minimum",
        takes=_WITHIN, mpi_kernel=kernels.mpi_extreme(np.less), is_within=True),
    _op("SUM", twinned("sum", kernels.add), _ADDED, "sum; integers wrap as in C", _ZERO, synonyms=(sum, np.sum),
        rounds=_ROUNDED, exact=_PLUS, exact_state=statistics.Sum, takes=_SUMS,
        mpi_kernel=kernels.add, ufunc=np.add, method="sum"),
    _op("PROD", twinned("prod", kernels.multiply), _NUMBER, "product; integers wrap as in C", _ONE,
        synonyms=(np.prod,), rounds=_ROUNDED, exact=_TIMES, takes=_WIDER, mpi_kernel=kernels.multiply,
        ufunc=np.multiply, power=None),
    _op("LAND", kernels.logical(np.logical_and), _TRUTH, "logical and; 0 or 1", _ONE),
    _op("BAND", kernels.elementwise(np.bitwise_and), _BITS, "bitwise and", _ALL_BITS),
    _op("LOR", kernels.logical(np.logical_or), _TRUTH, "logical or; 0 or 1", _ZERO),
    _op("BOR", kernels.elementwise(np.bitwise_or), _BITS, "bitwise or", _ZERO),
    _op("LXOR", kernels.logical(np.logical_xor), _TRUTH, "logical exclusive or; 0 or 1", _ZERO),
    _op("BXOR", kernels.elementwise(np.bitwise_xor), _BITS, "bitwise exclusive or", _ZERO),
    _op("MAXLOC", twinned("maxloc", kernels.locate(np.greater)), Group.PAIR,
        "maximum and its index; ties: the smallest", _lowest,
        section="6.9.4", mpi_kernel=kernels.mpi_locate(np.greater), extreme=np.maximum, is_within=True,
        method="maximum"),
    _op("MINLOC", twinned("minloc", kernels.locate(np.less)), Group.PAIR,
        "minimum and its index; ties: the smallest", _HIGHEST,
        section="6.9.4", mpi_kernel=kernels.mpi_locate(np.less), extreme=np.minimum, is_within=True,
        method="minimum"),
    _op("REPLACE", kernels.replace, _ANY_TYPE, "value of the origin; accumulate only", None,
        section="12.3.4", nan=_COPIED, commute=False, uses=_RMA, lower=kernels.unchanged),
    _op("NO_OP", kernels.no_op, _ANY_TYPE, "value of the target; fetch only", None,
        section="12.3.4", nan=_COPIED, commute=False, uses=Use.FETCH, origin=False, lower=kernels.unchanged),
)  # fmt: skip

MAX, MIN, SUM, PROD, LAND, BAND, LOR, BOR, LXOR, BXOR, MAXLOC, MINLOC, REPLACE, NO_OP = OPS

STATISTICS: tuple[Op, ...] = (
    _statistic("MEAN", _NUMBER, "sum divided by the number of ranks", statistics.Mean,
               gives=statistics.mean_type, takes=_SUMS | {"weights"}, rounds=_ROUNDED, synonyms=(np.mean,),
               method="mean", is_within=True),
    _statistic("VAR", _NUMBER, "variance", statistics.Variance, exact_state=statistics.ExactVariance,
               gives=statistics.variance_type, takes=_SPREAD, rounds=_ROUNDED, synonyms=(np.var,), method="variance",
               power=2),
    _statistic("STD", _NUMBER, "standard deviation", statistics.Variance, exact_state=statistics.ExactVariance,
               gives=statistics.variance_type, takes=_SPREAD, rounds=_ROUNDED, ufunc=np.sqrt, synonyms=(np.std,),
               method="standard_deviation"),
    _statistic("RMS", _NUMBER, "square root of the mean of the squares", statistics.RootMeanSquare,
               gives=statistics.variance_type, takes=_SUMS, rounds=_ROUNDED, method="root_mean_square"),
    _statistic("COUNT", _ANY_TYPE, "ranks with a value that is not left out", statistics.Count,
               gives=statistics.count_type, nan=_COUNTED, commute=True, power=0),
    _statistic("RANGE", ORDERED, "maximum minus minimum", statistics.Range,
               synonyms=(np.ptp,), takes=_WIDER, commute=True, method="range"),
    _statistic("ABSMAX", ORDERED, "largest magnitude", statistics.Magnitude, kernel=MAX.kernel,
               takes=_WIDER, commute=True, method="maximum_absolute_value"),
    _statistic("ABSMIN", ORDERED, "smallest magnitude", statistics.Magnitude, kernel=MIN.kernel,
               takes=_WIDER, commute=True, method="minimum_absolute_value"),
    _statistic("FIRST", _ANY_TYPE, "element of the first rank", RuledState, kernel=NO_OP.kernel,
               nan=_COPIED, rounds=_ROUNDED, lower=kernels.unchanged, is_within=True),
    _statistic("LAST", _ANY_TYPE, "element of the last rank", RuledState, kernel=REPLACE.kernel,
               nan=_COPIED, rounds=_ROUNDED, lower=kernels.unchanged, is_within=True),
    _statistic("MEDIAN", ORDERED, "median; mean of the middle two if even", statistics.Quantile,
               gives=statistics.mean_type, takes=_WIDER, synonyms=(np.median,), commute=True, method="median",
               is_within=True),
    _statistic("QUANTILE", ORDERED, "quantile, such as quantile:0.9", statistics.Quantile,
               gives=statistics.mean_type, takes=_WIDER, commute=True, is_within=True),
)  # fmt: skip
"""Statistics of ensembles, which MPI does not have."""

COMPARE_AND_SWAP = _op("COMPARE_AND_SWAP", kernels.replace, _INTEGER | Group.LOGICAL | Group.BYTE,
    "the origin's value where the target's is the one expected", None,
    section="12.3.5", commute=False, uses=Use.FETCH)  # fmt: skip
"""The op of MPI_Compare_and_swap (MPI-4.1, 12.3.5). The transaction compares the element, the kernel replaces it."""

_BY_NAME = {row.name: row for row in (*OPS, *STATISTICS)}
_OTHER_NAMES = {
    "ADD": "SUM", "TOTAL": "SUM", "MULTIPLY": "PROD", "AVG": "MEAN", "AVERAGE": "MEAN", "VARIANCE": "VAR",
    "STANDARDDEVIATION": "STD", "PERCENTILE": "QUANTILE", "P": "QUANTILE", "Q": "QUANTILE", "ARGMAX": "MAXLOC",
    "ARGMIN": "MINLOC", "ALL": "LAND", "ANY": "LOR",
}  # fmt: skip
"""Names in other programs, without `_` and digits, of the same ops."""


def _reduce(op: Op) -> tuple[Callable[..., Op], tuple[object, ...]]:
    """Return the function and the arguments that pickle stores for an op; a user-defined kernel loads its code."""
    return (Op, tuple(op)) if op.user else (_predefined, (op.name, op.rules))


def _predefined(name: str, rules: Rules) -> Op:
    return ruled(_BY_NAME[name], rules)


copyreg.pickle(Op, _reduce)


def user_op(name: str, kernel: UserKernel) -> Op:
    """Return a user-defined op, which is for reductions only, on all datatypes of MPI (MPI-4.1, 12.3.4)."""
    row = Op(name, kernel, ~(TIMES | Group.VALUE), "", "6.9.5", None, None, None, commute=False, uses=Use.REDUCE)
    row = row._replace(user=True, isolated=kernel.isolated, is_function=not kernel.isolated)
    return row._replace(rounds=row.groups, lower=kernels.unchanged)


def named(text: str) -> Op | None:
    """Return the predefined op or statistic with a name, which may have a parameter such as quantile:0.9."""
    return _BY_NAME.get(canonical(text.partition(":")[0]))


def suggestion(text: str, ops: Sequence[Op]) -> str:
    """Return a hint with ops that have a similar name, "" if there are none."""
    name = canonical(text.partition(":")[0])
    name = _OTHER_NAMES.get(re.sub(r"[_\d]", "", name), name)
    close = difflib.get_close_matches(name, [row.name for row in ops], n=2)
    names = ("quantile:0.9" if name == "QUANTILE" else name.lower() for name in close)
    return f"did you mean {' or '.join(names)}?" if close else ""


def get(name: str, use: Use = ANY_USE) -> Op:
    """Return the predefined op or statistic with a name in any case; ops may have the prefix `MPI_`."""
    text, _, parameter = name.partition(":")
    op = named(text)
    if op is None or (not op.section and canonical(text) != text.upper()):  # a statistic with the prefix
        ops = [*ops_for(use), *(STATISTICS if Use.REDUCE in use else ())]
        hint = suggestion(name, ops) or f"the ops are {names_of(ops)}"
        raise UnknownOpError(shortened(name) or "''", f"is not an MPI op; {hint}")
    if op.name != "QUANTILE":
        if not parameter:
            return op
        raise UnknownOpError(shortened(name), f"has something behind the colon, and {op} takes nothing; leave it out")
    try:
        quantile = float(NUMBER.parse(parameter))
    except ValueError:
        quantile = -1
    if not 0 <= quantile <= 1:
        raise UnknownOpError(shortened(name), "takes a number between 0 and 1, such as quantile:0.9")
    return op._replace(rules=Rules(quantile=quantile))


def neutral(op: Op, datatype: Datatype, hint: str = "make the file first") -> np.ndarray:
    """Return the identity of an op on a datatype, as an array without dimensions."""
    if op.identity is None and op.user:
        raise OpError(str(op), "declares no neutral element; an op in Python gets one by @mpired.op(identity=...)")
    if op.identity is None:
        raise OpError(str(op), f"has no identity to fill a new file with; {hint}")
    if datatype.group is Group.TIME:
        raise OpError(str(op), f"has no neutral element that is a {datatype}")
    try:
        element = op.identity(datatype)
    except (TypeError, ValueError, OverflowError):
        reason = f"says that its neutral element is {op.identity}, which is not a value of {datatype.label}"
        raise OpError(str(op), reason) from None
    datatype.clear_padding(element.reshape(1))
    return element


def ops_for(use: Use) -> list[Op]:
    """Return the predefined ops for a family of calls, or for any of several families."""
    return [op for op in OPS if use & op.uses]


def names_of(ops: Sequence[Op]) -> str:
    """Return the names of ops for a message."""
    return ", ".join(op.name.lower() for op in ops)
