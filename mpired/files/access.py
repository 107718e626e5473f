"""Access to files: the unfinished change of an interrupted command is finished before a file is read or changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mpired.context import Context
from mpired.errors import LockError
from mpired.files import calls, mounts
from mpired.files.lock import LockTimeout, NoLocksError, Target, acquire, close_open
from mpired.files.places import MARK, Inode, Place, check_is_data, has_log, inode
from mpired.log import notice

_T = TypeVar("_T")


def recover_for_reading(name: str, context: Context) -> None:
    """Make sure that no change of a file is half done, before it is read or a new file takes its name."""
    path = check_is_data(name)
    if not has_log(path) and not calls.attribute(path, MARK):
        return
    if context.dry_run:
        notice([name], "has an unfinished change of an interrupted command, which the call itself finishes first")
        return
    _recover(name, path, LockTimeout(context.lock_timeout), writing=False)


def _recover(name: str, path: str, waiting: LockTimeout, *, writing: bool = True) -> bool:
    """Finish or forget the change of a log; return whether it was finished."""
    from mpired.files import recovery  # noqa: PLC0415 - few files have a log

    return recovery.recover(name, path, recovery.How(waiting, writing)) == recovery.FINISHED


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
                    _recover(target.name, target.path, waiting)
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


def take_pointer(file: Place, take: Callable[[], _T]) -> _T:
    """Take the name of the log of a file, after the recovery of a log that has come there since it was locked."""
    try:
        return take()
    except FileExistsError:
        if not _recover(file.name, file.path, LockTimeout()):
            with contextlib.suppress(FileExistsError):
                return take()
        raise LockError(file.name, "had a change of another command at work; run again") from None
