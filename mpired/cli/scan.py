"""`mpired scan`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import Numbered, Op, Outputs, Report, ScanOptions


@click.command(cls=params.Grouped)
@params.options(Op, Outputs, ScanOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def scan(*, ranks: tuple[str, ...], op: str, output: str | None, **options: Unpack[ScanOptions]) -> None:
    """Give rank i the RANKs 0 to i combined, as MPI_Scan does.

    Each RANK is a file, as for `mpired reduce`, and so is each result: --output names them by a pattern, or
    --in-place replaces the ranks. Each is modelled on its own rank's file. The last one has the bits of
    `mpired reduce`. All appear together, whole and durable, or none does.

    \b
    Examples:
      mpired scan --op sum sample_data/counts_?.npy -o 'sums_{rank}.npy'
      mpired scan --op maxloc sample_data/maxloc_?.parquet \\
          -o 'leader_{rank:03d}.parquet'
    """
    carry_out.collective("scan", ranks, op, output, options)
