"""The words of a call as ranks, in order, and what all of them must have in common."""

from mpired.ranks.lists import gathered
from mpired.ranks.opening import (
    Skipped,
    check_formats,
    check_use,
    compare,
    each_good,
    in_one_order,
    left_out,
    open_groups,
    pieces,
)
from mpired.ranks.order import RankWord, numbers_of, ordered, other_numbers, unnatural

__all__ = [
    "RankWord", "Skipped", "check_formats", "check_use", "compare", "each_good", "gathered", "in_one_order",
    "left_out", "numbers_of", "open_groups", "ordered",
    "other_numbers", "pieces", "unnatural",
]  # fmt: skip
