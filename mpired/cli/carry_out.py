"""What the commands that combine ranks have in common: run what was planned, and say what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpired import attempts, cautions
from mpired.attempts import Held, Planned, Words
from mpired.cli import params, progress, signals
from mpired.cli.messages import hearing, show, tell_cautions, tell_json, tell_preview
from mpired.collectives.request import paths_of, ranks_of
from mpired.collectives.table import COLLECTIVES
from mpired.engines import chosen, pool, worker
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
    from mpired.preview import Preview
    from mpired.report import PackSummary

_P = TypeVar("_P", bound=Planned)


def replacing(
    plan: Callable[[], _P], words: Words, options: Options, *, overwrite: bool, quiet: bool
) -> tuple[_P, list[MpiredWarning]]:
    """Plan a call whose results are files and do it; return what was planned, and what it warned of."""
    watch = progress.chosen(quiet=quiet)

    def work(planned: _P, held: Held) -> None:
        planned.run(watch, overwrite=overwrite, on_commit=signals.commit, held=held)

    with hearing() as heard:
        planned = attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=options["lock_timeout"])
    return planned, heard


def rehearse(
    plan: Callable[[], _P], described: Callable[[_P], Preview], words: Words, options: Options, *, overwrite: bool
) -> None:
    """Check a call whose results are files, and say on standard output what it would do."""

    def checked() -> _P:
        planned = plan()
        if overwrite:
            attempts.check_reaches(planned)
        return planned

    with cautions.heard() as heard:
        planned = attempts.rehearsed(
            checked, lambda each: each.paths, words, overwrite=overwrite, timeout=options["lock_timeout"]
        )
    tell_rehearsal(described(planned), [source.name for source in planned.sources], heard)
    params.end_without(getattr(planned, "skipped", ()))


def tell_rehearsal(
    found: Preview, inputs: Sequence[object], heard: Sequence[MpiredWarning], ranks: str = "rank"
) -> None:
    """Say on standard output what a call would do, and on standard error what it would warn of."""
    if params.is_json():
        tell_preview(found, inputs, heard)
    else:
        show("\n".join(map(escaped, found.lines(ranks))))
        tell_cautions(() if params.report()["quiet"] else heard)
    params.tell(None)


def replacing_as_told(
    plan: Callable[[], _P],
    words: Words,
    options: Options,
    summarised: Callable[[_P], PackSummary],
    *,
    overwrite: bool,
) -> None:
    """Do a call that writes one file, and say what was done."""
    report = params.report()
    planned, heard = replacing(plan, words, options, overwrite=overwrite, quiet=report["quiet"])
    summary = summarised(planned)
    if report["as_json"]:
        tell_json(summary._asdict(), heard)
        params.tell(None)
        return
    tell_cautions(() if report["quiet"] else heard)
    params.tell(None if report["quiet"] else summary.line())


def carry_out(plan: Callable[[], Call], options: Options, words: Words) -> None:
    """Plan a call that combines ranks, do it, and say on standard error what was done."""
    report, overwrite = params.report(), options["overwrite"] or options["in_place"]
    quiet, as_json = report["quiet"], report["as_json"]
    if report["dry_run"]:
        from mpired import preview  # noqa: PLC0415 - for a dry run only

        rehearse(plan, preview.of_collective, words, options, overwrite=overwrite)
        return
    if as_json or not quiet:  # before anything is in place
        from mpired.report import summarise  # noqa: PLC0415 - only for who wants to know
    worker.keep_freed_memory()
    planned, heard = replacing(plan, words, options, overwrite=overwrite, quiet=quiet)
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
    with chosen(options):
        carry_out(plan, options, partial(paths_of, words, options))
