"""The words of the command line as ranks, in order, and what all of them must have in common."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence

from mpired.buffers import AtHand, Declared, RankBuffer, RankFile, format_named, open_rank
from mpired.buffers.rank import reordered
from mpired.buffers.transposed import in_order
from mpired.datatypes import Group
from mpired.errors import CountError, DatatypeError, MpiredError, RanksError, UsageError


def open_groups(
    groups: Sequence[Sequence[str | AtHand]], declared: Declared, *, taken: Group, raw_result: bool = False
) -> tuple[tuple[RankFile, ...], ...]:
    """Look at every rank's header, and compare all with the first good one: datatypes and counts agree in all groups.

    Parameters
    ----------
    groups
        Of each group the ranks in order: paths, `-` for standard input, or what a program has at hand.
    declared
        What the user says of the inputs.
    taken
        The datatypes that the op takes; columns of these are offered where some have to be chosen.
    raw_result
        Whether the result will be a raw file, which the options for raw files describe too.

    Raises
    ------
    UsageError
        If there is no rank, standard input is named twice, or something is declared that fits no rank.
    MpiredError, OSError
        If one rank cannot be used: its own error.
    RanksError
        If several cannot: one error that lists them all.
    """
    words = [word for group in groups for word in group]
    if not all(groups):
        raise UsageError("ranks", "there are none; name at least one file")
    if words.count("-") > 1:
        raise UsageError("-", "standard input can be one rank only; write the others to files")
    opened = [_open_group(group, declared, taken) for group in groups]
    for files in opened[1:]:
        _compare("rank 0 of group B", files[0], ("rank 0 of group A", opened[0][0]))
    check_use(declared, [file for files in opened for file in files], raw_result=raw_result)
    return tuple(opened)


def _open_group(words: Sequence[str | AtHand], declared: Declared, taken: Group) -> tuple[RankFile, ...]:
    files: list[RankFile] = []
    errors: list[MpiredError | OSError] = []
    reference: tuple[str, RankFile] | None = None
    for rank, word in enumerate(words):
        try:
            file = open_rank(word, declared)
            file.check_complete(taken)
            reference = reference or (f"rank {rank}", file)
            _compare(f"rank {rank}", file, reference)
            files.append(file)
        except (MpiredError, OSError) as error:
            errors.append(error)
    if len(set(map(str, errors))) == 1:  # what is wrong with an option is told once
        raise errors[0]
    if errors:
        raise RanksError(len(words), errors)
    return tuple(files)


def in_one_order(groups: Sequence[Sequence[RankFile]], root: int) -> tuple[tuple[RankFile, ...], ...]:
    """Return all ranks with the elements of arrays in the order of the root's: C or Fortran.

    If the root's file has no shape, the order is that of the first rank that has one.

    Raises
    ------
    CountError
        If a rank cannot be read in that order.
    """
    files = [*groups[0][root : root + 1], *(file for group in groups for file in group)]
    orders = [
        next((buffer.fortran_order for buffer in ranks if buffer.shape is not None), False)
        for ranks in zip(*(file.buffers for file in files), strict=True)
    ]
    return tuple(tuple(_ordered(file, orders) for file in group) for group in groups)


def _ordered(file: RankFile, orders: Sequence[bool]) -> RankFile:
    """Return a rank with each buffer in its order, Fortran or not."""
    buffers = []
    for buffer, fortran_order in zip(file.buffers, orders, strict=True):
        turned = in_order(buffer, fortran_order=fortran_order)
        if turned.shape is not None and turned.fortran_order != fortran_order:
            reason = f"its format cannot be read in {'Fortran' if fortran_order else 'C'} order, as the root's is"
            raise CountError(file.source.name, f"{reason}; save all ranks in one order")
        buffers.append(turned)
    return file._replace(buffers=tuple(buffers))


def check_use(declared: Declared, files: Sequence[RankFile], *, raw_result: bool = False) -> None:
    """Raise `UsageError` if something is declared that says nothing about any of the files."""
    check_formats(declared, {file.format for file in files}, raw_result=raw_result)


def check_formats(declared: Declared, formats: Collection[str], *, raw_result: bool = False) -> None:
    """Raise `UsageError` if something is declared that says nothing about files of any of the formats."""
    rows = [format_named(name) for name in formats]
    of_input = bool(declared.offset) or declared.count is not None
    concerned = any(row.needs_type for row in rows)
    if not concerned and (of_input or (declared.describes_bytes and not raw_result)):
        raise UsageError("`offset`, `count`, `byte_order` and `datarep`", "describe raw files, and there is none")
    if (declared.columns or declared.pair) and not any(row.has_columns for row in rows):
        raise UsageError("`columns` and `pair`", "choose columns of parquet or arrow files, and there is none")


def unnatural(words: Sequence[str]) -> tuple[str, str] | None:
    """Return two neighbours that stand in the order of their letters but not of their numbers, as rank10, rank2.

    None if there are none, or if the words are in no order of letters either: then somebody chose the order.
    """
    if list(words) != sorted(words):
        return None
    return next((pair for pair in itertools.pairwise(words) if _natural(pair[0]) > _natural(pair[1])), None)


def _natural(word: str) -> list[tuple[int, str]]:
    """Return a key that sorts the numbers in a name by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", word)]


def _compare(this: str, file: RankFile, reference: tuple[str, RankFile]) -> None:
    """Raise an error if a rank's buffers are not like those of the reference, (what it is, file)."""
    other = f"{reference[0]} ({reference[1].source.name!r})"
    mine, theirs = file.buffers, reference[1].buffers
    if len(mine) != len(theirs):
        raise CountError(file.source.name, f"{this} has {len(mine)} buffers, but {other} has {len(theirs)}")
    for buffer, like in zip(mine, theirs, strict=True):
        _compare_buffers(this, buffer, other, like)


def _compare_buffers(this: str, buffer: RankBuffer, other: str, like: RankBuffer) -> None:
    path = buffer.source.name
    where = f" in column {buffer.name!r}" if buffer.name else ""
    if buffer.name and like.name and buffer.name != like.name:
        raise DatatypeError(path, f"{this} has column {buffer.name!r} where {other} has {like.name!r}")
    if buffer.datatype != like.datatype:
        raise DatatypeError(
            path, f"{this} has datatype {buffer.datatype.label}{where}, but {other} has {like.datatype.label}"
        )
    if how := reordered(buffer.fields, like.fields, buffer.datatype):
        raise DatatypeError(path, f"{this} has {how}, as {other} has them")
    if buffer.count != like.count:
        raise CountError(path, f"{this} has count {buffer.count}{where}, but {other} has {like.count}")
    if buffer.shape is not None and like.shape is not None and buffer.shape != like.shape:
        raise CountError(path, f"{this} has shape {buffer.shape}, but {other} has {like.shape}")
