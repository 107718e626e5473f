"""MINLOC and MAXLOC: pick one whole pair (MPI-4.1, 6.9.4).

The pair with the better value wins; among equal values the one with the smaller index; if that is
equal too, the lower rank's. The standard says nothing of NaN: here a NaN value wins in both ops,
and among NaNs the smaller index, which keeps the operation associative and commutative.
"""

from __future__ import annotations

import numpy as np

from mpired.datatypes import Datatype
from mpired.ops.kernels import Kernel, moved


def locate(better: np.ufunc) -> Kernel:
    """Return the kernel that picks the pair whose value is `better`: `np.greater` or `np.less`."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        value, index = datatype.form.names or ()
        # One pass to bring the values together is cheaper than two comparisons over the gaps.
        lower, upper = np.ascontiguousarray(invec[value]), np.ascontiguousarray(inoutvec[value])
        takes, keeps = better(lower, upper), better(upper, lower)
        taken, kept = np.count_nonzero(takes), np.count_nonzero(keeps)
        if taken + kept < len(takes):
            tied = ~(takes | keeps)
            takes |= tied & ~np.less(inoutvec[index], invec[index])
            if lower.dtype.kind == "f":
                _let_nan_win(takes, np.isnan(lower), np.isnan(upper))
            keeps = ~takes
            kept = np.count_nonzero(keeps)
        # The fewer winners come to the others.
        return moved(inoutvec, invec, keeps) if 2 * kept < len(keeps) else moved(invec, inoutvec, takes)

    return kernel


def unordered(better: np.ufunc) -> Kernel:
    """Return the kernel that MPI's libraries have: a pair wins by its value, and what is no tie leaves inoutvec.

    A NaN compares to nothing, so that it stays in inoutvec, and loses in invec. Of equal values inoutvec's bits stay,
    with the smaller index.
    """

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        value, index = datatype.form.names or ()
        lower, upper = (np.ascontiguousarray(each[value]) for each in (invec, inoutvec))
        indices = inoutvec[index]
        np.copyto(indices, np.minimum(indices, invec[index]), where=lower == upper)
        return moved(invec, inoutvec, better(lower, upper))

    return kernel


def _let_nan_win(takes: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
    """Correct who wins where one value alone is NaN: it compares like a tie, but is none."""
    takes |= lower & ~upper
    takes &= lower | ~upper
