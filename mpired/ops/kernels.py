"""The kernels of ops: `inoutvec[i] = invec[i] op inoutvec[i]` in place, with the lower rank in invec (MPI-4.1, 6.9.5).

A kernel takes two contiguous arrays with one dimension and one datatype in native byte order, and returns the array
with the result: `inoutvec`, as in MPI, or `invec` if that is cheaper. The other array has no defined content. The bits
of an element depend on its two operands only, not on its position, so that a reduction may be cut into any blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.ops import native

Kernel: TypeAlias = Callable[[np.ndarray, np.ndarray, Datatype], np.ndarray]

# Complex elements that are multiplied at a time, so that temporaries stay in the first-level cache.
_PRODUCT_STEP = 4096
# The comparison of float16 numbers as integers in the same order, and the integer for NaN.
_HALF_ORDER: dict[np.ufunc, tuple[np.ufunc, int]] = {
    np.maximum: (np.greater_equal, 0x7FFF),
    np.minimum: (np.less_equal, -0x8000),
}
_HALF_INFINITY = 0x7C00  # the bits of infinity in float16
_GREATEST = np.full(1, np.finfo(np.float64).max)


def twinned(name: str, kernel: Kernel, *, keeps_upper: bool = False) -> Kernel:
    """Return a kernel that calls the compiled twin of a name if there is one for the datatype."""

    def faster(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        compute = native.twin(name, datatype) if inoutvec.nbytes >= native.LEAST_BYTES else None
        if compute is None or not (invec.flags.carray and inoutvec.flags.carray):
            return kernel(invec, inoutvec, datatype)
        if compute(address_of(invec), address_of(inoutvec), len(inoutvec)):
            np.add(_GREATEST, _GREATEST)  # NumPy reports this overflow as `np.errstate` requests
        return invec if keeps_upper else inoutvec

    return faster


def address_of(block: np.ndarray) -> int:
    """Return the address of the first element of a block."""
    # This takes half the time of block.ctypes.data. Before Python 3.12 NumPy's annotations lack the buffer protocol.
    return ctypes.addressof(ctypes.c_char.from_buffer(block))  # type: ignore[arg-type, unused-ignore]


def elementwise(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of a ufunc that keeps the dtype: integers wrap as in C, floats are rounded once."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        ufunc(invec, inoutvec, out=inoutvec)
        return inoutvec

    return kernel


def add(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Add the operands."""
    sums = inoutvec.view(datatype.added)
    np.add(invec.view(datatype.added), sums, out=sums)
    return inoutvec


