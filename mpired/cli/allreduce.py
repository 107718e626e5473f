"""`mpired allreduce`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import AllreduceOptions, Numbered, Op, Outputs, Report


@click.command(cls=params.Grouped)
@params.options(Op, Outputs, AllreduceOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def allreduce(*, ranks: tuple[str, ...], op: str, output: str | None, **options: Unpack[AllreduceOptions]) -> None:
    """Combine the same element of every RANK, and give every rank the result, as MPI_Allreduce does.

    Each RANK is a file, as for `mpired reduce`, and so is each result: --output names them by a pattern, or
    --in-place replaces the ranks. They are modelled on rank 0, or in place each on its own file, and have
    the bits of `mpired reduce`. All appear together, whole and durable, or none does.

    \b
    Examples:
      mpired allreduce --op max sample_data/counts_?.npy -o 'greatest_{rank}.npy'
      mpired allreduce --op sum sample_data/waves_?.npy \\
          -o 'sum_of_{stem}.npy' --link
    """
    carry_out.collective("allreduce", ranks, op, output, options)
