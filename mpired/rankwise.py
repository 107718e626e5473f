"""The verbs whose results go to the ranks: allreduce, the scans, the reduce-scatters, and reduce-local."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack, cast

from mpired import ops
from mpired.buffers import RankFile, output_format
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.run import Course, Progress, Result, folded, run_together
from mpired.collectives.table import BEFORE, COLLECTIVES, Collective, Share, Task
from mpired.engines import cores, userops
from mpired.errors import UsageError
from mpired.patterns import Named, check_different, expand
from mpired.ranks import unnatural
from mpired.storage.output import nothing
from mpired.storage.staging import settle
from mpired.storage.together import Together, check_outputs
from mpired.verbs import (
    Inputs,
    Options,
    PathLike,
    Reduction,
    Request,
    as_arrays,
    check_names,
    is_raw,
    keep_around,
    laid_out,
    plan_reduce,
    read_request,
    unwatched,
)

_EXSCAN_FIRST = ("none", "identity")
# The options that not every call has.
_OWN = {name for collective in COLLECTIVES.values() for name in collective.options}


class RankwiseOptions(Inputs, total=False):
    """What may be said of a call whose results go to the ranks."""

    to: str | None
    overwrite: bool
    in_place: bool
    group_b: Sequence[PathLike]
    jobs: int
    max_memory: int | None
    commute: bool | None
    op_timeout: float | None
    link: bool
    counts_b: Sequence[int] | None
    exscan_first: str


class LocalOptions(Inputs, total=False):
    """What may be said of `reduce_local`."""

    jobs: int
    max_memory: int | None
    commute: bool | None
    op_timeout: float | None


class _Options(RankwiseOptions, total=False):
    counts: Sequence[int] | None


class Rankwise(NamedTuple):
    """A call that has passed all checks.

    Parameters
    ----------
    collective
        Which one it is.
    groups
        The ranks of each group.
    courses
        A fold for each group that gets results, and these.
    pattern
        The names of the results; None if they replace the ranks' files.
    timeout
        Seconds that one application of the op may take.
    link
        Whether equal results become one file with several names.
    """

    collective: Collective
    groups: tuple[tuple[RankFile, ...], ...]
    courses: tuple[Course, ...]
    pattern: str | None
    timeout: float | None = None
    link: bool = False

    @property
    def plans(self) -> list[Plan]:
        """What is to be done."""
        return [course.plan for course in self.courses]

    @property
    def paths(self) -> list[str]:
        """The files of the results."""
        return [result.path for course in self.courses for result in course.results]

    @property
    def doubtful_order(self) -> tuple[str, str] | None:
        """Two ranks that are probably in the wrong order, if the order shows in the results."""
        op = self.courses[0].plan.op
        rounds = any(buffer.datatype.group in op.rounds for buffer in self.groups[0][0].buffers)
        if not rounds and self.collective.alike:
            return None
        names = ([file.source.name for file in group] for group in self.groups)
        return next(filter(None, map(unnatural, names)), None)

    @property
    def order_shows(self) -> str:
        """Where the order of the ranks shows."""
        return "last bits" if self.collective.alike else "results"

    def run(self, progress: Progress, *, overwrite: bool = False, on_commit: Callable[[], None] = nothing) -> None:
        """Do it, and commit all results together."""
        op = self.courses[0].plan.op
        with (
            Together(self.paths, overwrite=overwrite, on_commit=on_commit) as outputs,
            userops.deaths_explained(op, self.timeout),
        ):
            run_together(self.courses, outputs, userops.engine(op), progress, link=self.link)


def plan_rankwise(
    name: str,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    output: str | None = None,
    **options: Unpack[_Options],
) -> Rankwise:
    """Check a call: words, every rank, the op on the datatype, the name and form of every result. Nothing is written.

    Parameters
    ----------
    name
        The collective, as its command is called.
    ranks
        Paths in rank order.
    op
        The op's name.
    output
        The pattern of the results' names.

    Raises
    ------
    MpiredError, OSError
        If the call is not possible.
    """
    collective, in_place = COLLECTIVES[name], options.get("in_place", False)
    if in_place and options.get("link"):
        raise UsageError("--link", "would make all ranks' files one; in place each rank keeps its own")
    if in_place and output is not None:
        raise UsageError("--in-place", "writes over the ranks' files; leave --output out")
    if not in_place and output is None:
        reason = "is missing; name the results by a pattern, as 'out_{rank}.npy', or replace the ranks with --in-place"
        raise UsageError("--output", reason)
    request = _read(collective, ranks, op, options, raw_result=output is not None and is_raw(output, options))
    dealt = [_results(deal, collective, request, output, options) for deal in _deals(collective, request, options)]
    results = [result for _, each in dealt for result in each]
    takers = [taker for deal, each in dealt for taker in deal.takers]
    paths = [result.path for result in results]
    check_different(paths, takers)
    settle(paths)
    check_outputs(paths, overwrite=in_place or options.get("overwrite", False))
    if not in_place:
        _check_inputs(paths, takers, request)
    courses = tuple(_course(deal, each, request, options) for deal, each in dealt)
    return Rankwise(collective, request.groups, courses, output, options.get("op_timeout"), options.get("link", False))


class _Deal(NamedTuple):
    """What one group reduces, and what the ranks of a group, itself or the other one, get of it."""

    givers: tuple[RankFile, ...]
    takers: tuple[Named, ...]
    shares: tuple[Share, ...]


def _read(
    collective: Collective,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    options: _Options,
    *,
    raw_result: bool = False,
) -> Request:
    check_names(options, _Options)
    for name in _OWN & options.keys() - set(collective.options):
        raise TypeError(f"unexpected keyword argument {name!r}; {collective.name} has no such option")
    if options.get("group_b") and not collective.intercomm:
        reason = f"MPI defines no {collective.name} between two groups (MPI-4.1, {collective.section})"
        raise UsageError("--group-b", reason)
    if (first := options.get("exscan_first", "none")) not in _EXSCAN_FIRST:
        raise UsageError("--exscan-first", f"{first!r} is none of {', '.join(_EXSCAN_FIRST)}")
    known = Options.__annotations__
    told = cast("Options", {key: value for key, value in options.items() if key in known})
    return read_request(ranks, op, told, raw_result=raw_result)


def _deals(collective: Collective, request: Request, options: _Options) -> Iterator[_Deal]:
    """Yield what each group that gets something gets: with two groups, what the other one reduces."""
    counts = options.get("counts"), options.get("counts_b")
    for i, takers in enumerate(request.groups):
        givers = request.groups[-1 - i]
        task = Task(
            last=len(givers) - 1,
            nranks=len(takers),
            count=takers[0].buffers[0].count,
            counts=_counts(collective, counts[i], "--counts-b" if i else "--counts"),
            identity=options.get("exscan_first") == "identity",
        )
        shares = tuple(collective.shares(task))
        for buffer in givers[0].buffers:
            if any(share.last == BEFORE for share in shares):
                ops.neutral(request.op, buffer.datatype)  # raises if there is none
        last = max((share.last for share in shares), default=BEFORE)
        named = tuple(Named("ab"[i], share.rank, takers[share.rank]) for share in shares)
        yield _Deal(givers[: max(1, last + 1)], named, shares)


def _counts(collective: Collective, counts: Sequence[int] | None, option: str) -> tuple[int, ...] | None:
    if "counts" in collective.options and counts is None:
        raise UsageError(option, "is missing; say how many elements each rank of the group gets, as 3,0,5")
    for count in counts or ():
        if not 0 <= count < 2**63:
            raise UsageError(option, f"{count} is not between 0 and 2**63 - 1")
    return None if counts is None else tuple(counts)


def _results(
    deal: _Deal, collective: Collective, request: Request, output: str | None, options: _Options
) -> tuple[_Deal, tuple[Result, ...]]:
    """Say where each result of a deal goes, and how it lies there."""
    if output is None:
        words = request.words["ab".index(deal.takers[0].group)] if deal.takers else []
        paths = [words[taker.rank] for taker in deal.takers]
    else:
        paths = expand(output, deal.takers)
    results: list[Result] = []
    for path, taker, share in zip(paths, deal.takers, deal.shares, strict=True):
        if results and collective.alike and output is not None:  # all are modelled on one, to be the same file
            results.append(results[0]._replace(share=share, path=path))
        else:
            results.append(_result(path, taker.file, share, collective, request, options))
    return deal, tuple(results)


def _result(
    path: str, file: RankFile, share: Share, collective: Collective, request: Request, options: _Options
) -> Result:
    """Model a result on the file of its rank, which it replaces if it is to be in place."""
    in_place = options.get("in_place", False)
    model = file if collective.whole else _part(file, share)
    form = output_format(path, file.format if in_place else options.get("to"), model, terminal=False)
    layout = laid_out(form, model, request.said)
    if in_place:
        kept = keep_around(file, form, cast("Options", options))
        # The header of npy says how many elements there are.
        layout = layout if form.name == "npy" and not collective.whole else kept
    return Result(share, path, form.name, layout)


def _part(file: RankFile, share: Share) -> RankFile:
    """Return a file like this one with so many elements, in one dimension."""
    buffers = [
        replace(cast("Any", buffer), count=share.count, shape=None, fortran_order=False) for buffer in file.buffers
    ]
    return file._replace(buffers=buffers)


def _check_inputs(paths: Sequence[str], takers: Sequence[Named], request: Request) -> None:
    """Raise `UsageError` if a result would replace the file of another rank."""
    inputs = {
        file.source.stamp[:2]: Named("ab"[i], rank, file)
        for i, group in enumerate(request.groups)
        for rank, file in enumerate(group)
    }
    for path, taker in zip(paths, takers, strict=True):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        other = inputs.get((status.st_dev, status.st_ino))
        if other is not None and other.file is not taker.file:
            reason = f"is the file of rank {other.rank}, and would be replaced by the result of rank {taker.rank}"
            raise UsageError(path, f"{reason}; name other files, or replace each rank's by its own with --in-place")


def _course(deal: _Deal, results: tuple[Result, ...], request: Request, options: _Options) -> Course:
    jobs, max_memory = options.get("jobs", 0) or cores.usable_cores(), options.get("max_memory")
    return Course(make_plan(request.op, deal.givers, jobs, max_memory, noutputs=len(deal.shares)), results)


def _call(
    name: str,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    output: PathLike | None,
    options: _Options,
) -> Any:
    """Run a collective for the Python API: into files, or into arrays, a list for each group."""
    if output is not None or options.get("in_place"):
        planned = plan_rankwise(name, ranks, op, None if output is None else os.fspath(output), **options)
        overwrite = options.get("overwrite", False) or options.get("in_place", False)
        planned.run(unwatched, overwrite=overwrite)
        return None
    for said in ("to", "overwrite", "link"):
        if options.get(said):
            raise UsageError(f"--{said}", "is said of files; name them with output, or leave it out")
    collective = COLLECTIVES[name]
    request = _read(collective, ranks, op, options)
    lists = [
        _arrays(deal, collective, request, len(group), options)
        for deal, group in zip(_deals(collective, request, options), request.groups, strict=True)
    ]
    return lists[0] if len(lists) == 1 else tuple(lists)


def _arrays(deal: _Deal, collective: Collective, request: Request, nranks: int, options: _Options) -> list[Any]:
    """Return what each rank of a group gets, None for a rank that gets nothing."""
    arrays: list[Any] = [None] * nranks
    plan = _course(deal, (), request, options).plan
    with (
        userops.deaths_explained(request.op, options.get("op_timeout")),
        folded(plan, deal.shares, None, userops.engine(request.op), unwatched) as results,
    ):
        for taker, share, buffers in zip(deal.takers, deal.shares, results, strict=True):
            model = taker.file if collective.whole else _part(taker.file, share)
            arrays[share.rank] = as_arrays(buffers, model)
    return arrays


def allreduce(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    *,
    output: PathLike | None = None,
    **options: Unpack[RankwiseOptions],
) -> Any:
    """Combine all ranks, and give every rank the result (MPI_Allreduce; MPI-4.1, 6.9.6).

    Parameters
    ----------
    ranks
        One file a rank, in rank order.
    op
        As for `mpired.reduce`.
    output
        The files to write, a pattern as `"out_{rank}.npy"`; None returns the results. All files appear
        together, whole and durable, or none does.
    **options
        As the options of `mpired allreduce`: type, format (`--from`), columns, pair, offset, count,
        byte_order, to, overwrite (`--force`), in_place, link, group_b, jobs, max_memory, commute, op_timeout.

    Returns
    -------
    list or None
        An array for each rank, as `mpired.reduce` gives one; two lists if there is `group_b`; None if
        files were written.

    Raises
    ------
    mpired.errors.MpiredError
        If the request breaks a rule of MPI or a file is not usable; the class says which.
    OSError
        If the system refuses.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.allreduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="max")
    >>> first[:3], second[:3]
    (array([3, 7, 2], dtype=int32), array([3, 7, 2], dtype=int32))
    """
    return _call("allreduce", ranks, op, output, cast("_Options", options))


def scan(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    *,
    output: PathLike | None = None,
    **options: Unpack[RankwiseOptions],
) -> Any:
    """Give rank i the ranks 0 to i combined (MPI_Scan; MPI-4.1, 6.11.1).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.
    **options
        As for `allreduce`, without link and group_b.

    Returns
    -------
    list or None
        An array for each rank; None if files were written.

    Raises
    ------
    mpired.errors.MpiredError, OSError
        As `allreduce`.

    Examples
    --------
    >>> import mpired
    >>> for prefix in mpired.scan([f"sample_data/counts_{rank}.npy" for rank in range(3)], op="sum"):
    ...     print(prefix[:4])
    [2 6 1 5]
    [ 5 13  3 11]
    [ 9 21  6 18]
    """
    return _call("scan", ranks, op, output, cast("_Options", options))


def exscan(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    *,
    output: PathLike | None = None,
    **options: Unpack[RankwiseOptions],
) -> Any:
    """Give rank i the ranks before it combined (MPI_Exscan; MPI-4.1, 6.11.2).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.
    **options
        As for `scan`; and exscan_first, "identity" to give rank 0, which has none before it, the op's
        neutral element.

    Returns
    -------
    list or None
        An array for each rank, None for rank 0 unless it gets the neutral element; None if files were written.

    Raises
    ------
    mpired.errors.MpiredError, OSError
        As `allreduce`.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.exscan(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="sum")
    >>> first is None, second[:3]
    (True, array([2, 6, 1], dtype=int32))
    """
    return _call("exscan", ranks, op, output, cast("_Options", options))


def reduce_scatter(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    counts: Sequence[int],
    *,
    output: PathLike | None = None,
    **options: Unpack[RankwiseOptions],
) -> Any:
    """Combine all ranks, and give each a block of the result (MPI_Reduce_scatter; MPI-4.1, 6.10.2).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.
    counts
        How many elements each rank gets, 0 allowed; they sum to the count of a rank.
    **options
        As for `allreduce`, without link; and counts_b, the counts of the ranks of group_b.

    Returns
    -------
    list or None
        An array of one dimension for each rank; two lists if there is `group_b`; None if files were written.

    Raises
    ------
    mpired.errors.CountError
        If the counts do not sum to that of a rank.
    mpired.errors.MpiredError, OSError
        As `allreduce`.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter(ranks, "max", [5, 7])]
    [5, 7]
    """
    return _call("reduce-scatter", ranks, op, output, {**options, "counts": counts})


def reduce_scatter_block(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    *,
    output: PathLike | None = None,
    **options: Unpack[RankwiseOptions],
) -> Any:
    """Combine all ranks, and give each an equal block of the result (MPI_Reduce_scatter_block; MPI-4.1, 6.10.1).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.
    **options
        As for `allreduce`, without link.

    Returns
    -------
    list or None
        An array of one dimension for each rank; two lists if there is `group_b`; None if files were written.

    Raises
    ------
    mpired.errors.CountError
        If the elements cannot be divided evenly.
    mpired.errors.MpiredError, OSError
        As `allreduce`.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter_block(ranks, "max")]
    [6, 6]
    """
    return _call("reduce-scatter-block", ranks, op, output, cast("_Options", options))


def plan_reduce_local(
    invec: PathLike, inoutvec: PathLike, op: str | Callable[..., Any], **options: Unpack[LocalOptions]
) -> Reduction:
    """Check one application of an op to two files, of which the second is replaced by the result.

    Raises
    ------
    MpiredError, OSError
        If it is not possible.
    """
    check_names(options, LocalOptions)
    planned = plan_reduce([invec, inoutvec], op, root=1, in_place=True, **options)
    return planned._replace(collective=COLLECTIVES["reduce-local"])


def reduce_local(
    invec: PathLike, inoutvec: PathLike, op: str | Callable[..., Any], **options: Unpack[LocalOptions]
) -> None:
    """Replace the file `inoutvec` by `invec op inoutvec` (MPI_Reduce_local; MPI-4.1, 6.9.7).

    Parameters
    ----------
    invec, inoutvec
        Two files; the second appears with the result, whole and durable, or stays as it was.
    op
        As for `mpired.reduce`.
    **options
        As the options of `mpired reduce-local`: type, format (`--from`), columns, pair, offset, count,
        byte_order, jobs, max_memory, commute, op_timeout.

    Raises
    ------
    mpired.errors.MpiredError, OSError
        As `mpired.reduce`.
    """
    plan_reduce_local(invec, inoutvec, op, **options).run(unwatched, overwrite=True)
