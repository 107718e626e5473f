"""Histograms: which bins numbers between two bounds have, and how many are in each."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mpired.queries.elements import are_nan, as_integers


class Histogram(NamedTuple):
    """How many numbers are where."""

    # one more than bins, which have their lower edge and not the upper one; the last one has both
    edges: tuple[Any, ...]
    counts: tuple[int, ...]


class Counter:
    """Counts numbers that come by in blocks."""

    # Bins of integers are of as many whole numbers each, so that none is favoured; those of other numbers are as wide
    # as each other, as NumPy's.

    def __init__(self, low: Any, high: Any, most: int) -> None:
        self._step, self._scale = 0, 1.0
        if low.dtype.kind != "f":
            low, high = int(low), int(high)
            self._step = -(-(high - low + 1) // most)
            bins = -(-(high - low + 1) // self._step)
            self.edges: tuple[Any, ...] = tuple(low + i * self._step for i in range(bins + 1))
        else:
            self._bounds = self._float_edges(float(low), float(high), most)
            self.edges = tuple((self._bounds / self._scale).tolist())
        self._low = low
        self._counts = np.zeros(len(self.edges) - 1, np.int64)

    def _float_edges(self, low: float, high: float, most: int) -> np.ndarray:
        if low == high:
            low, high = low - 0.5, high + 0.5
        if not math.isfinite(2 * (high - low)):  # linspace may go a little beyond
            self._scale = 0.25
        low, high = low * self._scale, high * self._scale
        while True:  # there may be fewer numbers than bins between the two, or only these
            edges = np.linspace(low, high, most + 1)
            if most == 1 or np.all(np.diff(edges) > 0):
                return edges
            most //= 2

    def add(self, values: np.ndarray) -> None:
        """Count the finite numbers of a block."""
        if self._step:
            nans = are_nan(values)
            values = as_integers(values if nans is None else values[~nans])
            # The difference of two integers of 64 bits fits as one without a sign.
            offsets = values.astype(np.uint64) - np.uint64(self._low % 2**64)
            places = (offsets // np.uint64(min(self._step, 2**64 - 1))).astype(np.int64)
        else:
            with np.errstate(over="ignore"):
                doubles = values.astype(np.float64)
            finite = doubles[np.isfinite(doubles)] * self._scale
            places = np.searchsorted(self._bounds, finite, "right") - 1
        self._counts += np.bincount(np.clip(places, 0, len(self._counts) - 1), minlength=len(self._counts))

    @property
    def histogram(self) -> Histogram:
        """What was counted."""
        return Histogram(self.edges, tuple(self._counts.tolist()))
