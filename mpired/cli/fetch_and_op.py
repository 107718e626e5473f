"""`mpired fetch-and-op`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import click

from mpired.attempts import repeated
from mpired.buffers import LINES
from mpired.cli import params
from mpired.cli.accumulate import run, split
from mpired.cli.messages import tell_cautions
from mpired.errors import UsageError
from mpired.options import ElementOptions, Quiet, WindowOp, Windows, checked
from mpired.windows.call import Call, plan_fetch_and_op
from mpired.windows.fetched import FetchOutput
from mpired.windows.request import Done


@click.command(cls=params.Creating, context_settings={"ignore_unknown_options": True})  # -5 is a value
@params.options(WindowOp, Windows, ElementOptions, Quiet)
@click.argument("words", nargs=-1, metavar="TARGET [VALUE]", type=params.FILE)
def fetch_and_op(
    *, words: tuple[str, ...], windows: tuple[str, ...], op: str, **options: Unpack[ElementOptions]
) -> None:
    """Combine VALUE into one element of TARGET, and print what it was before (MPI_Fetch_and_op).

    VALUE is a number, VALUE,INDEX for a pair, or a file with one element. --op no_op needs none and only
    reads. Several commands at once each see another old value: a counter, a place in a queue.

    \b
    Examples:
      mpired fetch-and-op --op sum --type int64_t --create 1 counter.npy 1
      mpired fetch-and-op --op sum counter.npy 1
      mpired fetch-and-op --op no_op counter.npy
    """
    options = checked(ElementOptions, options)
    targets, values = split(windows, params.values(words))
    if len(values) > 1:
        raise UsageError(values[1], "is one word too many; there is one VALUE")
    plan = partial(plan_fetch_and_op, targets, values[0] if values else None, op, options)
    fetch(plan, targets, values, timeout=options["lock_timeout"])


def fetch(plan: Callable[[], Call], targets: Sequence[str], words: Sequence[str], *, timeout: float | None) -> None:
    """Carry out a call on one element, and print the old one; `words` may be files with one element."""

    def work(call: Call) -> Done:
        with FetchOutput("-", LINES.name) as output:
            done = run(call, output.keep, quiet=True)
            output.send(targets[0], done)
        return done

    done = repeated(plan, work, lambda: words, timeout=timeout)
    tell_cautions(() if params.report()["quiet"] else done.notes)
    tell_cautions(done.overflow)
    params.tell(None)
