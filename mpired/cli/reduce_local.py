"""`mpired reduce-local`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.cli import carry_out, params
from mpired.cli.accumulate import same_files
from mpired.cli.messages import say
from mpired.collectives.call import plan_reduce_local
from mpired.engines import pool


@click.command()
@params.OP
@params.INPUTS
@params.LOCK_TIMEOUT
@params.EFFORT
@params.REPORT
@click.argument("invec")
@click.argument("inoutvec")
def reduce_local(**options: Any) -> None:
    """Replace the file INOUTVEC by `INVEC op INOUTVEC`, as MPI_Reduce_local does.

    One application of the op, INVEC the lower rank. The file appears with the result, whole and durable, or
    stays as it was; what a raw file has before and after its elements stays.

    \b
    Examples:
      mpired reduce-local --op sum sample_data/counts_0.npy sample_data/counts_1.npy
    """
    pool.adopt_orphans()
    report = params.report_of(options)
    words = options.pop("invec"), options.pop("inoutvec")
    notes = same_files(words[1:], words[:1])
    plan = partial(plan_reduce_local, *words, options.pop("op"), **options)
    carry_out.carry_out(plan, options | report, lambda: words, overwrite=True)
    for note in () if report["quiet"] else notes:
        say(note)
