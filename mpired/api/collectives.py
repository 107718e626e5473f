"""The collectives in Python: reduce, allreduce, the scans, the reduce-scatters, and reduce-local."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeAlias

import numpy as np

from mpired import log
from mpired.api.signatures import as_path, as_rank, as_ranks, shaped, with_options
from mpired.attempts import retry
from mpired.collectives.call import plan_call, plan_fold
from mpired.collectives.request import Request, read_request
from mpired.collectives.results import model_of, plan_groups
from mpired.collectives.run import folded
from mpired.collectives.table import COLLECTIVES, DEFAULTS
from mpired.context import Context
from mpired.engines import connected
from mpired.errors import UsageError
from mpired.formats import Array, Model
from mpired.ops import OpLike, Ops, is_list, labels
from mpired.options import PathLike, Rank, Several, checked
from mpired.ranks.order import ordered, rank_list
from mpired.report import Summary, summarise

Ranks: TypeAlias = Several[Rank]


def _call(
    name: str, ranks: Ranks, op: Ops, *, output: PathLike | None = None, context: Context, **keywords: Any
) -> Any:
    """Run a collective; return the summary of the files, or the arrays of the root, the ranks or both groups."""
    collective = COLLECTIVES[name]
    options = {**DEFAULTS, **keywords, **collective.fixed}
    with connected(options) as engine:
        context, arguments = context._replace(engine=engine), as_ranks(ranks)
        if options["group_b"]:
            group_b = as_ranks(options["group_b"], "`group_b`", "rank {} of group B")
            options = {**options, "group_b": ordered(group_b, options)}
        arguments = rank_list(arguments, options)
        inputs = [*arguments, *(options["group_b"] or ())]
        if output is not None or options["in_place"] or options["split"] or options["count_valid"]:
            path = output if output is None or isinstance(output, str) else as_path(output, "output")
            plan = partial(plan_call, name, arguments, op, path, options)
            with log.collect_warnings(also=log.warn_caller) as warnings:
                call = retry(plan, inputs, context, runs=True)
            return summarise(call, warnings)
        for keyword in ("to", "overwrite", "link", "header", "level", "provenance"):
            if options[keyword] != DEFAULTS[keyword]:
                raise UsageError(f"`{keyword}`", "is for files; name them with `output`, or leave it out")
        request = partial(read_request, collective, arguments, op, options)
        by_op = is_list(op)
        groups = retry(lambda context: _results(request(context), by_op=by_op), inputs, context)
    if collective.to_root:
        return groups[0][options["root"]]
    return groups[0] if len(groups) == 1 else tuple(groups)


def _documented(declared: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of the collective whose name, signature and docstring are declared."""
    name = declared.__name__.replace("_", "-")
    return with_options(*COLLECTIVES[name].options, "progress")(update_wrapper(partial(_call, name), declared))


def _results(request: Request, *, by_op: bool) -> list[list[Any]]:
    """Return the results of each rank of each group, None if it gets none; with `by_op` by the names of the ops."""
    groups = []
    for group in plan_groups(request):
        arrays: list[Any] = [None] * len(group.receivers)
        with folded(plan_fold(group), group.shares, None, request.inputs.context) as (_, results):
            for share, buffers in zip(group.shares, results, strict=True):
                result: Any = _as_arrays(buffers, model_of(group, share))
                if by_op:
                    result = (arrays[share.rank] or {}) | {labels(request.ops)[share.fields[0].op]: result}
                arrays[share.rank] = result
        groups.append(arrays)
    return groups


def _as_arrays(results: Sequence[Array], model: Model) -> np.ndarray | dict[str, np.ndarray]:
    """Return the results with the shapes of a model: an array, or a dict with several results and kept arrays."""
    arrays = {}
    for result, buffer in zip(results, model.buffers, strict=True):
        array = shaped(result, buffer.shape, fortran_order=buffer.fortran_order, form=buffer.form)
        arrays[next(iter(buffer.columns), result.name)] = array
    if model.kept is not None:
        arrays |= {**model.kept.arrays(), **model.cells.values}
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


