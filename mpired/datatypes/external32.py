"""external32: the data representation that every MPI reads and writes with the same bytes (MPI-4.1, 14.5.2).

It is big-endian, two's complement and IEEE, with complex numbers as pairs, and without gaps. A C long has four bytes
and a wide character two. A long double is a binary128, which NumPy does not have: the form is 16 opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_NARROWER = {"long": ">i4", "unsigned_long": ">u4", "wchar": ">u2"}
# The significand of x87 has 64 bits with the leading one; that of binary128 has 112 without it.
_IS_X87 = np.finfo(np.longdouble).nmant == 63  # noqa: PLR2004 - see above
_FRACTION = np.uint64(2**63 - 1)
_LOST = np.uint64(2**49 - 1)
_EXPONENT = np.uint64(0x7FFF)


class Misfit(Exception):  # noqa: N818 - the caller makes an error of it with file and element
    """Raised when a value cannot be converted."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position  # the index of the first such value in the array
        self.reason = reason  # the value and the reason


def form(name: str, native: np.dtype) -> np.dtype:
    """Return the form in external32 of a predefined type, by its name in lower case and its native form."""
    if native.subdtype is not None:
        base, shape = native.subdtype
        return np.dtype((form(name, base), shape))
    if name in _NARROWER:
        return np.dtype(_NARROWER[name])
    if native.char in "gG" and _IS_X87:
        return np.dtype((np.void, native.itemsize))
    return native.newbyteorder(">")


def convert(source: np.ndarray, target: np.ndarray) -> None:
    """Copy numbers to a native form or from it; the two dtypes determine the conversion."""
    are_opaque = tuple(array.dtype.type is np.void and array.dtype.names is None for array in (source, target))
    if source.dtype.kind in "iu" and target.dtype.itemsize < source.dtype.itemsize:
        conversion = _narrow
    elif are_opaque == (False, True):
        conversion = _to_binary128
    elif are_opaque == (True, False):
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
    """Convert x87 numbers to binary128: the exponents are the same, the fraction moves."""
    native = np.ascontiguousarray(source, source.dtype.newbyteorder("="))
    parts = native.view(np.uint8).view("=u8").reshape(-1, 2)
    significand, sign_exponent = parts[:, 0], parts[:, 1] & np.uint64(0xFFFF)
    exponent, leading = sign_exponent & _EXPONENT, significand >> np.uint64(63)
    _refuse((exponent != 0) & (leading == 0), source.itemsize // 16, lambda i: (
        f"the bytes {parts[i].tobytes()[:10].hex()} are not a long double"
    ))  # fmt: skip
    # A number with the exponent of subnormals but a leading bit has the minimum normal exponent.
    sign_exponent |= np.where(exponent == 0, leading, np.uint64(0))
    fraction = significand & _FRACTION
    result = np.empty(parts.shape, ">u8")
    result[:, 0] = sign_exponent << np.uint64(48) | fraction >> np.uint64(15)
    result[:, 1] = fraction << np.uint64(49)
    target[...] = result.reshape(-1).view(target.dtype)


def _from_binary128(source: np.ndarray, target: np.ndarray) -> None:
    """Convert binary128 numbers to x87; numbers with more digits are refused, a NaN loses digits."""
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
