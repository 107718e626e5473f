"""The in-place kernels: `inoutvec[i] = invec[i] op inoutvec[i]`, invec the lower rank (MPI-4.1, 6.9.5).

Every kernel takes two contiguous one-dimensional arrays of one datatype in native byte order, combines
them in place, and returns the one that holds the result: `inoutvec`, as MPI has it, unless it is
cheaper to leave it in `invec`; the other one may hold anything then. The bits of an element depend
on its two operands alone, never on its position in the array, so a reduction may be cut into blocks
anywhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.ops import native

Kernel: TypeAlias = Callable[[np.ndarray, np.ndarray, Datatype], np.ndarray]

# Complex elements multiplied at a time: the temporaries stay in the first-level caches.
_PRODUCT_STEP = 4096
# How bits of numbers of 16 bits that are integers in the same order compare, and where a NaN comes.
_OF_HALVES: dict[np.ufunc, tuple[np.ufunc, int]] = {
    np.maximum: (np.greater_equal, 0x7FFF),
    np.minimum: (np.less_equal, -0x8000),
}
_INFINITE_HALF = 0x7C00
_GREATEST = np.full(1, np.finfo(np.float64).max)


def twinned(name: str, kernel: Kernel, *, keeps_upper: bool = False) -> Kernel:
    """Return the kernel that leaves to the twins of this name the datatypes for which there are some."""

    def faster(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        compute = native.twin(name, datatype) if inoutvec.nbytes >= native.LEAST_BYTES else None
        if compute is None or not (invec.flags.carray and inoutvec.flags.carray):
            return kernel(invec, inoutvec, datatype)
        if compute(address_of(invec), address_of(inoutvec), len(inoutvec)):
            np.add(_GREATEST, _GREATEST)  # so that NumPy tells of the overflow, as the context wants it
        return invec if keeps_upper else inoutvec

    return faster


def address_of(block: np.ndarray) -> int:
    """Return where the elements of a block are in memory."""
    # In half the time of block.ctypes.data. NumPy's annotations call it no buffer before Python 3.12.
    return ctypes.addressof(ctypes.c_char.from_buffer(block))  # type: ignore[arg-type, unused-ignore]


def elementwise(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of a ufunc that keeps the type: integers wrap as in C, floats round once."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        ufunc(invec, inoutvec, out=inoutvec)
        return inoutvec

    return kernel


def add(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Add; complex numbers by component."""
    sums = inoutvec.view(datatype.added)
    np.add(invec.view(datatype.added), sums, out=sums)
    return inoutvec


