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
from mpired.formats.array import Array, blocks, with_stored
from mpired.formats.rank import Kept
from mpired.formats.streamed import Values
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.context import Context
    from mpired.formats.streamed import Decoded

_BLOCK_NBYTES = 4 << 20
_LOOK_SECONDS = 600  # of the processor: more than the header of any file takes, and in some damaged files no end
_T = TypeVar("_T")


class Decoder:
    """A worker that calls libraries, one after another; it starts when it is needed first, and the caller ends it."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._results: Generator[Any, None, None] | None = None
        self._numbers = itertools.count()  # of streams of values
        self._left: list[int] = []  # the streams that are not needed any more

    @property
    def is_there(self) -> bool:
        """Whether it has been started."""
        return self._results is not None

    def do(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function; errors are those of `apart`."""
        if not self.is_there:
            self._results = pool.run(_done, iter(self._tasks.popleft, None), 1, isolated=True)
        self._tasks.append((function, args))
        return self._next(name)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Generator[Any, None, None]:
        """Apply a function to items, one after another, and yield the results, or those that it yields, of each."""
        self._tasks.append((_all_of, (function, items)))
        is_done = False
        try:
            for is_result, result in cast("Generator[Any, None, None]", self._results):
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

        def by_worker(array: Array) -> Array:
            decoded = cast("Decoded", array.reader)
            opener = functools.partial(_Columns, self, decoded.opener)
            return array._replace(reader=decoded._replace(opener=opener))

        return with_stored(buffer, by_worker)

    def arrays(self, name: str, stream: Callable[[], Any]) -> Iterator[Values]:
        """Yield the values that a stream gives in the worker; `name` is the file that errors are of."""
        number, opened = next(self._numbers), False
        try:
            while True:
                left, self._left = tuple(self._left), []
                values = self.do(name, _next_of, number, None if opened else stream, left)
                if values is None:
                    break
                yield values
                opened = True
        finally:
            self._left.append(number)

    def _next(self, name: str) -> Any:
        try:
            return next(cast("Generator[Any, None, None]", self._results))
        except BaseException as error:
            self._results = None  # the worker has ended
            if not isinstance(error, WorkerError) or not pool.is_crash(error):
                raise
            how = error.reason.partition(";")[0]
            raise BufferFileError(name, f"cannot be decoded, the file is damaged ({how})") from None

    def close(self) -> None:
        """End the worker."""
        if self._results is not None:
            self._results.close()
            self._results = None


def _done(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, args = task
    be_quiet()
    return function(*args)


def _all_of(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[bool, Any]]:
    for item in items:
        for result in results(function, item):
            yield True, result
    yield False, None


def _looked(function: Callable[..., Any], source: Source, args: tuple[Any, ...]) -> tuple[BaseException | None, Any]:
    try:
        with ended_after(_LOOK_SECONDS):
            return None, function(source, *args)
    except Exception as error:  # noqa: BLE001 - raised in the process that asked
        return portable(error), None


@contextlib.contextmanager
def decode_worker(context: Context) -> Iterator[Context]:
    """Let one worker serve all `apart` calls of the block: that of the context, or a new one."""
    if context.worker is not None:
        yield context
        return
    with closing(Decoder()) as worker:
        yield context._replace(worker=worker)


def apart(context: Context, name: str, function: Callable[..., _T], *args: Any) -> _T:
    """Let a worker call a function of a library, because a damaged file may end its process; return the result."""
    with decode_worker(context) as served:
        return cast("_T", cast("Decoder", served.worker).do(name, function, *args))


def look_apart(context: Context, function: Callable[..., _T], source: Source, *args: Any) -> _T:
    """Let a worker inspect a file by a function of a library, like `apart`; an error does not end the worker."""
    error, found = apart(context, source.name, _looked, function, source, args)
    if error is not None:
        raise error
    return cast("_T", found)


class _Columns(NamedTuple):
    """An open file with columns, whose leaves a worker decodes."""

    decoder: Decoder
    opener: Callable[[Source, int], Any]
    source: Source
    memory: int

    def arrays(self, leaf: object, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf from the row `start` on."""
        stream = functools.partial(_values, self.opener, self.source, self.memory, leaf, start, nullable=nullable)
        return self.decoder.arrays(self.source.name, stream)

    def close(self) -> None:
        """Close nothing: the file is open in the worker alone."""


def _values(
    opener: Callable[..., Any], source: Source, memory: int, leaf: object, start: int, *, nullable: bool
) -> Generator[Values, None, None]:
    with closing(opener(source, memory)) as file:
        yield from file.arrays(leaf, start, nullable=nullable)


_open: dict[int, Generator[Values, None, None]] = {}  # in a worker: the streams by their numbers


def _next_of(number: int, stream: Callable[[], Any] | None, left: Sequence[int]) -> Values | None:
    """Return the next values of a stream, which is given first, None at its end; those that are left are closed."""
    for each in left:
        if opened := _open.pop(each, None):
            opened.close()
    if stream is not None:
        _open[number] = stream()
    return next(_open[number], None)


_Rewrite: TypeAlias = Callable[[Source, Sequence[Array], int], None]


def rewrite(write: _Rewrite, source: Source, changed: Sequence[Array], new: calls.SharedFile) -> None:
    """Let a worker write a file again by the function of its format, some of its buffers with new elements."""
    with closing(Decoder()) as worker:
        worker.do(source.name, _rewrite, write, source, changed, new)


def _rewrite(write: _Rewrite, source: Source, changed: Sequence[Array], new: calls.SharedFile) -> None:
    fd = new.open()
    try:
        with calls.errors_name(source.name):
            write(source, changed, fd)
    finally:
        os.close(fd)


def check_kept(files: Sequence[Kept], like: str) -> None:
    """Let a worker compare columns that are kept with those of the first file, which it decodes too if it is alone."""
    with closing(Decoder()) as worker:
        for kept in files:
            if files[0].kind == "arrays":  # whose headers have digests
                files[0].check_same(kept, like)
                continue
            worker.do(kept.source.name, files[0].check_same, kept, like)


def check(buffers: Iterable[Array]) -> None:
    """Read buffers to the end, one after another, to find the file that ended a worker."""
    with closing(Decoder()) as decoder:
        for buffer in (each for each in buffers if each.isolated):
            for _ in blocks(decoder.decoding(buffer), max(1, _BLOCK_NBYTES // buffer.datatype.itemsize)):
                pass
