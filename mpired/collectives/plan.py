"""What is to be done: the ranks' buffers, cut into segments, within the memory and the open files allowed."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from mpired.buffers import RankBuffer, RankFile, format_named
from mpired.buffers.transposed import TransposedBuffer
from mpired.datatypes import Datatype
from mpired.engines import LOCAL, Engine, Limits, usual
from mpired.errors import UsageError
from mpired.ops import Op
from mpired.storage import calls
from mpired.storage.lock import RESERVED_DESCRIPTORS, descriptors_of

# Blocks that stay in the second-level cache were measured fastest; at 1 MiB a third is lost.
_BLOCK_BYTES = 256 << 10
# Decoding starts at a row group or a page, so that formats with columns are read in larger blocks. So are elements that
# interleave: the more of them at a time, the longer what lies together in the file.
_STREAMED_BLOCK_BYTES = 4 << 20
# With more ranks than descriptors every block opens files again, so it has to be worth it.
_REOPENING_BLOCK_BYTES = 2 << 20
_MIN_BLOCK_BYTES = 4 << 10
_MAX_OPEN = 1024
_LEAST_OPEN = 64
# An open column keeps a page and a read buffer.
_MAX_OPEN_STREAMED = 16
_SEGMENTS_PER_WORKER = 8
# A segment opens all files again: with many results it takes at least so much of each.
_SEGMENT_BYTES = 1 << 20
# Below this a pool costs more than it gives.
_SMALL_BYTES = 48 << 20
# What a process needs before its blocks: Python and NumPy, with pyarrow for formats with columns.
_BASE_BYTES = 60 << 20
_STREAMED_BASE_BYTES = 180 << 20
# Of that, what is needed before anything is decoded.
_STREAMED_LEAST_BYTES = 100 << 20
# Two blocks, one in the form of the file, and the temporaries of a kernel.
_BLOCKS_IN_MEMORY = 6
# What an array in the other order reads ahead, and the same as it is turned; at most, for each and for all together.
_BLOCKS_AHEAD = 2
_AHEAD_BYTES = 32 << 20
_AHEAD_BYTES_IN_ALL = 256 << 20
# Where a state is not an element: those of the elements that are lifted, and of the results.
_BLOCKS_BESIDE_STATES = 2


class Segment(NamedTuple):
    """A task of the pool: the elements from `start` to `stop` of one buffer of all ranks."""

    buffer: int
    start: int
    stop: int


class Plan(NamedTuple):
    """A reduction, ready to run.

    Parameters
    ----------
    op
        What combines.
    buffers
        For each buffer the same buffer of every rank, in rank order.
    segments
        All elements of all buffers, each once.
    block_counts
        For each buffer the most elements that are read at a time.
    jobs
        Number of workers; 1 means this process, unless what runs is isolated from it.
    max_open
        Ranks that a worker keeps open, and results.
    engine
        Who runs the segments.
    """

    op: Op
    buffers: tuple[tuple[RankBuffer, ...], ...]
    segments: tuple[Segment, ...]
    block_counts: tuple[int, ...]
    jobs: int
    max_open: int
    engine: Engine

    @property
    def isolated(self) -> bool:
        """Whether all runs in workers, because foreign code, or a library that decodes, could end this process."""
        return self.op.isolated or (not self.op.user and any(rank.isolated for ranks in self.buffers for rank in ranks))

    @property
    def nbytes(self) -> int:
        """The bytes of elements to be read in all."""
        return sum(len(ranks) * ranks[0].count * ranks[0].datatype.itemsize for ranks in self.buffers)


def make_plan(
    op: Op,
    files: Sequence[RankFile],
    jobs: int | None = None,
    max_memory: int | None = None,
    *,
    noutputs: int = 1,
    nlocked: int = 0,
) -> Plan:
    """Cut a reduction into segments.

    Parameters
    ----------
    op
        What combines.
    files
        The ranks, whose buffers agree.
    jobs
        The most workers; None for as many as the engine has.
    max_memory
        The most bytes of memory for all processes together; None for the usual blocks.
    noutputs
        How many files take the results.
    nlocked
        How many files are locked meanwhile, because the results replace them.

    Raises
    ------
    UsageError
        If the memory is too little for one process, or the workers cannot open a rank.
    """
    engine = LOCAL if op.is_function else usual()
    _check_reach(engine, files)
    limits = engine.runner.limits()
    buffers = tuple(zip(*(file.buffers for file in files), strict=True))
    streamed = any(format_named(file.format).streamed for file in files)
    max_open = _max_open(limits, streamed=streamed, noutputs=noutputs, nlocked=nlocked)
    widths = [_width(op, ranks[0].datatype) for ranks in buffers]
    sizes = [ranks[0].count * width for ranks, width in zip(buffers, widths, strict=True)]
    small = len(files) * sum(sizes) < _SMALL_BYTES
    jobs = 1 if small or op.is_function else jobs or limits.workers
    long = streamed or any(ranks[0].datatype.is_spread for ranks in buffers)
    wanted = _wanted(sizes, jobs, long=long, reopening=max(len(files), noutputs) > max_open, noutputs=noutputs)
    nturned = min(max_open, max(sum(isinstance(rank, TransposedBuffer) for rank in ranks) for ranks in buffers))
    nblocks = _BLOCKS_IN_MEMORY + (_BLOCKS_BESIDE_STATES if op.lift else 0) + _BLOCKS_AHEAD * nturned
    base = _STREAMED_BASE_BYTES if streamed else _BASE_BYTES
    jobs, block_bytes = _within(max_memory, jobs, wanted, base, nblocks=nblocks)
    # What a process may have besides its blocks.
    left = None if max_memory is None else max_memory // (1 if jobs == 1 else jobs + 1) - nblocks * block_bytes
    if left is not None and streamed:
        memory = max(0, left - _STREAMED_LEAST_BYTES) // min(len(files), max_open)
        buffers = tuple(tuple(_within_memory(rank, memory) for rank in ranks) for ranks in buffers)
    if nturned:
        spare = None if left is None else (left - base) // (_BLOCKS_AHEAD * nturned)
        ahead = _ahead(jobs * nturned, block_bytes, spare)
        # What is opened for each block reads no more than that.
        buffers = tuple(
            tuple(_reading_ahead(rank, ahead if i < max_open else block_bytes) for i, rank in enumerate(ranks))
            for ranks in buffers
        )
    block_counts = tuple(max(1, block_bytes // width) for width in widths)
    # What can only be decoded in sequence is cut as little as possible: every cut decodes a row group twice.
    pieces = jobs if small or streamed or nturned else jobs * _SEGMENTS_PER_WORKER
    if noutputs > 1:  # nor are many files opened for little of each
        pieces = max(jobs, min(pieces, max(sizes) // _SEGMENT_BYTES))
    segments = tuple(
        segment for i, ranks in enumerate(buffers) for segment in _segments(i, ranks[0].count, block_counts[i], pieces)
    )
    return Plan(op, buffers, segments, block_counts, max(1, min(jobs, len(segments))), max_open, engine)


def _wanted(sizes: Sequence[int], jobs: int, *, long: bool, reopening: bool, noutputs: int) -> int:
    """Return the bytes of a block without a limit of memory; `sizes` are those of the buffers of a rank."""
    wanted = _STREAMED_BLOCK_BYTES if long else _BLOCK_BYTES
    if reopening:
        wanted = max(wanted, _REOPENING_BLOCK_BYTES)
    if noutputs > 1:  # however large a block may be, there is one for each worker
        wanted = min(wanted, max(_BLOCK_BYTES, -(-max(sizes) // jobs)))
    return wanted


def _width(op: Op, datatype: Datatype) -> int:
    """Return the bytes of what takes most: an element, a state of the op, or a result."""
    return max(each.itemsize for each in (datatype, op.state(datatype), op.result(datatype)))


def _within_memory(buffer: RankBuffer, memory: int) -> RankBuffer:
    """Return the buffer with the most bytes that it may decode at once, if it is one that decodes."""
    return replace(cast("Any", buffer), memory=memory) if hasattr(buffer, "memory") else buffer


def _ahead(number: int, block_bytes: int, spare: int | None) -> int:
    """Return what each of some arrays in the other order reads ahead, with so many spare bytes; None for any."""
    ahead = min(_AHEAD_BYTES, _AHEAD_BYTES_IN_ALL // number)
    return max(block_bytes, ahead if spare is None else min(ahead, block_bytes + spare))


def _reading_ahead(buffer: RankBuffer, memory: int) -> RankBuffer:
    """Return the buffer with the most bytes that it reads ahead, if it is an array in the other order."""
    return replace(buffer, memory=memory) if isinstance(buffer, TransposedBuffer) else buffer


def _check_reach(engine: Engine, files: Sequence[RankFile]) -> None:
    """Raise `UsageError` if the engine's workers cannot open a rank: it is a stream that this process has kept."""
    for file in () if engine.same_tree else files:
        if file.source.is_private:
            reason = f"is a stream of this process, which workers of the engine {engine.name} cannot open"
            raise UsageError(file.source.name, f"{reason}; write it to a file first")


