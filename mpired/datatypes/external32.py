"""external32: the form in which every MPI reads and writes the same bytes (MPI-4.1, 14.5.2).

Big-endian, two's complement and IEEE, complex numbers as pairs, no byte between. A C long has four bytes
and a wide character two; a long double is a binary128, which NumPy has no number for and which is
opaque bytes here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_NARROWER = {"long": ">i4", "unsigned_long": ">u4", "wchar": ">u2"}
# The x87 format has 64 bits of significand, the first of them written out; binary128 has 112 after the first.
_IS_X87 = np.finfo(np.longdouble).nmant == 63  # noqa: PLR2004 - see above
_FRACTION = np.uint64(2**63 - 1)
_LOST = np.uint64(2**49 - 1)
_EXPONENT = np.uint64(0x7FFF)


class Misfit(Exception):  # noqa: N818 - it becomes an error where file and element are known
    """Raised when a value does not fit."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position  # where the first such value is in the array
        self.reason = reason  # the value and why


def form(name: str, native: np.dtype) -> np.dtype:
    """Return the form in external32 of the predefined type `name`, in lower case, that NumPy has as `native`."""
    if native.subdtype is not None:
        base, shape = native.subdtype
        return np.dtype((form(name, base), shape))
    if name in _NARROWER:
        return np.dtype(_NARROWER[name])
    if native.char in "gG" and _IS_X87:
        return np.dtype((np.void, native.itemsize))
    return native.newbyteorder(">")


def convert(source: np.ndarray, target: np.ndarray) -> None:
    """Copy numbers into another form of the same type; which one they are shows in the two dtypes."""
    if source.dtype == target.dtype:
        target[...] = source
        return
    if source.dtype.kind in "iu" and target.dtype.itemsize < source.dtype.itemsize:
        conversion = _narrow
    elif target.dtype.type is np.void and target.dtype.names is None:
        conversion = _to_binary128
    elif source.dtype.type is np.void and source.dtype.names is None:
        conversion = _from_binary128
    else:
        target[...] = source
        return
    for old, new in [(source, target)] if source.ndim == 1 else zip(source.T, target.T, strict=True):
        conversion(old, new)


def _narrow(source: np.ndarray, target: np.ndarray) -> None:
    limits = np.iinfo(target.dtype)
    _refuse((source < limits.min) | (source > limits.max), 1, lambda i: (
        f"{source[i]} does not fit the {target.itemsize} bytes that its type has in external32"
    ))  # fmt: skip
    target[...] = source


def _to_binary128(source: np.ndarray, target: np.ndarray) -> None:
    """Write x87 numbers as binary128: both have the same exponents, so all that changes is where the fraction lies."""
    native = np.ascontiguousarray(source, source.dtype.newbyteorder("="))
    parts = native.view(np.uint8).view("=u8").reshape(-1, 2)
    significand, sign_exponent = parts[:, 0], parts[:, 1] & np.uint64(0xFFFF)
    exponent, leading = sign_exponent & _EXPONENT, significand >> np.uint64(63)
    _refuse((exponent != 0) & (leading == 0), source.itemsize // 16, lambda i: (
        f"the bytes {parts[i].tobytes()[:10].hex()} are not a long double"
    ))  # fmt: skip
    # A number that is written as subnormal though its leading bit is set has the least normal exponent.
    sign_exponent |= np.where(exponent == 0, leading, np.uint64(0))
    fraction = significand & _FRACTION
    result = np.empty(parts.shape, ">u8")
    result[:, 0] = sign_exponent << np.uint64(48) | fraction >> np.uint64(15)
    result[:, 1] = fraction << np.uint64(49)
    target[...] = result.reshape(-1).view(target.dtype)


def _from_binary128(source: np.ndarray, target: np.ndarray) -> None:
    """Read binary128 numbers as x87; those with more digits are refused, but a NaN is a NaN with fewer."""
    parts = np.ascontiguousarray(source).view(">u8").astype("=u8").reshape(-1, 2)
    high, low = parts[:, 0], parts[:, 1]
    sign_exponent = high >> np.uint64(48)
    fraction = (high & np.uint64(2**48 - 1)) << np.uint64(15) | low >> np.uint64(49)
    lost = (low & _LOST) != 0
    exponent = sign_exponent & _EXPONENT
    nan = (exponent == _EXPONENT) & ((fraction != 0) | lost)
    _refuse(lost & ~nan, target.itemsize // 16, lambda i: (
        f"the binary128 number with the bytes {high[i]:016x}{low[i]:016x} has more digits than a long double"
    ))  # fmt: skip
    fraction |= nan & (fraction == 0)
    result = np.empty(parts.shape, "=u8")
    result[:, 0] = fraction | (exponent != 0).astype("=u8") << np.uint64(63)
    result[:, 1] = sign_exponent
    target[...] = result.reshape(-1).view(target.dtype.newbyteorder("="))


def _refuse(bad: np.ndarray, per_element: int, describe: Callable[[int], str]) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        raise Misfit(first // per_element, describe(first))
