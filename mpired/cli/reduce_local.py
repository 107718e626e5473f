"""`mpired reduce-local`."""

from __future__ import annotations

from typing import Any

import click

from mpired.cautions import same_files
from mpired.cli import carry_out, params
from mpired.cli.messages import tell_cautions
from mpired.options import LOCAL, REPORT


@click.command(cls=params.Command)
@params.options("op", LOCAL, REPORT)
@click.argument("invec", type=params.FILE)
@click.argument("inoutvec", type=params.FILE)
def reduce_local(*, invec: str, inoutvec: str, op: str, **options: Any) -> None:
    """Replace the file INOUTVEC by `INVEC op INOUTVEC`, as MPI_Reduce_local does.

    One application of the op, INVEC the lower rank. The file appears with the result, whole and durable, or
    stays as it was; what a raw file has before and after its elements stays.

    \b
    Examples:
      mpired reduce-local --op sum sample_data/counts_0.npy \\
          sample_data/counts_1.npy
    """
    found = same_files([inoutvec], [invec])
    carry_out.collective("reduce-local", [invec, inoutvec], op, None, options)
    tell_cautions(() if params.report()["quiet"] else found)
