"""The door from a path or a URL to its bytes, and what no result may replace."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mpired import interrupts
from mpired.context import STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError, MpiredError, UsageError
from mpired.files import calls, mounts
from mpired.files.access import recover_for_reading
from mpired.files.names import check_is_data, has_log
from mpired.files.urls import check_scheme, identity, is_url
from mpired.sources.directory import DirectorySource, index_in, is_store
from mpired.sources.local import FEW_BYTES, LocalSource, held_source, may_keep_open, recovered_status
from mpired.sources.source import STANDARD_INPUT, Source
from mpired.sources.stream import StreamSource, check_has_end

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_Look: TypeAlias = Callable[[], Source | None]  # returns the source, or raises its error
_THREADS = 32
_KEPT_NBYTES = 32 << 20  # of all small files together
_MOST_KEPT_NBYTES = 16 << 10  # of one of them
_STANDARD_INPUTS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


class _Prefetcher:
    """Names that are inspected in their order, some of them ahead."""

    def __init__(self, names: Sequence[str], begin: Callable[[str], _Look], window: int = 0) -> None:
        self._names, self._begin = iter(names), begin
        self._window = window  # how many are asked for at once; 0 if none is until `behind` is called
        self._asked: deque[tuple[str, _Look]] = deque()

    def taken(self, name: str) -> Source | None:
        """Return the source; None if this name was not asked for."""
        self._ask(self._window)
        if all(name != other for other, _ in self._asked):
            return None
        while self._asked[0][0] != name:
            self._asked.popleft()  # it was left out
        _, look = self._asked.popleft()
        self._ask(self._window)
        return look()

    def behind(self, name: str, count: int) -> Iterator[_Look]:
        """Return the looks at `count` names behind one that was taken."""
        if not self._window and not self._asked:
            for other in self._names:
                if other == name:
                    break
        self._ask(count)
        return (look for _, look in itertools.islice(self._asked, count))

    def _ask(self, count: int) -> None:
        while len(self._asked) < count and (name := next(self._names, None)) is not None:
            self._asked.append((name, self._begin(name)))


class Prefetch(NamedTuple):
    """Files that are inspected together, some of them ahead."""

    files: _Prefetcher | None = None  # in their order
    few_bytes: int = FEW_BYTES  # the largest file that is read when it is inspected

    def next_files(self, source: Source, count: int) -> list[Source]:
        """Return up to `count` readable files behind one, to the first of another suffix."""
        suffix = os.path.splitext(source.name)[1]
        found: list[Source] = []
        for look in () if self.files is None else self.files.behind(source.name, count):
            with contextlib.suppress(MpiredError, OSError):  # raised when it is its turn
                other = look()
                if other is None or os.path.splitext(other.name)[1] != suffix:
                    break  # to look at those behind it first would be in vain
                found.append(other)
        return found


_NO_PREFETCH = Prefetch()
_MANY = 64
"""The files on another machine from which on several are inspected at once."""


def open_source(word: str, context: Context, limit: int | None = None) -> Source:
    """Look at the file, or the object of a store, that a word of the command line names; `-` is standard input."""
    # A pipe, FIFO or device is read forward; `Source.kept` makes a copy that is read by ranges.
    ahead = None if context.prefetch is None else context.prefetch.files
    found = None if ahead is None else ahead.taken(word)
    return _opened(word, context, limit) if found is None else found


def _opened(word: str, context: Context, limit: int | None = None) -> Source:
    if is_url(word):
        from mpired.sources.prefix import object_or_store  # noqa: PLC0415 - most ranks are files

        return object_or_store(word, context)
    name = STANDARD_INPUT if word == "-" else word
    status, is_link = (None, False) if word == "-" else _seen(word)
    if word != "-":
        check_is_data(word, is_link=is_link)
    with calls.errors_name(name):
        if word in _STANDARD_INPUTS and sys.stdin is None:  # the command has filled the place of it with another file
            raise OSError(errno.EBADF, "is closed; name a file, or give one by `< FILE`", name)
        if status is None:
            status = os.fstat(0) if word == "-" else _status(word, context)
        if stat.S_ISDIR(status.st_mode):
            return _of_directory(name, context)
        if stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENXIO, "is a socket and cannot be read as a file", name)
        if stat.S_ISREG(status.st_mode):
            named = None if word == "-" else word
            if named is not None and may_keep_open(context):
                return held_source(word, context)
            path = f"/proc/{os.getpid()}/fd/0" if named is None else word
            prefetch = context.prefetch or _NO_PREFETCH
            status = recovered_status(named, path, context, status, is_link=is_link)
            return LocalSource.of_status(name, path, status).with_content(prefetch.few_bytes)
        check_has_end(name, status, limit)
        fd = os.dup(0) if word == "-" else interrupts.waited(os.open, word, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        return StreamSource.of_descriptor(name, fd, limit, digested=bool(context.record))


def _of_directory(name: str, context: Context) -> Source:
    """Return the store in a directory, or the index of the checkpoint in it."""
    if is_store(name):
        return DirectorySource.of(name)
    if index := index_in(name):
        return _opened(index, context)
    way_out = f"name its files, e.g. '{name.rstrip('/')}/*.npy'"
    raise BufferFileError(name, f"is a directory, not a file with a rank's buffer; {way_out}")


@contextlib.contextmanager
def inspected_together(words: Sequence[object], context: Context) -> Iterator[Context]:
    """Let words be inspected in the block: small files are read then and there, as far as there is room for all."""
    spare = context.spare_memory(STREAMED_BASE_NBYTES)
    share = min(_KEPT_NBYTES, _KEPT_NBYTES if spare is None else spare) // max(1, len(words))
    prefetch = Prefetch(None, max(FEW_BYTES, min(share, _MOST_KEPT_NBYTES)))
    with _inspected_ahead(words, context._replace(prefetch=prefetch)) as files:
        yield context._replace(prefetch=prefetch._replace(files=files))


@contextlib.contextmanager
def _inspected_ahead(words: Sequence[object], context: Context) -> Iterator[_Prefetcher]:
    """Inspect words in their order, several at once where each waits for other machines."""
    names = [word for word in words if isinstance(word, str)]
    urls = [name for name in names if is_url(name)]
    inspect = functools.partial(_inspect, context=context)
    if len(urls) < 2 and (len(names) < _MANY or not mounts.is_remote(names[0])):  # noqa: PLR2004 - several
        yield _Prefetcher(names, lambda name: functools.cache(functools.partial(inspect, name)))
        return
    with _threads() as threads:
        yield _Prefetcher(urls or names, lambda name: threads.submit(inspect, name).result, 2 * _THREADS)


@contextlib.contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Let threads wait for other machines; after an error one that waits is left, for an answer that may never come."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - of few commands

    threads, is_done = ThreadPoolExecutor(_THREADS), False
    try:
        yield threads
        is_done = True
    finally:
        threads.shutdown(wait=is_done, cancel_futures=True)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raise `ChangedError` for the first source that has changed; several objects of stores are asked for at once."""
    if sum(is_url(source.name) for source in sources) < 2:  # noqa: PLR2004 - several
        for source in sources:
            source.check_unchanged()
        return
    with _threads() as threads:
        for check in [threads.submit(source.check_unchanged) for source in sources]:
            check.result()


