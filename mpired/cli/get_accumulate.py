"""`mpired get-accumulate`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.attempts import repeated
from mpired.buffers import FORMATS
from mpired.buffers.source import Source, check_no_input
from mpired.cli import params
from mpired.cli.accumulate import run, same_files, split, tell, unread
from mpired.cli.messages import say
from mpired.errors import UsageError
from mpired.ops import Op
from mpired.storage.output import is_terminal
from mpired.windows.call import Call, plan_get_accumulate
from mpired.windows.fetched import FetchOutput
from mpired.windows.request import Done


@click.command()
@params.RMA_OP
@params.option("--fetch", default="-", metavar="OLD", help="The file for the old elements; default standard output.")
@params.option("--to", type=click.Choice(list(FORMATS)), help="Its format; default by suffix, then as the target.")
@params.option("-f", "--force", is_flag=True, help="Replace OLD if it is there.")
@params.WINDOW
@params.ORIGIN
@params.INPUTS
@params.TRANSACTION
@params.CREATE
@params.REPORT
@click.argument("files", nargs=-1, metavar="TARGET [ORIGIN]")
def get_accumulate(**options: Any) -> None:
    """Combine ORIGIN into TARGET as `accumulate` does, and give the old elements of TARGET (MPI_Get_accumulate).

    No other command comes between the reading and the change. With --op no_op TARGET is only read, as it is
    between two updates, and no ORIGIN is needed. If OLD is a file, it is in place before TARGET changes.

    \b
    Examples:
      mpired accumulate --op sum --create 12 total.npy sample_data/counts_0.npy
      mpired get-accumulate --op sum --to text total.npy sample_data/counts_1.npy
      mpired get-accumulate --op no_op --target-disp 3 --target-count 2 --to text total.npy
    """
    report = params.report_of(options)
    windows, origins = split(options.pop("windows"), options.pop("files"))
    if len(origins) > 1:
        raise UsageError(origins[1], "is a second origin; a call that fetches takes one")
    path, to, force = options.pop("fetch"), options.pop("to"), options.pop("force")
    plan = partial(plan_get_accumulate, windows, origins[0] if origins else None, options.pop("op"), **options)
    for origin in set(origins) - {"-"}:
        check_no_input([path], [(Source.of(origin, origin), "the origin")], "name another file for the old elements")

    def work(call: Call) -> tuple[Op, Done]:
        with FetchOutput(path, to, overwrite=force, terminal=is_terminal(path), windows=windows) as output:
            done = run(call, output.keep, quiet=report["quiet"], replaced=output.replaced)
            output.send(windows[0])
        return call.request.op, done

    op, done = repeated(plan, work, lambda: origins, timeout=options["lock_timeout"])
    for note in () if report["quiet"] else unread(op, origins) or same_files(windows, origins):
        say(note)
    tell(str(op), windows, origins if op.origin else (), done, **report)