def multiply(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Multiply the operands; complex numbers by four products, a difference and a sum, each of which is rounded."""
    # This is the arithmetic of MPI libraries. NumPy's complex product uses fused multiply-adds on processors that have
    # them, which changes the last bit of four products in ten.
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
    """Return the kernel of MAX or MIN: NaN and NaT propagate, and on a tie the bits of the lower rank stay."""
    # The result is in invec, and inoutvec does not change, so that other ops can read it. Ties with different bits are
    # zeros of different sign, and NaNs. The result of `np.maximum` for these depends on the processor, so that the bits
    # of invec are restored.

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        if inoutvec.dtype == np.float16:
            return _half_extreme(ufunc, invec, inoutvec)
        lower, upper = invec.view(datatype.compared), inoutvec.view(datatype.compared)
        if datatype.group is not Group.FLOATING_POINT:
            ufunc(upper, lower, out=lower)
            return invec
        extremes = ufunc(upper, lower)
        stay = np.equal(extremes, 0)
        stay |= np.isnan(extremes)
        if stay.any():
            stay &= np.equal(invec, extremes) | np.isnan(invec)
            copy_masked(invec, extremes, stay)
        np.copyto(invec, extremes)
        return invec

    return kernel


def _half_extreme(ufunc: np.ufunc, invec: np.ndarray, inoutvec: np.ndarray) -> np.ndarray:
    """Compute MAX or MIN of float16 numbers as integers, because NumPy would convert each number."""
    # On random data a mask of bits takes a fifth of the time of `np.copyto(..., where=...)`.
    wins, nan = _HALF_ORDER[ufunc]
    lower, upper = invec.view(np.int16), inoutvec.view(np.int16)
    mask = wins(_ordered(lower, nan), _ordered(upper, nan)).astype(np.int16)
    mask -= 1
    mask &= lower ^ upper
    lower ^= mask
    return invec


def _ordered(bits: np.ndarray, nan: int) -> np.ndarray:
    """Return integers in the order of float16 numbers, from their bits: equal for both zeros, and `nan` for NaN."""
    magnitude, sign = bits & 0x7FFF, bits >> 15
    is_nan = magnitude > _HALF_INFINITY
    magnitude ^= sign
    magnitude -= sign
    if is_nan.any():
        magnitude[is_nan] = nan
    return magnitude


def mpi_extreme(better: np.ufunc) -> Kernel:
    """Return the kernel of MAX or MIN in MPI libraries: `inout > in ? inout : in`, also for NaN."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        return copy_masked(inoutvec, invec, better(inoutvec, invec))

    return kernel


def locate(better: np.ufunc) -> Kernel:
    """Return the kernel of MAXLOC or MINLOC, in which the pair with the `better` value wins (MPI-4.1, 6.9.4)."""
    # Among equal values the smaller index wins, among equal pairs the lower rank. The standard does not define NaN.
    # Here NaN wins in both ops, and among NaNs the smaller index, so that the op is associative and commutative.

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        value, index = datatype.form.names or ()
        # A copy of the values is cheaper than two comparisons with strides.
        lower, upper = np.ascontiguousarray(invec[value]), np.ascontiguousarray(inoutvec[value])
        takes, keeps = better(lower, upper), better(upper, lower)
        nlower, nupper = np.count_nonzero(takes), np.count_nonzero(keeps)
        if nlower + nupper < len(takes):
            tied = ~(takes | keeps)
            takes |= tied & ~np.less(inoutvec[index], invec[index])
            if lower.dtype.kind == "f":
                lower_nan, upper_nan = np.isnan(lower), np.isnan(upper)
                takes |= lower_nan & ~upper_nan  # comparisons with NaN are false like those of a tie
                takes &= lower_nan | ~upper_nan
            keeps = ~takes
            nupper = np.count_nonzero(keeps)
        # The operand with fewer winners is copied.
        return copy_masked(inoutvec, invec, keeps) if 2 * nupper < len(keeps) else copy_masked(invec, inoutvec, takes)

    return kernel


def mpi_locate(better: np.ufunc) -> Kernel:
    """Return the kernel of MAXLOC or MINLOC in MPI libraries: unless the value of invec is better, inoutvec wins."""
    # NaN is not better than a number, so that it stays in inoutvec, and loses in invec. Among equal values the bits of
    # inoutvec win, with the smaller index.

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, datatype: Datatype) -> np.ndarray:
        value, index = datatype.form.names or ()
        lower, upper = np.ascontiguousarray(invec[value]), np.ascontiguousarray(inoutvec[value])
        indices = inoutvec[index]
        np.copyto(indices, np.minimum(indices, invec[index]), where=lower == upper)
        return copy_masked(invec, inoutvec, better(lower, upper))

    return kernel


def copy_masked(source: np.ndarray, target: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Copy the masked elements to the target, and return it."""
    # On random masks a copy by indices takes a quarter of the time of `np.copyto`. NumPy copies structures field by
    # field, but opaque bytes at once.
    form = source.dtype if source.dtype.names is None else np.dtype(f"V{source.itemsize}")
    (indices,) = mask.nonzero()
    target.view(form)[indices] = source.view(form)[indices]
    return target


def logical(ufunc: np.ufunc) -> Kernel:
    """Return the kernel of a logical op: values other than 0 are true, results are 0 or 1."""

    def kernel(invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
        if inoutvec.itemsize == 1:
            ufunc(invec, inoutvec, out=inoutvec.view(np.bool_))
        else:
            np.copyto(inoutvec, ufunc(invec, inoutvec), casting="unsafe")
        return inoutvec

    return kernel


def replace(_invec: np.ndarray, inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Return the upper operand, the origin: f(a, b) = b (MPI-4.1, 12.3.4)."""
    return inoutvec


def no_op(invec: np.ndarray, _inoutvec: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Return the lower operand, the target: f(a, b) = a (MPI-4.1, 12.3.4)."""
    return invec


def canonical_nan(block: np.ndarray, datatype: Datatype) -> np.ndarray:
    """Give all NaNs of a result the same bits, and return the block."""
    # The payload of `nan + nan` depends on the vector width and the position in the array; C and MPI do not define it.
    if datatype.group in Group.FLOATING_POINT | Group.COMPLEX:
        numbers = block.view(datatype.component) if datatype.group is Group.COMPLEX else block
        is_half = numbers.dtype == np.float16  # for which NumPy would convert each number
        is_nan = (numbers.view(np.int16) & 0x7FFF) > _HALF_INFINITY if is_half else np.isnan(numbers)
        if is_nan.any():
            numbers[is_nan] = np.nan
    return block


def unchanged(block: np.ndarray, _datatype: Datatype) -> np.ndarray:
    """Return the block, whose bits the kernel has defined."""
    return block
