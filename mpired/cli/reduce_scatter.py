"""`mpired reduce-scatter`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import Numbered, Op, Outputs, Report, ScatterOptions


@click.command(cls=params.Grouped)
@params.options(Op, Outputs, ScatterOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def reduce_scatter(*, ranks: tuple[str, ...], op: str, output: str | None, **options: Unpack[ScatterOptions]) -> None:
    """Combine the same element of every RANK, and give each rank a block of the result, as MPI_Reduce_scatter does.

    The blocks follow each other: rank 0 gets the first --counts elements, and so on; 0 gives a file without
    elements. Each result is modelled on its own rank's file, with one dimension. Put together they have
    the bits of `mpired reduce`. All appear together, whole and durable, or none does.

    \b
    Examples:
      mpired reduce-scatter --op sum --counts 3,0,4,5 \\
          sample_data/counts_?.npy -o 'part_{rank}.npy'
    """
    carry_out.collective("reduce-scatter", ranks, op, output, options)
