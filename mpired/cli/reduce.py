"""`mpired reduce`."""

from __future__ import annotations

import os
from typing import Any

import click

from mpired.cli import params, progress, signals
from mpired.cli.messages import say, write
from mpired.engines import pool
from mpired.report import summarise
from mpired.storage.output import has_other_names, is_terminal
from mpired.verbs import Reduction, plan_reduce


@click.command()
@params.OP
@params.INPUTS
@params.OUTPUT
@params.option("--root", type=int, default=0, metavar="R", help="The rank whose file the result is modelled on.")
@params.option("--in-place", is_flag=True, help="Write the result over the root's file (MPI_IN_PLACE).")
@params.EFFORT
@params.REPORT
@click.argument("ranks", nargs=-1, metavar="RANK...")
def reduce(**options: Any) -> None:
    """Combine the same element of every RANK with an op, as MPI_Reduce does.

    Each RANK is a file with one rank's buffer, in rank order: .npy, .parquet, .arrow, or raw binary
    with --type. `-` is standard input. The result is the left fold ((r0 op r1) op r2) ..., the same bits
    for any number of workers. It appears whole and durable, or not at all.

    \b
    Examples:
      mpired reduce --op maxloc --type double_int sample_data/maxloc_?.bin
      mpired reduce --op sum sample_data/counts_?.npy -o total.npy
      mpired reduce --op maxloc sample_data/maxloc_?.parquet --to csv
      mpired reduce --op sum --type '>i4' --offset 16 sample_data/dump_?.bin | od -An -t d4 --endian=big
    """
    pool.adopt_orphans()
    report = {name: options.pop(name) for name in ("quiet", "verbose", "as_json")}
    output, in_place = options.pop("output"), options["in_place"]
    terminal = is_terminal(output)
    reduction = plan_reduce(options.pop("ranks"), options.pop("op"), output, terminal=terminal, **options)
    if report["verbose"] and has_other_names(reduction.path):
        say(f"{reduction.path} is a hard link; its other names keep the old content")
    pool.keep_freed_memory()
    watch = progress.bar if os.isatty(2) and not report["quiet"] else progress.unwatched
    reduction.run(watch, overwrite=options["overwrite"] or in_place, on_commit=signals.ignore)
    _tell(reduction, options["root"], **report)


def _tell(reduction: Reduction, root: int, *, quiet: bool, verbose: bool, as_json: bool) -> None:
    """Say on standard error what was done."""
    summary = summarise(reduction, root)
    if as_json:
        write(summary.json())
    params.tell(None if quiet or as_json else summary.line())
    if not quiet and reduction.doubtful_order:
        first, second = reduction.doubtful_order
        say(f"warning: {first} came before {second}, and the order shows in the last bits; `ls -v` sorts by number")
    if verbose:
        plan = reduction.plan
        blocks = ", ".join(str(count) for count in plan.block_counts)
        say(f"segments {len(plan.segments)}, elements in a block {blocks}, ranks open at once {plan.max_open}")
