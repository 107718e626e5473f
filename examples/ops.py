"""The user-defined ops of docs/user-ops.md."""

import numpy as np

import mpired


def hypotenuse(invec, inoutvec):
    """Square root of the sum of squares."""
    return np.hypot(invec, inoutvec)


@mpired.op(commute=True, identity=[1.0, 0.0])
def complex_product(invec, inoutvec, count, datatype):
    """Product of complex numbers, each of two doubles."""
    real, imag = invec.view("f8").reshape(count, 2).T
    other_real, other_imag = inoutvec.view("f8").reshape(count, 2).T
    product_real = real * other_real - imag * other_imag
    other_imag[...] = real * other_imag + imag * other_real
    other_real[...] = product_real


@mpired.op(commute=True)
def sum_or_max(invec, inoutvec, count, datatype):
    """Sum of doubles, maximum of integers."""
    if datatype == mpired.datatypes.DOUBLE:
        np.add(invec, inoutvec, out=inoutvec)
    elif datatype in (mpired.datatypes.INT32_T, mpired.datatypes.INT64_T):
        np.maximum(invec, inoutvec, out=inoutvec)
    else:
        raise mpired.Abort(f"sum_or_max takes no {datatype}")


@mpired.op(commute=False, identity=[1.0, 0.0, 0.0, 1.0])
def matrix_product(invec, inoutvec, count, datatype):
    """Product of 2 x 2 matrices, each a structure of xx, xy, yx and yy."""
    lower, upper = invec, inoutvec.copy()
    for row in "xy":
        for column in "xy":
            first = lower[row + "x"] * upper["x" + column]
            inoutvec[row + column] = first + lower[row + "y"] * upper["y" + column]
