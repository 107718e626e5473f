"""Values of missing elements that a file declares, such as `_FillValue` and `valid_range` of netCDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Missing(NamedTuple):
    """The rule by which elements of an array are missing."""

    values: tuple[float, ...] = ()  # fill values without NaN; results have the first
    low: float | None = None  # the minimum of valid values; None without one
    high: float | None = None  # the maximum of valid values; None without one
    nan: bool = False  # whether NaN is a fill value
    field: str = ""  # the field of pairs that the rule is for; "" for plain values
    also: Missing | None = None  # the rule for the other field of pairs

    def valid_mask(self, block: np.ndarray) -> np.ndarray | None:
        """Return the mask of valid elements of a block; None if all are valid."""
        other = None if self.also is None else self.also.valid_mask(block)
        block = block[self.field] if self.field else block
        lacks = np.isnan(block) if self.nan and block.dtype.kind == "f" else np.zeros(block.shape, np.bool_)
        for value in self.values:
            lacks |= block == value
        if self.low is not None:
            lacks |= block < self.low
        if self.high is not None:
            lacks |= block > self.high
        if other is not None:
            lacks |= ~other
        return ~lacks if lacks.any() else None

    def mark(self, block: np.ndarray, mask: Any) -> None:
        """Put fill values into the elements of a block under a mask, into both fields of pairs."""
        if self.values:
            (block[self.field] if self.field else block)[mask] = self.values[0]
        if self.also is not None:
            self.also.mark(block, mask)

    def count_masked(self, block: np.ndarray, valid: np.ndarray | None) -> int:
        """Count the valid elements of a block that readers of a file would take for missing elements."""
        present = self.valid_mask(block)
        if present is None:
            return 0
        return int(np.count_nonzero(~present if valid is None else valid & ~present))

    @property
    def text(self) -> str:
        """A description of the rule, as the end of a sentence of a warning."""
        texts = [f"as its fill value ({_text(value)})" for value in self.values]
        limits = {"from": self.low, "to": self.high}
        if limit := " ".join(f"{name} {_text(value)}" for name, value in limits.items() if value is not None):
            texts.insert(0, f"outside of its valid range ({limit})")
        return " or ".join(texts)


def masked(elements: np.ndarray, mask: Any) -> np.ndarray:
    """Return a masked array without NumPy's warning that its default fill value, 1e20, overflows a 16-bit field."""
    with np.errstate(over="ignore"):
        return np.ma.MaskedArray(elements, mask)


def join_rules(fields: Sequence[str], parts: Sequence[Missing | None]) -> Missing | None:
    """Join the rules of the fields of pairs, or of the field "" of plain values, or return None without rules."""
    rules = [part._replace(field=field) for field, part in zip(fields, parts, strict=False) if part is not None]
    return rules[0]._replace(also=next(iter(rules[1:]), None)) if rules else None


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
