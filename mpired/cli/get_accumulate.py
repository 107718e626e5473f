"""`mpired get-accumulate`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.attempts import repeated
from mpired.cli import params
from mpired.cli.accumulate import dry_run, run, split, tell
from mpired.context import Context
from mpired.errors import UsageError
from mpired.ops import Op
from mpired.options import FETCH, FETCHED, REPORT, checked
from mpired.report import Updated
from mpired.sources.local import LocalSource
from mpired.sources.open import check_no_input, check_no_other_input
from mpired.storage.names import check_is_data
from mpired.storage.output import is_terminal
from mpired.windows.call import Call, plan_get_accumulate
from mpired.windows.fetched import FetchOutput
from mpired.windows.request import Done


@click.command(cls=params.Creating)
@params.options("op@fetch", FETCHED, "windows", FETCH, REPORT)
@click.argument("files", nargs=-1, metavar="TARGET [ORIGIN]", type=params.FILE)
def get_accumulate(
    *,
    files: tuple[str, ...],
    windows: tuple[str, ...],
    op: str,
    fetch: str,
    to: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Combine ORIGIN into TARGET as `accumulate` does, and return the previous elements (MPI_Get_accumulate).

    No other command comes between the reading and the change. With --op no_op TARGET is only read, as it is
    between two updates, and no ORIGIN is needed. If OLD is a file, it is in place before TARGET changes.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_0.npy
      mpired get-accumulate --op sum --to text total.npy sample_data/counts_1.npy
      mpired get-accumulate --op no_op --target-disp 3 --target-count 2 --to \\
          text total.npy
    """
    options = checked(FETCH, options)
    report = params.report()
    targets, origins = split(windows, files)
    if len(origins) > 1:
        raise UsageError(origins[1], "is a second origin; a call that fetches takes one")
    check_is_data(fetch)
    plan = partial(plan_get_accumulate, targets, origins[0] if origins else None, op, options)
    for origin in set(origins) - {"-"}:
        check_no_input(
            [fetch], [(LocalSource.of(origin, origin), "the origin")], "name another file for the old elements"
        )
    check_no_other_input([fetch], [(options["map"], "the map"), (options["types"], "the named datatypes")])

    if report["dry_run"]:
        dry_run("MPI_Get_accumulate", plan, origins, (fetch, to, force))
        return

    def work(call: Call, context: Context) -> tuple[Op, Done]:
        with FetchOutput(fetch, context, to, overwrite=force, terminal=is_terminal(fetch), windows=targets) as output:
            done = run(call, context, output.keep, replaced=output.replaced)
            output.send(targets[0], done)
        return call.request.op, done

    row, done = repeated(plan, work, lambda: origins, params.context())
    used = origins if row.origin else ()
    tell(Updated.of("MPI_Get_accumulate", row, targets, used, done, output=fetch), done)
