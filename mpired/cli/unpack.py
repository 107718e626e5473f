"""`mpired unpack`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.buffers import FORMATS
from mpired.cli import params
from mpired.cli.carry_out import replacing
from mpired.packing.unpack import plan_unpack
from mpired.report import unpacking_line


@click.command()
@params.RECORDS
@params.option(
    "--from",
    "format",
    type=click.Choice([row.name for row in FORMATS.values() if row.readable]),
    help="The format of PACKED, instead of looking at it.",
)
@params.option("--columns", type=params.Names(), default=(), help="The column of a parquet or arrow file.")
@params.option(
    "-o", "--output", default="-", metavar="PATH", help="The new file; `-`, the default, is standard output."
)
@params.option("--into", metavar="PATH", help="An existing file to write into; its other bytes stay.")
@params.FORCE
@params.LOCK_TIMEOUT
@params.QUIET
@click.argument("packed", metavar="PACKED")
def unpack(*, packed: str, output: str, into: str | None, quiet: bool, **options: Any) -> None:
    """Put the elements of PACKED where a datatype says, as MPI_Unpack does; the way back of `mpired pack`.

    PACKED is raw, npy, parquet or arrow, and holds elements one after another. In a new file the bytes between
    them are zeros; with --into they stay what they are in that file, which is replaced in one step.

    \b
    Examples:
      mpired pack --type 'resized(0,16,double)' sample_data/maxloc_0.bin -f -o values.npy
      mpired unpack --type 'resized(0,24,double)' values.npy -f -o spread.rec
      mpired unpack --type 'resized(0,24,double)' values.npy --into spread.rec
    """
    plan = partial(plan_unpack, packed, output, into, **options)
    overwrite = into is not None or options["overwrite"]
    done, _ = replacing(plan, lambda: [packed], options, overwrite=overwrite, quiet=quiet)
    params.tell(None if quiet else unpacking_line(done))
