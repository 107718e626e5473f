"""The door from a path or a URL to its bytes, and what no result may replace."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from mpired import interrupts
from mpired.context import FEW_BYTES, STREAMED_BASE_NBYTES, Context
from mpired.errors import BufferFileError, UsageError
from mpired.files import calls, mounts
from mpired.files.access import recover_for_reading
from mpired.files.places import check_is_data, has_log, inode
from mpired.files.urls import identity, is_url
from mpired.sources.directory import INDEX_SUFFIX, DirectorySource, ShardsSource, index_in, is_store
from mpired.sources.local import LocalSource
from mpired.sources.source import STANDARD_INPUT, Source
from mpired.sources.stream import StreamSource

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_THREADS = 32
_KEPT_NBYTES = 32 << 20  # of all small files together
_MOST_KEPT_NBYTES = 16 << 10  # of one of them
_STANDARD_INPUTS = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_MANY = 64  # files on another machine: from here on several are inspected at once


def open_source(word: str, context: Context, limit: int | None = None) -> Source:
    """Look at the file, or the object of a store, that a word of the command line names; `-` is standard input."""
    # A pipe, FIFO or device is read forward; `Source.kept` makes a copy that is read by ranges.
    if context.prefetch is not None and (look := context.prefetch.take(word)) and (found := look.result()):
        return cast("Source", found)
    if "://" in word and is_url(word):
        from mpired.sources.remote import object_or_store  # noqa: PLC0415 - most ranks are files

        return object_or_store(word, context)
    try:
        status = os.lstat(word)
    except OSError:  # raised where it is opened
        return _opened_at(word, context, limit)
    if not stat.S_ISREG(status.st_mode) or word == "-" or ".mpired" in word:
        return _opened_at(word, context, limit)
    return LocalSource.inspected(word, word, word, context, status)


def _opened_at(word: str, context: Context, limit: int | None) -> Source:
    """Open what a link leads to, standard input, a stream or a directory, or a file that a log brings back."""
    is_named, name = word != "-", STANDARD_INPUT if word == "-" else word
    own = check_is_data(word) if is_named else None
    with calls.errors_name(name):
        if word in _STANDARD_INPUTS and sys.stdin is None:  # the command has filled the place of it with another file
            raise OSError(errno.EBADF, "is closed; name a file, or give one by `< FILE`", name)
        try:
            status = os.stat(word if is_named else 0)
        except FileNotFoundError:
            if not has_log(calls.followed(word)):
                raise
            recover_for_reading(word, context)
            status = os.stat(word)
        if stat.S_ISDIR(status.st_mode):
            if is_store(name):
                return DirectorySource(name)
            if index := index_in(name):
                is_there = not index.endswith(INDEX_SUFFIX) or os.path.lexists(index)
                return open_source(index, context) if is_there else ShardsSource(index)
            hint = f"name its files, e.g. '{name.rstrip('/')}/*.npy'"
            raise BufferFileError(name, f"is a directory, not a file with a rank's buffer; {hint}")
        if stat.S_ISSOCK(status.st_mode):
            raise OSError(errno.ENXIO, "is a socket and cannot be read as a file", name)
        if stat.S_ISREG(status.st_mode):
            path = word if is_named else f"/proc/{os.getpid()}/fd/0"
            return LocalSource.inspected(name, path, own, context, status)
        fd = (
            interrupts.interruptible(os.open, word, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY) if is_named else os.dup(0)
        )
        return StreamSource(name, fd, limit, digested=bool(context.record))


@contextlib.contextmanager
def inspected_together(words: Sequence[object], context: Context) -> Iterator[Context]:
    """Let words be inspected in the block, several at once where each waits for other machines."""
    # As far as there is room for all.
    spare = context.spare_memory(STREAMED_BASE_NBYTES)
    share = min(_KEPT_NBYTES, _KEPT_NBYTES if spare is None else spare) // max(1, len(words))
    context = context._replace(few_bytes=max(FEW_BYTES, min(share, _MOST_KEPT_NBYTES)), prefetch=None)
    names = [word for word in words if isinstance(word, str)]
    urls = [name for name in names if "://" in name and is_url(name)]
    if len(urls) < 2 and (len(names) < _MANY or not _is_remote(names[0])):  # noqa: PLR2004 - several
        yield context
        return
    from mpired.sources.ahead import ReadAhead  # noqa: PLC0415 - of few commands

    with _threads() as threads:
        reads: ReadAhead[str, Source | None] = ReadAhead(
            urls or names, lambda name: threads.submit(_inspect, name, context), lambda begun: len(begun) < 2 * _THREADS
        )
        yield context._replace(prefetch=reads)


def _is_remote(path: str) -> bool:
    """Return whether a file is on a file system of other machines, or of another process."""
    try:
        return mounts.mount_of_device(os.stat(path).st_dev).is_remote
    except OSError:  # raised again where the file is opened
        return False


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
    if sum((source.packed or source).depth > 0 for source in sources) < 2:  # noqa: PLR2004 - several
        for source in sources:
            source.check_unchanged()
        return
    with _threads() as threads:
        for check in [threads.submit(source.check_unchanged) for source in sources]:
            check.result()


def _inspect(name: str, context: Context) -> Source | None:
    """Inspect an object or a file; None for others, such as FIFOs, which are opened in turn, and missing files."""
    return open_source(name, context) if is_url(name) or (name != "-" and os.path.isfile(name)) else None


def check_no_input(
    paths: Iterable[str], inputs: Iterable[tuple[object, str]], hint: str = "name another output"
) -> None:
    """Check that no result replaces a source, or a file, that the same command reads, such as one of definitions."""
    # A repetition would combine its own result.
    existing: dict[tuple[int, int] | None, str] = {}
    for path in paths:
        with contextlib.suppress(OSError):  # there is no file yet, or the error is raised where it is opened
            existing[identity(path) if is_url(path) else inode(os.stat(path))] = path
    if existing:
        known = {each.inode if isinstance(each, Source) else _inode(each): what for each, what in inputs}
        for found, path in existing.items():
            if found in known:
                raise UsageError(path, f"is the file of {known[found]}, an input of this command; {hint}")


def _inode(file: object) -> tuple[int, int] | None:
    """Return the inode of a file that is named, None of an option that names none."""
    is_file = isinstance(file, str | os.PathLike) and os.path.isfile(file)
    return inode(os.stat(cast("str", file))) if is_file else None
