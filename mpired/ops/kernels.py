"""The in-place kernels: `inoutvec[i] = invec[i] op inoutvec[i]`, invec the lower rank (MPI-4.1, 6.9.5).

Every kernel takes two contiguous one-dimensional arrays of one datatype in native byte order, combines
them in place, and returns the one that holds the result: `inoutvec`, as MPI has it, unless it is
cheaper to leave it in `invec`; the other one may hold anything then. The bits of an element depend
on its two operands alone, never on its position in the array, so a reduction may be cut into blocks
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from mpired.datatypes import Datatype, Group

Kernel: TypeAlias = Callable[[np.ndarray, np.ndarray, Datatype], np.ndarray]

# Complex elements multiplied at a time: the temporaries stay in the first-level caches.
_PRODUCT_STEP = 4096


def elementwise(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of a ufunc that keeps the type: integers wrap as in C, floats round once."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        ufunc(invec, inoutvec, out=inoutvec)
        return inoutvec

    return kernel


def add(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Add; complex numbers by component."""
    numbers = datatype.component if datatype.group is Group.COMPLEX else datatype.form
    np.add(invec.view(numbers), inoutvec.view(numbers), out=inoutvec.view(numbers))
    return inoutvec


def multiply(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Multiply; complex numbers by the textbook formula.

    NumPy's complex product contracts to fused multiply-adds on processors that have them, which
    changes the last bit of four products in ten. Four products, a difference and a sum of real
    arrays round each step, like the C code of the MPI libraries.
    """
    if datatype.group is not Group.COMPLEX:
        np.multiply(invec, inoutvec, out=inoutvec)
        return inoutvec
    pairs = invec.view(datatype.component).reshape(-1, 2), inoutvec.view(datatype.component).reshape(-1, 2)
    for start in range(0, len(invec), _PRODUCT_STEP):
        (a_real, a_imag), (b_real, b_imag) = (pair[start : start + _PRODUCT_STEP].T for pair in pairs)
        real = a_real * b_real
        real -= a_imag * b_imag
        imag = a_real * b_imag
        imag += a_imag * b_real
        b_real[...] = real
        b_imag[...] = imag
    return inoutvec


def extreme(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of MAX or MIN: NaN propagates, and on a tie the lower rank's bits stay.

    Only zeros of different sign and NaNs tie with different bits. What `np.maximum` makes of them
    depends on the processor, so wherever the result is one, invec's bits are put back.
    """

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        ufunc(inoutvec, invec, out=inoutvec)
        if datatype.group is not Group.FLOATING_POINT:
            return inoutvec
        doubtful = np.equal(inoutvec, 0)
        doubtful |= np.isnan(inoutvec)
        if doubtful.any():
            doubtful &= np.equal(invec, inoutvec) | np.isnan(invec)
            np.copyto(inoutvec, invec, where=doubtful)
        return inoutvec

    return kernel


def logical(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of a logical op: any value but 0 is true, the result is exactly 0 or 1."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        if inoutvec.itemsize == 1:
            ufunc(invec, inoutvec, out=inoutvec.view(np.bool_))
        else:
            np.copyto(inoutvec, ufunc(invec, inoutvec), casting="unsafe")
        return inoutvec

    return kernel


def replace(_invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Put the origin in the place of the target, the lower operand: f(a, b) = b (MPI-4.1, 12.3.4)."""
    return inoutvec


def no_op(invec: np.ndarray, _inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Leave the target alone, the lower operand: f(a, b) = a (MPI-4.1, 12.3.4)."""
    return invec


def canonical_nan(block: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Give every NaN of a finished sum or product the same bits, and return the block.

    Which operand's payload survives `nan + nan` depends on the vector width and the position in
    the array; neither C nor MPI says. One quiet NaN for all makes the bits defined.
    """
    if datatype.group in Group.FLOATING_POINT | Group.COMPLEX:
        numbers = block.view(datatype.component) if datatype.group is Group.COMPLEX else block
        undefined = np.isnan(numbers)
        if undefined.any():
            numbers[undefined] = np.nan
    return block


def as_it_is(block: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Return the block: the kernel has defined all its bits."""
    return block
