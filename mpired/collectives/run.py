"""The work of a plan, and the drafts of results that it fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from mpired import interrupts, log
from mpired.collectives.fold import Fold, PieceResult, Region, ResultFile, Writers
from mpired.collectives.plan import Plan, Segment
from mpired.collectives.table import Share, arrays_in, operand
from mpired.context import Context
from mpired.datatypes.pairs import VALID
from mpired.engines import LOCAL, pool
from mpired.engines.worker import be_quiet
from mpired.errors import WorkerError
from mpired.files import calls, copying
from mpired.files.scratch import Compression, Scratch, StreamOutput
from mpired.files.transaction import Output
from mpired.formats import ArrayLayout, Encoder, FlatLayout, Layout, decoding
from mpired.formats.array import Array, stored_array
from mpired.formats.cells import ResultArray
from mpired.log import Progress, no_progress
from mpired.ops import stands_for_null
from mpired.ops.op import by_op, tell_overflow
from mpired.sources.local import LocalSource
from mpired.sources.open import check_unchanged
from mpired.sources.source import local_fd

if TYPE_CHECKING:
    from mpired.files.transaction import Draft
    from mpired.formats.missing import Missing

_ALIGNMENT = 64


class Result(NamedTuple):
    """A result: the share of a rank, its file and its layout."""

    share: Share  # which part of which partial result
    path: str  # its file
    format: str  # the name of the format
    layout: Layout  # its form in the file
    own: Sequence[int] | None = None  # the numbers of the arrays in its file, if others are in other files
    folder: str = ""  # the directory of a result in several files, which is made if there is none
    packing: Compression | None = None  # how it is compressed; an input that it replaces never is

    def nbytes(self, plan: Plan) -> tuple[int, bool]:
        """Return how many bytes its file has, and whether that is certain: encoded elements take more or less."""
        if isinstance(self.layout, FlatLayout):
            around = self.layout.keeps_bytes_of
            after = 0 if around is None else max(0, around.source.nbytes - around.end)
            return self.layout.end(self.share.count_of(plan.buffers[0][0].count)) + after, True
        arrays = self.arrays(plan).values()
        return sum(self.share.count_of(each.rank.count) * each.datatype.itemsize for each in arrays), False

    def arrays(self, plan: Plan) -> dict[int, ResultArray]:
        """Return the arrays in its file, by their numbers."""
        arrays = enumerate(arrays_in(self.share, plan.ops, plan.firsts))
        return {number: each for number, each in arrays if self.own is None or number in self.own}


def fill(plan: Plan, results: Sequence[Result], drafts: Sequence[Output], context: Context, *, link: bool) -> None:
    """Carry out a fold into the drafts of its results: workers write flat ones, the others are encoded afterwards."""
    flat: list[ResultFile] = []
    encoded: list[tuple[Share, Encoder, Output]] = []
    made: list[tuple[Layout, Output]] = []
    copied: list[tuple[Output, Output]] = []
    first: dict[object, Output] = {}
    counted: set[object] = set()  # what several files have alike is counted once
    for result, draft in zip(results, drafts, strict=True):
        layout = result.layout
        original = first.setdefault((result.share[1:], id(layout)), draft)
        if original is not draft and (link or not isinstance(layout, FlatLayout | ArrayLayout)):
            copied.append((original, draft))
            continue
        made.append((layout, draft))
        if isinstance(layout, FlatLayout):
            flow = _flow(result, layout, draft, plan) if isinstance(draft, StreamOutput) else None
            flat.append(flow or _begun(result, layout, draft, plan))
        elif isinstance(layout, ArrayLayout):
            flat.append(_laid(result, layout, draft, plan, is_counted=result.share[1:] not in counted))
        else:
            encoded.append((result.share, layout, draft))
        counted.add(result.share[1:])
    if encoded:  # from a scratch file; workers write the flat ones meanwhile
        shares = [share for share, _, _ in encoded]
        missing = [layout.missing for _, layout, _ in encoded]
        with folded(plan, shares, encoded[0][-1], context, also=flat, missing=missing) as arrays:
            for (_, layout, draft), buffers in zip(encoded, arrays, strict=True):
                with draft.created() as fd, log.step("encoding results"):
                    layout.encode(buffers, fd)
    else:
        fold(plan, flat, context)
    for layout, draft in made:
        if plan.has_unknown_length or isinstance(layout, ArrayLayout):
            _finish_headers(layout, draft, plan)
    for original, draft in copied:  # there are several only together
        cast("Draft", draft).repeat(cast("Draft", original), link=link)


def _flow(result: Result, layout: FlatLayout, output: StreamOutput, plan: Plan) -> ResultFile | None:
    """Return a stream that takes a result as it is made, in order and in this process; None if that is not possible."""
    is_read_in_order = len(plan.segments) <= 1 and any(rank.source.is_sequential for rank in plan.buffers[0])
    is_plain = not (plan.isolated or layout.keeps_bytes_of or layout.header_from or layout.head_of)
    if not (is_read_in_order and is_plain) or (stream := output.flow()) is None:
        return None
    with calls.errors_name(output.stream_name):
        calls.write_all(stream, layout.head)
    regions, write = {0: Region(layout.offset, layout.stored)}, partial(calls.write_all, stream)
    return ResultFile(output.shared, output.stream_name, result.share, regions, flow=write)


def _begun(result: Result, layout: FlatLayout, draft: Output, plan: Plan) -> ResultFile:
    """Write what a flat file has besides the elements, or another file around them; return where these go."""
    end = layout.end(result.share.count_of(plan.buffers[0][0].count))
    with draft.created() as fd:
        if not (layout.keeps_bytes_of or plan.has_unknown_length):
            calls.allocate(fd, end)
        if buffer := layout.keeps_bytes_of or layout.header_from:
            with closing(buffer.source.open()) as file, calls.errors_name(draft.name):
                copying.copy_sparse(local_fd(file), fd, 0, buffer.offset, 0)
                if layout.keeps_bytes_of is not None:
                    calls.set_size(fd, end + max(0, buffer.source.nbytes - buffer.end))
                    copying.copy_sparse(local_fd(file), fd, buffer.end, buffer.source.nbytes, end)
                    calls.allocate(fd, end - buffer.offset, buffer.offset)
        else:
            calls.pwrite_all(fd, layout.head, 0)
    region = Region(layout.offset, layout.stored, layout.keeps_bytes_of, end)
    return ResultFile(draft.shared, draft.name, result.share, {0: region}, start_writeback=True)


def _laid(result: Result, layout: ArrayLayout, draft: Output, plan: Plan, *, is_counted: bool) -> ResultFile:
    """Write what a file of arrays has besides the elements, and return where these go."""
    with draft.created() as fd:
        places = layout.lay(fd)
    replaced = layout.replaces or [None] * len(places)
    regions = tuple(map(Region, places, layout.stored, replaced))
    if layout.missing and is_counted:
        regions = tuple(each._replace(missing=one) for each, one in zip(regions, layout.missing, strict=True))
    own = dict(zip(result.arrays(plan), regions, strict=True))
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
                calls.close_quietly(fd)


@contextmanager
def folded(
    plan: Plan,
    shares: Sequence[Share],
    beside: Output | None,
    context: Context,
    *,
    also: Sequence[ResultFile] = (),  # files that take results as well
    missing: Sequence[Sequence[Missing | None]] = (),  # of each share which values of its arrays mean missing ones
) -> Generator[list[list[Array]], None, None]:
    """Fold all segments into a scratch file beside an output, and give each share of the result as native elements."""
    with Scratch(*((beside.directory, beside.name) if beside else ())) as scratch:
        targets: dict[object, ResultFile] = {}  # by the share without its rank
        end = 0
        for share, values in zip(shares, missing or repeat(()), strict=False):
            if share[1:] not in targets:
                regions, end = _placed(share, values, plan, end)
                targets[share[1:]] = ResultFile(scratch.shared, scratch.name, share, dict(enumerate(regions)))
        if not plan.has_unknown_length:
            scratch.allocate(end)
        fold(plan, [*also, *targets.values()], context)
        source = LocalSource(scratch.name, scratch.shared.path)
        arrays: dict[object, list[Array]] = {}
        for part, target in targets.items():
            arrays[part] = []
            results = arrays_in(target.share, plan.ops, plan.firsts)
            for result, region in zip(results, target.regions.values(), strict=True):
                count = plan.found if plan.has_unknown_length else target.share.count_of(result.rank.count)
                flat = Array(source, result.datatype, count, region.stored, region.offset, validity=region.validity)
                arrays[part].append(flat._replace(name=result.name))
        yield [arrays[share[1:]] for share in shares]


def _placed(share: Share, values: Sequence[Missing | None], plan: Plan, end: int) -> tuple[list[Region], int]:
    """Return places behind `end` of a scratch file for the arrays of a share, and their end."""
    regions = []
    for result, marks in zip(arrays_in(share, plan.ops, plan.firsts), values or repeat(None), strict=False):
        form, count = result.datatype.form, share.count_of(result.rank.count)
        after = end + -(-count * form.itemsize // _ALIGNMENT) * _ALIGNMENT
        has_nulls = result.op.rules.nulls != "error" and result.field != VALID
        regions.append(Region(end, form, validity=after if has_nulls else None, missing=marks))
        end = after + (-(-count // _ALIGNMENT) * _ALIGNMENT if has_nulls else 0)
    return regions, end


def fold(plan: Plan, targets: Sequence[ResultFile], context: Context) -> None:
    """Fold all segments into files."""
    is_sent = not plan.engine.same_host
    drafts = [target.file for target in targets if target.file.inode[1]]
    # Workers on other machines write several results, in folders that all can write to.
    if plan.engine.is_launched and len(drafts) >= max(2, len(targets)):
        from mpired.engines import probe  # noqa: PLC0415 - for other machines only

        one_in_each = {os.path.dirname(draft.path): draft for draft in drafts}
        is_sent = not probe.all_write(plan.engine.runner, list(one_in_each.values()))
    is_function = any(op.is_function for op in plan.ops)
    with closing(decoding.Decoder()) if is_function else nullcontext() as decoder, ExitStack() as stack:
        decoded = plan
        if decoder is not None:  # it decodes the ranks of this process; the workers of other folds do so themselves
            decoded = plan._replace(buffers=tuple(tuple(map(decoder.decoding, ranks)) for ranks in plan.buffers))
        work = stack.enter_context(closing(Fold(decoded, tuple(targets), sends=is_sent)))
        working = run_segments(plan, work, context)
        parts = list(_received(plan, targets, working) if is_sent else working)
    if plan.has_unknown_length or any(part.overflow or part.unset or part.hidden for part in parts):
        _report(plan, targets, parts)


def _report(plan: Plan, targets: Sequence[ResultFile], parts: Sequence[PieceResult]) -> None:
    """Note the count of open ranks; warn of elements that overflowed, were never written, or look like missing ones."""
    if plan.has_unknown_length:
        plan.ended.append(max(part.stop for part in parts))
    for found in by_op(each for part in parts for each in part.overflow):
        op, ranks = plan.ops[found.op], plan.buffers[found.buffer]
        name = ranks[0].name if len(plan.buffers) > 1 else ""
        tell_overflow(op, operand(op, ranks[0]).datatype, found, [rank.source.name for rank in ranks], name)
    for number, ranks in enumerate(plan.buffers if plan.ops[0].rules.missing is None else ()):
        if count := sum(part.unset for part in parts if part.buffer == number):
            value = next(unset for rank in ranks if (unset := stored_array(rank).unset) is not None)
            name = stored_array(ranks[0]).name
            log.warn(log.unset(count, name, f"leave them out with `missing={value}`"))
    if any(part.hidden for part in parts):
        _report_hidden(plan, targets, parts)


def _report_hidden(plan: Plan, targets: Sequence[ResultFile], parts: Sequence[PieceResult]) -> None:
    """Warn of elements of results with values that readers take for missing ones."""
    hidden: dict[tuple[int, int], tuple[ResultArray, Missing]] = {}
    for target in targets:
        for number, result in enumerate(arrays_in(target.share, plan.ops, plan.firsts)):
            region = target.regions.get(number)
            if region is not None and region.missing is not None:
                hidden.setdefault((result.buffer, result.number), (result, region.missing))
    for (buffer, number), (result, missing) in sorted(hidden.items(), key=lambda each: each[0]):
        if count := sum(part.hidden.get(number, 0) for part in parts if part.buffer == buffer):
            lacks = result.op.rules.nulls != "error" and not stands_for_null(result.op, result.rank.datatype)
            hint = f"use `to='parquet'` with `columns={result.rank.name!r}`" if lacks else "use `to='npz'`"
            name = result.name if len(plan.ops) > 1 else result.rank.name
            log.warn(log.masked(count, name, missing.text, hint))


def _received(plan: Plan, targets: Sequence[ResultFile], parts: Iterable[PieceResult]) -> Iterator[PieceResult]:
    """Write the partial results that workers on other machines send, and yield the parts without them."""
    writers, number = None, -1
    with ExitStack() as stack:
        for part in parts:
            if not part.sent:
                yield part
                continue
            if writers is None or part.buffer != number:
                stack.close()  # few files are open at a time
                number, writers = part.buffer, stack.enter_context(Writers(plan, targets, part.buffer))
            for each in part.sent:
                block = each.block if each.block.flags.writeable else each.block.copy()
                writers.take(each._replace(block=block))
            yield part._replace(sent=(), hidden=writers.hidden)
            writers.hidden = {}


_P = TypeVar("_P")  # progress of a segment, with the number of bytes read: `nbytes`


def run_segments(plan: Plan, work: Callable[[Segment], Iterator[_P]], context: Context) -> Generator[_P, None, None]:
    """Let the engine work on all segments of a plan; yield the outcome of their pieces, in any order."""
    if log.collected:
        blocks = ", ".join(map(str, plan.block_counts))
        log.plan(f"segments {len(plan.segments)}, elements in a block {blocks}, ranks open at once {plan.max_open}")
    # In workers of this machine, and only because a library decodes.
    decodes_apart = plan.engine is LOCAL and plan.isolated and not any(op.user for op in plan.ops)
    if plan.lines:
        begun = plan.engine.runner.chain(cast("Any", work), plan.tasks, plan.lines)
    elif decodes_apart and plan.jobs == 1 and context.worker is not None and context.worker.answers is not None:
        begun = context.worker.each(work, plan.segments)  # the one that has inspected the ranks
    elif plan.engine is LOCAL and plan.jobs == 1 and not plan.isolated:
        begun = (part for segment in plan.segments for part in work(segment))
    else:
        done_there = partial(_quietly, work) if decodes_apart else work
        begun = plan.engine.runner.run(done_there, plan.segments, plan.jobs, isolated=plan.isolated)
    with log.step("combining the ranks"), closing(begun):
        try:
            for part in begun if context.progress is no_progress else _shown(begun, context.progress, plan.nbytes):
                interrupts.raise_pending()
                yield part
        except WorkerError as error:
            if not pool.is_crash(error):
                raise
            if isolated := [op for op in plan.ops if op.isolated]:
                from mpired.engines import userops  # noqa: PLC0415 - only for user-defined ops

                # Of several the one that ended the worker is not known.
                raise userops.crashed(isolated[0]._replace(name=", ".join(map(str, isolated))), error) from None
            decoding.check(rank for ranks in plan.buffers for rank in ranks)  # raises if a damaged file has ended it
            raise
    sources = (buffer.source for ranks in plan.buffers for buffer in ranks)
    check_unchanged([*{id(source): source for source in sources}.values()])


def _shown(working: Iterable[_P], progress: Progress, total: int) -> Iterator[_P]:
    """Pass pieces on, and let the caller's progress show their bytes."""
    parts: list[_P] = []

    def done() -> Iterator[int]:
        for part in working:
            parts.append(part)
            yield cast("Any", part).nbytes

    for _ in progress(done(), total):
        yield from parts
        parts.clear()
    yield from parts


def _quietly(work: Callable[[Segment], Iterator[_P]], segment: Segment) -> Iterator[_P]:
    """Work on a segment in a worker of its own, which a library that decodes may end with some words."""
    be_quiet()
    yield from work(segment)