@_documented
def reduce(ranks: Ranks, op: Ops, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine the same element of every rank with an op (MPI_Reduce; MPI-4.1, 6.9.1).

    The result is the left fold in rank order, `((a0 op a1) op a2) ...`, with the same bits for any number of workers.

    Parameters
    ----------
    ranks
        One file a rank, in rank order: its path, an array, or a file that is open for reading bytes.
    op
        A predefined op such as `mpired.SUM`, or its name in any case, with or without `MPI_`; a user-defined op such as
        `my_ops.py:func`; or a function of this process. For several ops give a list, or names with commas: the ranks
        are read once.
    output
        The file to write; None returns the result. `{op}` in the name makes a file for each op. An existing file is
        replaced only with `overwrite=True`. The file appears whole and durable, or not at all.

    Returns
    -------
    array, dict of arrays, or Summary
        An array in native byte order with the shape of the root's rank; a dict of arrays by column name if a rank has
        several buffers, or if `keep` adds columns. With `index` an array has the fields value and index. With `nulls`
        "ignore" or "propagate" it is a masked array. For a list of ops the result is a dict by the names of the ops.
        If files were written, it is a `Summary`.

    Warns
    -----
    mpired.errors.OverflowWarning
        If a sum or product overflows. With `overflow="error"` this is an error, with `overflow="wrap"` there is no
        warning.
    mpired.errors.MaskedWarning
        If elements of a written result are equal to its fill value, so that readers take them for missing.

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


@_documented
def allreduce(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine all ranks, and give every rank the result (MPI_Allreduce; MPI-4.1, 6.9.6).

    Parameters
    ----------
    ranks, op
        As for `mpired.reduce`.
    output
        The files to write, a pattern such as `"out_{rank}.npy"`; None returns the results. All files appear
        together, whole and durable, or none does.

    Returns
    -------
    list or Summary
        For each rank an array or a dict, as from `mpired.reduce`; with `group_b` two lists. If files were written, a
        `Summary`.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.allreduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="max")
    >>> first[:3], second[:3]
    (array([3, 7, 2], dtype=int32), array([3, 7, 2], dtype=int32))
    """


@_documented
def scan(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine the ranks 0 to i for each rank i (MPI_Scan; MPI-4.1, 6.11.1).

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


@_documented
def exscan(ranks: Ranks, op: OpLike, *, output: PathLike | None = None, context: Context, **options: Any) -> Any:
    """Combine the ranks before rank i, for each rank i (MPI_Exscan; MPI-4.1, 6.11.2).

    Parameters
    ----------
    ranks, op, output
        As for `allreduce`.

    Returns
    -------
    list or Summary
        An array for each rank; None for rank 0, unless it gets the neutral element. If files were written, a `Summary`.

    Examples
    --------
    >>> import mpired
    >>> first, second = mpired.exscan(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="sum")
    >>> first is None, second[:3]
    (True, array([2, 6, 1], dtype=int32))
    """


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
        The number of elements of each block, which may be 0; their sum is the count of a rank.

    Returns
    -------
    list or Summary
        An array of one dimension for each rank; with `group_b` two lists. If files were written, a `Summary`.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter(ranks, "max", [5, 7])]
    [5, 7]
    """
    options |= checked(("counts",), {"counts": counts})
    return _call("reduce-scatter", ranks, op, output=output, context=context, **options)


@_documented
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
        An array of one dimension for each rank; with `group_b` two lists. If files were written, a `Summary`.

    Examples
    --------
    >>> import mpired
    >>> ranks = ["sample_data/counts_0.npy", "sample_data/counts_1.npy"]
    >>> [len(block) for block in mpired.reduce_scatter_block(ranks, "max")]
    [6, 6]
    """


@with_options(*COLLECTIVES["reduce-local"].options, "progress")
def reduce_local(invec: Rank, inoutvec: PathLike, op: OpLike, *, context: Context, **options: Any) -> Summary:
    """Replace the file `inoutvec` by `invec op inoutvec` (MPI_Reduce_local; MPI-4.1, 6.9.7).

    Parameters
    ----------
    invec, inoutvec
        The operands. `invec` may be any rank, as for `reduce`. The file `inoutvec` is replaced by the whole and durable
        result, or does not change.
    op
        As for `mpired.reduce`.

    Returns
    -------
    Summary
        The figures of the call.
    """
    pair: Any = [as_rank(invec, "invec"), as_path(inoutvec, "inoutvec")]
    log.warn(*log.same_file_warnings([inoutvec], [invec]))
    summary: Summary = _call("reduce-local", pair, op, context=context, **options)
    return summary
