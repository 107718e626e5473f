"""The one left fold, in rank order: ((a0 o a1) o a2) ... for every op (MPI-4.1, 6.9.1).

A worker reads the same block of every rank, one after another, and combines it with what the lower
ranks gave. The parallel work is over elements, never over ranks, so the number of workers cannot
show in the result. Every partial result that somebody gets is written when the fold is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from mpired.buffers import FlatBuffer, RankBuffer
from mpired.buffers.flat import convert, lies_as
from mpired.buffers.rank import Reader, what_is_read
from mpired.collectives.counts import is_open
from mpired.collectives.plan import Plan, Segment
from mpired.collectives.table import BEFORE, Share
from mpired.datatypes import Datatype
from mpired.datatypes.datatype import gaps
from mpired.datatypes.pairs import VALID, field_type
from mpired.engines import Link
from mpired.errors import CountError
from mpired.ops import Op, neutral
from mpired.ops.overflow import Overflow, total
from mpired.ops.rules import Rules
from mpired.ops.state import Elements, State
from mpired.progress import Pace
from mpired.storage import calls

if TYPE_CHECKING:
    from mpired.buffers.ahead import Ahead
    from mpired.buffers.indexed import IndexedBuffer
    from mpired.buffers.missing import Missing

# Results are sent back when there are so many bytes of them; both processes hold twice as many.
_MADE_BYTES = 4 << 20


class Region(NamedTuple):
    """Where the result of one buffer goes.

    Parameters
    ----------
    offset
        Bytes before the first element.
    stored
        The form of the elements there.
    kept
        The buffer that they replace, if the bytes between the entries of its elements are to stay.
    end
        Where the file is to end or go on with something else, if the padding of the last element may go beyond.
    validity
        Where a byte for each element goes that says whether it is there; None if it stands for itself.
    missing
        Which values mean to readers of the result that an element is missing, if those that are there are counted.
    """

    offset: int
    stored: np.dtype
    kept: FlatBuffer | None = None
    end: int | None = None
    validity: int | None = None
    missing: Missing | None = None

    def position(self, element: int) -> int:
        """Return the byte offset of an element."""
        return self.offset + element * self.stored.itemsize

    def encoded(self, block: np.ndarray, datatype: Datatype, name: str, start: int) -> memoryview:
        """Return the bytes of a block of the datatype as they lie in the file `name`, from element `start` on."""
        if not lies_as(self.stored, datatype):
            stored = np.zeros(len(block), self.stored)
            convert(block, stored, name, start)
            block = stored
        if self.kept is not None:
            block = _with_gaps_of(self.kept, block, start)
        octets: memoryview = block.view(np.uint8).data
        return octets if self.end is None else octets[: self.end - self.position(start)]


def _with_gaps_of(buffer: FlatBuffer, block: np.ndarray, start: int) -> np.ndarray:
    """Return elements with the bytes that carry no value as they are in a file, from element `start` on."""
    new = block.copy()
    octets, old = new.view(np.uint8).reshape(-1, block.itemsize), np.zeros((len(block), block.itemsize), np.uint8)
    with closing(buffer.open()) as reader, calls.blaming(buffer.source.name):
        reader.file.read_into(old.reshape(-1).data, buffer.offset + start * block.itemsize)
    for gap in gaps(block.dtype):
        octets[:, gap] = old[:, gap]
    return new


class Made(NamedTuple):
    """A partial result of a block, on its way to the process that writes it.

    Parameters
    ----------
    buffer, start
        Which buffer, and which element the block begins with.
    last
        The last rank that is in it.
    block, n, there
        The elements, how many ranks have each, and which are there; None for all.
    """

    buffer: int
    start: int
    last: int
    block: np.ndarray
    n: int | np.ndarray
    there: np.ndarray | None


class Part(NamedTuple):
    """What came of a piece of a segment.

    Parameters
    ----------
    nbytes
        The bytes that were read.
    overflow
        The overflow that was found.
    stop
        Where it ended.
    made
        The results, if the worker does not write them.
    hidden
        How many elements of results of which buffer are there, and have a value that means the opposite.
    """

    nbytes: int
    overflow: Overflow | None
    stop: int = 0
    made: Sequence[Made] = ()
    hidden: tuple[int, int] = (0, 0)


class Target(NamedTuple):
    """A file that takes a share of the result.

    Parameters
    ----------
    file
        The file.
    name
        What messages call it.
    share
        Which part of which partial result.
    regions
        For each buffer where in the file its part lies.
    soon
        Whether the file is to be on the disk soon, so that writing it out may begin.
    flow
        Takes the bytes in order instead, where one fold in this process makes them so.
    """

    file: calls.SharedFile
    name: str
    share: Share
    regions: tuple[Region, ...]
    soon: bool = False
    flow: Callable[[memoryview], object] | None = None


class Fold:
    """Folds segments of a plan into files. Picklable: it is sent once to each worker.

    Parameters
    ----------
    plan
        What is to be done.
    targets
        The files that take the results.
    sent
        The last ranks of those partial results that are sent back instead.
    """

    def __init__(self, plan: Plan, targets: tuple[Target, ...], sent: tuple[int, ...] = ()) -> None:
        self.plan, self.targets, self.sent = plan, targets, sent
        self._kept = _Kept()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fold, (self.plan, self.targets, self.sent)

    def close(self) -> None:
        """Close what is open for the next segments."""
        self._kept.close()

    def sending(self) -> Fold:
        """Return the fold whose results are sent back."""
        return Fold(self.plan, (), tuple({target.share.last for target in self.targets}))

    def __call__(self, segment: Segment, link: Link | None = None) -> Generator[Part, None, None]:
        """Fold one segment, and write its results or send them back; yield what came of each piece of it.

        Of a segment with a stage's ranks the link gives what is kept of the ranks before, and takes the same after it.
        """
        op, ranks = self.plan.op, self.plan.buffers[segment.buffer]
        datatype, step = ranks[0].datatype, self.plan.block_counts[segment.buffer]
        state, result, nbytes = _state(op, ranks), op.result(datatype), 0
        own = segment.own or range(len(ranks))
        if segment.start == 0:
            op.begin()
        found: list[Overflow | None] = []
        pace = Pace()
        with (
            self._kept.lent(segment.buffer, partial(self._opened, state, ranks, own)) as readers,
            _Writers(
                _of_stage(self.targets, own), segment.buffer, self.plan.max_open, durable=not self.plan.engine.same_host
            ) as writers,
        ):
            made = _Returned(segment.buffer, [last for last in self.sent if _is_made(last, own)])
            start = segment.start
            while count := readers.there(start, min(step, segment.stop - start)):
                sinks = made.at(start) if self.sent else writers.at(start, result)
                found.append(_left_fold(state, readers, start, count, sinks, link))
                start += count
                nbytes += count * len(own) * what_is_read(ranks[0]).datatype.itemsize
                if pace.is_due() or made.nbytes >= _MADE_BYTES:
                    yield _part(nbytes, found, segment, start)._replace(made=made.taken(), hidden=writers.hidden())
                    nbytes, found = 0, []
            readers.check_ends()
        yield _part(nbytes, found, segment, start)._replace(made=made.taken(), hidden=writers.hidden())

    def _opened(self, state: State, ranks: Sequence[RankBuffer], own: range) -> _Readers:
        plain = list(map(what_is_read, ranks)) if state.counts_indices else ranks
        return _Readers(plain, own, self.plan.max_open, self.plan.ahead, stay=self.plan.engine.tells_ends)


def _is_made(last: int, own: range) -> bool:
    """Tell whether the partial result after a rank is made in the stage that has these ranks."""
    return last in own or (last == BEFORE and own.start == 0)


def _of_stage(targets: Sequence[Target], own: range) -> list[Target]:
    """Return the targets of what is made in the stage that has these ranks."""
    return [target for target in targets if _is_made(target.share.last, own)]


def _state(op: Op, ranks: Sequence[RankBuffer]) -> State:
    """Return what is kept of the ranks; of plain values with indices, values and indices apart."""
    if what_is_read(ranks[0]) is not ranks[0] and op.rules == Rules():
        from mpired.ops.located import Located  # noqa: PLC0415 - most ranks are combined as they are

        indexed = cast("Sequence[IndexedBuffer]", ranks)
        return Located(op, ranks[0].datatype, [rank.first for rank in indexed], counting=indexed[0].counting)
    return op.state(op, ranks[0].datatype, len(ranks))


def _part(nbytes: int, found: Sequence[Overflow | None], segment: Segment, stop: int) -> Part:
    overflow = total(found)
    return Part(nbytes, overflow and overflow._replace(buffer=segment.buffer), stop)


_Sink: TypeAlias = Callable[[np.ndarray, "int | np.ndarray", "np.ndarray | None"], None]
_Sinks: TypeAlias = Mapping[int, _Sink]
"""What takes, by rank, the partial result after it, how many ranks have each of its elements, and which are there."""


def _left_fold(
    state: State, readers: _Readers, start: int, count: int, sinks: _Sinks, link: Link | None
) -> Overflow | None:
    """Fold some elements of all ranks, or of a stage's, from `start` on, and return what overflowed."""
    found: list[Overflow] = []

    def tell(overflowed: np.ndarray | None, rank: int) -> None:
        if overflowed is not None:
            found.append(Overflow.at(overflowed, start, rank))

    again = partial(readers.again, start, count)
    state.begin(start, count)
    if link is not None and readers.own.start > 0:
        state.go_on(link.taken())
    with state.watching():
        if BEFORE in sinks:
            sinks[BEFORE](np.full(count, neutral(state.op, state.datatype)), 0, None)
        for rank in readers.own:
            there = readers.read(rank, start, state.room())
            tell(state.add(again, there), rank)
            if rank in sinks:
                results, lost = state.result()
                tell(lost, rank)
                sinks[rank](results, state.n, state.there())
    if link is not None and readers.own.stop < len(readers):
        link.hand(state.handed())
    return total(found)


