"""`mpired reduce-scatter-block`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import Numbered, Op, Outputs, Report, ScatterBlockOptions


@click.command(cls=params.Grouped)
@params.options(Op, Outputs, ScatterBlockOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def reduce_scatter_block(
    *, ranks: tuple[str, ...], op: str, output: str | None, **options: Unpack[ScatterBlockOptions]
) -> None:
    """Combine the same element of every RANK, and give each rank an equal block, as MPI_Reduce_scatter_block does.

    As `mpired reduce-scatter`; the number of elements must be a multiple of the number of ranks.

    \b
    Examples:
      mpired reduce-scatter-block --op sum sample_data/counts_?.npy \\
          -o 'block_{rank}.npy'
    """
    carry_out.collective("reduce-scatter-block", ranks, op, output, options)
