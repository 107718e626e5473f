"""Four ranks whose results go to the ranks, and what these results are."""

from __future__ import annotations

import functools
import operator
from pathlib import Path

import numpy as np

NRANKS, COUNT = 4, 12


def numbers(rank: int) -> np.ndarray:
    return np.array([(rank + 3) * (i + 1) % 11 - 4 for i in range(COUNT)])


def prefix(rank: int, first: int = 0) -> np.ndarray:
    """Sum the ranks up to this one."""
    return functools.reduce(operator.add, [numbers(each) for each in range(first, rank + 1)])


NPY = tuple(f"r{rank}.npy" for rank in range(NRANKS))
RAW = tuple(f"r{rank}.bin" for rank in range(NRANKS))
SAID = ("--type", ">i8", "--offset", "4", "--count", str(COUNT))
SUM = ("-q", "--op", "sum")


def results(folder: Path, pattern: str = "out_{}.npy", ranks: range = range(NRANKS)) -> list[np.ndarray]:
    return [np.load(folder / pattern.format(rank)) for rank in ranks]


def same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return [array.tolist() for array in mine] == [array.tolist() for array in theirs]
