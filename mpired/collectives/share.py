"""The part of a fold that a rank gets."""

from __future__ import annotations

from typing import NamedTuple

BEFORE = -1
"""The partial result before any rank: the op's neutral element."""


class Share(NamedTuple):
    """What one rank gets."""

    rank: int
    last: int  # the last rank in the partial result; `BEFORE` for the neutral element
    start: int = 0
    stop: int | None = None  # None for all elements of every buffer
    field: str = ""  # the field of its pairs, value or index; "" for whole elements

    def count_of(self, whole: int) -> int:
        """Return the number of elements, of a buffer that has so many."""
        return (whole if self.stop is None else self.stop) - self.start

    @property
    def part(self) -> tuple[int, int, int | None, str]:
        """What is the same for all ranks that get the same."""
        return self.last, self.start, self.stop, self.field