def _inspect(name: str, context: Context) -> Source | None:
    """Inspect an object or a file; None for others, such as FIFOs, which are opened in turn, and missing files."""
    return _opened(name, context) if is_url(name) or (name != "-" and os.path.isfile(name)) else None


def check_no_input(paths: Iterable[str], inputs: Iterable[tuple[Source, str]], way_out: str) -> None:
    """Check that no result replaces what the same command reads: a repetition would combine its own result."""
    known = {source.inode: what for source, what in inputs if source.inode is not None}
    for path in paths:
        with contextlib.suppress(OSError):  # there is no file yet, or the error is raised where it is opened
            status = None if is_url(path) else os.stat(path)
            if what := known.get((status.st_dev, status.st_ino) if status else identity(path)):
                raise UsageError(path, f"is the file of {what}, an input of this command; {way_out}")


def check_no_other_input(paths: Iterable[str], files: Iterable[tuple[object, str]]) -> None:
    """Check that no result replaces a file without elements that the same command reads, such as definitions."""
    there = [(os.fspath(name), what) for name, what in files if isinstance(name, str | os.PathLike)]
    inputs = [(LocalSource.of(name, name), what) for name, what in there if os.path.isfile(name)]
    check_no_input(paths, inputs, "name another output")


def _seen(path: str) -> tuple[os.stat_result | None, bool]:
    """Return the status of a path, None for a link or if there is nothing; and whether it may be a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return None, True
    is_link = stat.S_ISLNK(status.st_mode)
    return (None if is_link else status), is_link


def _status(path: str, context: Context) -> os.stat_result:
    """Return the status of a path; if there is nothing, the file is first recovered from its log."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        check_scheme(path)
        if has_log(calls.followed(path)):
            recover_for_reading(path, context)
            return os.stat(path)
        raise
