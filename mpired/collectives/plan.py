"""The plan of a reduction: the ranks' buffers, cut into segments, within the limits of memory and open files."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mpired.collectives.table import operand
from mpired.context import BASE_NBYTES, NO_LIMITS, RESERVED, STREAMED_BASE_NBYTES, STREAMED_LEAST_NBYTES, Context
from mpired.engines import LOCAL, Engine, Limits
from mpired.engines.table import IN_FLIGHT, SMALL_NBYTES, Lines
from mpired.errors import UsageError
from mpired.files import calls, mounts
from mpired.files.lock import descriptors_of
from mpired.formats import Array, RankFile, format_named
from mpired.formats.array import UNKNOWN_COUNT, stored_array, within_memory
from mpired.ops import Op
from mpired.ops.state import state_of
from mpired.sources.local import LocalSource
from mpired.sources.stream import unpacking_nbytes

# Blocks that stay in the second-level cache were measured fastest; at 1 MiB a third is lost.
_BLOCK_BYTES = 256 << 10
# Decoding starts at a row group or a page, so that formats with columns are read in larger blocks. So are elements that
# interleave: the more of them at a time, the longer the pieces of the file.
_STREAMED_BLOCK_BYTES = 4 << 20
# A state between stages costs a message, whatever its size, and from 2 MiB on the C library maps it afresh. But all
# stages are at work only while there are blocks for each of them.
_HANDED_BLOCK_BYTES = 1 << 20
_BLOCKS_PER_STAGE = 10
# With more ranks than descriptors every block opens files again, so it has to be worth it.
_REOPENING_BLOCK_BYTES = 2 << 20
_MIN_BLOCK_BYTES = 4 << 10
_MAX_OPEN = 1024
_LEAST_OPEN = 64
# The two pipes to a worker and the sign of its end; those of a few are among the files reserved.
_PIPES, _FEW_WORKERS = 3, 4
# An open column keeps a page and a read buffer.
_MAX_OPEN_STREAMED = 16
_SEGMENTS_PER_WORKER = 8
# Blocks that are read ahead from other machines: their number, or fewer with these bytes.
_DEPTH = 32
_DEPTH_BYTES = 64 << 20
# The longest blocks that a file system may wish for.
_MOST_PREFERRED_BYTES = 16 << 20
# What a worker on another machine sends back of a segment, at most.
_RETURNED_BYTES = 64 << 20
# Where workers may be on other machines the ranks are cut at multiples of these bytes of their files: parallel file
# systems distribute files in stripes of 1 to 4 MiB, and read whole pages ahead.
_STRIPE_BYTES = 4 << 20
_STRIPES = 8  # in a segment at least
# A segment opens all files again: with many results it takes at least so much of each.
_SEGMENT_BYTES = 1 << 20
# What a process was measured to hold before its blocks.
_RESIDENT_BYTES = 34 << 20
# The state of a block may be larger, so that a block has as many elements as usual; where it grows with the ranks, at
# least these elements, within a limit.
_STATE_BLOCK_BYTES = 1 << 20
_STATE_COUNT = 1024
_STATE_MOST_BYTES = 32 << 20
# That, and the results of it.
_STATES_IN_MEMORY = 2
# Two blocks, one in the form of the file, and the temporaries of a kernel.
_BLOCKS_IN_MEMORY = 6
# What an array in the other order reads ahead, and the same as it is turned; at most, for each and for all together.
_BLOCKS_AHEAD = 2
_BLOCKS_FORWARD = 2  # one kept of a stream, and one that is decompressed meanwhile
_AHEAD_BYTES = 32 << 20
_AHEAD_BYTES_IN_ALL = 256 << 20
# The opens of all workers from which on each rank is opened in one place: at 50,000 a second, as many metadata servers
# do, they take seconds.
_MANY_OPENS = 100_000
# Of the states between stages: those that wait for the next stage, and those of the one before.
_BLOCKS_HANDED = IN_FLIGHT + 2


class Segment(NamedTuple):
    """A task of the pool: the elements from `start` to `stop` of one buffer of all ranks, or of a stage's `own`."""

    buffer: int
    start: int
    stop: int
    own: range | None = None


