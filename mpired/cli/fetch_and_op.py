"""`mpired fetch-and-op`."""

from __future__ import annotations

from typing import Any

import click

from mpired.cli import params
from mpired.cli.accumulate import carry_out, split, waits
from mpired.cli.messages import tell_overflow
from mpired.errors import UsageError
from mpired.rma import Call, plan_fetch_and_op
from mpired.windows.fetched import FetchOutput


@click.command(context_settings={"ignore_unknown_options": True})  # -5 is a value
@params.RMA_OP
@params.ELEMENT
@params.TRANSACTION
@params.CREATE
@click.argument("words", nargs=-1, metavar="TARGET [VALUE]")
def fetch_and_op(**options: Any) -> None:
    """Combine VALUE into one element of TARGET, and print what it was before (MPI_Fetch_and_op).

    VALUE is a number, VALUE,INDEX for a pair, or a file with one element. --op no_op takes none and only
    reads. Several commands at once each see another old value: a counter, a place in a queue.

    \b
    Examples:
      mpired fetch-and-op --op sum --type int64_t --create 1 counter.npy 1
      mpired fetch-and-op --op sum counter.npy 1
      mpired fetch-and-op --op no_op counter.npy
    """
    windows, values = split(options.pop("windows"), params.values(options.pop("words")))
    if len(values) > 1:
        raise UsageError(values[1], "is one word too many; there is one VALUE")
    fetch(plan_fetch_and_op(windows, values[0] if values else None, options.pop("op"), waits, **options))


def fetch(plan: Call) -> None:
    """Carry out a call on one element, and print the old one."""
    with FetchOutput("-", "text") as output:
        done = carry_out(plan, output.keep)
        output.send(plan.request.windows[0])
    tell_overflow(done.overflow)
    params.tell(None)