def multiply(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Multiply; complex numbers by the textbook formula."""
    # NumPy's complex product contracts to fused multiply-adds on processors that have them, which changes the last bit
    # of four products in ten. Four products, a difference and a sum of real arrays round each step, like the C code of
    # the MPI libraries.
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
    """Return the kernel of MAX or MIN: NaN and NaT propagate, and on a tie the lower rank's bits stay."""
    # The result is in invec, and inoutvec stays as it is, so that other ops can take it. Only zeros of different sign
    # and NaNs tie with different bits. What `np.maximum` makes of them depends on the processor, so wherever the result
    # is one, invec's bits stay.

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        if inoutvec.dtype == np.float16:
            return _of_halves(ufunc, invec, inoutvec)
        lower, upper = invec.view(datatype.compared), inoutvec.view(datatype.compared)
        if datatype.group is not Group.FLOATING_POINT:
            ufunc(upper, lower, out=lower)
            return invec
        extremes = ufunc(upper, lower)
        stay = np.equal(extremes, 0)
        stay |= np.isnan(extremes)
        if stay.any():
            stay &= np.equal(invec, extremes) | np.isnan(invec)
            moved(invec, extremes, stay)
        np.copyto(invec, extremes)
        return invec

    return kernel


def _of_halves(ufunc: np.ufunc, invec: np.ndarray, inoutvec: np.ndarray) -> np.ndarray:
    """Choose among numbers of 16 bits, which NumPy would convert one by one."""
    # The bits are chosen by a mask: `np.copyto(..., where=...)` takes five times as long where the choice is random.
    comes_first, nan = _OF_HALVES[ufunc]
    lower, upper = invec.view(np.int16), inoutvec.view(np.int16)
    mask = comes_first(_ordered(lower, nan), _ordered(upper, nan)).astype(np.int16)
    mask -= 1
    mask &= lower ^ upper
    lower ^= mask
    return invec


def _ordered(bits: np.ndarray, nan: int) -> np.ndarray:
    """Return integers in the order of numbers of 16 bits: one for both zeros, and `nan` for every NaN."""
    magnitude, sign = bits & 0x7FFF, bits >> 15
    undefined = magnitude > _INFINITE_HALF
    magnitude ^= sign
    magnitude -= sign
    if undefined.any():
        magnitude[undefined] = nan
    return magnitude


def chosen(better: np.ufunc) -> Kernel:
    """Return the kernel of MAX or MIN that MPI's libraries have: `inout > in ? inout : in`, also where one is NaN."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        return moved(inoutvec, invec, better(inoutvec, invec))

    return kernel


def locate(better: np.ufunc) -> Kernel:
    """Return the kernel of MAXLOC or MINLOC, which picks the pair whose value is `better` (MPI-4.1, 6.9.4)."""
    # Among equal values the smaller index wins; if that is equal too, the lower rank's. The standard does not define
    # NaN: here a NaN value wins in both ops, and among NaNs the smaller index, which keeps the operation associative
    # and commutative.

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
                lower_nan, upper_nan = np.isnan(lower), np.isnan(upper)
                takes |= lower_nan & ~upper_nan  # one NaN compares like a tie, but is none
                takes &= lower_nan | ~upper_nan
            keeps = ~takes
            kept = np.count_nonzero(keeps)
        # The fewer winners come to the others.
        return moved(inoutvec, invec, keeps) if 2 * kept < len(keeps) else moved(invec, inoutvec, takes)

    return kernel


def unordered(better: np.ufunc) -> Kernel:
    """Return the kernel of MPI libraries: a pair wins by its value; without an order, inoutvec stays."""
    # A NaN compares to nothing, so that it stays in inoutvec, and loses in invec. Of equal values inoutvec's bits stay,
    # with the smaller index.

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        value, index = datatype.form.names or ()
        lower, upper = (np.ascontiguousarray(each[value]) for each in (invec, inoutvec))
        indices = inoutvec[index]
        np.copyto(indices, np.minimum(indices, invec[index]), where=lower == upper)
        return moved(invec, inoutvec, better(lower, upper))

    return kernel


def moved(source: np.ndarray, target: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Copy some elements to the other array, and return that."""
    # By their places that takes a quarter of the time of `np.copyto` with a mask that is random.
    # NumPy copies a structure field by field, but opaque bytes at once.
    form = source.dtype if source.dtype.names is None else np.dtype(f"V{source.itemsize}")
    (places,) = where.nonzero()
    target.view(form)[places] = source.view(form)[places]
    return target


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
    """Give every NaN of a finished result the same bits, and return the block."""
    # Which operand's payload survives `nan + nan` depends on the vector width and the position in the array; neither C
    # nor MPI says. One quiet NaN for all makes the bits defined.
    if datatype.group in Group.FLOATING_POINT | Group.COMPLEX:
        numbers = block.view(datatype.component) if datatype.group is Group.COMPLEX else block
        if numbers.dtype == np.float16:  # which NumPy would convert one by one
            undefined = (numbers.view(np.int16) & 0x7FFF) > _INFINITE_HALF
        else:
            undefined = np.isnan(numbers)
        if undefined.any():
            numbers[undefined] = np.nan
    return block


def as_it_is(block: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Return the block: the kernel has defined all its bits."""
    return block
