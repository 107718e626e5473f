"""The commands of the collectives, made from the rows of `COLLECTIVES`; and reduce-local."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from mpired import log
from mpired.attempts import retry
from mpired.cli import params
from mpired.cli.messages import exit_if_skipped, pending_warnings, print_plan, print_summary
from mpired.collectives.call import plan_call
from mpired.collectives.table import COLLECTIVES, DEFAULTS
from mpired.engines import connected
from mpired.errors import InputWarning, MaskedWarning, OrderWarning, OverflowWarning, SameFileWarning
from mpired.files.places import is_terminal
from mpired.options import LOCAL, REPORT
from mpired.ranks.order import RankArgument, ordered, rank_list
from mpired.report import describe_call, summarise

_AFTER_SUMMARY = (OverflowWarning, InputWarning, MaskedWarning, OrderWarning, SameFileWarning)


def _command(name: str, description: str) -> Callable[[], click.Command]:
    """Make the command of a collective; `description` is its help."""
    row = COLLECTIVES[name]

    def run(*, ranks: tuple[str, ...], op: str, output: str | None, **options: object) -> None:
        # Another option names the files of the result, in place of the default standard output.
        is_named = options["in_place"] or (options.get("split") is not None and not params.is_written("output"))
        _combine(name, ranks, op, None if row.to_root and is_named and output == "-" else output, options)

    run.__name__, run.__doc__ = name, description
    output_key = "output" if row.to_root else "output@ranks"
    return params.command("op", output_key, *row.options, "rank_numbers", *REPORT, ranks="RANK...")(run)


_HELP = {
    "reduce": """Combine files into one, element by element, as MPI_Reduce does.

\b
Examples:
  mpired reduce --op mean,std,max sample_data/tas_?.nc -o stats.nc
  mpired reduce --op maxloc --index rank sample_data/tas_?.nc \\
      --split warmest.nc,member.nc
  mpired reduce --op sum sample_data/counts_?.npy -o total.npy
  mpired reduce --op maxloc --type double_int sample_data/maxloc_?.bin
  mpired reduce --op sum --type '>i4' --offset 16 \\
      sample_data/dump_?.bin | od -An -t d4 --endian=big

Each RANK is a file with one rank's buffer: .npy, .parquet, .arrow, .arrows, .npz, .nc, .h5, .zarr,
.safetensors, or raw binary with --type. `-` is standard input. The ranks are combined in their order,
((r0 op r1) op r2) ..., with the same bits for any number of workers. The result appears whole and on the
disk, or not at all. With several ops it has an array for each, such as tas_mean; with {op} in its name there is
a file for each.
""",
    "allreduce": """Combine the same element of every RANK, and give every rank the result, as MPI_Allreduce does.

\b
Examples:
  mpired allreduce --op max sample_data/counts_?.npy -o 'max_{rank}.npy'
  mpired allreduce --op sum sample_data/waves_?.npy \\
      -o 'sum_of_{stem}.npy' --link

Each RANK is a file, as for `mpired reduce`, and so is each result: --output names them by a pattern, or
--in-place replaces the ranks. They have the bits of `mpired reduce`, and the form of rank 0's file, or with
--in-place of the file that they replace. All appear together, whole and durable, or none does.
""",
    "scan": """Write running results, one file per rank, as MPI_Scan does: the file of rank i combines ranks 0 to i.

\b
Examples:
  mpired scan --op sum sample_data/counts_?.npy -o 'sums_{rank}.npy'
  mpired scan --op maxloc sample_data/maxloc_?.parquet \\
      -o 'leader_{rank:03d}.parquet'

Each RANK is a file, as for `mpired reduce`, and so is each result: --output names them by a pattern, or
--in-place replaces the ranks. Each is modelled on its own rank's file. The last one has the bits of
`mpired reduce`. All appear together, whole and durable, or none does.
""",
    "exscan": """Write running results of the ranks before each, as MPI_Exscan does.

\b
Examples:
  mpired exscan --op sum sample_data/counts_?.npy -o 'offsets_{rank}.npy'
  mpired exscan --op sum --exscan-first identity \\
      sample_data/counts_?.npy -o 'from_zero_{rank}.npy'

Like `mpired scan`, without the rank's own elements. No rank comes before rank 0, and MPI leaves its result
undefined: rank 0 gets no file, and with --in-place its file stays as it is.
""",
    "reduce-scatter": """Combine the ranks, and give each a block of the result, as MPI_Reduce_scatter does.

\b
Examples:
  mpired reduce-scatter --op sum --counts 3,0,4,5 \\
      sample_data/counts_?.npy -o 'part_{rank}.npy'

The blocks follow each other: rank 0 gets the first --counts elements, and so on; 0 gives a file without
elements. Each result is modelled on its own rank's file, with one dimension. Put together they have
the bits of `mpired reduce`. All appear together, whole and durable, or none does.
""",
    "reduce-scatter-block": """Combine the ranks, and give each an equal block, as MPI_Reduce_scatter_block does.

\b
Examples:
  mpired reduce-scatter-block --op sum sample_data/counts_?.npy \\
      -o 'block_{rank}.npy'

As `mpired reduce-scatter`; the number of elements must be a multiple of the number of ranks.
""",
}
reduce, allreduce, scan, exscan, reduce_scatter, reduce_scatter_block = itertools.starmap(_command, _HELP.items())


@params.command("op", *LOCAL, *REPORT, invec="INVEC", inoutvec="INOUTVEC")
def reduce_local(*, invec: str, inoutvec: str, op: str, **options: Any) -> None:
    """Replace the file INOUTVEC by `INVEC op INOUTVEC`, as MPI_Reduce_local does.

    \b
    Examples:
      mpired reduce-local --op sum sample_data/counts_0.npy \\
          sample_data/counts_1.npy

    One application of the op, INVEC the lower rank. The file appears with the result, whole and durable, or
    stays as it was; what a raw file has before and after its elements stays.
    """
    log.warn(*log.same_file_warnings([inoutvec], [invec]))
    _combine("reduce-local", [invec, inoutvec], op, None, options)


def _combine(
    name: str, arguments: Sequence[str], op: str, output: str | None, own_options: Mapping[str, object]
) -> None:
    """Carry out a collective, and print its summary, or the plan of a dry run."""
    collective = COLLECTIVES[name]
    options = {**DEFAULTS, **own_options, **collective.fixed}
    ranks: Sequence[RankArgument] = arguments
    if "files_from" in own_options:  # not reduce-local, whose arguments are paths
        group_b: Any = options["group_b"]
        ranks, *second_group = params.expand(arguments, *([group_b] if group_b else []))
        options = {**options, "group_b": ordered(second_group[0], options) if second_group else group_b}
        ranks = rank_list(ranks, options)
    inputs = [*ranks, *(options["group_b"] or ())]
    terminal = collective.to_root and is_terminal(output or "")
    plan = partial(plan_call, name, ranks, op, output, options, terminal=terminal)
    with connected(options) as engine:
        context = params.context()._replace(engine=engine)
        call = retry(plan, inputs, context, runs=True)
    if context.dry_run:
        print_plan(describe_call(call), [source.name for source in call.sources])
    else:
        summary = summarise(call, pending_warnings)
        print_summary(summary._asdict(), summary.line(), _AFTER_SUMMARY)
    exit_if_skipped(call.request.skipped)
