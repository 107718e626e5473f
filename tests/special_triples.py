"""Every op on special values of every datatype that it takes; as a program it prints a digest of all results."""

from __future__ import annotations

import hashlib
import itertools

import matrix
import numpy as np

from mpired import ops
from mpired.datatypes import DATATYPES, Datatype

TYPES = {datatype.name: datatype for datatype in DATATYPES if datatype.name in matrix.AVAILABLE}
PAIRS = [(op, name) for op, names in sorted(matrix.LEGAL.items()) for name in sorted(names)]
PAYLOADS = {2: ("u2", 0x7E01, 0xFE00, 0x7D01), 4: ("u4", 0x7FC00001, 0xFFC00000, 0x7F800001)} | {
    8: ("u8", 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001)
}


def numbers(form: np.dtype) -> np.ndarray:
    """Limits, zeros, infinities, quiet and signalling NaNs with a payload, and a few others."""
    if form.kind in "iu":
        limits = np.iinfo(form)
        return np.array([limits.min, limits.max, 0, 1, 2, 3, limits.max // 2 + 1], form)
    if form.kind != "f":
        return np.array([0, 1], "u1").view(form) if form.itemsize == 1 else np.array([0, 1, 2], form)
    limits = np.finfo(form)
    common = np.array([0.0, -0.0, 1, -1, 3, np.inf, -np.inf, limits.max, limits.tiny], form)
    common = np.append(common, np.array([1], form) / np.array([10], form))
    if form.itemsize not in PAYLOADS:
        return np.append(common, np.array([np.nan, -np.nan], form))
    code, *patterns = PAYLOADS[form.itemsize]
    return np.concatenate([common, np.array(patterns, code).view(form)])


def elements(datatype: Datatype) -> np.ndarray:
    """Special elements: of what has two parts each with each of a few."""
    form = datatype.form
    if form.names is None:
        if form.kind != "c":
            return numbers(form)
        parts = numbers(datatype.component)[[1, 2, 3, 5, 9, -1]]
        pairs = np.array(list(itertools.product(parts, repeat=2)), datatype.component)
        return pairs.reshape(-1).view(form)
    firsts, seconds = (numbers(form[name])[::step] for name, step in zip(form.names, (1, 2), strict=True))
    found = np.zeros(len(firsts) * len(seconds), form)
    found[form.names[0]], found[form.names[1]] = np.repeat(firsts, len(seconds)), np.tile(seconds, len(firsts))
    return found


def combined(op: str, datatype: Datatype, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The result of the kernel, whose operands stay as they are."""
    row = ops.get(op)
    with np.errstate(all="ignore"):
        result: np.ndarray = row.kernel(lower.copy(), upper.copy(), datatype)
        return row.lower(result.copy(), datatype)


def triples(datatype: Datatype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All triples of a few elements."""
    some = elements(datatype)
    some = some[:: -(-len(some) // 40)]
    first, second, third = np.meshgrid(*[np.arange(len(some))] * 3, indexing="ij")
    return some[first.ravel()], some[second.ravel()], some[third.ravel()]


def octets(array: np.ndarray, datatype: Datatype) -> bytes:
    """The bytes that carry a value."""
    datatype.clear_padding(array)
    return array.tobytes()


if __name__ == "__main__":
    digest = hashlib.sha256()
    for op, name in PAIRS:
        a, b, c = triples(TYPES[name])
        digest.update(octets(combined(op, TYPES[name], combined(op, TYPES[name], a, b), c), TYPES[name]))
    print(digest.hexdigest(), len(PAIRS))  # noqa: T201 - what the program is for
