"""MINLOC and MAXLOC: pick one whole pair (MPI-4.1, 6.9.4).

The pair with the better value wins; among equal values the one with the smaller index; if that is
equal too, the lower rank's. The standard says nothing of NaN: here a NaN value wins in both ops,
and among NaNs the smaller index, which keeps the operation associative and commutative.
"""

from __future__ import annotations

import numpy as np

from mpired.datatypes import Datatype
from mpired.ops.kernels import Kernel


def locate(better: np.ufunc) -> Kernel:
    """Return the kernel that picks the pair whose value is `better`: `np.greater` or `np.less`."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> None:
        value, index = datatype.form.names or ()
        # One pass to bring the values together is cheaper than two comparisons over the gaps.
        lower, upper = np.ascontiguousarray(invec[value]), np.ascontiguousarray(inoutvec[value])
        takes, keeps = better(lower, upper), better(upper, lower)
        if np.count_nonzero(takes) + np.count_nonzero(keeps) < len(takes):
            tied = ~(takes | keeps)
            takes |= tied & ~np.less(inoutvec[index], invec[index])
            if lower.dtype.kind == "f":
                _let_nan_win(takes, np.isnan(lower), np.isnan(upper))
        _move(invec, inoutvec, takes)

    return kernel


def _let_nan_win(takes: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
    """Correct who wins where one value alone is NaN: it compares like a tie, but is none."""
    takes |= lower & ~upper
    takes &= lower | ~upper


def _move(invec: np.ndarray, inoutvec: np.ndarray, where: np.ndarray) -> None:
    """Copy whole pairs from `invec` to `inoutvec`, by index the fewer of those that move and those that stay."""
    pairs = f"V{invec.itemsize}"  # NumPy copies a structure field by field, but opaque bytes at once
    lower, upper = invec.view(pairs), inoutvec.view(pairs)
    if 2 * np.count_nonzero(where) <= len(where):
        moved = np.flatnonzero(where)
        upper[moved] = lower[moved]
    else:
        stayed = np.flatnonzero(~where)
        kept = upper[stayed]
        inoutvec.view(np.uint8)[...] = invec.view(np.uint8)
        upper[stayed] = kept
