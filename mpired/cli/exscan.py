"""`mpired exscan`."""

from __future__ import annotations

from typing import Any

import click

from mpired.cli import carry_out, params


@click.command(cls=params.Grouped)
@params.OP
@params.INPUTS
@params.PATTERN
@params.option(
    "--exscan-first",
    type=click.Choice(["none", "identity"]),
    default="none",
    help="What rank 0 gets: no file, or one with the op's neutral element.",
)
@params.NO_GROUP_B
@params.EFFORT
@params.REPORT
@click.argument("ranks", nargs=-1, metavar="RANK...")
def exscan(**options: Any) -> None:
    """Give rank i the RANKs before it combined, as MPI_Exscan does.

    As `mpired scan` without the rank's own elements. There is nothing before rank 0, and MPI leaves open
    what it gets: here it gets no file, and in place its file stays as it is.

    \b
    Examples:
      mpired exscan --op sum sample_data/counts_?.npy -o 'offsets_{rank}.npy'
      mpired exscan --op sum --exscan-first identity sample_data/counts_?.npy -o 'from_zero_{rank}.npy'
    """
    carry_out.collective("exscan", options)
