"""What the keywords of the Python functions are, where these differ from the options of the commands.

`in_place` decides what a function returns, and so does `group_b` where each rank gets something. They are parameters
of their own in the signatures for type checkers, and all other keywords of these are here.
"""

from __future__ import annotations

from mpired.options import BlocksB, Effort, ExscanFirst, GroupB, Inputs, Link, NoGroupB, Overflow, Results, Root, UserOp


class Combining(UserOp, Overflow, Inputs, Results, Effort, total=False):
    """The keywords of `reduce_scatter_block`."""


class ReduceKeywords(Combining, Root, GroupB, total=False):
    """The keywords of `reduce`."""


class AllreduceKeywords(Combining, Link, total=False):
    """The keywords of `allreduce`."""


class CountedKeywords(Combining, BlocksB, total=False):
    """The keywords of `reduce_scatter`."""


class ScanKeywords(Combining, NoGroupB, total=False):
    """The keywords of `scan`."""


class ExscanKeywords(ScanKeywords, ExscanFirst, total=False):
    """The keywords of `exscan`."""
