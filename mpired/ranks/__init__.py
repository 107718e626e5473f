"""The words of a call as ranks, in order, and what all of them must have in common."""

from mpired.ranks.lists import rank_list
from mpired.ranks.opening import (
    Skipped,
    check_formats,
    check_use,
    compare,
    in_one_order,
    open_all,
    open_groups,
    pieces,
    skipped_warnings,
)
from mpired.ranks.order import RankWord, number_of, ordered, unnatural

__all__ = [
    "RankWord",
    "Skipped",
    "check_formats",
    "check_use",
    "compare",
    "in_one_order",
    "number_of",
    "open_all",
    "open_groups",
    "ordered",
    "pieces",
    "rank_list",
    "skipped_warnings",
    "unnatural",
]  # fmt: skip
