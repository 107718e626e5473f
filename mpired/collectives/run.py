"""The work of a plan, and the drafts of results that it fills."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from mpired import cautions, log
from mpired.collectives.fields import ResultArray, arrays_in, taken_by
from mpired.collectives.fold import Fold, PieceResult, Region, ResultFile
from mpired.collectives.plan import Plan, Segment
from mpired.collectives.table import OpField, Share
from mpired.context import Context
from mpired.datatypes.pairs import VALID
from mpired.engines import pool
from mpired.engines.worker import be_quiet
from mpired.errors import WorkerError
from mpired.files import calls, copying
from mpired.files.output import Output, StreamOutput
from mpired.files.scratch import Scratch
from mpired.formats import ArrayLayout, FlatLayout, Layout, MarkingLayout, decoding, format_named
from mpired.formats.array import Array, stored_array
from mpired.ops import overflow, stands_for_null
from mpired.sources.local import LocalSource
from mpired.sources.open import check_unchanged
from mpired.sources.source import local_fd
from mpired.sources.stream import StreamSource

if TYPE_CHECKING:
    from mpired.engines.table import ChainRunner, FarRunner
    from mpired.files.transaction import Draft
    from mpired.formats.missing import Missing

_ALIGNMENT = 64
_Part: TypeAlias = tuple[int, int, int | None, tuple[OpField, ...]]
_NOTHING_MISSING: Mapping[_Part, Sequence[Missing | None]] = {}


class Result(NamedTuple):
    """A result: the share of a rank, its file and its layout."""

    share: Share  # which part of which partial result
    path: str  # its file
    format: str  # the name of the format
    layout: Layout  # its form in the file
    own: Sequence[int] | None = None  # the numbers of the arrays in its file, if others are in other files
    folder: str = ""  # the directory of a result in several files, which is made if there is none

    def nbytes(self, plan: Plan) -> tuple[int, bool]:
        """Return how many bytes its file has, and whether that is certain: encoded elements take more or less."""
        if isinstance(self.layout, FlatLayout):
            around = self.layout.around
            after = 0 if around is None else max(0, around.source.nbytes - around.end)
            return _end(self.layout, self.share.count_of(plan.buffers[0][0].count)) + after, True
        arrays = _arrays(self, plan).values()
        return sum(self.share.count_of(each.rank.count) * each.datatype.itemsize for each in arrays), False


class FoldPlan(NamedTuple):
    """One fold over the ranks of a group, and all that is taken of it."""

    plan: Plan
    results: tuple[Result, ...]


def fill(fold_plan: FoldPlan, drafts: Sequence[Output], context: Context, *, link: bool) -> None:
    """Carry out a fold into the drafts of its results: workers write flat ones, the others are encoded afterwards."""
    if (
        drafts and isinstance(drafts[0], StreamOutput) and _flow(fold_plan, drafts[0], context)
    ):  # of a stream there is one
        return
    flat: list[ResultFile] = []
    encoded: list[tuple[Result, Output]] = []
    counted: set[object] = set()  # what several files have alike is counted once
    copied: list[tuple[Output, Output]] = []
    first: dict[object, Output] = {}
    for result, draft in zip(fold_plan.results, drafts, strict=True):
        layout = result.layout
        same = result.share.part, id(layout)
        if same in first and (link or not isinstance(layout, FlatLayout | ArrayLayout)):
            copied.append((first[same], draft))
            continue
        first.setdefault(same, draft)
        if isinstance(layout, FlatLayout):
            end = _end(layout, result.share.count_of(fold_plan.plan.buffers[0][0].count))
            with draft.created(None if layout.around or fold_plan.plan.has_unknown_length else end) as fd:
                _copy_surroundings(layout, fd, draft.name, end)
            region = Region(layout.offset, layout.stored, layout.around, end)
            flat.append(ResultFile(draft.shared, draft.name, result.share, {0: region}, start_writeback=True))
        elif isinstance(layout, ArrayLayout):
            flat.append(_laid(result, layout, draft, fold_plan.plan, is_counted=result.share.part not in counted))
        else:
            encoded.append((result, draft))
        counted.add(result.share.part)
    place = drafts[0] if encoded else None
    shares = [result.share for result, _ in encoded]
    marking = ((result.share.part, result.layout) for result, _ in encoded)
    missing = {part: layout.missing for part, layout in marking if isinstance(layout, MarkingLayout)}
    with folded(fold_plan.plan, shares, place, context, also=flat, missing=missing) as results:
        for (result, draft), buffers in zip(encoded, results, strict=True):
            assert not isinstance(result.layout, FlatLayout)  # noqa: S101 - sorted so above
            with draft.created() as fd, log.step("encoding results"):
                result.layout(buffers, fd)
    again = [draft for _, draft in copied]
    for result, draft in zip(fold_plan.results, drafts, strict=True):
        if draft not in again:
            _finish_headers(result.layout, draft, fold_plan.plan)
    for original, draft in copied:  # there are several only together
        cast("Draft", draft).repeat(cast("Draft", original), link=link)


def _flow(fold_plan: FoldPlan, output: StreamOutput, context: Context) -> bool:
    """Send the result to a stream as it is made, if possible; return whether it was."""
    plan, result = fold_plan.plan, fold_plan.results[0]
    if not plan.flows:
        return False
    layout = result.layout
    if isinstance(layout, FlatLayout):
        flows = not (layout.around or layout.before or layout.head_of)
    else:
        form = format_named(result.format)
        flows = form.streamed and form.grows and plan.ops[0].rules.nulls == "error"
    stream = output.flow() if flows else None
    if stream is None:
        return False
    with calls.errors_name(output.stream_name):
        if isinstance(layout, FlatLayout):
            calls.write_all(stream, layout.head)
            region, write = Region(layout.offset, layout.stored), partial(calls.write_all, stream)
            _fold(plan, [ResultFile(output.shared, output.stream_name, result.share, {0: region}, flow=write)], context)
        else:
            with _Flowing(plan, result.share, output, context) as flowing:
                layout([flowing.elements], stream)
    return True


class _Flowing(AbstractContextManager["_Flowing"]):
    """A fold that goes on when its result is read; `elements` is that."""

    def __init__(self, plan: Plan, share: Share, output: StreamOutput, context: Context) -> None:
        (result,) = arrays_in(share, plan.ops, plan.firsts[:1])
        datatype = result.datatype
        target = ResultFile(output.shared, output.name, share, {0: Region(0, datatype.form)}, flow=self._take)
        self._plan, self._parts, self._stack = plan, list[PieceResult](), ExitStack()
        self._made: deque[memoryview] = deque()
        fold = Fold(self._stack.enter_context(_decoded(plan)), (target,))
        self._working = self._stack.enter_context(closing(run_segments(plan, fold, context)))
        source = StreamSource(output.stream_name, self._fill)
        count = share.count_of(result.rank.count)
        self.elements = Array(source, datatype, count, datatype.form, name=result.name)

    def _take(self, data: memoryview) -> None:
        self._made.append(memoryview(bytes(data)))  # the fold uses the block again

    def _fill(self, view: memoryview) -> int:
        while not self._made:
            part = next(self._working, None)
            if part is None:
                return 0
            self._parts.append(part)
        count = min(len(view), len(self._made[0]))
        view[:count] = self._made[0][:count]
        self._made[0] = self._made[0][count:]
        if not self._made[0]:
            self._made.popleft()
        return count

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None:
                self._parts.extend(self._working)
        if kind is None:
            _report_overflow(self._plan, self._parts)


def _end(layout: FlatLayout, count: int) -> int:
    """Return the offset behind the last element; a file that is replaced may still lack the padding of that."""
    end = layout.offset + count * layout.stored.itemsize
    replaced = layout.around
    return min(end, replaced.source.nbytes) if replaced is not None and end == replaced.end else end


def _arrays(result: Result, plan: Plan) -> dict[int, ResultArray]:
    """Return the arrays in a file of results, by their numbers."""
    arrays = enumerate(arrays_in(result.share, plan.ops, plan.firsts))
    return {number: each for number, each in arrays if result.own is None or number in result.own}


def _laid(result: Result, layout: ArrayLayout, draft: Output, plan: Plan, *, is_counted: bool) -> ResultFile:
    """Write what a file of arrays has besides the elements, and return where these go."""
    with draft.created() as fd:
        places = layout.lay(fd)
    replaced = layout.there or [None] * len(places)
    regions = tuple(map(Region, places, layout.stored, replaced))
    if layout.missing and is_counted:
        regions = tuple(each._replace(missing=one) for each, one in zip(regions, layout.missing, strict=True))
    own = dict(zip(_arrays(result, plan), regions, strict=True))
    return ResultFile(draft.shared, draft.name, result.share, own, start_writeback=True)


def _finish_headers(layout: Layout, draft: Output, plan: Plan) -> None:
    """Write what of a file shows only when the elements are there."""
    if isinstance(layout, FlatLayout) and layout.head_of and plan.has_unknown_length:
        with draft.created() as fd:
            calls.pwrite_all(fd, layout.head_of(plan.found), 0)
    if isinstance(layout, ArrayLayout) and layout.finish:
        with log.step("completing results"), calls.errors_name(draft.name):
            fd = draft.shared.open()
            try:
                layout.finish(fd)
            finally:
                calls.let_go(fd)


def _copy_surroundings(layout: FlatLayout, fd: int, name: str, end: int) -> None:
    """Write what a flat file has before and after its elements."""
    buffer = layout.around or layout.before
    if buffer is None:
        calls.pwrite_all(fd, layout.head, 0)
        return
    with closing(buffer.source.open()) as file, calls.errors_name(name):
        copying.copy_sparse(local_fd(file), fd, 0, buffer.offset, 0)
        if layout.around is None:
            return
        calls.set_size(fd, end + max(0, buffer.source.nbytes - buffer.end))
        copying.copy_sparse(local_fd(file), fd, buffer.end, buffer.source.nbytes, end)
        calls.allocate(fd, end - buffer.offset, buffer.offset)


@contextmanager
def folded(
    plan: Plan,
    shares: Sequence[Share],
    beside: Output | None,
    context: Context,
    *,
    also: Sequence[ResultFile] = (),  # files that take results as well
    missing: Mapping[_Part, Sequence[Missing | None]] = _NOTHING_MISSING,
) -> Generator[list[list[Array]], None, None]:
    """Fold all segments into a scratch file beside an output, and give each share of the result as native elements."""
    if not shares:
        _fold(plan, also, context)
        yield []
        return
    regions, end = _regions(plan, shares, missing)
    place = (beside.directory, beside.name) if beside else ()
    with Scratch(*place) as scratch:
        if not plan.has_unknown_length:
            scratch.allocate(end)
        targets = [
            ResultFile(scratch.shared, scratch.name, share, dict(enumerate(each))) for share, each in regions.values()
        ]
        _fold(plan, [*also, *targets], context)
        source = LocalSource.of(scratch.name, scratch.shared_path)

        def buffer(share: Share, result: ResultArray, region: Region) -> Array:
            count = plan.found if plan.has_unknown_length else share.count_of(result.rank.count)
            flat = Array(source, result.datatype, count, region.stored, region.offset, validity=region.validity)
            return flat._replace(name=result.name)

        arrays = ((share, arrays_in(share, plan.ops, plan.firsts)) for share in shares)
        yield [list(map(partial(buffer, share), each, regions[share.part][1])) for share, each in arrays]


def _regions(
    plan: Plan, shares: Sequence[Share], missing: Mapping[_Part, Sequence[Missing | None]]
) -> tuple[dict[_Part, tuple[Share, tuple[Region, ...]]], int]:
    """Give every different part of the result a place in a scratch file; return these and the bytes of all."""
    regions: dict[_Part, tuple[Share, tuple[Region, ...]]] = {}
    end = 0
    for part, share in {share.part: share for share in shares}.items():
        each = []
        arrays = arrays_in(share, plan.ops, plan.firsts)
        for result, marks in zip(arrays, missing.get(part, repeat(None)), strict=False):
            form, count = result.datatype.form, share.count_of(result.rank.count)
            after = end + -(-count * form.itemsize // _ALIGNMENT) * _ALIGNMENT
            has_nulls = result.op.rules.nulls != "error" and result.field != VALID
            each.append(Region(end, form, validity=after if has_nulls else None, missing=marks))
            end = after + (-(-count // _ALIGNMENT) * _ALIGNMENT if has_nulls else 0)
        regions[part] = share, tuple(each)
    return regions, end


def _fold(plan: Plan, targets: Sequence[ResultFile], context: Context) -> None:
    with _decoded(plan) as decoded:
        if plan.returns and not _are_filled(plan, targets):
            parts = _received(decoded, targets, context)
        else:
            with closing(Fold(decoded, tuple(targets))) as fold:
                parts = list(run_segments(plan, fold, context))
    _report_overflow(plan, parts)
    hidden: dict[tuple[int, int], tuple[ResultArray, Missing]] = {}
    for target in targets:
        for number, result in enumerate(arrays_in(target.share, plan.ops, plan.firsts)):
            region = target.regions.get(number)
            if region is not None and region.missing is not None:
                hidden.setdefault((result.buffer, result.number), (result, region.missing))
    for (buffer, number), (result, missing) in sorted(hidden.items(), key=lambda each: each[0]):
        if count := sum(part.hidden.get(number, 0) for part in parts if part.buffer == buffer):
            lacks = result.op.rules.nulls != "error" and not stands_for_null(result.op, result.rank.datatype)
            way_out = f"use `to='parquet'` with `columns={result.rank.name!r}`" if lacks else "use `to='npz'`"
            name = result.name if len(plan.ops) > 1 else result.rank.name
            cautions.tell(cautions.masked(count, name, missing.text, way_out))


def _received(plan: Plan, targets: Sequence[ResultFile], context: Context) -> list[PieceResult]:
    """Fold on other machines, and write their results here."""
    from mpired.collectives.sent import Receiver, SendingFold  # noqa: PLC0415 - for other machines only

    shares = tuple(target._replace(regions={}) for target in targets)
    with closing(Receiver(plan, targets)) as receiver, closing(SendingFold(plan, shares)) as fold:
        return [receiver.written(part) for part in run_segments(plan, fold, context)]


def _are_filled(plan: Plan, targets: Sequence[ResultFile]) -> bool:
    """Return whether workers on other machines write the results: several files, in folders that all can write to."""
    if not plan.engine.fills_drafts:
        return False
    from mpired.engines import probe  # noqa: PLC0415 - for other machines only

    drafts = [target.file for target in targets if target.file.inode[1]]
    one_in_each = {os.path.dirname(draft.path): draft for draft in drafts}
    if len(drafts) < max(2, len(targets)):
        return False
    return probe.all_write(cast("FarRunner", plan.engine.runner), list(one_in_each.values()))


def _report_overflow(plan: Plan, parts: Sequence[PieceResult]) -> None:
    """Note what came of a fold: the count of open ranks; warn of what overflowed, or was never written."""
    if plan.has_unknown_length:
        plan.ended.append(max(part.stop for part in parts))
    for found in overflow.by_op(each for part in parts for each in part.overflow):
        op, ranks = plan.ops[found.op], plan.buffers[found.buffer]
        name = ranks[0].name if len(plan.buffers) > 1 else ""
        overflow.tell(op, taken_by(op, ranks[0]).datatype, found, [rank.source.name for rank in ranks], name)
    for number, ranks in enumerate(plan.buffers if plan.ops[0].rules.missing is None else ()):
        if count := sum(part.unset for part in parts if part.buffer == number):
            value = next(unset for rank in ranks if (unset := stored_array(rank).unset) is not None)
            name = stored_array(ranks[0]).name
            cautions.tell(cautions.unset(count, name, f"leave them out with `missing={value}`"))


class _Piece(Protocol):
    """Progress of a segment: the number of bytes read, and more."""

    @property
    def nbytes(self) -> int: ...


_P = TypeVar("_P", bound=_Piece)


def run_segments(plan: Plan, work: Callable[[Segment], Iterator[_P]], context: Context) -> Generator[_P, None, None]:
    """Let the engine work on all segments of a plan; yield the outcome of their pieces, in any order."""
    log.plan(plan.text)
    parts: list[_P] = []
    runner = plan.engine.runner
    if plan.lines:
        begun = cast("ChainRunner", runner).chain(cast("Any", work), plan.tasks, plan.lines)
    elif plan.decodes_apart and plan.jobs == 1 and context.worker is not None and context.worker.is_there:
        begun = context.worker.each(work, plan.segments)  # the one that has inspected the ranks
    else:
        done_there = partial(_quietly, work) if plan.decodes_apart else work
        begun = runner.run(done_there, plan.segments, plan.jobs, isolated=plan.isolated)
    with log.step("combining the ranks"), _deaths_explained(plan), closing(begun) as working:

        def done() -> Iterator[int]:
            for part in working:
                parts.append(part)
                yield part.nbytes

        for _ in context.progress(done(), plan.nbytes):
            yield from parts
            parts.clear()
    yield from parts
    sources = (buffer.source for ranks in plan.buffers for buffer in ranks)
    check_unchanged([*{id(source): source for source in sources}.values()])


def _quietly(work: Callable[[Segment], Iterator[_P]], segment: Segment) -> Iterator[_P]:
    """Work on a segment in a worker of its own, which a library that decodes may end with some words."""
    be_quiet()
    yield from work(segment)


@contextmanager
def _decoded(plan: Plan) -> Iterator[Plan]:
    """Let a worker decode what a function of this process folds here; the workers of other folds decode themselves."""
    if not any(op.is_function for op in plan.ops):
        yield plan
        return
    with closing(decoding.Decoder()) as decoder:
        yield plan._replace(buffers=tuple(tuple(map(decoder.decoding, ranks)) for ranks in plan.buffers))


@contextmanager
def _deaths_explained(plan: Plan) -> Iterator[None]:
    """Turn the death of a worker into an error of the op, or else of the file that it decoded."""
    explained: AbstractContextManager[None] = nullcontext()
    if isolated := [op for op in plan.ops if op.isolated]:
        from mpired.engines import userops  # noqa: PLC0415 - only for user-defined ops

        # Of several the one that ended the worker is not known.
        explained = userops.deaths_explained(isolated[0]._replace(name=", ".join(map(str, isolated))))
    try:
        with explained:
            yield
    except WorkerError as error:
        if pool.is_crash(error):
            decoding.check(rank for ranks in plan.buffers for rank in ranks)
        raise
