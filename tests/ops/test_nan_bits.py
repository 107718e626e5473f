"""The bits of NaN: of two or more ranks one quiet NaN, of a single rank its own, wherever an element lies."""

from __future__ import annotations

import numpy as np
import reference

import mpired

COMPLEX = ("COMPLEX4", "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX")


def components(name, octets):
    """Return the bytes of each part of each element."""
    return [
        [element[at : at + reference.VALUE_BYTES[code]] for code, at in reference.FORMS[name][0]]
        for element in reference.elements(name, octets)
    ]


def test_a_complex_number_that_no_rank_has_is_nan(directory):
    for name in COMPLEX:
        code = reference.FORMS[name][0][0][0]
        one, zero = (reference.encode(code, np.longdouble(number)) for number in (1, 0))
        nan = reference.QUIET_NAN[code]
        paths = [directory / f"none{name}{rank}.bin" for rank in range(2)]
        for path in paths:
            path.write_bytes(reference.assemble(name, [one, nan]) + reference.assemble(name, [one, one]))
        for op in ("sum", "prod", "mean", "first"):
            found = mpired.reduce(paths, op, type=name, nan="ignore")
            assert components(name, found.tobytes())[0] == [nan, zero], (op, name)
