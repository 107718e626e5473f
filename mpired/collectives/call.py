"""The calls whose results go to the ranks, from their words to the results in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack, cast

from mpired import ops
from mpired.attempts import NOTHING_HELD, Held
from mpired.buffers import RankFile, output_format
from mpired.buffers.source import Source
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.request import Reduction, Request, keep_around, plan_reduce, read_request
from mpired.collectives.results import Named, check_different, expand
from mpired.collectives.run import Course, Result, run_together
from mpired.collectives.table import BEFORE, COLLECTIVES, Collective, Share, Task
from mpired.engines import cores, userops
from mpired.errors import UsageError
from mpired.options import GroupOptions, LocalOptions, Options, PathLike, check_names, integer
from mpired.progress import Progress
from mpired.ranks import unnatural
from mpired.storage.output import nothing
from mpired.storage.staging import settle
from mpired.storage.together import Together, check_outputs

_EXSCAN_FIRST = ("none", "identity")
# The options that not every call has.
_OWN = {name for collective in COLLECTIVES.values() for name in collective.options}


class RankwiseOptions(GroupOptions, total=False):
    """What may be said of a call whose results go to the ranks."""

    link: bool
    counts_b: Sequence[int] | None
    exscan_first: str


class AllOptions(RankwiseOptions, total=False):
    """The same, with what Python takes as an argument."""

    counts: Sequence[int] | None


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
    dealt = [_results(deal, collective, request, output, options) for deal in deals(collective, request, options)]
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


class Deal(NamedTuple):
    """What one group reduces, and what the ranks of a group, itself or the other one, get of it."""

    givers: tuple[RankFile, ...]
    takers: tuple[Named, ...]
    shares: tuple[Share, ...]


def read_call(
    collective: Collective,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    options: AllOptions,
    output: str | None = None,
) -> Request:
    """Look at the op, the options and the ranks of a call.

    Raises
    ------
    MpiredError, OSError
        If they are not what the call needs.
    """
    check_names(options, AllOptions)
    for name in _OWN & options.keys() - set(collective.options):
        raise TypeError(f"unexpected keyword argument {name!r}; {collective.name} has no such option")
    if options.get("group_b") and not collective.intercomm:
        reason = f"MPI defines no {collective.name} between two groups (MPI-4.1, {collective.section})"
        raise UsageError("--group-b", reason)
    if options.get("counts_b") is not None and not options.get("group_b"):
        raise UsageError("--counts-b", "is said of the ranks of --group-b, and there are none")
    if (first := options.get("exscan_first", "none")) not in _EXSCAN_FIRST:
        raise UsageError("--exscan-first", f"{first!r} is none of {', '.join(_EXSCAN_FIRST)}")
    known = Options.__annotations__
    shared = cast("Options", {key: value for key, value in options.items() if key in known})
    return read_request(ranks, op, shared, output or "")


def deals(collective: Collective, request: Request, options: AllOptions) -> Iterator[Deal]:
    """Yield what each group that gets something gets: with two groups, what the other one reduces."""
    counts = options.get("counts"), options.get("counts_b")
    for i, takers in enumerate(request.groups):
        givers = request.groups[-1 - i]
        task = Task(
            last=len(givers) - 1,
            nranks=len(takers),
            count=takers[0].buffers[0].count,
            counts=_counts(collective, counts[i], "--counts-b" if i else "--counts"),
            identity=options.get("exscan_first") == "identity",
        )
        shares = tuple(collective.shares(task))
        for buffer in givers[0].buffers:
            if any(share.last == BEFORE for share in shares):
                ops.neutral(request.op, buffer.datatype)  # raises if there is none
        last = max((share.last for share in shares), default=BEFORE)
        named = tuple(Named("ab"[i], share.rank, takers[share.rank]) for share in shares)
        yield Deal(givers[: max(1, last + 1)], named, shares)


def _counts(collective: Collective, counts: Sequence[int] | None, option: str) -> tuple[int, ...] | None:
    if "counts" in collective.options and counts is None:
        raise UsageError(option, "is missing; say how many elements each rank of the group gets, as 3,0,5")
    if counts is None:
        return None
    if isinstance(counts, str | bytes):
        raise UsageError(option, f"{counts!r} is one text; give a count for each rank")
    numbers = tuple(integer(option, count) for count in counts)
    for number in numbers:
        if not 0 <= number < 2**63:
            raise UsageError(option, f"{number} is not between 0 and 2**63 - 1")
    return numbers


def _results(
    deal: Deal, collective: Collective, request: Request, output: str | None, options: AllOptions
) -> tuple[Deal, tuple[Result, ...]]:
    """Say where each result of a deal goes, and how it lies there."""
    if output is None:
        words = request.words["ab".index(deal.takers[0].group)] if deal.takers else []
        paths = [words[taker.rank] for taker in deal.takers]
    else:
        paths = expand(output, deal.takers)
    results: list[Result] = []
    for path, taker, share in zip(paths, deal.takers, deal.shares, strict=True):
        if results and collective.alike and output is not None:  # all are modelled on one, to be the same file
            results.append(results[0]._replace(share=share, path=path))
        else:
            results.append(_result(path, taker.file, share, collective, request, options))
    return deal, tuple(results)


def _result(
    path: str, file: RankFile, share: Share, collective: Collective, request: Request, options: AllOptions
) -> Result:
    """Model a result on the file of its rank, which it replaces if it is to be in place."""
    in_place = options.get("in_place", False)
    model = file if collective.whole else part_of(file, share)
    form = output_format(path, file.format if in_place else options.get("to"), model, terminal=False)
    if not in_place:
        return Result(share, path, form.name, request.lay_out(form, model))
    layout = form.prepare(model)
    kept = keep_around(file, layout, cast("Options", options))
    # The header of npy says how many elements there are.
    return Result(share, path, form.name, layout if form.name == "npy" and not collective.whole else kept)


def part_of(file: RankFile, share: Share) -> RankFile:
    """Return a file like this one with so many elements, in one dimension."""
    buffers = [
        replace(cast("Any", buffer), count=share.count, shape=None, fortran_order=False) for buffer in file.buffers
    ]
    return file._replace(buffers=buffers)


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