class Plan(NamedTuple):
    """A reduction, ready to run."""

    ops: tuple[Op, ...]  # what combines; each gives a result of its own
    buffers: tuple[tuple[Array, ...], ...]  # for each buffer the same buffer of every rank, in rank order
    segments: tuple[Segment, ...]  # all elements of all buffers, each once
    block_counts: tuple[int, ...]  # for each buffer the most elements that are read at a time
    jobs: int  # number of workers; 1 means this process, unless what runs is isolated from it
    max_open: int  # ranks that a worker keeps open, and results
    engine: Engine  # who runs the segments
    isolated: bool  # whether all runs in workers: foreign code, or a library that decodes, could end this process
    has_unknown_length: bool  # whether it ends where the ranks do, which only their end shows
    ended: list[int]  # gets the count of ranks that are open, when it is known
    memory: int = 0  # about the most bytes of memory that all processes hold together
    open_files: int = 0  # the most files that a process has open
    machines: int = 1  # on how many machines the workers are
    ahead: int = 0  # how many blocks of ranks a worker reads ahead
    # The workers of each line of stages, where the ranks are spread over them: each has some of the elements, and each
    # stage some of the ranks, in rank order. () where all workers read all ranks
    lines: Lines = ()

    @property
    def firsts(self) -> list[Array]:
        """The buffers of the first rank."""
        return [ranks[0] for ranks in self.buffers]

    @property
    def tasks(self) -> list[list[list[Segment]]]:
        """The segments of each stage of each line, in order."""
        nranks, lines = len(self.buffers[0]), []
        for number, line in enumerate(self.lines):
            cuts = pairwise(nranks * stage // len(line) for stage in range(len(line) + 1))  # as many ranks for each
            mine = self.segments[number :: len(self.lines)]
            lines.append([[segment._replace(own=range(*cut)) for segment in mine] for cut in cuts])
        return lines

    @property
    def found(self) -> int:
        """The elements of a rank's first buffer; of one that is open none until it has ended."""
        return self.ended[-1] if self.ended else 0 if self.has_unknown_length else self.buffers[0][0].count

    @property
    def nbytes(self) -> int:
        """The bytes of elements to be read in all."""
        if self.has_unknown_length:
            return len(self.buffers[0]) * self.found * self.buffers[0][0].datatype.itemsize
        return sum(len(ranks) * ranks[0].count * stored_array(ranks[0]).datatype.itemsize for ranks in self.buffers)


_Buffers: TypeAlias = tuple[tuple[Array, ...], ...]


class _Planner:
    """The figures of ranks, ops and results, and the limits that a plan keeps; each buffer is looked at once."""

    def __init__(
        self, ops: tuple[Op, ...], files: Sequence[RankFile], context: Context, noutputs: int, *, apart: bool
    ) -> None:
        self.ops, self.files, self.context = ops, files, context
        self.engine: Engine = context.engine or LOCAL
        each = [file.buffers for file in files]
        self.buffers: _Buffers = (  # for each buffer that of every rank
            tuple((buffer,) for own in each for buffer in own) if apart else tuple(zip(*each, strict=True))
        )
        self.noutputs = noutputs
        self.apart = apart  # whether each buffer is read by itself
        # for each buffer the most bytes: of an element, of what the ops keep of it, or of a result
        self.widths: list[int] = []
        self.nranks = len(self.buffers[0])
        self.state_nbytes = _STATE_BLOCK_BYTES * len(ops)  # of a block
        self.is_kept = False  # whether ops keep more of an element than its bytes
        self.is_decoded = False  # whether a library decodes a rank
        is_spread = False
        nbytes = self.longest = 0  # bytes of a rank, and of its longest buffer
        self.nsequential = self.ntransposed = (
            0  # the most ranks of a buffer that are read forward, and in another order
        )
        for ranks in self.buffers:
            first = ranks[0]
            itemsize = first.datatype.itemsize
            nblocks = 1 if len(ops) == 1 else _BLOCKS_IN_MEMORY // _STATES_IN_MEMORY  # a state of several has its own
            width = 0
            for op in ops:
                datatype = operand(op, first).datatype
                state_nbytes = state_of(op, datatype, len(ranks)).itemsize
                width += max(nblocks * datatype.itemsize, state_nbytes, op.result(datatype).itemsize)
            self.widths.append(width)
            self.is_kept = self.is_kept or width > itemsize
            is_spread = is_spread or first.datatype.is_spread
            self.is_decoded = self.is_decoded or any(rank.isolated for rank in ranks)
            nbytes, self.longest = nbytes + first.count * itemsize, max(self.longest, first.count * itemsize)
            self.nsequential = max(self.nsequential, sum(rank.source.is_sequential for rank in ranks))
            self.ntransposed = max(self.ntransposed, sum(stored_array(rank).is_transposed for rank in ranks))
        self.is_long = self.is_decoded or is_spread  # whether blocks are larger, because elements are decoded or spread
        self.is_small = self.nranks * nbytes < SMALL_NBYTES  # whether workers cost more than they give
        # whether one process does all: a function of this one, or a stream, which has one reader
        self.is_alone = self.is_small or self.nsequential > 0 or any(op.is_function for op in ops)
        source = stored_array(self.buffers[0][0]).source
        self.file = source.packed or source  # of the first rank: where it is, the others are
        self.unpacking = 0  # memory that decompressing all ranks takes
        if self.nsequential:
            self.unpacking = unpacking_nbytes(file.source for file in files if file.source.is_sequential)
        # the memory of a process before its blocks
        self.base = (STREAMED_BASE_NBYTES if self.is_decoded else BASE_NBYTES) + self.unpacking

    def check_remote(self) -> None:
        """Check that workers on other machines can do the work; small work is for this machine."""
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
        if self.is_small or self.nsequential:  # one process does it anyway
            self.engine = LOCAL
            return
        from mpired.engines import probe  # noqa: PLC0415 - of few commands

        datatypes = [ranks[0].datatype for ranks in self.buffers]
        for op in [op for op in ops if op.user] or ops[:1]:  # every worker looks at some of the ranks
            probe.check(engine.runner, op, sources, datatypes)
        if self.context.is_of_group:  # other machines have other limits
            self.context = self.context._replace(max_memory=None, is_of_group=False)

    def limit_files(self, reserved: int) -> None:
        """Choose the number of workers, and how many ranks and results each keeps open, beside `reserved` files."""
        context, engine = self.context, self.engine
        limits = Limits(1, resource.RLIM_INFINITY) if self.is_alone else engine.runner.limits()
        jobs = min(context.jobs or limits.workers, sys.maxsize if engine.same_host else limits.workers)
        self.jobs = 1 if self.is_alone else jobs
        self.machines = limits.machines
        # This process has as many open, if it writes what workers on other machines send.
        self.max_open = _MAX_OPEN_STREAMED if self.is_decoded else _MAX_OPEN
        self.pipes = _PIPES if engine.same_host else 0  # that the connection to a worker takes
        bounds = {resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.descriptors} - {resource.RLIM_INFINITY}
        least = 2 if self.noutputs > 1 else 1
        if context.max_open_files is not None:
            context.check_open_files(reserved + least)
            bounds.add(context.max_open_files)
        if bounds:
            free = min(bounds) - reserved
            if self.pipes and self.jobs > 1:
                self.jobs = max(1, min(self.jobs, _FEW_WORKERS + (free - least) // self.pipes))
                # Each worker inherits those of the others; few are in `reserved`.
                free -= self.pipes * max(0, self.jobs - _FEW_WORKERS)
            self.max_open = max(1, min(free // least, self.max_open))

    def size_blocks(self) -> None:
        """Choose the lines of stages, how many blocks are read ahead and a worker holds, and their bytes."""
        engine, spread = self.engine, self.context.spread
        # Without the option, ranks are spread where workers would open too many files, and each machine has a rank.
        many = self.jobs * self.nranks > _MANY_OPENS and self.nranks >= self.machines
        is_spread = engine.is_launched and (spread == "ranks" or (spread == "auto" and many))
        lines: Lines = engine.runner.lines(self.jobs, self.nranks) if is_spread else ()
        # On this machine none is read ahead. Only flat ranks are: formats that decode in sequence do it themselves.
        preferred = ahead = 0  # the bytes that the file system wishes to be read, 0 for any
        is_remote = False
        if isinstance(self.file, LocalSource):
            is_remote = mounts.mount_of_device(self.file.stamp[0]).is_remote
            if is_remote or not engine.same_host:
                preferred = min(mounts.preferred_nbytes(self.file.path), _MOST_PREFERRED_BYTES)
        if self.max_open > 2 * _DEPTH and (is_remote or self.file.depth) and self.nranks > 1:
            depth = self.file.depth or min(_DEPTH, _DEPTH_BYTES // max(1, preferred))
            is_flat = all(
                rank.reader is None and not rank.source.is_sequential for ranks in self.buffers for rank in ranks
            )
            ahead = min(depth, self.nranks) if is_flat else 0
        self.max_open -= ahead  # the ranks that are read ahead are open too
        wanted = _STREAMED_BLOCK_BYTES if self.is_long else max(_BLOCK_BYTES, preferred)
        if lines:
            share = self.longest // (len(lines) * len(lines[0]) * _BLOCKS_PER_STAGE)
            wanted = max(wanted, min(share, _HANDED_BLOCK_BYTES))
        if self.file.depth:
            wanted = max(wanted, self.file.block_nbytes)
        if max(self.nranks, self.noutputs) > self.max_open:
            wanted = max(wanted, _REOPENING_BLOCK_BYTES)
        if self.noutputs > 1:  # however large a block may be, there is one for each worker
            wanted = min(wanted, max(_BLOCK_BYTES, -(-self.longest // self.jobs)))
        if self.nsequential:  # each keeps its block
            wanted = min(wanted, max(_MIN_BLOCK_BYTES, _AHEAD_BYTES_IN_ALL // self.nsequential))
        if self.is_kept:
            longest = max(rank.count * width for (rank, *_), width in zip(self.buffers, self.widths, strict=True))
            usual = min(self.state_nbytes, longest // self.jobs)
            usual = max(_STATE_BLOCK_BYTES, usual, max(self.widths) * _STATE_COUNT)
            wanted = max(wanted, min(usual, _STATE_MOST_BYTES))
        nblocks = (_STATES_IN_MEMORY if self.is_kept else _BLOCKS_IN_MEMORY) + (_BLOCKS_HANDED if lines else 0)
        nblocks += ahead * (2 if self.file.depth else 1)  # what arrives, and its copy
        nblocks += _BLOCKS_AHEAD * min(self.max_open, self.ntransposed) + _BLOCKS_FORWARD * self.nsequential
        self.lines, self.ahead, self.nblocks, self.block_bytes = lines, ahead, nblocks, wanted

    def limit_memory(self, most: int) -> int:
        """Choose workers and blocks that fit into a limit, smaller blocks first, and return what a process has left."""
        # Of workers on other machines it is the limit of each, else that of all together. Of an op that needs all ranks
        # at once a block has an element of each.
        base, nblocks, least = self.base, self.nblocks, max(_MIN_BLOCK_BYTES, *self.widths)
        needed, processes = base + nblocks * least, 1
        self.context.check_memory(needed)
        if self.engine.same_host:
            # The parent waits beside its workers, so that n workers are n + 1 processes.
            self.jobs = 1 if self.jobs == 1 or most < 3 * needed else min(self.jobs, most // needed - 1)
            processes = 1 if self.jobs == 1 else self.jobs + 1
            spare = (most - processes * base) // (self.jobs * nblocks)
        else:
            spare = (most - base) // nblocks
        self.block_bytes = min(self.block_bytes, max(spare, least))
        return most // processes - nblocks * self.block_bytes

    def pieces(self) -> int:
        """Return into how many segments a buffer is cut."""
        # What can only be decoded in sequence is cut as little as possible: each segment opens all files again.
        # A worker on another machine opens a rank once, unless the results of its segment are too long to send.
        is_remote = not self.engine.same_host
        whole = self.is_decoded or self.ntransposed or self.nsequential or is_remote
        pieces = self.jobs * (1 if whole else _SEGMENTS_PER_WORKER)
        if self.noutputs > 1 or self.apart:  # nor are many files opened for little of each
            pieces = max(self.jobs, min(pieces, self.longest // _SEGMENT_BYTES))
        return max(pieces, -(-self.noutputs * self.longest // _RETURNED_BYTES)) if is_remote else pieces

    def change(self, change: Callable[[int, Array], Array]) -> None:
        """Change each rank of each buffer, by its number."""
        self.buffers = tuple(tuple(change(*each) for each in enumerate(ranks)) for ranks in self.buffers)

    def limit_transposed(self, left: int | None) -> None:
        """Give each rank that is read in another order its share of the memory for reading ahead."""
        ntransposed = min(self.max_open, self.ntransposed)
        ahead = min(_AHEAD_BYTES, _AHEAD_BYTES_IN_ALL // (self.jobs * ntransposed))
        if left is not None:
            ahead = min(ahead, self.block_bytes + (left - self.base) // (_BLOCKS_AHEAD * ntransposed))

        def turned(number: int, rank: Array) -> Array:  # a rank that is opened for each block reads no more
            nbytes = max(self.block_bytes, ahead) if number < self.max_open else self.block_bytes
            return within_memory(rank, nbytes) if stored_array(rank).is_transposed else rank

        self.change(turned)


def make_plan(  # noqa: PLR0913 - all that a plan depends on
    ops: tuple[Op, ...],  # what combines
    files: Sequence[RankFile],  # the ranks, whose buffers agree
    context: Context = NO_LIMITS,  # the engine and its workers, and the limits of memory and of open files
    *,
    noutputs: int = 1,  # how many files take the results
    nlocked: int = 0,  # how many files are locked meanwhile, because they are replaced
    encoding: int = 0,  # the memory that this process takes in the end to encode the results
    apart: bool = False,  # whether every buffer is read by itself, whatever the others hold
) -> Plan:
    """Cut a reduction into segments."""
    work = _Planner(ops, files, context, noutputs, apart=apart)
    if not work.engine.same_host:
        work.check_remote()
    # A private source has a descriptor of this process; a compressed one has none between two reads.
    reserved = RESERVED + sum(file.source.is_private for file in files)
    if nlocked:
        reserved += descriptors_of(nlocked)
    work.limit_files(reserved)
    if nlocked:  # the locks shall take none from the ranks, and the new files none from either
        calls.allow_descriptors(reserved + _LEAST_OPEN)
    work.size_blocks()
    left = None  # what a process may have besides its blocks
    if (most := work.context.max_memory) is not None:
        work.context.check_memory(BASE_NBYTES + encoding)
        left = work.limit_memory(most)
        if work.is_decoded and not work.context.is_of_group:
            share = max(0, left - STREAMED_LEAST_NBYTES) // min(work.nranks, work.max_open)
            work.change(lambda _, rank: within_memory(rank, share))
    if work.ntransposed:
        work.limit_transposed(left)
    block_counts = tuple(max(1, work.block_bytes // width) for width in work.widths)
    pieces = len(work.lines) or (1 if work.is_small else work.pieces())
    segments = cut_segments(work.buffers, block_counts, pieces, striped=not work.engine.same_host)
    lines = work.lines[: len(segments)]
    jobs = sum(map(len, lines)) or max(1, min(work.jobs, len(segments)))
    isolated = any(op.isolated for op in ops) or (work.is_decoded and not any(op.user for op in ops))
    resident = _RESIDENT_BYTES + max(format_named(file.format).decoding for file in files) + work.unpacking
    # The parent waits beside its workers, and decodes nothing.
    memory = (_RESIDENT_BYTES if jobs > 1 or isolated else 0) + jobs * (resident + work.nblocks * work.block_bytes)
    nopen = min(work.nranks, work.max_open + work.ahead) + (min(noutputs, work.max_open) if noutputs > 1 else 0)
    return Plan(
        ops, work.buffers, segments, block_counts, jobs, work.max_open, work.engine,
        isolated=isolated, has_unknown_length=work.buffers[0][0].count == UNKNOWN_COUNT, ended=[],
        memory=max(memory, _RESIDENT_BYTES + encoding),
        open_files=reserved + nopen + work.pipes * max(0, jobs - _FEW_WORKERS),
        machines=min(work.machines, jobs), ahead=work.ahead, lines=lines,
    )  # fmt: skip


def cut_segments(
    buffers: _Buffers, block_counts: Sequence[int], pieces: int, *, striped: bool = False
) -> tuple[Segment, ...]:
    """Cut each buffer into about `pieces` segments of whole blocks, row groups, chunks or stripes."""
    segments = []
    for i, (ranks, block_count) in enumerate(zip(buffers, block_counts, strict=True)):
        # The most elements that are decoded together: no cut lets them be decoded twice.
        count, grain = ranks[0].count, max(stored_array(rank).grain for rank in ranks)
        unit = block_count if grain == 1 else grain
        units = -(-count // unit)
        starts: Sequence[int] = range(0, count, max(1, -(-units // pieces)) * unit)
        first = ranks[0]
        nstripes = -(-first.end // _STRIPE_BYTES) if striped and first.reader is None else 0
        if nstripes >= _STRIPES * pieces:  # else they would be too unequal
            places = range(-(-nstripes // pieces) * _STRIPE_BYTES, first.end, -(-nstripes // pieces) * _STRIPE_BYTES)
            cuts = (-(-(place - first.offset) // first.stored.itemsize) for place in places)
            starts = [0, *(cut for cut in cuts if 0 < cut < count)]
        segments += [Segment(i, start, stop) for start, stop in pairwise([*starts, count])]
    return tuple(segments)
