"""Prints what the kernels take for an element, those of NumPy and those compiled from C.

    python benchmarks/kernels.py [OP...]

Nanoseconds for an element, the least of several runs on blocks of 256 KiB, of normal random numbers; and how many times
as long NumPy takes where there is a compiled kernel.
"""

import sys
import time

import numpy as np

from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.ops import OPS, Op, Use, native

_BLOCK_BYTES = 256 << 10
_RUNS = 15


def main() -> None:
    """Measure each op on each form of element."""
    names = {name.upper() for name in sys.argv[1:]}
    print(f"{'op':8}{'datatype':26}{'NumPy':>8}{'C':>8}{'ratio':>8}")
    for op in (op for op in OPS if Use.REDUCE in op.uses and (not names or op.name in names)):
        for datatype in _forms(op):
            compiled = native.twin(op.name.lower(), datatype) is not None
            by_numpy = nanoseconds(op, datatype, sys.maxsize)
            line = f"{op.name.lower():8}{datatype.name.lower():26}{by_numpy:8.3f}"
            if compiled:
                by_c = nanoseconds(op, datatype, 1)
                line += f"{by_c:8.3f}{by_numpy / by_c:8.1f}"
            print(line)


def _forms(op: Op) -> list[Datatype]:
    """Return one datatype for each form of the elements that an op takes."""
    rows = [row for row in DATATYPES if row.group in op.groups and row.dtype is not None]
    return list({(str(row.form), row.group is Group.COMPLEX): row for row in reversed(rows)}.values())[::-1]


def nanoseconds(op: Op, datatype: Datatype, least_bytes: int = native.LEAST_BYTES) -> float:
    """Return what the kernel takes for an element; blocks of fewer than `least_bytes` are left to NumPy."""
    native.LEAST_BYTES = least_bytes
    count = _BLOCK_BYTES // datatype.form.itemsize
    random = np.random.default_rng(1)
    lower, upper = (_elements(datatype, count, random) for _ in range(2))
    taken = []
    with np.errstate(all="ignore"):
        for _ in range(_RUNS):
            operands = lower.copy(), upper.copy()
            started = time.perf_counter()
            op.kernel(*operands, datatype)
            taken.append(time.perf_counter() - started)
    return min(taken) / count * 1e9


def _elements(datatype: Datatype, count: int, random: np.random.Generator) -> np.ndarray:
    """Return elements of which no op makes something special: no NaN, few ties."""
    elements = np.zeros(count, datatype.form)
    parts = [elements[name] for name in datatype.form.names or ()] if datatype.group is Group.PAIR else []
    for part in parts or [elements.view(datatype.added)]:
        part[...] = (random.normal(size=part.shape) * (1 if part.dtype.kind == "f" else 30)).astype(part.dtype)
    return elements


if __name__ == "__main__":
    main()
