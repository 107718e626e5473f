"""Running results over the elements of an array."""

from __future__ import annotations

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.ops.op import Op


def run(op: Op, block: np.ndarray, datatype: Datatype) -> None:
    """Combine each element of a block with all before it, in place: `block[i] = block[i - 1] op block[i]`."""
    # The bits are those of one step after another, also where the steps are taken otherwise: NumPy's `accumulate` goes
    # from element to element, and where nothing is rounded the operands may be grouped in any way.
    as_propagated = not op.user and op.rules.nan != "mpi"
    if as_propagated and op.ufunc is not None and (datatype.group is not Group.COMPLEX or op.ufunc is np.add):
        numbers = block.view(datatype.added)
        width = len(numbers) // max(1, len(block))
        for lane in range(width):  # the parts of complex numbers
            op.ufunc.accumulate(numbers[lane::width], out=numbers[lane::width])
    elif as_propagated and datatype.group not in op.rounds:
        step = 1
        while step < len(block):  # each step doubles how many elements a result is of
            block[step:] = op.kernel(block[:-step].copy(), block[step:].copy(), datatype)
            step *= 2
    else:
        for i in range(1, len(block)):
            block[i : i + 1] = op.kernel(block[i - 1 : i].copy(), block[i : i + 1].copy(), datatype)
