"""The words of a call as ranks, in order, and what all of them must have in common."""

from mpired.ranks.lists import gathered, meant
from mpired.ranks.opening import (
    Opened,
    Skipped,
    check_formats,
    check_use,
    compare,
    each_good,
    in_one_order,
    left_out,
    open_each,
    open_groups,
    pieces,
)
from mpired.ranks.order import RankWord, number_of, ordered, unnatural

__all__ = [
    "Opened",
    "RankWord",
    "Skipped",
    "check_formats",
    "check_use",
    "compare",
    "each_good",
    "gathered",
    "in_one_order",
    "left_out",
    "meant",
    "number_of",
    "open_each",
    "open_groups",
    "ordered",
    "pieces",
    "unnatural",
]
