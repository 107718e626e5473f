"""A call that has passed all checks, and how it gets there: from its words to results that are in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

from mpired.attempts import NOTHING_HELD, Held
from mpired.buffers import RankFile, output_format
from mpired.buffers.source import Source
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.request import Request, read_call, read_request
from mpired.collectives.results import Deal, check_different, deals, keep_around, results_of
from mpired.collectives.run import Course, Result, run, run_together
from mpired.collectives.table import COLLECTIVES, Collective, Task
from mpired.engines import cores, userops
from mpired.errors import UsageError
from mpired.options import AllOptions, LocalOptions, Options, PathLike, check_names
from mpired.progress import Progress
from mpired.ranks import check_root, unnatural
from mpired.storage.output import nothing, open_output
from mpired.storage.staging import settle
from mpired.storage.together import Together, check_outputs


class Reduction(NamedTuple):
    """A reduction that has passed all checks.

    Parameters
    ----------
    files
        The ranks.
    plan
        What is to be done.
    model
        The root's file, which the result is modelled on.
    result
        Where the result goes, `-` is standard output, and how it lies there.
    timeout
        Seconds that one application of the op may take.
    collective
        Which call it is.
    """

    files: tuple[RankFile, ...]
    plan: Plan
    model: RankFile
    result: Result
    timeout: float | None = None
    collective: Collective = COLLECTIVES["reduce"]

    @property
    def plans(self) -> list[Plan]:
        """What is to be done."""
        return [self.plan]

    @property
    def paths(self) -> list[str]:
        """Where the result goes."""
        return [self.result.path]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [file.source for file in (*self.files, self.model)]

    @property
    def doubtful_order(self) -> tuple[str, str] | None:
        """Two ranks that are probably in the wrong order, if the order shows in the result."""
        datatypes = (buffer.datatype for buffer in self.files[0].buffers)
        if not any(datatype.group in self.plan.op.rounds for datatype in datatypes):
            return None
        return unnatural([file.source.name for file in self.files])

    @property
    def order_shows(self) -> str:
        """Where the order of the ranks shows."""
        return "last bits"

    def run(
        self,
        progress: Progress,
        *,
        overwrite: bool = False,
        on_commit: Callable[[], None] = nothing,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Do it, and commit the result; `held` has the file that it replaces."""
        path = self.result.path
        with (
            open_output(path, overwrite=overwrite, on_commit=on_commit, target=held.get(path)) as output,
            userops.deaths_explained(self.plan.op, self.timeout),
        ):
            run(self.plan, self.result, output, userops.engine(self.plan.op), progress)


def plan_reduce(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    output: str = "-",
    *,
    terminal: bool = False,
    **options: Unpack[Options],
) -> Reduction:
    """Check a reduction: words, every rank, the op on the datatype, the form of the result. Nothing is written.

    Parameters
    ----------
    ranks
        Paths in rank order.
    op
        The op's name.
    output
        Where the result goes.
    terminal
        Whether that is a terminal, which gets a readable table.

    Raises
    ------
    MpiredError, OSError
        If the reduction is not possible.
    """
    check_names(options, Options)
    request = read_request(ranks, op, options, output)
    chosen, root, in_place = request.op, options.get("root", 0), options.get("in_place", False)
    if in_place and output != "-":
        raise UsageError("--in-place", "writes over the root's file; leave --output out")
    check_root(root, len(request.groups[0]))
    # With two groups the root is in the first, and gets what the second reduces (MPI-4.1, 6.9.1).
    files, template = request.groups[-1], request.groups[0][root]
    path = request.words[0][root] if in_place else output
    if not in_place:
        request.check_no_input([path], "name another output, or replace a rank's file with --root R --in-place")
    to = template.format if in_place else options.get("to")
    form = output_format(path, to, template, terminal=terminal and not in_place)
    layout = keep_around(template, form.prepare(template), options) if in_place else request.lay_out(form, template)
    settle([path])
    (share,) = COLLECTIVES["reduce"].shares(Task(len(files) - 1, len(files), template.buffers[0].count, root=root))
    plan = make_plan(chosen, files, options.get("jobs", 0) or cores.usable_cores(), options.get("max_memory"))
    return Reduction(files, plan, template, Result(share, path, form.name, layout), options.get("op_timeout"))


