"""The Python functions of the collectives: reduce, allreduce, the scans, the reduce-scatters, and reduce-local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from mpired import log
from mpired.api.outcome import as_arrays
from mpired.api.signatures import as_path, as_rank, as_ranks, with_options
from mpired.attempts import carry_out, repeated
from mpired.collectives.call import plan_call, plan_fold
from mpired.collectives.request import Request, read_request
from mpired.collectives.results import group_plans, model_of
from mpired.collectives.run import folded
from mpired.collectives.table import COLLECTIVES, DEFAULTS
from mpired.context import Context
from mpired.engines import connected
from mpired.errors import UsageError
from mpired.ops import OpLike, Ops, is_list, labels
from mpired.options import PathLike, Rank, Several, checked
from mpired.ranks.order import ordered, rank_list
from mpired.report import Summary, summarise

Ranks: TypeAlias = Several[Rank]


@with_options(*COLLECTIVES["reduce"].options, "progress")
def reduce(ranks: Ranks, op: Ops, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine the same element of every rank with an op (MPI_Reduce; MPI-4.1, 6.9.1).

    The left fold in rank order, `((a0 o a1) o a2) ...`, the same bits for any number of workers.

    Parameters
    ----------
    ranks
        One file a rank, in rank order: its path, an array, or a file that is open for reading bytes.
    op
        A predefined op such as `mpired.SUM`, or its name, in any case, with or without `MPI_`; the place of a
        user-defined op such as `my_ops.py:func`; or a function of this process. A list of these, or names with commas
        between them, read the ranks once.
    output
        The file to write, with `{op}` in its name a file for each op; None returns the result. An existing file is
        replaced only with `overwrite=True`. It appears whole and durable, or not at all.

    Returns
    -------
    array, dict of arrays, or Summary
        The result in native byte order, with the shape of the root's rank: an array, or a dict of arrays by column
        name where a rank has several buffers, or `keep` adds columns. Which of them, the files decide, and arrays give
        an array. With `index`, an array with the fields value and index. With `nulls` "ignore" or "propagate" a masked
        array, in which nulls are masked. For a list of ops a dict of these by the names of the ops. If it was written
        to a file, or to several, a `Summary`, as the command says it.

    Warns
    -----
    mpired.errors.OverflowWarning
        If a sum or product overflows; with `overflow="error"` it is an error, with `overflow="wrap"` nothing.
    mpired.errors.MaskedWarning
        If elements of a result that is written have values that mean that they are missing.

    Examples
    --------
    >>> import mpired
    >>> mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="max")[:3]
    array([3, 7, 2], dtype=int32)
    >>> mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="minloc", index="rank")[:3].tolist()
    [(2, 0), (6, 0), (1, 0)]
    >>> mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op=["mean", "max"])["mean"][:3]
    array([2.5, 6.5, 1.5])
    """
    return _call("reduce", ranks, op, output, context, options)


def _call(
    name: str, ranks: Ranks, op: Ops, output: PathLike | None, context: Context, keywords: Mapping[str, object]
) -> Any:
    """Run a collective for the Python API: into files, which gives a summary, or into arrays, a list for each group."""
    collective = COLLECTIVES[name]
    options = {**DEFAULTS, **keywords, **collective.fixed}
    with connected(options) as engine:
        context, words = context._replace(engine=engine), as_ranks(ranks)
        if options["group_b"]:
            group_b = as_ranks(options["group_b"], "`group_b`", "rank {} of group B")
            options = {**options, "group_b": ordered(group_b, options)}
        words = rank_list(words, options)
        named = [*words, *(options["group_b"] or ())]
        if output is not None or options["in_place"] or options["split"] or options["count_valid"]:
            path = output if output is None or isinstance(output, str) else as_path(output, "output")
            plan = partial(plan_call, name, words, op, path, options)
            with log.collect_warnings(also=log.warn_caller) as warned:
                done = repeated(partial(carry_out, plan, named), named, context)
            return summarise(done, warned)
        for each in ("to", "overwrite", "link", "header", "level", "provenance"):
            if options[each] != DEFAULTS[each]:
                raise UsageError(f"`{each}`", "is for files; name them with `output`, or leave it out")
        plan_arrays = partial(read_request, collective, words, op, options)
        by_op = is_list(op)
        groups = repeated(lambda context: _results(plan_arrays(context), by_op=by_op), named, context)
    if collective.to_root:
        return groups[0][options["root"]]
    return groups[0] if len(groups) == 1 else tuple(groups)


