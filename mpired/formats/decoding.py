"""The worker in which libraries decode files: a damaged file can crash its process.

A crash is an error of the file. An exception of a library is raised in the process of the caller.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

from mpired.engines import pool
from mpired.engines.worker import be_quiet, limit_cpu_time, portable, results
from mpired.errors import BufferFileError, WorkerError
from mpired.files import calls
from mpired.formats.array import Array, Reader, blocks, stored_array, with_stored
from mpired.formats.rank import KeptContent
from mpired.formats.streamed import Values
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.context import Context

_BLOCK_NBYTES = 4 << 20
_INSPECT_SECONDS = 600  # of processor time: no header takes longer, and some damaged headers never end
_T = TypeVar("_T")
_Task: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], int | None]  # function, arguments, limit in seconds


class Decoder:
    """A worker that calls functions of libraries in sequence. The first call starts the worker, the caller ends it."""

    answers: Generator[Any, None, None] | None = None  # results of the worker; None while it does not run
    stream_numbers = itertools.count()
    unused_streams: Sequence[int] = ()  # numbers of streams that the worker closes at the next call
    _tasks: deque[_Task]

    def do(self, name: str, function: Callable[..., Any], *args: Any, inspects: bool = False) -> Any:
        """Return the result of a function, or raise its error; a crash of the worker is an error of the file `name`.

        The processor time of a function that only `inspects` a file is limited.
        """
        if self.answers is None:
            self._tasks = deque()
            self.answers = pool.run(_run_task, iter(self._tasks.popleft, None), 1, isolated=True)
        self._tasks.append((function, args, _INSPECT_SECONDS if inspects else None))
        try:
            error, result = next(self.answers)
        except BaseException as end:
            self.answers = None  # the worker has ended
            if not isinstance(end, WorkerError) or not pool.is_crash(end):
                raise
            cause = end.reason.partition(";")[0]
            raise BufferFileError(name, f"cannot be decoded, the file is damaged ({cause})") from None
        if error is not None:
            raise error
        return result

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Generator[Any, None, None]:
        """Apply a function to items in the running worker, and yield its results; of a generator, all its items."""
        self._tasks.append((_map, (function, items), None))
        is_complete = False
        try:
            for is_result, result in cast("Generator[Any, None, None]", self.answers):
                if not is_result:
                    is_complete = True
                    return
                yield result
        finally:
            if not is_complete:  # after an error, or if the caller needs no more results
                self.close()

    def decoding(self, array: Array) -> Array:
        """Return an array whose elements the worker decodes, if a library decodes them."""
        if not array.isolated:
            return array
        reader = cast("functools.partial[Reader]", stored_array(array).reader)
        opener = functools.partial(_FileInWorker, self, reader.keywords["opener"])
        return with_stored(array, reader=functools.partial(reader, opener=opener))

    def close(self) -> None:
        """End the worker."""
        if self.answers is not None:
            self.answers.close()
            self.answers = None


def _run_task(task: _Task) -> Any:
    """Return the error and the result of a function, in the worker; or the generator of `Decoder.each`."""
    function, args, seconds = task
    be_quiet()
    if function is _map:
        return _map(*args)
    try:
        with contextlib.nullcontext() if seconds is None else limit_cpu_time(seconds):
            return None, function(*args)
    except Exception as error:  # noqa: BLE001 - raised in the process of the caller
        return portable(error), None


def _map(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    """Yield True with each result of a function, and False at the end."""
    for item in items:
        for result in results(function, item):
            yield True, result
    yield False, None


@contextlib.contextmanager
def decode_worker(context: Context) -> Iterator[Context]:
    """Return a context with a worker that the calls of the block share."""
    if context.worker is not None:
        yield context
        return
    with closing(Decoder()) as worker:
        yield context._replace(worker=worker)


def call_in_worker(context: Context, name: str, function: Callable[..., _T], *args: Any, inspects: bool = False) -> _T:
    """Return the result of a function of a library, called in the worker of the context, or in a new worker."""
    with decode_worker(context) as served:
        return cast("_T", cast("Decoder", served.worker).do(name, function, *args, inspects=inspects))


class _FileInWorker(NamedTuple):
    """A file that the worker opens and decodes, in place of a `ColumnFile`."""

    decoder: Decoder
    opener: Callable[[Source, int], Any]
    source: Source
    memory: int

    def arrays(self, leaf: object, start: int) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on."""
        decoder, number = self.decoder, next(self.decoder.stream_numbers)
        open_stream: Callable[[], Any] | None = functools.partial(
            _stream, self.opener, self.source, self.memory, leaf, start
        )
        try:
            while True:
                unused, decoder.unused_streams = decoder.unused_streams, ()
                if (values := decoder.do(self.source.name, _next_values, number, open_stream, unused)) is None:
                    return
                yield values
                open_stream = None
        finally:
            decoder.unused_streams = (*decoder.unused_streams, number)

    def close(self) -> None:
        """Close nothing: only the worker has the file open."""


_open_streams: dict[int, Generator[Values, None, None]] = {}  # of a worker, by their numbers


def _next_values(number: int, open_stream: Callable[[], Any] | None, unused: Sequence[int]) -> Values | None:
    """Return the next values of a stream, which the first call opens, or None at its end; close unused streams."""
    for unused_number in unused:
        if stream := _open_streams.pop(unused_number, None):
            stream.close()
    if open_stream is not None:
        _open_streams[number] = open_stream()
    return next(_open_streams[number], None)


def _stream(
    opener: Callable[..., Any], source: Source, memory: int, leaf: object, start: int
) -> Generator[Values, None, None]:
    with closing(opener(source, memory)) as file:
        yield from file.arrays(leaf, start)


def write_in_worker(context: Context, name: str, write: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a worker that writes to a file; the last argument is its descriptor."""
    *others, fd = args
    return call_in_worker(context, name, write_to, calls.SharedFile(f"/proc/{os.getpid()}/fd/{fd}"), write, *others)


def write_to(file: calls.SharedFile, write: Callable[..., Any], *args: Any) -> Any:
    """Open a file, and call a function that writes to it with the descriptor as the last argument."""
    fd = file.open()
    try:
        return write(*args, fd)
    finally:
        os.close(fd)


def check_kept(files: Sequence[KeptContent], like: str) -> None:
    """Check that the kept arrays or columns of all files equal those of the first file, called `like` in errors."""
    check_same = files[0].check_same
    with closing(Decoder()) as worker:
        for kept in files:  # also the first alone, whose columns are decoded to find damage
            if kept.kind == "arrays":  # compared by digests
                check_same(kept, like)
            else:
                worker.do(kept.source.name, check_same, kept, like)


def check(arrays: Iterable[Array]) -> None:
    """Decode arrays in a new worker, to find the file that crashed a worker of the fold."""
    with closing(Decoder()) as decoder:
        for array in filter(operator.attrgetter("isolated"), arrays):
            for _ in blocks(decoder.decoding(array), max(1, _BLOCK_NBYTES // array.datatype.itemsize)):
                pass
