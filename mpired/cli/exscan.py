"""`mpired exscan`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import ExscanOptions, Numbered, Op, Outputs, Report


@click.command(cls=params.Grouped)
@params.options(Op, Outputs, ExscanOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def exscan(*, ranks: tuple[str, ...], op: str, output: str | None, **options: Unpack[ExscanOptions]) -> None:
    """Give rank i the RANKs before it combined, as MPI_Exscan does.

    Like `mpired scan`, without the rank's own elements. No rank comes before rank 0, and MPI leaves its result
    undefined: rank 0 gets no file, and with --in-place its file stays as it is.

    \b
    Examples:
      mpired exscan --op sum sample_data/counts_?.npy -o 'offsets_{rank}.npy'
      mpired exscan --op sum --exscan-first identity \\
          sample_data/counts_?.npy -o 'from_zero_{rank}.npy'
    """
    carry_out.collective("exscan", ranks, op, output, options)