class _Kept:
    """The readers of a buffer, which stay open from segment to segment: with the last use of this they are closed."""

    def __init__(self) -> None:
        self._free: list[tuple[int, _Readers]] = []

    @contextmanager
    def lent(self, buffer: int, opened: Callable[[], _Readers]) -> Iterator[_Readers]:
        """Lend the readers of a buffer to a segment; each of several threads has its own."""
        readers = self._taken(buffer) or opened()
        try:
            yield readers
        except BaseException:
            readers.close()
            raise
        if readers.stay:
            self._free.append((buffer, readers))
        else:
            readers.close()

    def _taken(self, wanted: int) -> _Readers | None:
        """Return free readers of a buffer, and close those of others: no more are open than those of one."""
        while self._free:
            try:
                buffer, readers = self._free.pop()
            except IndexError:  # another thread has taken them
                return None
            if buffer == wanted:
                return readers
            readers.close()
        return None

    def close(self) -> None:
        """Close those that are free."""
        self._taken(-1)

    __del__ = close


class _Readers:
    """One buffer of every rank, the first `max_open` kept open, the others opened in turn, some read ahead.

    `own` are those that are read here; of the others only what has to be seen again. With `stay` they may be used for
    another segment, unless one is read forward.
    """

    def __init__(self, ranks: Sequence[RankBuffer], own: range, max_open: int, ahead: int, *, stay: bool) -> None:
        self.datatype = ranks[0].datatype
        self.own = own
        self.stay = stay and not any(rank.source.is_forward for rank in ranks)
        self._ranks = ranks
        self._max_open = max_open
        self._open: dict[int, Reader] = {}
        self._ahead: Ahead | None = None
        if ahead:
            from mpired.buffers.ahead import Ahead  # noqa: PLC0415 - of few commands

            self._ahead = Ahead(self._read, own.stop, ahead)

    def __len__(self) -> int:
        return len(self._ranks)

    def there(self, start: int, count: int) -> int:
        """Return how many of some elements all ranks have: `count`, unless their end shows only here.

        Raises
        ------
        CountError
            If some of them end and others go on.
        """
        if not is_open(self._ranks):
            return count
        found = [cast("Any", self._reader(rank)).there(start, count) for rank in range(len(self))]
        least: int = min(found)
        if least < max(found):
            short, long = found.index(least), found.index(max(found))
            like = f"rank {long} ({self._ranks[long].source.name!r})"
            reason = f"rank {short} has count {start + least}, but {like} has more"
            raise CountError(self._ranks[short].source.name, reason)
        return least

    def _reader(self, rank: int) -> Reader | None:
        """Return what reads a rank, if that stays open: a source that is read forward would begin anew."""
        reader = self._open.get(rank)
        if reader is None and (rank in self.own[: self._max_open] or self._ranks[rank].source.is_forward):
            reader = self._open[rank] = self._ranks[rank].open()
        return reader

    def read(self, rank: int, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements of one rank, from `start` on, and return which are there; None for all."""
        return (self._ahead.read if self._ahead else self._read)(rank, start, block)

    def _read(self, rank: int, start: int, block: np.ndarray) -> np.ndarray | None:
        if (kept := self._reader(rank)) is not None:
            return kept.read(start, block)
        with closing(self._ranks[rank].open()) as reader:
            return reader.read(start, block)

    def again(self, start: int, count: int, rank: int) -> Elements:
        """Return elements of one rank in an array of their own."""
        block = np.empty(count, self.datatype.form)
        return block, self._read(rank, start, block)

    def check_ends(self) -> None:
        """Check that what was read forward ends, where it must end behind its last element."""
        for rank, reader in self._open.items():
            if self._ranks[rank].source.is_forward and not is_open(self._ranks):
                cast("Any", reader).check_end()

    def close(self) -> None:
        """Close what is open."""
        if self._ahead is not None:
            self._ahead.close()
        for reader in self._open.values():
            reader.close()


class _Returned:
    """The results of one buffer that are sent back: those after the last ranks that are wanted."""

    def __init__(self, buffer: int, wanted: Sequence[int]) -> None:
        self._buffer = buffer
        self._wanted = wanted
        self._made: list[Made] = []

    @property
    def nbytes(self) -> int:
        """How many bytes wait to be taken."""
        return sum(each.block.nbytes for each in self._made)

    def at(self, start: int) -> _Sinks:
        """Return what takes the partial results of the block that begins with the element `start`."""

        def sink(last: int) -> _Sink:
            return lambda block, n, there: self._made.append(  # arrays that the fold uses again
                Made(self._buffer, start, last, block.copy(), np.copy(n) if isinstance(n, np.ndarray) else n, there)
            )

        return {last: sink(last) for last in self._wanted}

    def taken(self) -> list[Made]:
        """Return what waits."""
        made, self._made = self._made, []
        return made


class Receiver(AbstractContextManager["Receiver"]):
    """Writes results that workers send back.

    Parameters
    ----------
    plan
        What they work on.
    targets
        The files that take the results.
    """

    def __init__(self, plan: Plan, targets: Sequence[Target]) -> None:
        self._plan = plan
        self._targets = targets
        self._writers: dict[int, _Writers] = {}

    def written(self, part: Part) -> Part:
        """Write the results of a part, and return it without them."""
        for made in part.made:
            if made.buffer not in self._writers:
                self._close()  # few files are open at a time
                self._writers[made.buffer] = _Writers(self._targets, made.buffer, self._plan.max_open)
            datatype = self._plan.op.result(self._plan.buffers[made.buffer][0].datatype)
            block = made.block if made.block.flags.writeable else made.block.copy()
            self._writers[made.buffer].at(made.start, datatype)[made.last](block, made.n, made.there)
        for writers in self._writers.values() if part.made else ():  # those of the buffer of the part
            part = part._replace(hidden=writers.hidden())
        return part._replace(made=())

    def _close(self) -> None:
        for writers in self._writers.values():
            writers.__exit__(None, None, None)
        self._writers.clear()

    def __exit__(self, *_: object) -> None:
        self._close()


class _Writers(AbstractContextManager["_Writers"]):
    """The files that take the results of one buffer, the first `max_open` kept open, the others opened in turn.

    With `durable` what is written is on the disk, where other machines see it, when a file is closed.
    """

    def __init__(self, targets: Sequence[Target], buffer: int, max_open: int, *, durable: bool = False) -> None:
        self._buffer = buffer
        self._durable = durable
        self._max_open = max_open
        self._hidden = 0
        self._open: dict[calls.SharedFile, int] = {}
        self._by_last: dict[int, list[Target]] = {}
        for target in targets:
            self._by_last.setdefault(target.share.last, []).append(target)

    def at(self, start: int, datatype: Datatype) -> _Sinks:
        """Return what takes the partial results, of a datatype, of the block that begins with the element `start`."""

        def sink(targets: list[Target]) -> _Sink:
            return lambda block, n, there: self._write(targets, start, block, n, there, datatype)

        return {last: sink(targets) for last, targets in self._by_last.items()}

    def hidden(self) -> tuple[int, int]:
        """Return how many elements of which buffer mean to readers that they are missing, and begin anew."""
        hidden, self._hidden = self._hidden, 0
        return self._buffer, hidden

    def _write(
        self,
        targets: Sequence[Target],
        start: int,
        block: np.ndarray,
        n: int | np.ndarray,
        there: np.ndarray | None,
        datatype: Datatype,
    ) -> None:
        datatype.clear_padding(block)
        for target in targets:
            stop = start + len(block) if target.share.stop is None else target.share.stop
            low, high = max(start, target.share.start), min(start + len(block), stop)
            if low < high:
                region, field = target.regions[self._buffer], target.share.field
                first = low - target.share.start
                elements = block[low - start : high - start]
                if field == VALID:
                    elements = np.broadcast_to(n, len(block))[low - start : high - start].astype(np.int64)
                elif field:
                    elements = np.ascontiguousarray(elements[field])
                if region.missing is not None:
                    mine = None if there is None else there[low - start : high - start]
                    self._hidden += region.missing.hidden(elements, mine)
                data = region.encoded(elements, field_type(datatype, field), target.name, first)
                self._write_to(target, data, region.position(first))
                if region.validity is not None:
                    valid = np.broadcast_to(True if there is None else there, len(block))[low - start : high - start]
                    self._write_to(target, np.ascontiguousarray(valid).view(np.uint8).data, region.validity + first)

    def _write_to(self, target: Target, data: memoryview, offset: int) -> None:
        with calls.blaming(target.name):
            if target.flow is not None:
                target.flow(data)
                return
            fd = self._open.get(target.file)
            opened = target.file.open() if fd is None else fd
            try:
                calls.pwrite_all(opened, data, offset)
                if target.soon:
                    calls.start_writing_out(opened, offset, len(data))
            finally:
                if fd is None and len(self._open) < self._max_open:
                    self._open[target.file] = opened
                elif fd is None:
                    self._end(opened)

    def _end(self, fd: int) -> None:
        try:
            if self._durable:
                calls.fsync(fd)
        finally:
            os.close(fd)

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for fd in self._open.values():
                stack.callback(self._end, fd)
