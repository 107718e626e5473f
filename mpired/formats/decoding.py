"""Files that a library decodes: a damaged one may end the process that does so, which is a worker then."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from mpired.engines import pool
from mpired.engines.worker import be_quiet, ended_after, portable, results
from mpired.errors import BufferFileError, WorkerError
from mpired.files import calls
from mpired.formats.array import Array, Reader, blocks, stored_array, with_stored
from mpired.formats.rank import Kept
from mpired.formats.streamed import Values
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.context import Context

_BLOCK_NBYTES = 4 << 20
_LOOK_SECONDS = 600  # of the processor: more than the header of any file takes, and in some damaged files no end
_T = TypeVar("_T")
_Task: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], int | None]  # a function, and its seconds of a processor


class Decoder:
    """A worker that calls libraries, one after another; it starts when it is needed first, and the caller ends it."""

    answers: Generator[Any, None, None] | None = None  # of a worker that has been started
    numbers = itertools.count()  # of streams of values
    left: Sequence[int] = ()  # the streams that are not needed any more
    _tasks: deque[_Task]

    def do(self, name: str, function: Callable[..., Any], *args: Any, inspects: bool = False) -> Any:
        """Return the result of a function, or raise its error; `name` is the file to blame if it ends the worker.

        The time of a function that only `inspects` a file is limited.
        """
        if self.answers is None:
            self._tasks = deque()
            self.answers = pool.run(_done, iter(self._tasks.popleft, None), 1, isolated=True)
        self._tasks.append((function, args, _LOOK_SECONDS if inspects else None))
        try:
            error, result = next(self.answers)
        except BaseException as end:
            self.answers = None  # the worker has ended
            if not isinstance(end, WorkerError) or not pool.is_crash(end):
                raise
            how = end.reason.partition(";")[0]
            raise BufferFileError(name, f"cannot be decoded, the file is damaged ({how})") from None
        if error is not None:
            raise error
        return result

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Generator[Any, None, None]:
        """Apply a function to items, one after another, and yield the results, or those that it yields, of each."""
        self._tasks.append((_all_of, (function, items), None))
        is_done = False
        try:
            for is_result, result in cast("Generator[Any, None, None]", self.answers):
                if not is_result:
                    is_done = True
                    return
                yield result
        finally:
            if not is_done:  # it failed, or has more to do
                self.close()

    def decoding(self, buffer: Array) -> Array:
        """Return a buffer whose elements come from the worker, if a library decodes them."""
        if not buffer.isolated:
            return buffer
        reader = cast("functools.partial[Reader]", stored_array(buffer).reader)
        opener = functools.partial(_Columns, self, reader.keywords["opener"])
        return with_stored(buffer, reader=functools.partial(reader, opener=opener))

    def close(self) -> None:
        """End the worker."""
        if self.answers is not None:
            self.answers.close()
            self.answers = None


def _done(task: _Task) -> Any:
    """Return the error of a function, which does not end the worker, and its result; or yield the results of `each`."""
    function, args, seconds = task
    be_quiet()
    if function is _all_of:
        return _all_of(*args)
    try:
        with contextlib.nullcontext() if seconds is None else ended_after(seconds):
            return None, function(*args)
    except Exception as error:  # noqa: BLE001 - raised in the process that asked
        return portable(error), None


def _all_of(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    for item in items:
        for result in results(function, item):
            yield True, result
    yield False, None


@contextlib.contextmanager
def decode_worker(context: Context) -> Iterator[Context]:
    """Let one worker serve all `apart` calls of the block: that of the context, or a new one."""
    if context.worker is not None:
        yield context
        return
    with closing(Decoder()) as worker:
        yield context._replace(worker=worker)


def call_in_worker(context: Context, name: str, function: Callable[..., _T], *args: Any, inspects: bool = False) -> _T:
    """Return the result of a function of a library, which a worker calls: a damaged file may end its process."""
    with decode_worker(context) as served:
        return cast("_T", cast("Decoder", served.worker).do(name, function, *args, inspects=inspects))


class _Columns(NamedTuple):
    """An open file with columns, whose leaves a worker decodes, each as a stream of values."""

    decoder: Decoder
    opener: Callable[[Source, int], Any]
    source: Source
    memory: int

    def arrays(self, leaf: object, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on."""
        decoder, name, number = self.decoder, self.source.name, next(self.decoder.numbers)
        stream: Callable[[], Any] | None = functools.partial(
            _values, self.opener, self.source, self.memory, leaf, start, nullable=nullable
        )
        try:
            while True:
                left, decoder.left = decoder.left, ()
                if (values := decoder.do(name, _next_of, number, stream, left)) is None:
                    return
                yield values
                stream = None
        finally:
            decoder.left = (*decoder.left, number)

    def close(self) -> None:
        """Close nothing: the file is open in the worker alone."""


_open: dict[int, Generator[Values, None, None]] = {}  # in a worker: the streams by their numbers


def _next_of(number: int, stream: Callable[[], Any] | None, left: Sequence[int]) -> Values | None:
    """Return the next values of a stream, which is given first, None at its end; those that are left are closed."""
    for each in left:
        if opened := _open.pop(each, None):
            opened.close()
    if stream is not None:
        _open[number] = stream()
    return next(_open[number], None)


def _values(
    opener: Callable[..., Any], source: Source, memory: int, leaf: object, start: int, *, nullable: bool
) -> Generator[Values, None, None]:
    with closing(opener(source, memory)) as file:
        yield from file.arrays(leaf, start, nullable=nullable)


def write_in_worker(context: Context, name: str, write: Callable[..., Any], *args: Any) -> Any:
    """Let a worker call a function that writes to a file, whose descriptor is the last argument."""
    *others, fd = args
    return call_in_worker(context, name, write_to, calls.SharedFile(f"/proc/{os.getpid()}/fd/{fd}"), write, *others)


def write_to(new: calls.SharedFile, write: Callable[..., Any], *args: Any) -> Any:
    """Call a function that writes to a file, whose descriptor is its last argument."""
    fd = new.open()
    try:
        return write(*args, fd)
    finally:
        os.close(fd)


def check_kept(files: Sequence[Kept], like: str) -> None:
    """Let a worker compare columns that are kept with those of the first file, which it decodes too if it is alone."""
    check_same = files[0].check_same
    with closing(Decoder()) as worker:
        for kept in files:
            if kept.kind == "arrays":  # whose headers have digests
                check_same(kept, like)
            else:
                worker.do(kept.source.name, check_same, kept, like)


def check(buffers: Iterable[Array]) -> None:
    """Read buffers to the end, one after another, to find the file that ended a worker."""
    with closing(Decoder()) as decoder:
        for buffer in (each for each in buffers if each.isolated):
            for _ in blocks(decoder.decoding(buffer), max(1, _BLOCK_NBYTES // buffer.datatype.itemsize)):
                pass
