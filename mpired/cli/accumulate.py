"""`mpired accumulate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

import click

from mpired import cautions
from mpired.attempts import repeated
from mpired.cli import params, progress, signals
from mpired.cli.messages import free_standard_output, say, tell_cautions, tell_json
from mpired.errors import UsageError
from mpired.options import AccumulateOptions, Report, WindowOp, Windows, checked
from mpired.report import Updated
from mpired.windows.call import Call, plan_accumulate
from mpired.windows.request import Done, Keep

_SHOWN = 8  # origins that were left out, of perhaps thousands


@click.command(cls=params.Creating)
@params.options(WindowOp, Windows, AccumulateOptions, Report)
@click.argument("files", nargs=-1, metavar="TARGET ORIGIN...", type=params.FILE)
def accumulate(
    *, files: tuple[str, ...], windows: tuple[str, ...], op: str, **options: Unpack[AccumulateOptions]
) -> None:
    """Combine each ORIGIN into TARGET, in place, as MPI_Accumulate does: target = target op origin.

    The origins are applied in the order given, all in one transaction: after a crash at any moment TARGET
    is wholly old or wholly new, and several commands may update it at once. TARGET is an .npy file, raw binary
    with --type, or a .parquet or .arrow file, of which --columns change and the others stay. By default an origin must
    have as many elements as TARGET.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_?.npy
      mpired accumulate --op max --target-disp 8 --origin-count 4 \\
          total.npy sample_data/counts_0.npy
      mpired accumulate --op replace --at 0:4 --origin-count 4 \\
          total.npy sample_data/counts_1.npy
    """
    free_standard_output()
    options = checked(AccumulateOptions, options)
    report = params.report()
    targets, origins = split(windows, files)
    plan = partial(plan_accumulate, targets, origins, op, options)

    def work(call: Call) -> tuple[str, Done]:
        return str(call.request.op), run(call, quiet=report["quiet"])

    name, done = repeated(plan, work, lambda: origins, timeout=options["lock_timeout"])
    tell(name, targets, origins, done)


def run(call: Call, keep: Keep | None = None, *, quiet: bool, replaced: Sequence[str] = ()) -> Done:
    """Carry out a call, and return what was done, with what it warned of."""
    watch = progress.chosen(quiet=quiet)
    with cautions.heard() as heard:
        done = call.run(watch, on_commit=signals.commit, keep=keep, replaced=replaced)
    return done._replace(cautions=tuple(heard))


def split(windows: tuple[str, ...], files: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the windows and the origins: without --window the first file is the target. After ctrl-C they are named.

    Raises
    ------
    UsageError
        If there is no target.
    """
    if not windows and not files:
        raise UsageError("TARGET", "is missing; name the file to change, and then the origins")
    windows, origins = (windows, files) if windows else (files[:1], files[1:])
    signals.leaves(f"{', '.join(windows)} {'are as they were' if windows[1:] else 'is as it was'}")
    return windows, origins


def tell(op: str, windows: Sequence[str], origins: Sequence[object], done: Done) -> None:
    """Say what was done, and what the user should know of it."""
    report = params.report()
    quiet, verbose, as_json = report["quiet"], report["verbose"], report["as_json"]
    updated = Updated.of(op, windows, origins, done)
    if as_json:
        tell_json(updated, origins, [*done.notes, *done.overflow])
        params.tell(None)
        return
    tell_cautions(() if quiet else done.notes)
    for name in () if quiet else updated.skipped[:_SHOWN]:
        say(f"{name}: already applied, left out")
    if len(updated.skipped) > _SHOWN and not quiet:
        say(f"{len(updated.skipped) - _SHOWN} more origins: already applied, left out")
    tell_cautions(done.overflow)
    params.tell(None if quiet else updated.line())
    for name, protocol, nbytes in zip(windows, done.protocols, done.nbytes, strict=True) if verbose else ():
        say(f"{name}: {nbytes} bytes of elements, {protocol or 'not changed'}")
