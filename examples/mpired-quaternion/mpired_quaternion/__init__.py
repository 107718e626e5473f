"""Ops on quaternions, structures of w, x, y and z."""

import numpy as np

import mpired

FIELDS = ("w", "x", "y", "z")


@mpired.op(commute=False, identity=[1.0, 0.0, 0.0, 0.0])
def product(invec, inoutvec, count, datatype):
    """Hamilton's product of quaternions."""
    a, b, c, d = _parts(invec, datatype)
    w, x, y, z = (part.copy() for part in _parts(inoutvec, datatype))
    inoutvec["w"] = a * w - b * x - c * y - d * z
    inoutvec["x"] = a * x + b * w + c * z - d * y
    inoutvec["y"] = a * y - b * z + c * w + d * x
    inoutvec["z"] = a * z + b * y - c * x + d * w


@mpired.op(commute=True, identity=[0.0, 0.0, 0.0, 0.0])
def add(invec, inoutvec, count, datatype):
    """Sum of quaternions."""
    for lower, upper in zip(_parts(invec, datatype), _parts(inoutvec, datatype), strict=True):
        np.add(lower, upper, out=upper)


def _parts(vector, datatype):
    if vector.dtype.names != FIELDS:
        raise mpired.Abort(f"quaternions are structures of w, x, y and z, not {datatype}")
    return [vector[name] for name in FIELDS]
