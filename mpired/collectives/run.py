"""The run of a plan: its segments are folded into drafts of results.

Workers write flat results and arrays directly. Other results are folded into a scratch file first, from which an
encoder makes the draft.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from itertools import repeat
from typing import Any, TypeVar, cast

from mpired import log
from mpired.collectives.fold import Fold, ProgressReport, Region, ResultFile, Writers
from mpired.collectives.plan import Plan, Result, Segment
from mpired.collectives.table import Share, arrays_in, operand
from mpired.context import Context
from mpired.datatypes.predefined import VALID
from mpired.engines import LOCAL, pool, probe
from mpired.engines.worker import be_quiet
from mpired.errors import WorkerError
from mpired.files import calls, copying
from mpired.files.scratch import Scratch, StreamOutput
from mpired.files.transaction import Draft, Output
from mpired.formats import ArrayLayout, Encoder, FlatLayout, Layout, decoding
from mpired.formats.array import Array, stored_array
from mpired.formats.cells import ResultArray
from mpired.formats.missing import Missing
from mpired.log import Progress, no_progress
from mpired.ops import has_fill_value
from mpired.ops.op import by_op, warn_of_overflow
from mpired.sources.local import LocalSource
from mpired.sources.open import check_unchanged
from mpired.sources.source import local_fd

_ALIGNMENT = 64  # of arrays in a scratch file


def fill(plan: Plan, drafts: Sequence[Output], context: Context, *, link: bool) -> Plan:
    """Fold the ranks into drafts of results; return the final plan. With `link` equal results are hard links."""
    targets: list[ResultFile] = []
    encoded: list[tuple[Share, Encoder, Output]] = []
    originals: list[tuple[Layout, Output]] = []
    copies: list[tuple[Output, Output]] = []
    firsts: dict[object, Output] = {}  # the first draft of each share and layout
    counted: set[object] = set()  # shares whose masked elements are counted in one of their files
    for result, draft in zip(plan.results, drafts, strict=True):
        layout, share = result.layout, result.share[1:]
        original = firsts.setdefault((share, id(layout)), draft)
        if original is not draft and (link or not isinstance(layout, FlatLayout | ArrayLayout)):
            copies.append((original, draft))
            continue
        originals.append((layout, draft))
        if isinstance(layout, FlatLayout):
            stream = _start_stream(result, layout, draft, plan) if isinstance(draft, StreamOutput) else None
            targets.append(stream or _start_flat(result, layout, draft, plan))
        elif isinstance(layout, ArrayLayout):
            targets.append(_start_arrays(result, layout, draft, plan, is_counted=share not in counted))
        else:
            encoded.append((result.share, layout, draft))
        counted.add(share)
    if encoded:
        shares = [share for share, _, _ in encoded]
        missing = [layout.missing for _, layout, _ in encoded]
        with folded(plan, shares, encoded[0][-1], context, targets=targets, missing=missing) as (final, arrays):
            for (_, encoder, draft), elements in zip(encoded, arrays, strict=True):
                with draft.created() as fd, log.step("encoding results"):
                    encoder.encode(elements, fd)
    else:
        final = fold(plan, targets, context)
    for layout, draft in originals:
        if plan.has_unknown_length or isinstance(layout, ArrayLayout):
            _finish_headers(layout, draft, final)
    for original, draft in copies:  # of a transaction, which has several drafts
        cast("Draft", draft).copy_from(cast("Draft", original), link=link)
    return final


def _start_stream(result: Result, layout: FlatLayout, output: StreamOutput, plan: Plan) -> ResultFile | None:
    """Write the header to a stream that takes the blocks in order; return None if they are not computed in order."""
    is_read_in_order = len(plan.segments) <= 1 and any(rank.source.is_sequential for rank in plan.buffers[0])
    is_plain = not (plan.isolated or layout.keeps_bytes_of or layout.header_from or layout.head_of)
    if not (is_read_in_order and is_plain) or (stream := output.flow()) is None:
        return None
    with calls.errors_name(output.stream_name):
        calls.write_all(stream, layout.head)
    regions, write = {0: Region(layout.offset, layout.stored)}, partial(calls.write_all, stream)
    return ResultFile(output.shared, output.stream_name, result.share, regions, flow=write)


def _start_flat(result: Result, layout: FlatLayout, draft: Output, plan: Plan) -> ResultFile:
    """Write all but the elements of a flat file: its header, or the surroundings of the elements in another file."""
    end = layout.end(result.share.count_of(plan.buffers[0][0].count))
    with draft.created() as fd:
        if not (layout.keeps_bytes_of or plan.has_unknown_length):
            calls.allocate(fd, end)
        if array := layout.keeps_bytes_of or layout.header_from:
            with closing(array.source.open()) as file, calls.errors_name(draft.name):
                copying.copy_sparse(local_fd(file), fd, 0, array.offset, 0)
                if layout.keeps_bytes_of is not None:
                    calls.set_size(fd, end + max(0, array.source.nbytes - array.end))
                    copying.copy_sparse(local_fd(file), fd, array.end, array.source.nbytes, end)
                    calls.allocate(fd, end - array.offset, array.offset)
        else:
            calls.pwrite_all(fd, layout.head, 0)
    region = Region(layout.offset, layout.stored, layout.keeps_bytes_of, end)
    return ResultFile(draft.shared, draft.name, result.share, {0: region}, start_writeback=True)


def _start_arrays(result: Result, layout: ArrayLayout, draft: Output, plan: Plan, *, is_counted: bool) -> ResultFile:
    """Write all but the elements of a file of arrays."""
    with draft.created() as fd:
        offsets = layout.write_headers(fd)
    regions = [*map(Region, offsets, layout.stored, layout.replaces or [None] * len(offsets))]
    if layout.missing and is_counted:
        pairs = zip(regions, layout.missing, strict=True)
        regions = [region._replace(missing=missing) for region, missing in pairs]
    numbered = dict(zip(result.arrays(plan), regions, strict=True))
    return ResultFile(draft.shared, draft.name, result.share, numbered, start_writeback=True)


def _finish_headers(layout: Layout, draft: Output, plan: Plan) -> None:
    """Write the parts of a file that depend on its elements or on their number."""
    if isinstance(layout, FlatLayout) and layout.head_of:
        with draft.created() as fd:
            calls.pwrite_all(fd, layout.head_of(plan.firsts[0].count), 0)
    if isinstance(layout, ArrayLayout) and layout.finish:
        with log.step("completing results"), draft.created() as fd:
            layout.finish(fd)


@contextmanager
def folded(
    plan: Plan,
    shares: Sequence[Share],
    output: Output | None,  # beside which the scratch file is made; None for a folder of temporary files
    context: Context,
    *,
    targets: Sequence[ResultFile] = (),  # other files of results
    missing: Sequence[Sequence[Missing | None]] = (),  # of each share the fill values of its arrays
) -> Generator[tuple[Plan, list[list[Array]]], None, None]:
    """Fold all segments into a scratch file, and give the final plan, and the native arrays of each share."""
    with Scratch(*((output.directory, output.name) if output else ())) as scratch:
        scratch_targets: dict[object, ResultFile] = {}  # by the share without its rank
        end = 0
        for share, values in zip(shares, missing or repeat(()), strict=False):
            if share[1:] not in scratch_targets:
                regions, end = _scratch_regions(share, values, plan, end)
                target = ResultFile(scratch.shared, scratch.name, share, dict(enumerate(regions)))
                scratch_targets[share[1:]] = target
        if not plan.has_unknown_length:
            scratch.allocate(end)
        plan = fold(plan, [*targets, *scratch_targets.values()], context)
        source = LocalSource(scratch.name, scratch.shared.path)
        arrays: dict[object, list[Array]] = {}
        for key, target in scratch_targets.items():
            arrays[key] = []
            results = arrays_in(target.share, plan.ops, plan.firsts)
            for result, region in zip(results, target.regions.values(), strict=True):
                count = target.share.count_of(result.rank.count)
                array = Array(source, result.datatype, count, region.stored, region.offset, name=result.name)
                arrays[key].append(array._replace(mask_offset=region.mask_offset))
        yield plan, [arrays[share[1:]] for share in shares]


def _scratch_regions(share: Share, missing: Sequence[Missing | None], plan: Plan, end: int) -> tuple[list[Region], int]:
    """Return regions for the arrays of a share behind the `end` of a scratch file, and their end."""
    regions = []
    for result, fill_values in zip(arrays_in(share, plan.ops, plan.firsts), missing or repeat(None), strict=False):
        dtype, count = result.datatype.form, share.count_of(result.rank.count)
        mask_offset = end + -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        has_nulls = result.op.rules.nulls != "error" and result.field != VALID
        regions.append(Region(end, dtype, mask_offset=mask_offset if has_nulls else None, missing=fill_values))
        end = mask_offset + (-(-count // _ALIGNMENT) * _ALIGNMENT if has_nulls else 0)
    return regions, end


def fold(plan: Plan, targets: Sequence[ResultFile], context: Context) -> Plan:
    """Fold all segments into files; return the plan with the counts of streams that were read to their end."""
    is_sent = not plan.engine.same_host
    drafts = [target.file for target in targets if target.file.inode[1]]
    # Workers of a launcher write several results themselves, if all of them can write into the folders.
    if plan.engine.is_launched and len(drafts) >= max(2, len(targets)):
        sample = {os.path.dirname(draft.path): draft for draft in drafts}  # a draft in each folder
        is_sent = not probe.all_write(plan.engine.runner, list(sample.values()))
    is_function = any(op.is_function for op in plan.ops)
    with closing(decoding.Decoder()) if is_function else nullcontext() as decoder, ExitStack() as stack:
        decoded = plan
        if decoder is not None:  # a function runs in this process, and libraries decode in a worker
            decoded = plan._replace(buffers=tuple(tuple(map(decoder.decoding, ranks)) for ranks in plan.buffers))
        work = stack.enter_context(closing(Fold(decoded, tuple(targets), sends=is_sent)))
        progress = stack.enter_context(run_segments(plan, work, context))
        reports = list(log.track(_write_received(plan, targets, progress) if is_sent else progress))
    if any(report.overflow or report.nunset or report.nmasked for report in reports):
        _warn(plan, targets, reports)
    return plan.with_count(max(report.stop for report in reports)) if plan.has_unknown_length else plan


def _warn(plan: Plan, targets: Sequence[ResultFile], reports: Sequence[ProgressReport]) -> None:
    """Warn of overflows, of elements never written, and of masked elements."""
    for overflow in by_op(overflow for report in reports for overflow in report.overflow):
        op, ranks = plan.ops[overflow.op], plan.buffers[overflow.buffer]
        name = ranks[0].name if len(plan.buffers) > 1 else ""
        warn_of_overflow(op, operand(op, ranks[0]).datatype, overflow, [rank.source.name for rank in ranks], name)
    for number, ranks in enumerate(plan.buffers if plan.ops[0].rules.missing is None else ()):
        if count := sum(report.nunset for report in reports if report.buffer == number):
            value = next(unset for rank in ranks if (unset := stored_array(rank).unset) is not None)
            log.warn(log.unset_warning(count, stored_array(ranks[0]).name, f"leave them out with `missing={value}`"))
    if any(report.nmasked for report in reports):
        _warn_of_masked(plan, targets, reports)


def _warn_of_masked(plan: Plan, targets: Sequence[ResultFile], reports: Sequence[ProgressReport]) -> None:
    """Warn of valid elements of results that are equal to a fill value of their array."""
    masked: dict[tuple[int, int], tuple[ResultArray, Missing]] = {}  # by the numbers of the buffer and the op
    for target in targets:
        for number, result in enumerate(arrays_in(target.share, plan.ops, plan.firsts)):
            region = target.regions.get(number)
            if region is not None and region.missing is not None:
                masked.setdefault((result.buffer, result.number), (result, region.missing))
    for (buffer, number), (result, missing) in sorted(masked.items(), key=lambda item: item[0]):
        if count := sum(report.nmasked.get(number, 0) for report in reports if report.buffer == buffer):
            has_nulls = result.op.rules.nulls != "error" and not has_fill_value(result.op, result.rank.datatype)
            hint = f"use `to='parquet'` with `columns={result.rank.name!r}`" if has_nulls else "use `to='npz'`"
            name = result.name if len(plan.ops) > 1 else result.rank.name
            log.warn(log.masked_warning(count, name, missing.text, hint))


def _write_received(
    plan: Plan, targets: Sequence[ResultFile], reports: Iterable[ProgressReport]
) -> Iterator[ProgressReport]:
    """Write the block results that workers on other machines send, and yield the reports without them."""
    writers, buffer = None, -1
    with ExitStack() as stack:
        for report in reports:
            if not report.sent:
                yield report
                continue
            if writers is None or report.buffer != buffer:
                stack.close()  # the files of one buffer are open at a time
                buffer, writers = report.buffer, stack.enter_context(Writers(plan, targets, report.buffer))
            for result in report.sent:
                block = result.block if result.block.flags.writeable else result.block.copy()
                writers.write(result._replace(block=block))
            yield report._replace(sent=(), nmasked=writers.nmasked)
            writers.nmasked = {}


_P = TypeVar("_P")  # report of the progress of a segment, with `nbytes`, the bytes read since the last one


@contextmanager
def run_segments(plan: Plan, work: Callable[[Segment], Iterator[_P]], context: Context) -> Iterator[Iterable[_P]]:
    """Let the engine work on all segments of a plan; the block takes the reports of all, in any order."""
    if log.collected:
        blocks = ", ".join(map(str, plan.block_counts))
        log.plan(f"segments {len(plan.segments)}, elements in a block {blocks}, ranks open at once {plan.max_open}")
    # Workers of this machine that are isolated because a library decodes, not because of an op.
    is_decoding = plan.engine is LOCAL and plan.isolated and not any(op.user for op in plan.ops)
    if plan.lines:
        progress = plan.engine.runner.chain(cast("Any", work), plan.tasks, plan.lines)
    elif is_decoding and plan.jobs == 1 and context.worker is not None and context.worker.answers is not None:
        progress = context.worker.each(work, plan.segments)  # the worker that has inspected the ranks
    elif plan.engine is LOCAL and plan.jobs == 1 and not plan.isolated:
        progress = (report for segment in plan.segments for report in work(segment))
    else:
        function = partial(_work_quietly, work) if is_decoding else work
        progress = plan.engine.runner.run(function, plan.segments, plan.jobs, isolated=plan.isolated)
    with log.step("combining the ranks"), closing(progress):
        is_watched = context.progress is not no_progress
        try:
            yield _show_progress(progress, context.progress, plan.nbytes) if is_watched else progress
        except WorkerError as error:
            if not pool.is_crash(error):
                raise
            if isolated := [op for op in plan.ops if op.isolated]:
                # One of them has ended the worker, but which one is unknown.
                raise probe.crash_error(isolated[0]._replace(name=", ".join(map(str, isolated))), error) from None
            decoding.check(rank for ranks in plan.buffers for rank in ranks)  # raises if a damaged file has ended it
            raise
    sources = (buffer.source for ranks in plan.buffers for buffer in ranks)
    check_unchanged([*{id(source): source for source in sources}.values()])


def _show_progress(reports: Iterable[_P], progress: Progress, total: int) -> Iterator[_P]:
    """Yield the reports, and show their bytes by the caller's progress."""
    received: list[_P] = []

    def nbytes_received() -> Iterator[int]:
        for report in reports:
            received.append(report)
            yield cast("Any", report).nbytes

    for _ in progress(nbytes_received(), total):
        yield from received
        received.clear()
    yield from received


def _work_quietly(work: Callable[[Segment], Iterator[_P]], segment: Segment) -> Iterator[_P]:
    """Work on a segment in a worker whose messages are discarded: a library may end it with messages of its own."""
    be_quiet()
    yield from work(segment)
