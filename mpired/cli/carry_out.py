"""What the commands that combine ranks have in common: run what was planned, and say what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mpired import attempts, cautions
from mpired.attempts import Held, Planned, Words
from mpired.cli import params, progress, signals
from mpired.cli.messages import free_standard_output, say, tell_cautions, tell_json
from mpired.collectives.plan import Plan
from mpired.collectives.request import paths_of
from mpired.collectives.table import COLLECTIVES
from mpired.engines import pool, worker
from mpired.errors import HardLinkWarning, MpiredWarning, OrderWarning, OverflowWarning
from mpired.options import CallOptions, Locking
from mpired.report import summarise

if TYPE_CHECKING:
    from mpired.collectives.call import Call

_P = TypeVar("_P", bound=Planned)


def replacing(
    plan: Callable[[], _P], words: Words, options: Locking, *, overwrite: bool, quiet: bool
) -> tuple[_P, list[MpiredWarning]]:
    """Plan a call whose results are files and do it; return what was planned, and what it warned of."""
    watch = progress.chosen(quiet=quiet)

    def work(planned: _P, held: Held) -> None:
        planned.run(watch, overwrite=overwrite, on_commit=signals.commit, held=held)

    with cautions.heard() as heard:
        planned = attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=options["lock_timeout"])
    return planned, heard


def carry_out(plan: Callable[[], Call], options: CallOptions, words: Words) -> None:
    """Plan a call that combines ranks, do it, and say on standard error what was done."""
    report, overwrite = params.report(), options["overwrite"] or options["in_place"]
    quiet, verbose, as_json = report["quiet"], report["verbose"], report["as_json"]
    worker.keep_freed_memory()
    planned, heard = replacing(plan, words, options, overwrite=overwrite, quiet=quiet)
    overflow = cautions.of_kind(heard, OverflowWarning)
    summary = summarise(planned, overflow)
    if as_json:
        tell_json(summary, [source.name for source in planned.sources], heard)
        params.tell(None)
    else:
        tell_cautions(cautions.of_kind(heard, HardLinkWarning) if verbose else ())
        params.tell(None if quiet else summary.line())
        tell_cautions(overflow)
        tell_cautions(() if quiet else cautions.of_kind(heard, OrderWarning))
    if verbose:
        _tell_plans(planned.plans)


def _tell_plans(plans: Sequence[Plan]) -> None:
    for plan in plans:
        blocks = ", ".join(str(count) for count in plan.block_counts)
        say(f"segments {len(plan.segments)}, elements in a block {blocks}, ranks open at once {plan.max_open}")


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

    free_standard_output(output)
    pool.adopt_orphans()
    options = COLLECTIVES[name].checked(given)
    plan = partial(plan_call, name, ranks, op, output, options, terminal=terminal)
    carry_out(plan, options, partial(paths_of, ranks, options))
