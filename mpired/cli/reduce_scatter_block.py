"""`mpired reduce-scatter-block`."""

from __future__ import annotations

from typing import Any

import click

from mpired.cli import carry_out, params


@click.command(cls=params.Grouped)
@params.OP
@params.INPUTS
@params.PATTERN
@params.GROUP_B
@params.EFFORT
@params.REPORT
@click.argument("ranks", nargs=-1, metavar="RANK...")
def reduce_scatter_block(**options: Any) -> None:
    """Combine the same element of every RANK, and give each rank an equal block, as MPI_Reduce_scatter_block does.

    As `mpired reduce-scatter`; the number of elements must be a multiple of the number of ranks.

    \b
    Examples:
      mpired reduce-scatter-block --op sum sample_data/counts_?.npy -o 'block_{rank}.npy'
    """
    carry_out.collective("reduce-scatter-block", options)
