"""The plan of a reduction: its results, and its segments within the limits of memory and open files.

`make_plan` chooses the number of workers, the files that each keeps open and the size of a block with a `_Planner`, and
cuts the buffers of the ranks into segments of whole blocks.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

from mpired.collectives.table import Share, arrays_in, operand
from mpired.context import BASE_NBYTES, NO_LIMITS, RESERVED, STREAMED_BASE_NBYTES, STREAMED_LEAST_NBYTES, Context
from mpired.engines import LOCAL, Engine, Limits, probe
from mpired.engines.table import IN_FLIGHT, SMALL_NBYTES, Lines
from mpired.errors import UsageError
from mpired.files import calls, mounts
from mpired.files.lock import descriptors_of
from mpired.files.scratch import Compression
from mpired.formats import Array, FlatLayout, Format, Layout, RankFile
from mpired.formats.array import UNKNOWN_COUNT, stored_array, with_memory_limit
from mpired.formats.cells import ResultArray
from mpired.ops import Op
from mpired.ops.state import make_state
from mpired.sources.local import LocalSource
from mpired.sources.stream import decompression_nbytes

# Blocks of this size stay in the second-level cache; blocks of 1 MiB were measured a third slower.
_BLOCK_BYTES = 256 << 10
# Blocks of decoded elements are larger, because decoding begins at a row group or a page; and blocks of interleaved
# elements, because they are read in longer pieces of the file.
_STREAMED_BLOCK_BYTES = 4 << 20
# The state of a block between two stages is a message. Larger blocks need fewer messages, but the C library maps those
# of 2 MiB anew, and each stage is busy only if there are some blocks for it.
_STAGE_BLOCK_BYTES = 1 << 20
_BLOCKS_PER_STAGE = 10
# With more ranks than descriptors each block opens files again, which takes longer than to read a small block.
_REOPENING_BLOCK_BYTES = 2 << 20
_MIN_BLOCK_BYTES = 4 << 10
_MAX_PREFERRED_BYTES = 16 << 20  # of a block that a file system prefers
_MAX_OPEN = 1024  # ranks that a worker keeps open, and results
_MAX_OPEN_STREAMED = 16  # the same of decoded ranks, each of which keeps a page and a read buffer
_MIN_OPEN = 64  # descriptors for ranks and new files beside locked files
# Descriptors of a worker: two pipes and its process. Those of a few workers are among the reserved ones.
_PIPES, _FEW_WORKERS = 3, 4
_SEGMENTS_PER_WORKER = 8
# A segment opens all files again: with several results it has at least these bytes of its buffer.
_SEGMENT_BYTES = 1 << 20
_RETURNED_BYTES = 64 << 20  # limit of the results of a segment that a worker on another machine sends
# Workers on other machines get segments that begin at multiples of these bytes in the files of the ranks: parallel file
# systems store stripes of 1 to 4 MiB on different servers, and read whole pages ahead.
_STRIPE_BYTES = 4 << 20
_STRIPES = 8  # minimum in a segment
# With more opens than these by all workers, ranks are spread over the workers, and each is opened once: many metadata
# servers take a second for 50,000 opens.
_MANY_OPENS = 100_000
# Bytes of a block whose states are larger than its elements: these for each op, or more for `_STATE_COUNT` elements,
# as in a state that grows with the ranks, within a limit.
_STATE_BLOCK_BYTES = 1 << 20
_STATE_COUNT = 1024
_MAX_STATE_BYTES = 32 << 20
_DEPTH, _DEPTH_BYTES = 32, 64 << 20  # blocks that are read ahead from other machines, or fewer with these bytes
_AHEAD_BYTES, _AHEAD_BYTES_IN_ALL = 32 << 20, 256 << 20  # read ahead of a transposed array, and of all arrays
# Memory of a process, in blocks.
_STATES_IN_MEMORY = 2  # the state of a block, and its results
_BLOCKS_IN_MEMORY = 6  # without a larger state: two blocks, one in the form of the file, and temporaries of a kernel
_BLOCKS_AHEAD = 2  # of a transposed array: bytes that are read ahead, and the same in the other order
_BLOCKS_SEQUENTIAL = 2  # of a stream: a block that is kept, and one that is decompressed meanwhile
_BLOCKS_OF_STAGES = IN_FLIGHT + 2  # states between stages: those that wait for the next stage, and the received one
_RESIDENT_BYTES = 34 << 20  # measured memory of a process before its blocks


class Segment(NamedTuple):
    """A task of a worker: elements of one buffer of all ranks, or of the ranks of a stage."""

    buffer: int
    start: int
    stop: int
    ranks: range | None = None  # None for all ranks


class Result(NamedTuple):
    """A file with the share of a rank."""

    share: Share
    path: str
    format: Format
    layout: Layout
    numbers: Sequence[int] | None = None  # of the arrays of the share in this file; None for all
    folder: str = ""  # directory of a result in several files, which is made if it does not exist; "" for one file
    compression: Compression | None = None  # None if the file is not compressed

    def nbytes(self, plan: Plan) -> tuple[int, bool]:
        """Return the bytes of the file, and whether they are exact: of encoded elements only their number is known."""
        if isinstance(self.layout, FlatLayout):
            surroundings = self.layout.keeps_bytes_of
            tail = 0 if surroundings is None else max(0, surroundings.source.nbytes - surroundings.end)
            return self.layout.end(self.share.count_of(plan.buffers[0][0].count)) + tail, True
        arrays = self.arrays(plan).values()
        return sum(self.share.count_of(array.rank.count) * array.datatype.itemsize for array in arrays), False

    def arrays(self, plan: Plan) -> dict[int, ResultArray]:
        """Return the arrays in the file, by their numbers in the share."""
        arrays = enumerate(arrays_in(self.share, plan.ops, plan.firsts))
        return {number: array for number, array in arrays if self.numbers is None or number in self.numbers}


class Plan(NamedTuple):
    """A reduction that is ready to run."""

    ops: tuple[Op, ...]  # each has a result of its own
    buffers: tuple[tuple[Array, ...], ...]  # for each buffer the arrays of all ranks, in rank order
    segments: tuple[Segment, ...]  # all elements of all buffers, each once
    block_counts: tuple[int, ...]  # for each buffer the elements of a block
    jobs: int  # number of workers; 1 for this process, unless the work is isolated
    max_open: int  # ranks that a worker keeps open, and results
    engine: Engine
    isolated: bool  # whether the work runs in workers only: foreign code, or a library that decodes, may end a process
    has_unknown_length: bool  # whether all ranks are streams whose count only the fold finds
    memory: int = 0  # estimated bytes of all processes together
    open_files: int = 0  # maximum for a process
    machines: int = 1  # number of machines of the workers
    read_ahead: int = 0  # blocks of the next ranks that a worker reads ahead
    # The workers of each line of stages, if the ranks are spread over workers: each line has some of the elements, and
    # each of its stages some of the ranks, in rank order. Empty if each worker reads all ranks.
    lines: Lines = ()
    results: tuple[Result, ...] = ()  # the files of results; empty in workers

    @property
    def firsts(self) -> list[Array]:
        """The buffers of the first rank."""
        return [ranks[0] for ranks in self.buffers]

    @property
    def tasks(self) -> list[list[list[Segment]]]:
        """The segments of each stage of each line, in order."""
        nranks, tasks = len(self.buffers[0]), []
        for number, line in enumerate(self.lines):
            bounds = pairwise(nranks * stage // len(line) for stage in range(len(line) + 1))
            segments = self.segments[number :: len(self.lines)]
            tasks.append([[segment._replace(ranks=range(*pair)) for segment in segments] for pair in bounds])
        return tasks

    def with_count(self, count: int) -> Plan:
        """Return the plan of streams of unknown length with the count that the fold has found."""
        buffers = tuple(tuple(rank._replace(count=count) for rank in ranks) for ranks in self.buffers)
        return self._replace(buffers=buffers, has_unknown_length=False)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements of all ranks; 0 if their count is unknown."""
        if self.has_unknown_length:
            return 0
        return sum(len(ranks) * ranks[0].count * stored_array(ranks[0]).datatype.itemsize for ranks in self.buffers)


