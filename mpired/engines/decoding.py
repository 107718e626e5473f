"""Files that a library decodes: a damaged one may end the process that does so, which is a worker then."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from mpired.buffers import FlatBuffer, Format, RankBuffer
from mpired.buffers.model import Kept
from mpired.buffers.rank import blocks
from mpired.buffers.source import Source
from mpired.engines import pool
from mpired.errors import BufferFileError, WorkerError
from mpired.storage import calls

_BLOCK_NBYTES = 4 << 20
_Opener: TypeAlias = Callable[[Source, int], Any]


class Decoder:
    """A worker that decodes what this process reads; it starts when it is needed first, and the caller ends it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._tasks: deque[_Task] = deque()
        self._left: list[int] = []
        self._results: Generator[np.ndarray | None, None, None] | None = None

    def decoding(self, buffer: RankBuffer) -> RankBuffer:
        """Return a buffer whose elements come from the worker, if a library decodes them.

        To read it raises `BufferFileError` if that ends the worker.
        """
        if not buffer.isolated:
            return buffer
        columns = cast("Any", buffer)
        return cast("RankBuffer", replace(columns, opener=functools.partial(_Columns, self, columns.opener)))

    def arrays(self, stream: _Stream) -> Iterator[np.ndarray]:
        """Yield the values of a stream."""
        number = next(self._numbers)
        try:
            array = self._result(_Task(number, stream), stream.source.name)
            while array is not None:
                yield array
                array = self._result(_Task(number), stream.source.name)
        finally:
            self._left.append(number)

    def _result(self, task: _Task, name: str) -> np.ndarray | None:
        self._tasks.append(task._replace(left=tuple(self._left)))
        self._left.clear()
        if self._results is None:
            self._results = pool.run(_Streams(), iter(self._tasks.popleft, None), 1, isolated=True)
        with _blaming(name):
            return next(self._results)

    def close(self) -> None:
        """End the worker."""
        if self._results is not None:
            self._results.close()
            self._results = None
            self._left.clear()


class _Columns:
    """An open file with columns, whose leaves a worker decodes."""

    def __init__(self, decoder: Decoder, opener: _Opener, source: Source, memory: int) -> None:
        self._decoder = decoder
        self._opened = opener, source, memory

    def arrays(self, leaf: object, start: int) -> Iterator[np.ndarray]:
        """Yield the values of a leaf from the row `start` on."""
        return self._decoder.arrays(_Stream(*self._opened, leaf, start))

    def close(self) -> None:
        """Close nothing: the file is open in the worker alone."""


class _Stream(NamedTuple):
    """The values of a leaf of a file with columns, from a row on."""

    opener: _Opener
    source: Source
    memory: int
    leaf: object
    start: int

    def arrays(self) -> Generator[np.ndarray, None, None]:
        """Decode them."""
        with closing(self.opener(self.source, self.memory)) as file:
            yield from file.arrays(self.leaf, self.start)


class _Task(NamedTuple):
    """Asks for the next values of the stream with that number, of which the first task has the stream.

    The streams whose numbers are `left` are not read any further.
    """

    number: int
    stream: _Stream | None = None
    left: tuple[int, ...] = ()


class _Streams:
    """What the worker does: it keeps the streams open, and gives the next values of one, None at its end."""

    def __init__(self) -> None:
        self._open: dict[int, Generator[np.ndarray, None, None]] = {}

    def __call__(self, task: _Task) -> np.ndarray | None:
        for number in task.left:
            if stream := self._open.pop(number, None):
                stream.close()
        if task.stream is not None:
            self._open[task.number] = task.stream.arrays()
        return next(self._open[task.number], None)


def rewrite(form: Format, source: Source, changed: Sequence[FlatBuffer], new: calls.SharedFile) -> None:
    """Let a worker write a file again, some of its buffers with new elements.

    Parameters
    ----------
    form
        Its format.
    source, changed
        As of `Format.rewrite`.
    new
        The new file.

    Raises
    ------
    BufferFileError
        If the old file is damaged.
    """
    with _blaming(source.name):
        list(pool.run(_rewrite, [(form, source, changed, new)], 1, isolated=True))


def _rewrite(task: tuple[Format, Source, Sequence[FlatBuffer], calls.SharedFile]) -> None:
    form, source, changed, new = task
    fd = new.open()
    try:
        form.rewrite(source, changed, fd)
    finally:
        os.close(fd)


def check_kept(files: Sequence[tuple[str, Kept]]) -> None:
    """Let a worker compare columns that are kept with those of the first file, which it decodes too if it is alone.

    Parameters
    ----------
    files
        What messages call each file, and its columns.

    Raises
    ------
    BufferFileError
        If they are not equal, or a file is damaged.
    """
    tasks = [(files[0], each) for each in (files[0], *files[1:])]
    with closing(pool.run(_check_kept, tasks, 1, isolated=True)) as results:
        for _, (_, kept) in tasks:
            with _blaming(kept.source.name):
                next(results)


def _check_kept(task: tuple[tuple[str, Kept], tuple[str, Kept]]) -> None:
    (like, first), (this, other) = task
    first.check_same(other, this, like)


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turn the death of a worker into an error of the file that it decoded."""
    try:
        yield
    except WorkerError as error:
        if not is_crash(error):
            raise
        raise BufferFileError(name, f"cannot be decoded, the file is damaged ({error.reason})") from None


def is_crash(error: WorkerError) -> bool:
    """Tell whether a worker ended by its own fault: not for want of memory, nor because it could not be started."""
    return error.exitcode not in {None, -signal.SIGKILL}


def check(buffers: Iterable[RankBuffer]) -> None:
    """Read buffers to the end, one after another, to find the file that ended a worker.

    Raises
    ------
    BufferFileError
        If it is one of these.
    """
    with closing(Decoder()) as decoder:
        for buffer in filter(lambda buffer: buffer.isolated, buffers):
            for _ in blocks(decoder.decoding(buffer), max(1, _BLOCK_NBYTES // buffer.datatype.itemsize)):
                pass