def _results(request: Request, *, by_op: bool) -> list[list[Any]]:
    """Return what each rank of each group gets: None for nothing, or with `by_op` a dict by the names of the ops."""
    groups = []
    for group_plan in group_plans(request):
        files = request.groups[group_plan.number]
        arrays: list[Any] = [None] * len(files)
        with folded(plan_fold(group_plan, (), request), group_plan.shares, None, request.inputs.context) as results:
            for share, buffers in zip(group_plan.shares, results, strict=True):
                result: Any = as_arrays(buffers, model_of(files[share.rank], group_plan, share, request))
                if by_op:
                    result = (arrays[share.rank] or {}) | {labels(request.ops)[share.fields[0].op]: result}
                arrays[share.rank] = result
        groups.append(arrays)
    return groups


@with_options(*COLLECTIVES["allreduce"].options, "progress")
def allreduce(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine all ranks, and give every rank the result (MPI_Allreduce; MPI-4.1, 6.9.6).

    Parameters
    ----------
    ranks
        One file a rank, in rank order: its path, an array, or a file that is open for reading bytes.
    op
        As for `mpired.reduce`.
    output
        The files to write, a pattern as `"out_{rank}.npy"`; None returns the results. All files appear
        together, whole and durable, or none does.

    Returns
    -------
    list or Summary
        An array for each rank, like that of `mpired.reduce`; two lists if there is `group_b`. If files
        were written, a `Summary`.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.allreduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="max")
    >>> first[:3], second[:3]
    (array([3, 7, 2], dtype=int32), array([3, 7, 2], dtype=int32))
    """
    return _call("allreduce", ranks, op, output, context, options)


@with_options(*COLLECTIVES["scan"].options, "progress")
def scan(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine ranks 0 to i for each rank i (MPI_Scan; MPI-4.1, 6.11.1).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.

    Returns
    -------
    list or Summary
        An array for each rank. If files were written, a `Summary`.

    Examples
    --------
    >>> import mpired
    >>> for prefix in mpired.scan([f"sample_data/counts_{rank}.npy" for rank in range(3)], op="sum"):
    ...     print(prefix[:4])
    [2 6 1 5]
    [ 5 13  3 11]
    [ 9 21  6 18]
    """
    return _call("scan", ranks, op, output, context, options)


@with_options(*COLLECTIVES["exscan"].options, "progress")
def exscan(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine the ranks before rank i, for each rank i (MPI_Exscan; MPI-4.1, 6.11.2).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.

    Returns
    -------
    list or Summary
        An array for each rank, None for rank 0 unless it gets the neutral element. If files were written, what was
        done.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.exscan(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="sum")
    >>> first is None, second[:3]
    (True, array([2, 6, 1], dtype=int32))
    """
    return _call("exscan", ranks, op, output, context, options)


@with_options(*COLLECTIVES["reduce-scatter"].options, "progress")
def reduce_scatter(
    ranks: Ranks, op: OpLike, counts: Sequence[int], *, output: PathLike | None = None, context: Context, **options: Any
) -> Any:
    """Combine all ranks, and give each a block of the result (MPI_Reduce_scatter; MPI-4.1, 6.10.2).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.
    counts
        How many elements each rank gets, 0 allowed; they sum to the count of a rank.

    Returns
    -------
    list or Summary
        An array of one dimension for each rank; two lists if there is `group_b`. If files were written, what was
        done.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter(ranks, "max", [5, 7])]
    [5, 7]
    """
    return _call("reduce-scatter", ranks, op, output, context, {**options, **checked(("counts",), {"counts": counts})})


@with_options(*COLLECTIVES["reduce-scatter-block"].options, "progress")
def reduce_scatter_block(
    ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any
) -> Any:
    """Combine all ranks, and give each an equal block of the result (MPI_Reduce_scatter_block; MPI-4.1, 6.10.1).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.

    Returns
    -------
    list or Summary
        An array of one dimension for each rank; two lists if there is `group_b`. If files were written, what was
        done.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter_block(ranks, "max")]
    [6, 6]
    """
    return _call("reduce-scatter-block", ranks, op, output, context, options)


@with_options(*COLLECTIVES["reduce-local"].options, "progress")
def reduce_local(invec: Rank, inoutvec: PathLike, op: OpLike, *, context: Context, **options: Any) -> Summary:
    """Replace the file `inoutvec` by `invec op inoutvec` (MPI_Reduce_local; MPI-4.1, 6.9.7).

    Parameters
    ----------
    invec, inoutvec
        Two files; the second appears with the result, whole and durable, or stays as it was. The first may be any
        rank, as for `reduce`.
    op
        As for `mpired.reduce`.

    Returns
    -------
    Summary
        The result in figures.
    """
    pair: Any = [as_rank(invec, "invec"), as_path(inoutvec, "inoutvec")]
    log.warn(*log.same_files([inoutvec], [invec]))
    summary: Summary = _call("reduce-local", pair, op, None, context, options)
    return summary
