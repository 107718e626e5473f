"""What the commands that combine ranks have in common: run what was planned, and say what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mpired.cli import params, progress, signals
from mpired.cli.messages import overflow_heard, say, tell_overflow, write
from mpired.collectives.plan import Plan
from mpired.collectives.run import Progress
from mpired.engines import pool, worker
from mpired.report import Summary, summarise_rankwise
from mpired.storage.output import has_other_names


class Planned(Protocol):
    """A call that has passed all checks."""

    @property
    def plans(self) -> list[Plan]: ...
    @property
    def paths(self) -> list[str]: ...
    @property
    def doubtful_order(self) -> tuple[str, str] | None: ...
    @property
    def order_shows(self) -> str: ...
    def run(self, progress: Progress, *, overwrite: bool = False, on_commit: Callable[[], None]) -> None: ...


def carry_out(
    planned: Planned, summary: Summary, *, overwrite: bool, quiet: bool, verbose: bool, as_json: bool
) -> None:
    """Run what was planned, and say on standard error what was done."""
    if verbose:
        for path in filter(has_other_names, planned.paths):
            say(f"{path} is a hard link; its other names keep the old content")
    worker.keep_freed_memory()
    watch = progress.chosen(quiet=quiet)
    with overflow_heard() as heard:
        planned.run(watch, overwrite=overwrite, on_commit=signals.ignore)
    if as_json:
        write(summary._replace(overflow=[each.details for each in heard]).json())
    params.tell(None if quiet or as_json else summary.line())
    tell_overflow(() if quiet else heard)
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


def rankwise(name: str, options: dict[str, Any]) -> None:
    """Run a command whose results go to the ranks."""
    pool.adopt_orphans()
    report = params.report_of(options)
    ranks, op, output = options.pop("ranks"), options.pop("op"), options.pop("output")
    from mpired.rankwise import plan_rankwise  # noqa: PLC0415 - not for `reduce`, which comes here too

    planned = plan_rankwise(name, ranks, op, output, **options)
    overwrite = options["overwrite"] or options["in_place"]
    carry_out(planned, summarise_rankwise(planned), overwrite=overwrite, **report)
