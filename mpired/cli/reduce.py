"""`mpired reduce`."""

from __future__ import annotations

from typing import Unpack

import click

from mpired.cli import carry_out, params
from mpired.options import Numbered, Op, Output, ReduceOptions, Report
from mpired.storage.output import is_terminal


@click.command(cls=params.Grouped)
@params.options(Op, Output, ReduceOptions, Numbered, Report)
@click.argument("ranks", nargs=-1, metavar="RANK...", type=params.FILE)
def reduce(*, ranks: tuple[str, ...], op: str, output: str, **options: Unpack[ReduceOptions]) -> None:
    """Combine files into one, element by element, as MPI_Reduce does.

    Each RANK is a file with one rank's buffer: .npy, .parquet, .arrow, .arrows, .npz, .nc, .h5, .zarr,
    .safetensors, or raw binary with --type. `-` is standard input. The ranks are combined in their order,
    ((r0 op r1) op r2) ..., with the same bits for any number of workers. The result appears whole and on the
    disk, or not at all.

    \b
    Examples:
      mpired reduce --op mean sample_data/tas_?.nc -o mean.nc
      mpired reduce --op maxloc --index rank sample_data/tas_?.nc \\
          --split warmest.nc,member.nc
      mpired reduce --op sum sample_data/counts_?.npy -o total.npy
      mpired reduce --op maxloc --type double_int sample_data/maxloc_?.bin
      mpired reduce --op sum --type '>i4' --offset 16 \\
          sample_data/dump_?.bin | od -An -t d4 --endian=big
    """
    elsewhere = options["in_place"] or (options["split"] is not None and not params.is_written("output"))
    place = None if elsewhere and output == "-" else output
    carry_out.collective("reduce", ranks, op, place, options, terminal=is_terminal(place or ""))
