"""`mpired unpack`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.cli import params
from mpired.cli.carry_out import replacing_as_told
from mpired.options import SUMMARY, UNPACK, checked
from mpired.packing.unpack import plan_unpack


@click.command(cls=params.Command)
@params.options("output@unpack", "into", UNPACK, SUMMARY)
@click.argument("packed", metavar="PACKED", type=params.FILE)
def unpack(*, packed: str, output: str, into: str | None, **options: Any) -> None:
    """Put the elements of PACKED where a datatype says, as MPI_Unpack does; the inverse of `mpired pack`.

    PACKED is raw, npy, parquet or arrow, and holds elements one after another. In a new file the bytes between
    them are zeros; with --into those of that file stay, and the file is replaced in one step.

    \b
    Examples:
      mpired pack --type 'resized(0,16,double)' sample_data/maxloc_0.bin -f \\
          -o values.npy
      mpired unpack --type 'resized(0,24,double)' values.npy -f -o spread.rec
      mpired unpack --type 'resized(0,24,double)' values.npy --into spread.rec
    """
    options = checked(UNPACK, options)
    plan = partial(plan_unpack, packed, output, into, options)
    files = [packed] if into is None else [packed, into]
    overwrite = into is not None or options["overwrite"]
    replacing_as_told(plan, lambda: files, overwrite=overwrite)
