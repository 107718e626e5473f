"""Access to files, and the paths of results: files, streams, descriptors, objects of stores.

The unfinished change of an interrupted command is finished before a file is read or changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from mpired import log
from mpired.context import Context
from mpired.errors import HardLinkWarning, MpiredError, OutputExistsError, raise_all
from mpired.files import calls, mounts
from mpired.files.lock import Inode, LockTimeout, NoLocksError, Target, acquire, close_open, inode
from mpired.files.names import MARK, check_is_data, exists_error, has_log
from mpired.files.urls import is_url
from mpired.log import notice

# Paths of descriptors of this process, which are never replaced.
_NAMED_DESCRIPTORS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED_DESCRIPTOR = r"(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})"


def recover_for_reading(name: str, context: Context) -> None:
    """Make sure that no change of a file is half done, before it is read or a new file takes its name."""
    path = check_is_data(name)
    if not has_log(path) and not calls.attribute(path, MARK):
        return
    if context.dry_run:
        notice([name], "has an unfinished change of an interrupted command, which the call itself finishes first")
        return
    from mpired.files import recovery  # noqa: PLC0415 - few files have a log

    recovery.recover(name, path, recovery.How(LockTimeout(context.lock_timeout)))


@contextlib.contextmanager
def lock_all(
    names: Sequence[str],  # the files
    waiting: LockTimeout,  # how long to wait for all of them
    *,
    opened: Callable[[str], Target | None] = Target,  # opens a file, or returns None to leave it out
) -> Iterator[dict[str, Target]]:
    """Lock files in the order of their inodes, so that two commands never wait for each other.

    When all are locked, what an interrupted command has left of them is finished. If one has not its name then, it was
    replaced while we waited, and all begins again.
    """
    while True:
        with contextlib.ExitStack() as stack:
            targets = _lock_each(names, waiting, opened, stack)
            for target in targets.values():
                check_is_data(target.path, changes=True)
                if has_log(target.path, os.fstat(target.fd)):
                    from mpired.files import recovery  # noqa: PLC0415 - few files have a log

                    recovery.recover(target.name, target.path, recovery.How(waiting, writing=True))
                target.status = os.fstat(target.fd)
            if all(calls.leads_to(each.base, each.dirfd, each.fd) for each in targets.values()):
                yield targets
                return


def _lock_each(
    names: Sequence[str], waiting: LockTimeout, opened: Callable[[str], Target | None], stack: contextlib.ExitStack
) -> dict[str, Target]:
    """Open files, and lock each inode once."""
    targets: dict[str, Target] = {}
    folders: dict[str, int] = {}
    for name in names:
        if (target := opened(name)) is not None:
            targets[name] = stack.enter_context(target)
            # Targets in one directory share its descriptor: many are locked at a time.
            dirfd = folders.setdefault(target.directory, target.dirfd)
            if dirfd != target.dirfd:
                close_open(target.dirfd)
            target.dirfd, target.waiting = dirfd, waiting
    held: set[Inode] = set()
    for name, target in sorted(targets.items(), key=lambda each: inode(each[1].status)):
        if inode(target.status) in held:
            continue
        if reason := mounts.obstacle(target.fd):  # other machines must not change the file at the same time
            raise NoLocksError(name, reason)
        try:
            acquire(target.fd, name, waiting, shared=target.shared)
        except NoLocksError:
            if not target.optional:
                raise
            del targets[name]
        held.add(inode(target.status))
    return targets


def replaced_file(path: str, context: Context, *, overwrite: bool) -> os.stat_result | None:
    """Return the status of the file that a result replaces, None if there is none; finish a change of it first."""
    status = None
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not path:
            raise
    if path.endswith("/") or (status is not None and stat.S_ISDIR(status.st_mode)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if status is not None and not overwrite:
        raise exists_error(path)
    if has_log(check_is_data(path, changes=True), status):
        recover_for_reading(path, context)
    return status


def check_new(paths: Iterable[str], context: Context, *, overwrite: bool) -> dict[str, os.stat_result | None]:
    """Check that results can be written to paths, without making anything; return the status of replaced files."""
    checked, errors = list(paths), []
    replaced: dict[str, os.stat_result | None] = {}
    folders = set[str]()  # in which files can be made: each is checked once
    for path in checked:
        try:
            check_stdout(path)
            if is_stream(path):
                continue
            if is_url(path):
                from mpired.files import stores  # noqa: PLC0415 - most results are files

                stores.check_new(path, overwrite=overwrite)
                continue
            replaced[path] = replaced_file(path, context, overwrite=overwrite)
            if (folder := os.path.dirname(calls.followed(path))) in folders:
                continue
            with calls.errors_name(path):
                directory = os.path.realpath(folder)
                calls.let_go(calls.open_directory(directory))
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            folders.add(folder)
        except (MpiredError, OSError) as error:
            errors.append(error)
    raise_all(errors, len(checked), "outputs")
    return replaced


def in_the_way(paths: Iterable[str]) -> list[OutputExistsError]:
    """Return an error for each result that already exists; objects of stores are not looked at."""
    return [exists_error(path) for path in paths if not (is_stream(path) or is_url(path)) and os.path.isfile(path)]


def check_stdout(path: str) -> None:
    """Raise `OSError` if a path is standard output, and the caller has closed that."""
    if path == "-" and sys.__stdout__ is None:  # descriptor 1 may be any file by now
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def warn_of_hard_links(paths: Iterable[str]) -> None:
    """Warn of replaced files that have other hard links, which keep the old content."""
    existing = {path: os.stat(path) for path in paths if not is_stream(path) and os.path.exists(path)}
    replaced = Counter(map(inode, existing.values()))
    for path, status in existing.items():
        if status.st_nlink > replaced[inode(status)]:
            log.tell(HardLinkWarning(f"{path} is a hard link; its other names keep the old content"))


def descriptor_of(path: str) -> int | None:
    """Return the number of the descriptor that a path means, None if it is an ordinary path."""
    numbered = re.fullmatch(_NUMBERED_DESCRIPTOR, path)
    return int(numbered[1]) if numbered else _NAMED_DESCRIPTORS.get(path)


def is_stream(path: str) -> bool:
    """Return whether `path` is a stream: `-`, a descriptor, a FIFO, a device, a socket."""
    if (path == "-" or path.startswith(("/dev/", "/proc/"))) and descriptor_of(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_terminal(path: str) -> bool:
    """Return whether `path` is a terminal."""
    if (number := descriptor_of(path)) is not None:
        return os.isatty(number)
    with contextlib.suppress(OSError):  # raised again by the opening for writing
        if stat.S_ISCHR(os.stat(path).st_mode):
            fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "wb", buffering=0) as device:
                return device.isatty()
    return False
