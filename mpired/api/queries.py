"""Queries in Python: info, show, diff and locate, which change no file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mpired.api.signatures import as_path, as_rank, as_ranks, with_options
from mpired.attempts import retry
from mpired.context import Context
from mpired.errors import UsageError
from mpired.formats import InputOptions, RankFile, open_rank
from mpired.formats.memory import ArrayRank
from mpired.ops import Ops, is_list
from mpired.options import DIFF, INPUTS, LOCATE, SHOW, Options, PathLike, Rank, Several
from mpired.queries import diff as differences
from mpired.queries import locate as extremes
from mpired.queries import show as figures
from mpired.queries.diff import Difference
from mpired.queries.figures import Shown
from mpired.queries.locate import Location
from mpired.ranks.opening import check_formats
from mpired.ranks.order import RankArgument


@with_options(*INPUTS)
def info(path: Rank, *, context: Context, **options: Any) -> RankFile:
    """Describe the contents of a file from its header.

    Parameters
    ----------
    path
        The path of the file; or an array, or a file that is open for reading bytes.

    Returns
    -------
    RankFile
        The format, and the name, datatype, count and shape of each buffer. `others` has the arrays that cannot be
        combined. `obstacle` is the reason why a file has no buffers.
    """
    rank = ArrayRank("array", path) if isinstance(path, np.ndarray) else as_rank(path, "path")
    return retry(partial(look, rank, options), [rank], context)


def look(rank: RankArgument, options: Options, context: Context) -> RankFile:
    """Describe a file like `info`, in one attempt."""
    inputs = InputOptions.of(options, context)
    file = open_rank(rank, inputs, any_kind=True)
    if not file.obstacle:
        check_formats(inputs, {file.format})
    return file


@with_options(*SHOW)
def show(path: PathLike, *, context: Context, **options: Any) -> Shown:
    """Compute figures of a file: extremes and their indices, the exact mean, the numbers of NaN and nulls.

    For the indices of pairs it counts how often each occurs. The file is read in blocks.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Shown
        The figures of each buffer; with `bins` also histograms.

    Examples
    --------
    >>> import mpired
    >>> shown = mpired.show("sample_data/cells_1.parquet", columns="energy", bins=4)
    >>> shown
    <parquet file 'sample_data/cells_1.parquet': energy: 10 x MPI_DOUBLE (float64) from 0.5 to 4.5>
    >>> energy = shown.buffers[0].parts[0]
    >>> energy.mean, energy.max, energy.max_at, energy.histogram.counts
    (2.5, 4.5, (2,), (2, 2, 2, 4))
    """
    if options["slice"] is not None and options["png"] is None:
        raise UsageError("`slice`", "chooses the plane of a picture; name one with `png`")
    return figures.show(as_path(path, "path"), options, context)


@with_options(*DIFF, "progress")
def diff(a: Rank | Several[Rank], b: Rank | Several[Rank], *, context: Context, **options: Any) -> Difference:
    """Compare the elements of two files, or of all files of two directories.

    Without a tolerance elements are equal if their bits are. The padding of pairs, byte order, format and the order of
    dimensions make no difference. Two missing elements are equal.

    Parameters
    ----------
    a, b
        The paths of files, arrays, or files that are open for reading bytes; or two directories, or two lists.

    Returns
    -------
    Difference
        `equal` is the result. `buffers` has for each buffer the number of elements that differ, and the largest
        differences; `examples` has the first differences. If counts, shapes or columns differ, the reason is given
        instead. For directories and lists `files` has a Difference for each pair. `verdict` is "not known" if an array
        cannot be read.

    Examples
    --------
    >>> import mpired
    >>> difference = mpired.diff("sample_data/counts_0.npy", "sample_data/counts_1.npy", examples=1)
    >>> difference.equal, difference.buffers[0].differing, difference.buffers[0].difference.amount
    (False, 12, 8)
    >>> example = difference.examples[0]
    >>> example.index, int(example.a), int(example.b)
    ((0,), 2, 3)
    """
    return differences.diff(_one_or_several(a, "a"), _one_or_several(b, "b"), options, context)


def _one_or_several(ranks: Rank | Several[Rank], name: str) -> RankArgument | Sequence[RankArgument]:
    """Convert a rank, or a list of ranks."""
    if isinstance(ranks, str | os.PathLike | np.ndarray) or hasattr(ranks, "read"):
        return as_rank(ranks, name)
    return as_ranks(ranks, name, f"{name}[{{}}]")


@with_options(*LOCATE, "progress")
def locate(
    ranks: Sequence[Rank], op: Ops, *, context: Context, **options: Any
) -> Location | list[Location] | dict[str, Any]:
    """Find the maximum or minimum of all ranks: its value, its rank and its index in the rank (MPI-4.1, 6.9.4).

    Among equal elements the lowest rank wins, then the lowest index.

    Parameters
    ----------
    ranks
        One file a rank, in rank order: its path, an array, or a file that is open for reading bytes. They may have
        different counts and shapes.
    op
        `mpired.MAXLOC` or `mpired.MINLOC`, or its name; or a list of both, which reads the ranks once.

    Returns
    -------
    Location, list of Location, or dict of these
        The value, the number of the rank, its file, the index and the name of the column. With `top` a list of these;
        for a list of ops a dict by the names of the ops.

    Examples
    --------
    >>> import mpired
    >>> maximum = mpired.locate(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="maxloc")
    >>> int(maximum.value), maximum.rank, maximum.file, maximum.index
    (8, 0, 'sample_data/counts_0.npy', (6,))
    >>> int(mpired.locate(["sample_data/counts_0.npy"], op=["maxloc", "minloc"])["minloc"].value)
    0
    """
    tops = extremes.locate(as_ranks(ranks), op, options, context)
    places: dict[str, Any] = {name: top[0] if options["top"] is None else top for name, top in tops.items()}
    return places if is_list(op) else next(iter(places.values()))
