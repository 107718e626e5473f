"""`mpired accumulate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mpired import attempts
from mpired.buffers.memory import paths
from mpired.cli import carry_out, params, signals
from mpired.cli.messages import hearing, say, tell_cautions, tell_json
from mpired.context import Context
from mpired.errors import InputWarning, SameContentWarning, SkippedWarning, UsageError
from mpired.ops import Op
from mpired.options import ACCUMULATE, REPORT, checked
from mpired.ranks import gathered
from mpired.report import Updated
from mpired.windows.call import Call, plan_accumulate
from mpired.windows.fetched import planned_size
from mpired.windows.request import Done, Keep

if TYPE_CHECKING:
    from mpired.report import Description

_SHOWN = 8  # origins that were left out, of perhaps thousands


@click.command(cls=params.Creating)
@params.options("op@accumulate", "windows", "index@none", ACCUMULATE, "rank_numbers", REPORT)
@click.argument("files", nargs=-1, metavar="TARGET ORIGIN...", type=params.FILE)
def accumulate(
    *,
    files: tuple[str, ...],
    windows: tuple[str, ...],
    op: str,
    index: str | None,
    **options: Any,
) -> None:
    """Combine each ORIGIN into TARGET, in place, as MPI_Accumulate does: target = target op origin.

    The origins are applied in the order given, all in one transaction: after a crash at any moment TARGET
    is wholly old or wholly new, and several commands may update it at once. TARGET has any
    format that stores elements: .npy, .npz, .nc, .h5, .safetensors, .parquet, .arrow, or raw binary with --type.
    --columns selects the columns or arrays that change. By default an origin must have as many elements as TARGET.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_?.npy
      mpired accumulate --op max --target-disp 8 --origin-count 4 \\
          total.npy sample_data/counts_0.npy
      mpired accumulate --op replace --at 0:4 --origin-count 4 \\
          total.npy sample_data/counts_1.npy
    """
    if index is not None:
        reason = "is for reductions; `mpired reduce --op maxloc --index number FILE` makes the pairs of an origin"
        raise UsageError("`index`", reason)
    options = checked(ACCUMULATE, options)
    report = params.report()
    targets, words = split(windows, files)
    origins = gathered(params.meant(words)[0], options)
    plan = partial(plan_accumulate, targets, origins, op, options)
    if report["dry_run"]:
        dry_run("MPI_Accumulate", plan, list(paths(origins)))
        return

    def work(call: Call, context: Context) -> tuple[Op, Done]:
        return call.request.op, run(call, context)

    row, done = attempts.repeated(plan, work, lambda: paths(origins), params.context())
    tell(Updated.of("MPI_Accumulate", row, targets, done.origins, done), done)
    params.end_without(done.bad)


def run(call: Call, context: Context, keep: Keep | None = None, *, replaced: Sequence[str] = ()) -> Done:
    """Carry out a call, and return what was done, with what it warned of."""
    with hearing() as heard:
        done = call.run(context, keep=keep, replaced=replaced)
    return done._replace(cautions=tuple(heard))


def dry_run(
    name: str,
    plan: Callable[[Context], Call],
    origins: Sequence[str],
    fetched: tuple[str, str | None, bool] | None = None,
) -> None:
    """Write what a call on windows would do; the old elements would go to a path, in a format, and may replace it."""
    from mpired.report import Written, describe_request  # noqa: PLC0415 - for a dry run only

    def work(call: Call, context: Context) -> Description:
        planned = call.dry_run()
        if fetched is None:
            return describe_request(name, planned)
        path, to, force = fetched
        output = Written(path, *planned_size(path, to, planned.fetched_model))
        attempts.check_results([path], context, overwrite=force)
        return describe_request(name, planned, output)

    with hearing() as heard:
        found = attempts.repeated(plan, work, lambda: origins, params.context())
    carry_out.tell_plan(found, origins, heard, "origin")


def split(windows: tuple[str, ...], files: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the windows and the origins: without --window the first file is the target."""
    if not windows and not files:
        raise UsageError("TARGET", "is missing; name the file to change, and then the origins")
    windows, origins = (windows, files) if windows else (files[:1], files[1:])
    signals.leaves(f"{', '.join(windows)} {'are as they were' if windows[1:] else 'is as it was'}")
    return windows, origins


def tell(updated: Updated, done: Done) -> None:
    """Say what was done, and what the user should know of it."""
    report = params.report()
    quiet, verbose, as_json = report["quiet"], report["verbose"], report["as_json"]
    if as_json:
        tell_json(updated._asdict(), done.cautions)
        params.tell(None)
        return
    doubtful = InputWarning | SkippedWarning | SameContentWarning
    tell_cautions(each for each in done.notes if not quiet or isinstance(each, doubtful))
    for name in updated.skipped[:_SHOWN]:
        say(f"{name}: already applied, left out")
    if len(updated.skipped) > _SHOWN:
        say(f"{len(updated.skipped) - _SHOWN} more origins: already applied, left out")
    tell_cautions([*done.overflow, *done.masked])
    params.tell(None if quiet else updated.line())
    for name, protocol, nbytes in zip(updated.windows, done.protocols, done.nbytes, strict=True) if verbose else ():
        say(f"{name}: {nbytes} bytes of elements, {protocol or 'not changed'}")
