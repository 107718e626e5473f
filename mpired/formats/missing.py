"""Values that a file names as those of missing elements, such as `_FillValue` and `valid_range` of netCDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired.errors import DatatypeError
from mpired.sources.source import Source


class NullsError(Exception):
    """Raised where values are missing; the argument says how many."""


class Missing(NamedTuple):
    """The rule that says which elements of an array are missing."""

    # the values that mean it, of which a result takes the first. NaN is not one: `nan` decides about NaNs
    values: tuple[float, ...] = ()
    low: float | None = None  # the least and the largest valid value; None for no limit
    high: float | None = None
    nan: bool = False  # whether NaN means it, too
    field: str = ""  # the field of pairs that has the values
    also: Missing | None = None  # what means it in the other field

    def present(self, block: np.ndarray) -> np.ndarray | None:
        """Return which elements of a block are there; None if all are."""
        other = None if self.also is None else self.also.present(block)
        block = block[self.field] if self.field else block
        lacks = np.isnan(block) if self.nan and block.dtype.kind == "f" else np.zeros(block.shape, np.bool_)
        for value in self.values:
            lacks |= block == value
        if self.low is not None:
            lacks |= block < self.low
        if self.high is not None:
            lacks |= block > self.high
        lacks |= False if other is None else ~other
        return ~lacks if lacks.any() else None

    def mark(self, block: np.ndarray, where: Any) -> None:
        """Put the values of missing elements into a block, in both fields of pairs."""
        if self.values:
            (block[self.field] if self.field else block)[where] = self.values[0]
        if self.also is not None:
            self.also.mark(block, where)

    def hidden(self, block: np.ndarray, there: np.ndarray | None) -> int:
        """Return how many elements of a block are there, and have a value that means the opposite."""
        present = self.present(block)
        if present is None:
            return 0
        return int(np.count_nonzero(~present if there is None else there & ~present))

    @property
    def text(self) -> str:
        """The values of missing elements, in words."""
        limits = {"from": self.low, "to": self.high}
        limit = " ".join(f"{word} {_text(each)}" for word, each in limits.items() if each is not None)
        outside = [f"outside of its valid range ({limit})"] if limit else []
        return " or ".join([*outside, *(f"as its fill value ({_text(value)})" for value in self.values)])


def masked(elements: np.ndarray, mask: Any) -> np.ndarray:
    """Return a masked array, without NumPy's warning that the fill value, 1e20, overflows a 16-bit field."""
    with np.errstate(over="ignore"):
        return np.ma.MaskedArray(elements, mask)


def of_parts(fields: Sequence[str], parts: Sequence[Missing | None]) -> Missing | None:
    """Return which values of the fields of pairs mean that a pair is missing; of plain values the field is ""."""
    there = [part._replace(field=field) for field, part in zip(fields, parts, strict=False) if part is not None]
    return there[0]._replace(also=next(iter(there[1:]), None)) if there else None


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def null_error(
    source: Source, columns: Sequence[str], nulls: int, what: str = "nulls", *, more: str = ""
) -> DatatypeError:
    """Return the error for a column with missing values; `more` names other columns."""
    what = what.removesuffix("s") if nulls == 1 else what
    reason = f"{repr(','.join(columns)) + ' ' if columns else ''}has {nulls} {what}{more}"
    return DatatypeError(source.name, f"{reason}; skip them with `nulls='ignore'`, or fill them first")
