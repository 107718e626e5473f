"""What the commands that combine ranks have in common: run what was planned, and say what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mpired import attempts
from mpired.attempts import Held, Planned, Words
from mpired.cli import params, progress, signals
from mpired.cli.messages import overflow_heard, say, tell_overflow, write
from mpired.collectives.plan import Plan
from mpired.collectives.request import words_of
from mpired.engines import pool, worker
from mpired.report import summarise
from mpired.storage.output import has_other_names

if TYPE_CHECKING:
    from mpired.collectives.call import Call

_P = TypeVar("_P", bound=Planned)


def replacing(
    plan: Callable[[], _P], words: Words, options: Mapping[str, Any], *, overwrite: bool, quiet: bool
) -> tuple[_P, list[str]]:
    """Plan a call whose results are files and do it; return what was planned, and the hard links it has parted."""
    parted: list[str] = []
    watch = progress.chosen(quiet=quiet)

    def work(planned: _P, held: Held) -> None:
        parted[:] = filter(has_other_names, planned.paths)
        planned.run(watch, overwrite=overwrite, on_commit=signals.commit, held=held)

    planned = attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=options["lock_timeout"])
    return planned, parted


def carry_out(plan: Callable[[], Call], options: Mapping[str, Any], words: Words, *, overwrite: bool) -> None:
    """Plan a call that combines ranks, do it, and say on standard error what was done."""
    quiet, verbose, as_json = (options[name] for name in ("quiet", "verbose", "as_json"))
    worker.keep_freed_memory()
    with overflow_heard() as heard:
        planned, parted = replacing(plan, words, options, overwrite=overwrite, quiet=quiet)
    for path in parted if verbose else ():
        say(f"{path} is a hard link; its other names keep the old content")
    summary = summarise(planned)
    if as_json:
        write(summary._replace(overflow=[each.details for each in heard]).json())
    params.tell(None if quiet or as_json else summary.line())
    tell_overflow(() if quiet or as_json else heard)
    if not quiet and planned.doubtful_order:
        first, second = planned.doubtful_order
        where = planned.order_shows
        say(f"warning: {first} came before {second}, and the order shows in the {where}; `ls -v` sorts by number")
    if verbose:
        _tell_plans(planned.plans)


def _tell_plans(plans: Sequence[Plan]) -> None:
    for plan in plans:
        blocks = ", ".join(str(count) for count in plan.block_counts)
        say(f"segments {len(plan.segments)}, elements in a block {blocks}, ranks open at once {plan.max_open}")


def collective(name: str, options: dict[str, Any], *, terminal: bool = False) -> None:
    """Run a command that combines ranks; `terminal` tells whether its result goes to one."""
    from mpired.collectives.call import plan_call  # noqa: PLC0415 - not for `pack`, which comes here too

    pool.adopt_orphans()
    report = params.report_of(options)
    ranks, op, output = options.pop("ranks"), options.pop("op"), options.pop("output")
    plan = partial(plan_call, name, ranks, op, output, terminal=terminal, **options)
    overwrite = options["overwrite"] or options["in_place"]
    carry_out(plan, options | report, partial(words_of, ranks, options), overwrite=overwrite)
