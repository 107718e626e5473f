"""What tests of user-defined ops share: ranks, the plainest ops, and the fold of what is no array."""

import numpy as np


def saved(folder, arrays):
    """Write each array as a rank, and return the paths."""
    paths = [str(folder / f"rank{rank}.npy") for rank in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def two(invec, inoutvec):
    return invec - inoutvec


def lower(invec, inoutvec):
    return invec


def upper(invec, inoutvec):
    return inoutvec


def greater(invec, inoutvec):
    """The greater number of each field on its own, by value alone."""
    result = inoutvec.copy()
    for name in inoutvec.dtype.names:
        result[name] = np.where(invec[name] > inoutvec[name], invec[name], inoutvec[name])
    return result


def folded(combine, ranks):
    result = ranks[0]
    for rank in ranks[1:]:
        result = combine(result, rank)
    return result