_Buffers: TypeAlias = tuple[tuple[Array, ...], ...]


class _Planner:
    """The sizes of ranks, ops and results, and the choices of a plan."""

    def __init__(
        self, ops: tuple[Op, ...], files: Sequence[RankFile], context: Context, noutputs: int, *, separate: bool
    ) -> None:
        self.ops, self.files, self.context, self.noutputs = ops, files, context, noutputs
        self.engine: Engine = context.engine or LOCAL
        self.separate = separate  # whether each array of each rank is a buffer of its own
        arrays = [file.buffers for file in files]
        self.buffers: _Buffers = tuple(zip(chain(*arrays)) if separate else zip(*arrays, strict=True))
        self.nranks = len(self.buffers[0])
        # for each buffer the bytes of an element: the sum over all ops of the maximum of operand, state and result
        self.widths: list[int] = []
        self.state_nbytes = _STATE_BLOCK_BYTES * len(ops)  # of a block
        self.has_states = False  # whether the states of ops are larger than a block
        self.is_decoded = False  # whether a library decodes a rank
        nbytes = self.longest = 0  # bytes of a rank, and of its longest buffer
        self.nsequential = self.ntransposed = 0  # ranks of a buffer that are streams, or transposed, at most
        nblocks = 1 if len(ops) == 1 else _BLOCKS_IN_MEMORY // _STATES_IN_MEMORY  # states of several ops have blocks
        for ranks in self.buffers:
            first, itemsize, width = ranks[0], ranks[0].datatype.itemsize, 0
            for op in ops:
                datatype = operand(op, first).datatype
                state_nbytes = make_state(op, datatype, len(ranks)).itemsize
                width += max(nblocks * datatype.itemsize, state_nbytes, op.result(datatype).itemsize)
            self.widths.append(width)
            self.has_states = self.has_states or width > itemsize
            self.is_decoded = self.is_decoded or any(rank.isolated for rank in ranks)
            nbytes, self.longest = nbytes + first.count * itemsize, max(self.longest, first.count * itemsize)
            self.nsequential = max(self.nsequential, sum(rank.source.is_sequential for rank in ranks))
            self.ntransposed = max(self.ntransposed, sum(stored_array(rank).is_transposed for rank in ranks))
        self.has_long_blocks = self.is_decoded or any(ranks[0].datatype.is_spread for ranks in self.buffers)
        self.is_small = self.nranks * nbytes < SMALL_NBYTES  # whether workers would cost more time than they save
        # Whether one process does all the work: a function of this process, or a stream, which has one reader.
        self.is_one_process = self.is_small or self.nsequential > 0 or any(op.is_function for op in ops)
        source = stored_array(self.buffers[0][0]).source
        self.file = source.packed or source  # of the first rank; the others are assumed to be on the same file system
        self.decompression = 0  # bytes of memory to decompress all ranks
        if self.nsequential:
            self.decompression = decompression_nbytes(file.source for file in files if file.source.is_sequential)
        # bytes of memory of a process before its blocks
        self.base = (STREAMED_BASE_NBYTES if self.is_decoded else BASE_NBYTES) + self.decompression

    def check_remote(self) -> None:
        """Check that workers on other machines can do the work; a small job runs on this machine."""
        ops, engine, sources = self.ops, self.engine, [source for file in self.files for source in file.sources]
        for op in ops:
            if op.is_function:
                reason = f"is a function of this process, which workers of the engine {engine.name} do not have"
                raise UsageError(str(op), f"{reason}; give the place of one, as FILE.py:FUNCTION")
            if not engine.can_stop_ops and getattr(op.kernel, "timeout", None) is not None:
                reason = f"cannot stop a call in a worker of the engine {engine.name}; leave it out"
                raise UsageError("`op_timeout`", reason)
        if private := next((source for source in sources if source.is_private), None):
            reason = f"is a stream of this process, which workers of the engine {engine.name} cannot open"
            raise UsageError(private.name, f"{reason}; write it to a file first")
        if self.is_small or self.nsequential:
            self.engine = LOCAL
            return
        datatypes = [ranks[0].datatype for ranks in self.buffers]
        for op in [op for op in ops if op.user] or ops[:1]:  # every worker inspects some of the ranks
            probe.check(engine.runner, op, sources, datatypes)
        if self.context.is_group_limit:  # the control group of this machine does not limit others
            self.context = self.context._replace(max_memory=None, is_group_limit=False)

    def limit_files(self, reserved: int) -> None:
        """Choose the number of workers and of files that each keeps open, beside `reserved` files."""
        context, engine = self.context, self.engine
        limits = Limits(1, resource.RLIM_INFINITY) if self.is_one_process else engine.runner.limits()
        jobs = min(context.jobs or limits.workers, sys.maxsize if engine.same_host else limits.workers)
        self.jobs = 1 if self.is_one_process else jobs
        self.machines = limits.machines
        # This process needs as many files as a worker to write what workers on other machines send.
        self.max_open = _MAX_OPEN_STREAMED if self.is_decoded else _MAX_OPEN
        self.pipes = _PIPES if engine.same_host else 0
        bounds = {resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.descriptors} - {resource.RLIM_INFINITY}
        needed = 2 if self.noutputs > 1 else 1  # a rank, and one of several results
        if context.max_open_files is not None:
            context.check_open_files(reserved + needed)
            bounds.add(context.max_open_files)
        if bounds:
            free = min(bounds) - reserved
            if self.pipes and self.jobs > 1:
                self.jobs = max(1, min(self.jobs, _FEW_WORKERS + (free - needed) // self.pipes))
                # A worker inherits the descriptors of the other workers.
                free -= self.pipes * max(0, self.jobs - _FEW_WORKERS)
            self.max_open = max(1, min(free // needed, self.max_open))

    def size_blocks(self) -> None:
        """Choose the lines of stages, the blocks that are read ahead, and the size and number of blocks in memory."""
        engine, spread = self.engine, self.context.spread
        # With "auto" ranks are spread if workers would open too many files, and each machine has a rank.
        many = self.jobs * self.nranks > _MANY_OPENS and self.nranks >= self.machines
        spreads_ranks = engine.is_launched and (spread == "ranks" or (spread == "auto" and many))
        self.lines: Lines = engine.runner.lines(self.jobs, self.nranks) if spreads_ranks else ()
        preferred, is_remote = 0, False  # bytes of a block that the file system prefers; 0 without a preference
        if isinstance(self.file, LocalSource):
            is_remote = mounts.mount_of_device(self.file.stamp[0]).is_remote
            if is_remote or not engine.same_host:
                preferred = min(mounts.preferred_nbytes(self.file.path), _MAX_PREFERRED_BYTES)
        # Ranks on this machine are not read ahead, and readers of decoded formats read ahead themselves.
        self.read_ahead = 0
        if self.max_open > 2 * _DEPTH and (is_remote or self.file.depth) and self.nranks > 1:
            depth = self.file.depth or min(_DEPTH, _DEPTH_BYTES // max(1, preferred))
            arrays = (rank for ranks in self.buffers for rank in ranks)
            is_flat = all(array.reader is None and not array.source.is_sequential for array in arrays)
            self.read_ahead = min(depth, self.nranks) if is_flat else 0
        self.max_open -= self.read_ahead  # the ranks that are read ahead are open, too
        nbytes = _STREAMED_BLOCK_BYTES if self.has_long_blocks else max(_BLOCK_BYTES, preferred)
        if self.lines:
            share = self.longest // (len(self.lines) * len(self.lines[0]) * _BLOCKS_PER_STAGE)
            nbytes = max(nbytes, min(share, _STAGE_BLOCK_BYTES))
        if self.file.depth:
            nbytes = max(nbytes, self.file.block_nbytes)
        if max(self.nranks, self.noutputs) > self.max_open:
            nbytes = max(nbytes, _REOPENING_BLOCK_BYTES)
        if self.noutputs > 1:  # a block for each worker, at least
            nbytes = min(nbytes, max(_BLOCK_BYTES, -(-self.longest // self.jobs)))
        if self.nsequential:  # each stream keeps a block
            nbytes = min(nbytes, max(_MIN_BLOCK_BYTES, _AHEAD_BYTES_IN_ALL // self.nsequential))
        if self.has_states:
            longest = max(rank.count * width for (rank, *_), width in zip(self.buffers, self.widths, strict=True))
            state_nbytes = min(self.state_nbytes, longest // self.jobs)
            state_nbytes = max(_STATE_BLOCK_BYTES, state_nbytes, max(self.widths) * _STATE_COUNT)
            nbytes = max(nbytes, min(state_nbytes, _MAX_STATE_BYTES))
        self.block_bytes = nbytes
        self.nblocks = _STATES_IN_MEMORY if self.has_states else _BLOCKS_IN_MEMORY
        self.nblocks += _BLOCKS_OF_STAGES if self.lines else 0
        self.nblocks += self.read_ahead * (2 if self.file.depth else 1)  # a received block, and its copy
        self.nblocks += _BLOCKS_AHEAD * min(self.max_open, self.ntransposed) + _BLOCKS_SEQUENTIAL * self.nsequential

    def limit_memory(self, limit: int) -> int:
        """Choose workers and blocks that fit into a limit of memory; return the bytes of a process besides its blocks.

        Blocks get smaller before there are fewer workers. An op that needs all ranks at once has a block with an
        element of each. The limit is that of each process on other machines, and else of all processes together.
        """
        base, nblocks, minimum = self.base, self.nblocks, max(_MIN_BLOCK_BYTES, *self.widths)
        needed, processes = base + nblocks * minimum, 1
        self.context.check_memory(needed)
        if self.engine.same_host:
            # This process waits beside its workers, so n workers are n + 1 processes.
            self.jobs = 1 if self.jobs == 1 or limit < 3 * needed else min(self.jobs, limit // needed - 1)
            processes = 1 if self.jobs == 1 else self.jobs + 1
            maximum = (limit - processes * base) // (self.jobs * nblocks)
        else:
            maximum = (limit - base) // nblocks
        self.block_bytes = min(self.block_bytes, max(minimum, maximum))
        return limit // processes - nblocks * self.block_bytes

    def limit_readers(self, spare: int | None) -> None:
        """Give readers that decode or transpose their shares of `spare` bytes of memory; None without a limit."""
        if spare is not None and self.is_decoded and not self.context.is_group_limit:
            share = max(0, spare - STREAMED_LEAST_NBYTES) // min(self.nranks, self.max_open)
            self.buffers = tuple(tuple(with_memory_limit(rank, share) for rank in ranks) for ranks in self.buffers)
        if not self.ntransposed:
            return
        ntransposed = min(self.max_open, self.ntransposed)
        nbytes = min(_AHEAD_BYTES, _AHEAD_BYTES_IN_ALL // (self.jobs * ntransposed))
        if spare is not None:
            nbytes = min(nbytes, self.block_bytes + (spare - self.base) // (_BLOCKS_AHEAD * ntransposed))
        # A rank that is opened again for each block reads nothing ahead.
        limits = [max(self.block_bytes, nbytes)] * self.max_open + [self.block_bytes] * self.nranks
        self.buffers = tuple(
            tuple(
                with_memory_limit(rank, limit) if stored_array(rank).is_transposed else rank
                for rank, limit in zip(ranks, limits, strict=False)
            )
            for ranks in self.buffers
        )

    def nsegments(self) -> int:
        """Return the number of segments of a buffer."""
        # A segment opens all files again, and decoding begins at a row group: few segments. A worker on another machine
        # opens a rank once, unless the results of its segment are too long to send.
        is_remote = not self.engine.same_host
        is_one_per_worker = self.is_decoded or self.ntransposed or self.nsequential or is_remote
        nsegments = self.jobs * (1 if is_one_per_worker else _SEGMENTS_PER_WORKER)
        if self.noutputs > 1 or self.separate:
            nsegments = max(self.jobs, min(nsegments, self.longest // _SEGMENT_BYTES))
        return max(nsegments, -(-self.noutputs * self.longest // _RETURNED_BYTES)) if is_remote else nsegments


def make_plan(  # noqa: PLR0913 - all that a plan depends on
    ops: tuple[Op, ...],
    files: Sequence[RankFile],  # ranks whose buffers agree
    context: Context = NO_LIMITS,  # the engine, and the limits of workers, memory and open files
    *,
    noutputs: int = 1,  # files of results
    nlocked: int = 0,  # files that are locked meanwhile, because they are replaced
    encoding: int = 0,  # bytes of memory of this process to encode the results at the end
    separate: bool = False,  # whether each array of each rank is a buffer of its own
) -> Plan:
    """Plan a reduction."""
    planner = _Planner(ops, files, context, noutputs, separate=separate)
    if not planner.engine.same_host:
        planner.check_remote()
    # A private source has a descriptor of this process; a compressed one has none between two reads.
    reserved = RESERVED + sum(file.source.is_private for file in files)
    if nlocked:
        reserved += descriptors_of(nlocked)
    planner.limit_files(reserved)
    if nlocked:  # locks leave descriptors for ranks and new files
        calls.allow_descriptors(reserved + _MIN_OPEN)
    planner.size_blocks()
    spare = None
    if (limit := planner.context.max_memory) is not None:
        planner.context.check_memory(BASE_NBYTES + encoding)
        spare = planner.limit_memory(limit)
    if planner.is_decoded or planner.ntransposed:
        planner.limit_readers(spare)
    block_counts = tuple(max(1, planner.block_bytes // width) for width in planner.widths)
    nsegments = len(planner.lines) or (1 if planner.is_small else planner.nsegments())
    segments = cut_segments(planner.buffers, block_counts, nsegments, striped=not planner.engine.same_host)
    lines = planner.lines[: len(segments)]
    jobs = sum(map(len, lines)) or max(1, min(planner.jobs, len(segments)))
    isolated = any(op.isolated for op in ops) or (planner.is_decoded and not any(op.user for op in ops))
    resident = _RESIDENT_BYTES + max(file.format.decoding_nbytes for file in files) + planner.decompression
    memory = jobs * (resident + planner.nblocks * planner.block_bytes)
    memory += _RESIDENT_BYTES if jobs > 1 or isolated else 0  # this process waits for its workers, and decodes nothing
    nopen = min(planner.nranks, planner.max_open + planner.read_ahead)
    nopen += min(noutputs, planner.max_open) if noutputs > 1 else 0
    return Plan(
        ops, planner.buffers, segments, block_counts, jobs, planner.max_open, planner.engine,
        isolated=isolated, has_unknown_length=planner.buffers[0][0].count == UNKNOWN_COUNT,
        memory=max(memory, _RESIDENT_BYTES + encoding),
        open_files=reserved + nopen + planner.pipes * max(0, jobs - _FEW_WORKERS),
        machines=min(planner.machines, jobs), read_ahead=planner.read_ahead, lines=lines,
    )  # fmt: skip


def cut_segments(
    buffers: _Buffers, block_counts: Sequence[int], nsegments: int, *, striped: bool = False
) -> tuple[Segment, ...]:
    """Cut each buffer into about `nsegments` segments of whole blocks, row groups, chunks or stripes."""
    segments = []
    for i, (ranks, block_count) in enumerate(zip(buffers, block_counts, strict=True)):
        # Elements that are decoded together are in one segment, or they would be decoded twice.
        first, grain = ranks[0], max(stored_array(rank).grain for rank in ranks)
        unit = block_count if grain == 1 else grain
        nunits = -(-first.count // unit)
        starts: Sequence[int] = range(0, first.count, max(1, -(-nunits // nsegments)) * unit)
        nstripes = -(-first.end // _STRIPE_BYTES) if striped and first.reader is None else 0
        if nstripes >= _STRIPES * nsegments:  # fewer stripes would make segments of different lengths
            nbytes = -(-nstripes // nsegments) * _STRIPE_BYTES
            cuts = (-(-(end - first.offset) // first.stored.itemsize) for end in range(nbytes, first.end, nbytes))
            starts = [0, *(cut for cut in cuts if 0 < cut < first.count)]
        segments += [Segment(i, start, stop) for start, stop in pairwise([*starts, first.count])]
    return tuple(segments)
