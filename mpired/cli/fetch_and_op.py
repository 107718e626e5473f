"""`mpired fetch-and-op`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from mpired.api.outcome import as_numpy
from mpired.attempts import repeated
from mpired.buffers import LINES
from mpired.cli import params
from mpired.cli.accumulate import dry_run, run, split
from mpired.cli.messages import tell_cautions, tell_json
from mpired.context import Context
from mpired.errors import UsageError
from mpired.ops import Op
from mpired.options import FETCH_ELEMENT, checked
from mpired.queries.places import in_json
from mpired.report import Updated
from mpired.windows.call import Call, plan_fetch_and_op
from mpired.windows.fetched import FetchOutput
from mpired.windows.request import Done


@click.command(cls=params.Creating, context_settings={"ignore_unknown_options": True})  # -5 is a value
@params.options("op@fetch", "windows", FETCH_ELEMENT, "quiet", "as_json@print", "dry_run")
@click.argument("words", nargs=-1, metavar="TARGET [VALUE]", type=params.FILE)
def fetch_and_op(*, words: tuple[str, ...], windows: tuple[str, ...], op: str, as_json: bool, **options: Any) -> None:
    """Combine VALUE into one element of TARGET, and print its old value (MPI_Fetch_and_op).

    VALUE is a number, VALUE,INDEX for a pair, a time such as 2021-02-03T04:05:06, or a file with one element. --op
    no_op needs none and only reads. Several commands at once each see another old value: a counter, a place in a queue.

    \b
    Examples:
      mpired fetch-and-op --op sum --type int64_t --create 1 counter.npy 1
      mpired fetch-and-op --op sum counter.npy 1
      mpired fetch-and-op --op no_op counter.npy
    """
    options = checked(FETCH_ELEMENT, options)
    targets, values = split(windows, params.values(words))
    if len(values) > 1:
        raise UsageError(values[1], "is one word too many; there is one VALUE")
    plan = partial(plan_fetch_and_op, targets, values[0] if values else None, op, options)
    fetch("MPI_Fetch_and_op", plan, targets, values, as_json=as_json)


def fetch(
    name: str,
    plan: Callable[[Context], Call],
    targets: Sequence[str],
    words: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Carry out a call on one element, and print the old one; `words` may be files with one element."""
    if params.report()["dry_run"]:
        dry_run(name, plan, words, ("-", LINES.name, False))
        return

    def work(call: Call, context: Context) -> tuple[Op, Done]:
        with FetchOutput("-", context, LINES.name) as output:
            done = run(call, context, output.keep)
            output.send(targets[0], done)
        return call.request.op, done

    op, done = repeated(plan, work, lambda: words, params.context())
    if as_json:
        tell_json(Updated.of(name, op, targets, words, done, output="-")._asdict() | _old(done), done.cautions)
    else:
        tell_cautions(() if params.report()["quiet"] else done.notes)
        tell_cautions([*done.overflow, *done.masked])
    params.tell(None)


def _old(done: Done) -> dict[str, object]:
    """Return the old element as JSON can hold it: of a pair the value and the index."""
    assert done.fetched is not None  # noqa: S101 - such a call fetches
    (old,) = as_numpy(done.fetched, done.datatypes[0], None)
    return {"old": [in_json(old[field]) for field in old.dtype.names] if old.dtype.names else in_json(old)}
