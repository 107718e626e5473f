"""Plain ranks as pairs for MINLOC and MAXLOC: the index of an element, and the type that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpired.datatypes import DATATYPES, Datatype, Group, parse, value_index
from mpired.datatypes.pairs import INDICES, column_names
from mpired.errors import DatatypeError, OpError, UsageError
from mpired.formats import AtHand, RankFile
from mpired.formats.derived import GeneratedIndices, with_indices
from mpired.options import Options
from mpired.ranks.order import EXAMPLE, numbers_of

_DEFAULTS = ("INT", "INT64_T")


def as_pairs(
    groups: Sequence[tuple[RankFile, ...]], words: Sequence[Sequence[str | AtHand]], options: Options
) -> tuple[tuple[RankFile, ...], ...]:
    """Return the ranks of each group as pairs of their values and an index."""
    counting = options["index"] == "global"
    firsts = []  # the index of the first element of each rank of each group
    for files, own in zip(groups, words, strict=True):
        step = files[0].buffers[0].count if counting else 1
        steps = [rank * step for rank in range(len(files))]
        firsts.append(_numbers(files, own, options["rank_regex"]) if options["index"] == "number" else steps)
    index = _index_type(options["index_type"], groups, firsts, counting=counting)
    # The columns of indices may not have the names of others.
    names = [name for buffer in groups[0][0].buffers for name in column_names(buffer.name)]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        reason = f"makes indices named {twice!r}, and that name is taken; choose others with `columns`, or rename it"
        raise UsageError("`index`", reason)

    def with_index(file: RankFile, first: int) -> RankFile:
        buffers = []
        for each in file.buffers:
            pair, what = value_index(each.datatype, index), f"{each.datatype.label}"
            what = f"{each.name!r} of {what}" if each.name else what
            if each.datatype.group is Group.PAIR:
                raise OpError("`index`", f"makes pairs of plain values, and {what} is a pair; leave it out")
            if pair is None:
                raise OpError("`index`", f"makes pairs of numbers that max takes, which {what} is not")
            buffers.append(with_indices(each, pair, GeneratedIndices(first, counting)))
        return file._replace(buffers=buffers)

    return tuple(tuple(map(with_index, files, numbers)) for files, numbers in zip(groups, firsts, strict=True))


def _numbers(files: Sequence[RankFile], words: Sequence[str | AtHand], regex: str | None) -> list[int]:
    """Return the number in the name of each rank's file."""
    paths = [word if isinstance(word, str) else word.path for word in words]
    ranks: dict[int, str] = {}
    for file, number in zip(files, numbers_of(paths, regex), strict=True):
        name = file.source.name
        if number is not None and number not in ranks and file.source.inode is not None:
            ranks[number] = name
            continue
        reason = f"has the same number ({number}) in its name as {ranks[number]}" if number in ranks else ""
        ways = f"use `index='rank'`, or say where it is, such as with {EXAMPLE}"
        raise UsageError(name, f"{reason or 'has no number in its name'}; {ways}")
    return list(ranks)


def _index_type(
    text: Any, groups: Sequence[Sequence[RankFile]], firsts: Sequence[Sequence[int]], *, counting: bool
) -> Datatype:
    """Return the type of indices: the one that is wanted, or else the first usual one that holds all."""
    last: list[tuple[int, int, str]] = []  # the largest index of each rank, its rank, and its name
    for files, numbers in zip(groups, firsts, strict=True):
        for rank, (file, first) in enumerate(zip(files, numbers, strict=True)):
            most = max((buffer.count for buffer in file.buffers), default=0)
            last.append((first + (max(0, most - 1) if counting else 0), rank, file.source.name))
    greatest, rank, name = max(last)
    if text is None:
        types = [row for each in _DEFAULTS for row in DATATYPES if row.name == each]
    else:
        datatype, order = parse(text)
        if datatype.group not in INDICES or order is not None:
            wrong = "is not an integer type; use int, int64_t or another"
            reason = "has a byte order; leave that out" if order else wrong
            raise DatatypeError("`index_type`", f"{text} {reason}")
        types = [datatype]
    for each in types:
        if greatest <= np.iinfo(each.form).max:
            return each
    reason = f"{types[-1].label} cannot hold the index {greatest} of rank {rank} ({name})"
    way_out = "use a wider one, such as int64_t or uint64_t, or `index='rank'`"
    raise UsageError("`index_type`", f"{reason}; {way_out}")
