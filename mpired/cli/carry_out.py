"""What the commands that combine ranks have in common: run what was planned, and say what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpired import attempts, cautions
from mpired.attempts import Planned, Words
from mpired.cli import params
from mpired.cli.messages import hearing, json_line, show, tell_cautions, tell_json, warning_texts
from mpired.collectives.request import paths_of, ranks_of
from mpired.collectives.table import COLLECTIVES
from mpired.context import Context
from mpired.engines import connected, pool, worker
from mpired.errors import (
    HardLinkWarning,
    InputWarning,
    MaskedWarning,
    MpiredWarning,
    OrderWarning,
    OverflowWarning,
    ProcessorWarning,
    SkippedWarning,
    escaped,
)
from mpired.options import Options
from mpired.ranks import RankWord

if TYPE_CHECKING:
    from mpired.collectives.call import Call
    from mpired.report import Description

_P = TypeVar("_P", bound=Planned)


def replacing(
    plan: Callable[[Context], _P], words: Words, context: Context, *, overwrite: bool
) -> tuple[_P, list[MpiredWarning]]:
    """Plan a call whose results are files and do it; return what was planned, and what it warned of."""
    with hearing() as heard:
        planned = attempts.carry_out(plan, words, context, overwrite=overwrite)
    return planned, heard


def tell_plan(
    found: Description, inputs: Sequence[object], heard: Sequence[MpiredWarning], ranks: str = "rank"
) -> None:
    """Write to standard output what a call would do, and to standard error what it would warn of."""
    if params.is_json():
        texts = {"inputs": [str(each) for each in inputs], "warnings": warning_texts(heard)}
        show(json_line({**found.details(), **texts}))
    else:
        show("\n".join(map(escaped, found.lines(ranks))))
        tell_cautions(() if params.report()["quiet"] else heard)
    params.tell(None)


def replacing_as_told(plan: Callable[[Context], Any], words: Words, *, overwrite: bool) -> None:
    """Do a call that writes one file, and say what was done."""
    report, context = params.report(), params.context()
    planned, heard = replacing(plan, words, context, overwrite=overwrite)
    from mpired.report import describe_packing, summarise_packing  # noqa: PLC0415 - not for `reduce -q`

    if context.dry_run:  # `pack` alone has one
        tell_plan(describe_packing(planned), [source.name for source in planned.sources], heard)
        return
    summary = summarise_packing(planned)
    if report["as_json"]:
        tell_json(summary._asdict(), heard)
        params.tell(None)
        return
    tell_cautions(() if report["quiet"] else heard)
    params.tell(None if report["quiet"] else summary.line())


def carry_out(plan: Callable[[Context], Call], context: Context, options: Options, words: Words) -> None:
    """Plan a call that combines ranks, do it, and say on standard error what was done."""
    report, overwrite = params.report(), options["overwrite"] or options["in_place"]
    quiet, as_json = report["quiet"], report["as_json"]
    if as_json or not quiet:  # before anything is in place
        from mpired.report import summarise  # noqa: PLC0415 - only for who wants to know
    worker.keep_freed_memory()
    planned, heard = replacing(plan, words, context, overwrite=overwrite)
    if context.dry_run:
        from mpired.report import describe_call  # noqa: PLC0415 - for a dry run only

        tell_plan(describe_call(planned), [source.name for source in planned.sources], heard)
        params.end_without(planned.skipped)
        return
    overflow = cautions.of_kind(heard, OverflowWarning)
    if as_json:
        tell_json(summarise(planned, overflow)._asdict(), heard)
        params.tell(None)
    else:
        tell_cautions(() if quiet else cautions.of_kind(heard, HardLinkWarning))
        tell_cautions(cautions.of_kind(heard, SkippedWarning))
        tell_cautions(cautions.of_kind(heard, ProcessorWarning))
        params.tell(None if quiet else summarise(planned, overflow).line())
        tell_cautions(overflow)
        tell_cautions(cautions.of_kind(heard, InputWarning))
        tell_cautions(cautions.of_kind(heard, MaskedWarning))
        tell_cautions(() if quiet else cautions.of_kind(heard, OrderWarning))
    params.end_without(planned.skipped)


def collective(
    name: str,
    ranks: Sequence[str],
    op: str,
    output: str | None,
    given: Mapping[str, object],
    *,
    terminal: bool = False,
) -> None:
    """Run a command that combines ranks; `terminal` tells whether its result goes to one."""
    from mpired.collectives.call import plan_call  # noqa: PLC0415 - not for `pack`, which comes here too

    pool.adopt_orphans()
    options = COLLECTIVES[name].checked(given)
    words: Sequence[RankWord] = ranks
    if "files_from" in given:  # else each word is a file of its own
        group_b: Any = options["group_b"]
        words, *others = params.meant(ranks, *([group_b] if group_b else []))
        words, options = ranks_of(words, {**options, "group_b": cast("Any", others[0] if others else group_b)})
    plan = partial(plan_call, name, words, op, output, options, terminal=terminal)
    with connected(options) as engine:
        context = params.context()._replace(engine=engine)
        carry_out(plan, context, options, partial(paths_of, words, options))
