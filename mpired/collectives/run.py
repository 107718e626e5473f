"""Plan, map, commit: a call from checked ranks to results that are in place."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple, TypeAlias

from mpired.buffers import Encoder, FlatBuffer, FlatLayout
from mpired.buffers.source import LocalSource, local_fd
from mpired.collectives.fold import Fold, Part, Region, Target
from mpired.collectives.plan import Plan
from mpired.collectives.table import Share
from mpired.datatypes import Group
from mpired.engines import decoding, userops
from mpired.errors import WorkerError
from mpired.ops import overflow
from mpired.progress import Progress
from mpired.storage import calls, copying
from mpired.storage.output import Output, Scratch
from mpired.storage.together import Draft, Together

_ALIGNMENT = 64


class Result(NamedTuple):
    """What one rank gets, and where.

    Parameters
    ----------
    share
        Which part of which partial result.
    path
        Its file.
    format
        The name of the format.
    layout
        How it lies there.
    """

    share: Share
    path: str
    format: str
    layout: FlatLayout | Encoder


class Course(NamedTuple):
    """One fold over the ranks of a group, and all that is taken of it."""

    plan: Plan
    results: tuple[Result, ...]


def run(
    courses: Sequence[Course],
    outputs: Output | Together,
    progress: Progress,
    *,
    link: bool = False,
) -> None:
    """Fold all courses into the outputs, which are those of the results in order, and commit them.

    Parameters
    ----------
    link
        Whether results that are the same file become one file with several names.

    Raises
    ------
    MpiredError, OSError
        Before the commit: all outputs are as they were. Only `UnconfirmedError` comes after it.
    """
    drafts: Iterator[Output | Draft] = iter(outputs.drafts)
    for course in courses:
        _fill(course, [next(drafts) for _ in course.results], progress, link=link)
    outputs.commit()


def _fill(course: Course, drafts: Sequence[Output | Draft], progress: Progress, *, link: bool) -> None:
    """Fold one course into drafts: where a worker can write a result it does, the others are encoded afterwards."""
    flat: list[Target] = []
    encoded: list[tuple[Result, Output | Draft]] = []
    copied: list[tuple[Output | Draft, Output | Draft]] = []
    first: dict[object, Output | Draft] = {}
    for result, draft in zip(course.results, drafts, strict=True):
        layout = result.layout
        same = result.share.part, id(layout)
        if same in first and (link or not isinstance(layout, FlatLayout)):
            copied.append((first[same], draft))
            continue
        first.setdefault(same, draft)
        if isinstance(layout, FlatLayout):
            end = _end(layout, result.share)
            with draft.created(end if layout.around is None else None) as fd:
                _write_around(layout, fd, draft.name, end)
            flat.append(_target(result, layout, draft))
        else:
            encoded.append((result, draft))
    place = drafts[0] if encoded else None
    shares = [result.share for result, _ in encoded]
    with folded(course.plan, shares, place, progress, also=flat) as results:
        for (result, draft), buffers in zip(encoded, results, strict=True):
            assert not isinstance(result.layout, FlatLayout)  # noqa: S101 - sorted so above
            with draft.created() as fd:
                result.layout(buffers, fd)
    for original, draft in copied:
        assert isinstance(original, Draft)  # noqa: S101 - there are several only together
        assert isinstance(draft, Draft)  # noqa: S101 - as above
        draft.repeat(original, link=link)


def _end(layout: FlatLayout, share: Share) -> int:
    """Return where the elements end; a file that lacks the padding of its last one does so when it is replaced."""
    end = layout.offset + share.count * layout.stored.itemsize
    replaced = layout.around
    return min(end, replaced.source.nbytes) if replaced is not None and end == replaced.end else end


def _target(result: Result, layout: FlatLayout, output: Output | Draft) -> Target:
    replaced = layout.around
    # What lies between the entries of a derived type is not the reduction's (MPI-4.1, 5.1); padding may be anything.
    kept = replaced if replaced is not None and replaced.datatype.group is Group.DERIVED else None
    region = Region(layout.offset, layout.stored, kept, _end(layout, result.share))
    return Target(output.shared, output.name, result.share, (region,), soon=True)


def _write_around(layout: FlatLayout, fd: int, name: str, end: int) -> None:
    """Write what a flat file has before and after its elements."""
    buffer = layout.around or layout.before
    if buffer is None:
        calls.pwrite_all(fd, layout.head, 0)
        return
    with closing(buffer.open()) as reader, calls.blaming(name):
        copying.copy_sparse(local_fd(reader.file), fd, 0, buffer.offset, 0)
        if layout.around is None:
            return
        calls.set_size(fd, end + max(0, buffer.source.nbytes - buffer.end))
        copying.copy_sparse(local_fd(reader.file), fd, buffer.end, buffer.source.nbytes, end)
        calls.allocate(fd, end - buffer.offset, buffer.offset)


@contextmanager
def folded(
    plan: Plan,
    shares: Sequence[Share],
    beside: Output | Draft | None,
    progress: Progress,
    *,
    also: Sequence[Target] = (),
) -> Generator[list[list[FlatBuffer]], None, None]:
    """Fold all segments into a scratch file beside an output, and give each share of the result as native elements.

    Parameters
    ----------
    also
        Files that take results as well.
    """
    if not shares:
        _fold(plan, also, progress)
        yield []
        return
    regions, end = _regions(plan, shares)
    place = (beside.directory, beside.name) if beside else ()
    with Scratch(*place, named=not plan.engine.same_tree) as scratch:
        scratch.allocate(end)
        targets = [Target(scratch.shared, scratch.name, share, each) for share, each in regions.values()]
        _fold(plan, [*also, *targets], progress)
        source = LocalSource.of(scratch.name, scratch.shared_path)
        datatypes = [plan.op.result(ranks[0].datatype) for ranks in plan.buffers]
        yield [
            [
                FlatBuffer(source, datatype, share.count, region.stored, region.offset, name=ranks[0].name)
                for ranks, datatype, region in zip(plan.buffers, datatypes, regions[share.part][1], strict=True)
            ]
            for share in shares
        ]


_Part: TypeAlias = tuple[int, int, int]


def _regions(plan: Plan, shares: Sequence[Share]) -> tuple[dict[_Part, tuple[Share, tuple[Region, ...]]], int]:
    """Give every different part of the result a place in a scratch file; return these and the bytes of all."""
    regions: dict[_Part, tuple[Share, tuple[Region, ...]]] = {}
    end = 0
    for part, share in {share.part: share for share in shares}.items():
        each = []
        for ranks in plan.buffers:
            form = plan.op.result(ranks[0].datatype).form
            each.append(Region(end, form))
            end += -(-share.count * form.itemsize // _ALIGNMENT) * _ALIGNMENT
        regions[part] = share, tuple(each)
    return regions, end


def _fold(plan: Plan, targets: Sequence[Target], progress: Progress) -> None:
    parts: list[Part] = []
    run_segments = plan.engine.runner.run
    with (
        _deaths_explained(plan),
        _decoded(plan) as decoded,
        closing(
            run_segments(Fold(decoded, tuple(targets)), plan.segments, plan.jobs, isolated=plan.isolated)
        ) as folding,
    ):

        def done() -> Iterator[int]:
            for part in folding:
                parts.append(part)
                yield part.nbytes

        for _ in progress(done(), plan.nbytes):
            pass
    for rank in plan.buffers[0]:
        rank.source.check_unchanged()
    if found := overflow.total(part.overflow for part in parts):
        ranks = plan.buffers[found.buffer]
        name = ranks[0].name if len(plan.buffers) > 1 else ""
        overflow.tell(plan.op, found, [rank.source.name for rank in ranks], name)


@contextmanager
def _decoded(plan: Plan) -> Iterator[Plan]:
    """Let a worker decode what a function of this process folds here; the workers of other folds decode themselves."""
    if not plan.op.is_function:
        yield plan
        return
    with closing(decoding.Decoder()) as decoder:
        yield plan._replace(buffers=tuple(tuple(map(decoder.decoding, ranks)) for ranks in plan.buffers))


@contextmanager
def _deaths_explained(plan: Plan) -> Iterator[None]:
    """Turn the death of a worker into an error of the op, or else of the file that it decoded."""
    try:
        with userops.deaths_explained(plan.op):
            yield
    except WorkerError as error:
        if decoding.is_crash(error):
            decoding.check(rank for ranks in plan.buffers for rank in ranks)
        raise
