"""The words of a call as ranks, in order, and what all of them must have in common."""

from mpired.ranks.lists import rank_list
from mpired.ranks.opening import (
    Opened,
    Skipped,
    check_formats,
    compare,
    in_one_order,
    open_groups,
    skipped_warning,
    warn_of_units,
)
from mpired.ranks.order import RankWord, numbers_of, ordered, unnatural

__all__ = [
    "Opened", "RankWord", "Skipped", "check_formats", "compare", "in_one_order", "numbers_of",
    "open_groups", "ordered", "rank_list", "skipped_warning", "unnatural",
    "warn_of_units",
]  # fmt: skip
