"""Three ranks of three doubles, pairs, and the fold of arrays by NumPy."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import numpy as np

A, B, C = (np.array(values) for values in ([1.5, 2.0, -3.0], [10.0, 0.25, 5.0], [-0.5, 8.0, 4.0]))
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)


def loaded(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content))


def pairs_of(rows: Sequence[tuple[float, int]], dtype: np.dtype = PAIR) -> np.ndarray:
    """Return pairs whose padding is zero."""
    pairs = np.zeros(len(rows), dtype)
    for row, pair in enumerate(rows):
        pairs[row] = pair
    return pairs


def fold(op: Callable[..., np.ndarray], *ranks: np.ndarray) -> np.ndarray:
    """Return the left fold, rank by rank."""
    result = ranks[0].copy("K")
    for rank in ranks[1:]:
        op(result, rank, out=result)
    return result
