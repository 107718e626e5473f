"""What the keywords of the Python functions are, where these differ from the options of the commands.

`in_place` and `split` decide what a function returns, and so does `group_b` where each rank gets something. They are
parameters of their own in the signatures for type checkers, and all other keywords of these are here.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypedDict

from mpired.options import (
    AccumulateOptions,
    BlocksB,
    Carrying,
    CountValid,
    DiffOptions,
    Effort,
    Engines,
    ExscanFirst,
    FetchOptions,
    GroupB,
    Header,
    Indexing,
    InPlace,
    Inputs,
    Keep,
    Level,
    Link,
    LocalOptions,
    LocateKeywords,
    NoGroupB,
    Option,
    PackOptions,
    Provenance,
    Ranking,
    Results,
    Root,
    RootInPlace,
    Split,
    Spread,
    UnpackOptions,
    UserOp,
    ValueOptions,
)
from mpired.progress import Progress, shown_by
from mpired.values import Anything


class Watched(TypedDict, total=False):
    """What shows how far the work is. The commands have a bar of their own."""

    progress: Annotated[
        Callable[[range], Iterable[object]] | None,
        Option(
            "", Anything(), "A function that takes a range and yields its items, one for each megabyte, such as tqdm."
        ),
    ]


class Combining(
    UserOp,
    ValueOptions,
    Ranking,
    Inputs,
    Indexing,
    Results,
    CountValid,
    Carrying,
    Header,
    Level,
    Provenance,
    Effort,
    Engines,
    Spread,
    Watched,
    total=False,
):
    """What all calls that combine ranks have."""


class ReduceKeywords(Combining, Keep, Root, GroupB, total=False):
    """The keywords of `reduce`, without `in_place` and `split`."""


class ReduceAll(ReduceKeywords, Split, RootInPlace, total=False):
    """The keywords of `reduce`."""


class AllreduceKeywords(Combining, Keep, Link, total=False):
    """The keywords of `allreduce`, without `in_place`, `split` and `group_b`."""


class AllreduceAll(AllreduceKeywords, Split, GroupB, InPlace, total=False):
    """The keywords of `allreduce`."""


class ScatterKeywords(Combining, BlocksB, total=False):
    """The keywords of `reduce_scatter`, without `in_place`, `split` and `group_b`."""


class ScatterAll(ScatterKeywords, Split, GroupB, InPlace, total=False):
    """The keywords of `reduce_scatter`."""


class BlockAll(Combining, Split, GroupB, InPlace, total=False):
    """The keywords of `reduce_scatter_block`, which without `in_place`, `split` and `group_b` are those of all."""


class ScanKeywords(Combining, Keep, NoGroupB, total=False):
    """The keywords of `scan`, without `in_place` and `split`."""


class ScanAll(ScanKeywords, Split, InPlace, total=False):
    """The keywords of `scan`."""


class ExscanKeywords(ScanKeywords, ExscanFirst, total=False):
    """The keywords of `exscan`, without `in_place` and `split`."""


class ExscanAll(ExscanKeywords, Split, InPlace, total=False):
    """The keywords of `exscan`."""


class LocalAll(LocalOptions, Watched, total=False):
    """The keywords of `reduce_local`."""


class AccumulateAll(AccumulateOptions, Watched, total=False):
    """The keywords of `accumulate`."""


class FetchAll(FetchOptions, Watched, total=False):
    """The keywords of `get_accumulate`."""


class PackAll(PackOptions, Watched, total=False):
    """The keywords of `pack`."""


class UnpackAll(UnpackOptions, Watched, total=False):
    """The keywords of `unpack`."""


class DiffAll(DiffOptions, Watched, total=False):
    """The keywords of `diff`."""


class LocateAll(LocateKeywords, Watched, total=False):
    """The keywords of `locate`, without `top`."""


def watched(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], Progress]:
    """Return the options among the keywords of a call, and what shows how far it is.

    Raises
    ------
    UsageError
        If `progress` is not a function.
    """
    options = dict(keywords)
    return options, shown_by(options.pop("progress", None))
