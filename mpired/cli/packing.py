"""The commands pack and unpack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpired.attempts import retry
from mpired.cli import params
from mpired.cli.messages import print_plan, print_summary
from mpired.context import Context
from mpired.files.places import is_terminal
from mpired.options import PACK, SUMMARY, UNPACK
from mpired.packing import plan_pack, plan_unpack
from mpired.report import describe_packing, summarise_packing


@params.command("output", *PACK, *SUMMARY, "dry_run", file="FILE")
def pack(*, file: str, output: str, **options: Any) -> None:
    """Take elements of a datatype out of a raw FILE, without the gaps, as MPI_Pack does.

    \b
    Examples:
      mpired pack --type 'resized(0,16,double)' sample_data/maxloc_0.bin \\
          -o values.npy
      mpired pack --type double_int sample_data/maxloc_0.bin \\
          --datarep external32 | od -An -t x1 | head -2

    FILE holds elements one extent apart; it may end after the last entry of the last one. The result is a plain
    buffer that can be reduced: npy has one value or one row an element, the other formats one line or
    row a value. Raw results are the bytes in the order of the type map, or with --datarep external32 what
    MPI_Pack_external writes. `mpired unpack` is the way back.
    """
    _carry_out(partial(plan_pack, file, output, options, terminal=is_terminal(output)), [file])


@params.command("output@unpack", "into", *UNPACK, *SUMMARY, packed="PACKED")
def unpack(*, packed: str, output: str, into: str | None, **options: Any) -> None:
    """Put the elements of PACKED where a datatype says, as MPI_Unpack does; the inverse of `mpired pack`.

    \b
    Examples:
      mpired pack --type 'resized(0,16,double)' sample_data/maxloc_0.bin -f \\
          -o values.npy
      mpired unpack --type 'resized(0,24,double)' values.npy -f -o spread.rec
      mpired unpack --type 'resized(0,24,double)' values.npy --into spread.rec

    PACKED is raw, npy, parquet or arrow, and holds elements one after another. In a new file the bytes between
    them are zeros; with --into those of that file stay, and the file is replaced in one step.
    """
    _carry_out(partial(plan_unpack, packed, output, into, options), [packed] if into is None else [packed, into])


def _carry_out(plan: Callable[[Context], Any], files: list[str]) -> None:
    """Carry out a packing or an unpacking, and print its summary, or the plan of a dry run."""
    context = params.context()
    transfer = retry(plan, files, context, runs=True)
    if context.dry_run:  # only `pack` has the option
        print_plan(describe_packing(transfer), [source.name for source in transfer.sources])
        return
    summary = summarise_packing(transfer)
    print_summary(summary._asdict(), summary.line())
