"""Opening of ranks: from an argument, such as a path or a URL, to its source; and checks of sources."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from mpired import interrupts
from mpired.context import SMALL_NBYTES, STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError, UsageError
from mpired.files import calls, mounts
from mpired.files.access import recover_for_reading
from mpired.files.places import check_is_data, has_log, inode
from mpired.files.urls import identity, is_url
from mpired.sources.directory import INDEX_SUFFIX, DirectorySource, ShardsSource, index_in, is_store
from mpired.sources.local import LocalSource
from mpired.sources.source import STANDARD_INPUT, ReadAhead, Source, thread_pool
from mpired.sources.stream import StreamSource

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_THREADS = 32
_CONTENTS_NBYTES = 32 << 20  # contents of all small files together
_MAX_CONTENT_NBYTES = 16 << 10  # content of a small file
_STANDARD_INPUTS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_MANY = 64  # minimum number of files on another machine that threads inspect


def open_source(argument: str, context: Context, limit: int | None = None) -> Source:
    """Inspect the file, URL or stream of an argument; `-` is standard input, `limit` the maximum size of a stream."""
    if context.prefetch is not None and (future := context.prefetch.take(argument)) and (source := future.result()):
        return cast("Source", source)
    if "://" in argument and is_url(argument):
        from mpired.sources.remote import object_or_store  # noqa: PLC0415 - most ranks are files

        return object_or_store(argument, context)
    try:
        status = os.lstat(argument)
    except OSError:  # raised again when the file is opened
        return _open_special(argument, context, limit)
    if not stat.S_ISREG(status.st_mode) or argument == "-" or ".mpired" in argument:
        return _open_special(argument, context, limit)
    return LocalSource.inspected(argument, argument, argument, context, status)


def _open_special(argument: str, context: Context, limit: int | None) -> Source:
    """Inspect a link, standard input, a stream or a directory, or a file that a recovery must rename."""
    is_named, name = argument != "-", STANDARD_INPUT if argument == "-" else argument
    real_path = check_is_data(argument) if is_named else None
    with calls.errors_name(name):
        if argument in _STANDARD_INPUTS and sys.stdin is None:  # the command has opened another file in its place
            raise OSError(errno.EBADF, "is closed; name a file, or give one by `< FILE`", name)
        try:
            status = os.stat(argument if is_named else 0)
        except FileNotFoundError:
            if not has_log(calls.follow_link(argument)):
                raise
            recover_for_reading(argument, context)
            status = os.stat(argument)
        if stat.S_ISDIR(status.st_mode):
            if is_store(name):
                return DirectorySource(name)
            if index := index_in(name):
                has_index = not index.endswith(INDEX_SUFFIX) or os.path.lexists(index)
                return open_source(index, context) if has_index else ShardsSource(index)
            suffixes = Counter(os.path.splitext(file)[1] for file in sorted(next(os.walk(name))[2]))
            pattern = f"{name.rstrip('/')}/*{max(suffixes, key=suffixes.__getitem__)}" if suffixes else ""
            hint = f"name its files, e.g. {pattern!r}" if pattern else "it has no files; name a file"
            raise BufferFileError(name, f"is a directory, not a file with a rank's buffer; {hint}")
        if stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENXIO, "is a socket and cannot be read as a file", name)
        if stat.S_ISREG(status.st_mode):
            path = argument if is_named else f"/proc/{os.getpid()}/fd/0"
            return LocalSource.inspected(name, path, real_path, context, status)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
        fd = interrupts.interruptible(os.open, argument, flags) if is_named else os.dup(0)
        return StreamSource(name, fd, limit, digested=bool(context.record))


@contextlib.contextmanager
def prefetch_ranks(arguments: Sequence[object], context: Context) -> Iterator[Context]:
    """Prefetch ranks in the block if they are remote: threads inspect several at once."""
    spare = context.spare_memory(STREAMED_BASE_NBYTES)
    share = min(_CONTENTS_NBYTES, _CONTENTS_NBYTES if spare is None else spare) // max(1, len(arguments))
    context = context._replace(small_nbytes=max(SMALL_NBYTES, min(share, _MAX_CONTENT_NBYTES)), prefetch=None)
    names = [argument for argument in arguments if isinstance(argument, str)]
    urls = [name for name in names if "://" in name and is_url(name)]
    if len(urls) < 2 and (len(names) < _MANY or not _is_remote(names[0])):  # noqa: PLR2004 - several
        yield context
        return
    with _threads() as threads:
        reads: ReadAhead[str, Source | None] = ReadAhead(
            urls or names, lambda name: threads.submit(_inspect, name, context), lambda names: len(names) < 2 * _THREADS
        )
        yield context._replace(prefetch=reads)


def _is_remote(path: str) -> bool:
    """Return whether a file is on a remote file system."""
    try:
        return mounts.mount_of_device(os.stat(path).st_dev).is_remote
    except OSError:  # raised again when the file is opened
        return False


@contextlib.contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Start threads for the block; after an error a thread that still waits for an answer is left alone."""
    threads, is_complete = thread_pool(_THREADS), False
    try:
        yield threads
        is_complete = True
    finally:
        threads.shutdown(wait=is_complete, cancel_futures=True)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raise `ChangedError` for the first changed source; remote sources are checked in threads."""
    if sum((source.packed or source).depth > 0 for source in sources) < 2:  # noqa: PLR2004 - several
        for source in sources:
            source.check_unchanged()
        return
    with _threads() as threads:
        for check in [threads.submit(source.check_unchanged) for source in sources]:
            check.result()


def _inspect(name: str, context: Context) -> Source | None:
    """Inspect an object or a file; None for a missing file, and for a stream, which cannot be inspected in a thread."""
    return open_source(name, context) if is_url(name) or (name != "-" and os.path.isfile(name)) else None


def check_no_input(
    paths: Iterable[str],
    inputs: Iterable[tuple[object, str]],  # source, path or other value of an option; its description
    hint: str = "name another output",
) -> None:
    """Raise `UsageError` if a result would replace an input of the same command."""
    existing: dict[tuple[int, int] | None, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):  # a new file, or an error that is raised when the output is opened
            existing[identity(path) if is_url(path) else inode(os.stat(path))] = path
    if existing:
        descriptions = {
            value.inode if isinstance(value, Source) else inode(os.stat(value)): text
            for value, text in inputs
            if isinstance(value, Source) or (isinstance(value, str | os.PathLike) and os.path.isfile(value))
        }
        for number, path in existing.items():
            if number in descriptions:
                raise UsageError(path, f"is the file of {descriptions[number]}, an input of this command; {hint}")