class Rankwise(NamedTuple):
    """A call that has passed all checks.

    Parameters
    ----------
    collective
        Which one it is.
    groups
        The ranks of each group.
    courses
        A fold for each group that gets results, and these.
    pattern
        The names of the results; None if they replace the ranks' files.
    timeout
        Seconds that one application of the op may take.
    link
        Whether equal results become one file with several names.
    """

    collective: Collective
    groups: tuple[tuple[RankFile, ...], ...]
    courses: tuple[Course, ...]
    pattern: str | None
    timeout: float | None = None
    link: bool = False

    @property
    def plans(self) -> list[Plan]:
        """What is to be done."""
        return [course.plan for course in self.courses]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [file.source for group in self.groups for file in group]

    @property
    def paths(self) -> list[str]:
        """The files of the results."""
        return [result.path for course in self.courses for result in course.results]

    @property
    def doubtful_order(self) -> tuple[str, str] | None:
        """Two ranks that are probably in the wrong order, if the order shows in the results."""
        op = self.courses[0].plan.op
        rounds = any(buffer.datatype.group in op.rounds for buffer in self.groups[0][0].buffers)
        if not rounds and self.collective.alike:
            return None
        names = ([file.source.name for file in group] for group in self.groups)
        return next(filter(None, map(unnatural, names)), None)

    @property
    def order_shows(self) -> str:
        """Where the order of the ranks shows."""
        return "last bits" if self.collective.alike else "results"

    def run(
        self,
        progress: Progress,
        *,
        overwrite: bool = False,
        on_commit: Callable[[], None] = nothing,
        held: Held = NOTHING_HELD,  # noqa: ARG002 - that they are locked is enough
    ) -> None:
        """Do it, and commit all results together."""
        op = self.courses[0].plan.op
        with (
            Together(self.paths, overwrite=overwrite, on_commit=on_commit) as outputs,
            userops.deaths_explained(op, self.timeout),
        ):
            run_together(self.courses, outputs, userops.engine(op), progress, link=self.link)


def plan_rankwise(
    name: str,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    output: str | None = None,
    **options: Unpack[AllOptions],
) -> Rankwise:
    """Check a call: words, every rank, the op on the datatype, the name and form of every result. Nothing is written.

    Parameters
    ----------
    name
        The collective, as its command is called.
    ranks
        Paths in rank order.
    op
        The op's name.
    output
        The pattern of the results' names.

    Raises
    ------
    MpiredError, OSError
        If the call is not possible.
    """
    collective, in_place = COLLECTIVES[name], options.get("in_place", False)
    if in_place and options.get("link"):
        raise UsageError("--link", "would make all ranks' files one; in place each rank keeps its own")
    if in_place and output is not None:
        raise UsageError("--in-place", "writes over the ranks' files; leave --output out")
    if not in_place and output is None:
        reason = "is missing; name the results by a pattern, as 'out_{rank}.npy', or replace the ranks with --in-place"
        raise UsageError("--output", reason)
    request = read_call(collective, ranks, op, options, output)
    dealt = [results_of(deal, collective, request, output, options) for deal in deals(collective, request, options)]
    results = [result for _, each in dealt for result in each]
    takers = [taker for deal, each in dealt for taker in deal.takers]
    paths = [result.path for result in results]
    check_different(paths, takers)
    settle(paths)
    overwrite = in_place or options.get("overwrite", False)
    check_outputs(paths, overwrite=overwrite)
    if not in_place:
        request.check_no_input(paths, "name other files, or replace each rank's by its own result with --in-place")
    nlocked = sum(map(os.path.isfile, paths)) if overwrite else 0
    courses = tuple(make_course(deal, each, request, options, nlocked=nlocked) for deal, each in dealt)
    return Rankwise(collective, request.groups, courses, output, options.get("op_timeout"), options.get("link", False))


def make_course(
    deal: Deal, results: tuple[Result, ...], request: Request, options: AllOptions, *, nlocked: int = 0
) -> Course:
    """Plan the fold over those that give, with what is taken of it."""
    jobs, max_memory = options.get("jobs", 0) or cores.usable_cores(), options.get("max_memory")
    noutputs = len(deal.shares)
    return Course(make_plan(request.op, deal.givers, jobs, max_memory, noutputs=noutputs, nlocked=nlocked), results)


def plan_reduce_local(
    invec: PathLike, inoutvec: PathLike, op: str | Callable[..., Any], **options: Unpack[LocalOptions]
) -> Reduction:
    """Check one application of an op to two files, of which the second is replaced by the result.

    Raises
    ------
    MpiredError, OSError
        If it is not possible.
    """
    check_names(options, LocalOptions)
    planned = plan_reduce([invec, inoutvec], op, root=1, in_place=True, **options)
    return planned._replace(collective=COLLECTIVES["reduce-local"])
