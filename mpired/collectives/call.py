"""A call that has passed all checks, and how it gets there: from its words to results that are in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpired import ops
from mpired.attempts import NOTHING_HELD, Held
from mpired.buffers import AtHand, RankFile
from mpired.buffers.model import Kept
from mpired.buffers.source import Source
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.request import Request, read_request
from mpired.collectives.results import Deal, check_different, deals, paths_of, results_of
from mpired.collectives.run import Course, Result, run
from mpired.collectives.table import COLLECTIVES, Collective
from mpired.engines import decoding
from mpired.errors import UsageError
from mpired.options import CallOptions
from mpired.progress import Progress
from mpired.storage.output import Output, nothing, open_output
from mpired.storage.recovery import check_are_data
from mpired.storage.together import Together


class Call(NamedTuple):
    """A collective that has passed all checks.

    Parameters
    ----------
    collective
        Which one it is.
    groups
        The ranks of each group.
    courses
        A fold for each group that gets results, and these.
    output
        Where the results go: the path or the pattern as given; None if they replace the ranks' files.
    link
        Whether equal results become one file with several names.
    root
        The rank that gets the result, where only one does.
    """

    collective: Collective
    groups: tuple[tuple[RankFile, ...], ...]
    courses: tuple[Course, ...]
    output: str | None
    link: bool = False
    root: int = 0

    @property
    def plans(self) -> list[Plan]:
        """What is to be done."""
        return [course.plan for course in self.courses]

    @property
    def results(self) -> list[Result]:
        """What comes of it."""
        return [result for course in self.courses for result in course.results]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [file.source for group in self.groups for file in group]

    @property
    def paths(self) -> list[str]:
        """The files of the results."""
        return [result.path for result in self.results]

    def run(
        self,
        progress: Progress,
        *,
        overwrite: bool = False,
        on_commit: Callable[[], None] = nothing,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Do it, and commit all results together; `held` has the files that they replace."""
        outputs: Output | Together
        if self.collective.to_root:
            (path,), (plan,) = self.paths, self.plans
            named = not plan.engine.same_tree
            outputs = open_output(path, overwrite=overwrite, on_commit=on_commit, target=held.get(path), named=named)
        else:  # that the files are locked is enough
            outputs = Together(self.paths, overwrite=overwrite, on_commit=on_commit)
        with outputs:
            run(self.courses, outputs, progress, link=self.link)


def plan_call(
    name: str,
    ranks: Sequence[str | AtHand],
    op: ops.OpLike,
    output: str | None,
    options: CallOptions,
    *,
    terminal: bool = False,
) -> Call:
    """Check a call: words, every rank, the op on the datatype, the name and form of every result. Nothing is written.

    Parameters
    ----------
    name
        The collective, as its command is called.
    ranks
        Paths in rank order.
    op
        The op, its name, or a function.
    output
        Where the result goes, or the pattern of the results' names; None in place.
    options
        As `Collective.checked` gives them.
    terminal
        Whether that is a terminal, which gets a readable table.

    Raises
    ------
    MpiredError, OSError
        If the call is not possible.
    """
    collective, in_place = COLLECTIVES[name], options["in_place"]
    _check_output(collective, output, options)
    check_are_data([output])
    request = read_request(collective, ranks, op, options, output or "")
    if options["keep"]:
        _check_kept(request)
    dealt = [(deal, paths_of(deal, request, output)) for deal in deals(request)]
    paths = [path for _, each in dealt for path in each]
    if len(paths) > 1:
        check_different(paths, [receiver for deal, _ in dealt for receiver in deal.receivers])
    if not in_place:
        request.check_no_input(paths, _WAY_OUT[collective.to_root])
    results = [results_of(deal, each, request, terminal=terminal) for deal, each in dealt]
    nlocked = sum(map(os.path.isfile, paths)) if in_place or options["overwrite"] else 0
    courses = tuple(
        make_course(deal, each, request, nlocked=nlocked) for (deal, _), each in zip(dealt, results, strict=True)
    )
    return Call(collective, request.groups, courses, output, options["link"], options["root"])


def _check_kept(request: Request) -> None:
    """Raise an error unless all ranks have the columns that are kept, with the same values."""
    kept: list[tuple[str, Kept]] = []
    for name, files in zip(("A", "B"), request.groups, strict=False):
        for rank, file in enumerate(files):
            if file.kept is None:
                reason = f"carries columns of parquet and arrow files, and {file.source.name} is {file.format}"
                raise UsageError("`keep`", f"{reason}; leave it out")
            kept.append((f"rank {rank}" + (f" of group {name}" if len(request.groups) > 1 else ""), file.kept))
    decoding.check_kept(kept)


_WAY_OUT = {
    True: "name another output, or replace a rank's file with `root=R` and `in_place=True`",
    False: "name other files, or replace each rank's by its own result with `in_place=True`",
}


def _check_output(collective: Collective, output: str | None, options: CallOptions) -> None:
    """Raise `UsageError` unless the results go to an output or replace files, and not both."""
    in_place = options["in_place"]
    if in_place and options["link"]:
        raise UsageError("`link`", "would make all ranks' files one; in place each rank keeps its own")
    if in_place and options["header"] != "none":
        raise UsageError("`header`", "is for new results; in place all bytes before the elements stay, so leave it out")
    if in_place and output is not None:
        whose = "the root's file" if collective.to_root else "the ranks' files"
        raise UsageError("`in_place`", f"writes over {whose}; leave `output` out")
    if not in_place and output is None:
        reason = (
            "is missing; name the results by a pattern, as 'out_{rank}.npy', or replace the ranks with `in_place=True`"
        )
        raise UsageError("`output`", reason)


def make_course(deal: Deal, results: tuple[Result, ...], request: Request, *, nlocked: int = 0) -> Course:
    """Plan the fold over those that give, with what is taken of it."""
    options = request.options
    jobs, max_memory = options["jobs"], options["max_memory"]
    noutputs = len(deal.shares)
    return Course(make_plan(request.op, deal.senders, jobs, max_memory, noutputs=noutputs, nlocked=nlocked), results)