def _max_open(limits: Limits, *, streamed: bool, noutputs: int, nlocked: int) -> int:
    reserved = RESERVED_DESCRIPTORS + descriptors_of(nlocked)
    if nlocked:  # what the locks take shall not be missing for the ranks
        calls.allow_descriptors(reserved + _LEAST_OPEN)
    allowed = _MAX_OPEN if limits.descriptors == resource.RLIM_INFINITY else limits.descriptors - reserved
    if noutputs > 1:
        allowed //= 2
    return max(1, min(allowed, _MAX_OPEN_STREAMED if streamed else _MAX_OPEN))


def _within(max_memory: int | None, jobs: int, block_bytes: int, base: int, *, nblocks: int) -> tuple[int, int]:
    """Return how many workers and which blocks fit into the memory: smaller blocks first, then fewer workers."""
    if max_memory is None:
        return jobs, block_bytes
    least = base + nblocks * _MIN_BLOCK_BYTES
    if max_memory < least:
        reason = f"{max_memory} bytes is too little, one process needs {-(-least >> 20)}M"
        raise UsageError("`max_memory`", reason)
    # The parent waits beside its workers, so that n workers are n + 1 processes.
    fitting = 1 if jobs == 1 or max_memory < 3 * least else min(jobs, max_memory // least - 1)
    processes = fitting if fitting == 1 else fitting + 1
    spare = (max_memory - processes * base) // (fitting * nblocks)
    return fitting, min(block_bytes, max(spare, _MIN_BLOCK_BYTES))


def _segments(buffer: int, count: int, block_count: int, pieces: int) -> list[Segment]:
    """Cut `count` elements into about `pieces` segments of whole blocks."""
    blocks = -(-count // block_count)
    step = max(1, -(-blocks // pieces)) * block_count
    return [Segment(buffer, start, min(start + step, count)) for start in range(0, count, step)]
