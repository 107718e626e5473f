"""`mpired accumulate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mpired.cli import params, signals
from mpired.cli.messages import overflow_heard, say, tell_overflow, write
from mpired.errors import UsageError
from mpired.report import Updated
from mpired.rma import Call, plan_accumulate
from mpired.storage.output import has_other_names
from mpired.windows.transaction import Done, Keep


@click.command()
@params.RMA_OP
@params.WINDOW
@params.ORIGIN
@params.INPUTS
@params.TRANSACTION
@params.option(
    "--once",
    is_flag=False,
    flag_value="",
    metavar="[KEY]",
    help="Apply an origin only if the target does not remember its key; without KEY its content is the key.",
)
@params.CREATE
@params.REPORT
@click.argument("files", nargs=-1, metavar="TARGET ORIGIN...")
def accumulate(**options: Any) -> None:
    """Combine each ORIGIN into TARGET, in place, as MPI_Accumulate does: target = target op origin.

    The origins are applied in the order given, all in one transaction: after a crash at any moment TARGET
    is wholly old or wholly new, and several commands may update it at once. TARGET is an .npy file or raw
    binary with --type. Without a word of where, an origin has to have as many elements as TARGET.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_?.npy
      mpired accumulate --op max --target-disp 8 --origin-count 4 total.npy sample_data/counts_0.npy
      mpired accumulate --op replace --at 0:4 --origin-count 4 total.npy sample_data/counts_1.npy
    """
    report = params.report_of(options)
    windows, origins = split(options.pop("windows"), options.pop("files"))
    once = options.pop("once")
    op = options.pop("op")
    plan = plan_accumulate(windows, origins, op, waits, once=True if once == "" else once, **options)
    notes = [window for window in windows if options["commit"] == "rename" and has_other_names(window)]
    done = carry_out(plan)
    for window in () if report["quiet"] else notes:
        say(f"{window} is a hard link; its other names keep the old content")
    tell(str(plan.request.op), windows, origins, done, **report)


def carry_out(plan: Call, keep: Keep | None = None) -> Done:
    """Carry out a call, with the warnings of overflow in what is said of it."""
    with overflow_heard() as heard:
        done = plan.run(signals.ignore, keep)
    return done._replace(overflow=tuple(heard))


def split(windows: tuple[str, ...], files: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the windows and the origins: without --window the first file is the target.

    Raises
    ------
    UsageError
        If there is no target.
    """
    if windows:
        return windows, files
    if not files:
        raise UsageError("TARGET", "is missing; name the file to change, and then the origins")
    return files[:1], files[1:]


def waits(name: str) -> None:
    """Say that a lock takes long."""
    say(f"{name}: waiting for others that update it")


def tell(  # noqa: PLR0913 - three of them are the options of the report
    op: str, windows: Sequence[str], origins: Sequence[object], done: Done, *, quiet: bool, verbose: bool, as_json: bool
) -> None:
    """Say on standard error what was done."""
    updated = Updated.of(op, windows, origins, done)
    if as_json:
        write(updated.json())
        return
    for name in updated.skipped:
        if not quiet:
            say(f"{name}: already applied, left out (--once)")
    tell_overflow(() if quiet else done.overflow)
    params.tell(None if quiet else updated.line())
    for name, protocol, nbytes in zip(windows, done.protocols, done.nbytes, strict=True) if verbose else ():
        say(f"{name}: {nbytes} bytes of elements, {protocol or 'not changed'}")
