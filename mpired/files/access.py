"""Access to files: recovery before a file is read, and locks before a file is changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mpired.context import Context
from mpired.errors import LockError
from mpired.files import calls, mounts, recovery
from mpired.files.lock import LockTimeout, NoLocksError, Target, acquire, close_open
from mpired.files.places import MARK, Inode, Place, check_is_data, has_log, inode
from mpired.log import notice

_T = TypeVar("_T")


def recover_for_reading(name: str, context: Context) -> None:
    """Recover a file, before it is read or replaced; a dry run only reports an unfinished change."""
    path = check_is_data(name)
    if not has_log(path) and not calls.attribute(path, MARK):
        return
    if context.dry_run:
        notice([name], "has an unfinished change of an interrupted command, which the call itself finishes first")
        return
    _recover(name, path, LockTimeout(context.lock_timeout), writing=False)


def _recover(name: str, path: str, timeout: LockTimeout, *, writing: bool = True) -> bool:
    """Recover a file; return whether an unfinished change was finished."""
    return recovery.recover(name, path, recovery.RecoveryOptions(timeout, writing)) == recovery.FINISHED


@contextlib.contextmanager
def lock_all(
    names: Sequence[str],
    timeout: LockTimeout,  # for all files together
    *,
    opened: Callable[[str], Target | None] = Target,  # opens a file; returns None for a file that is not locked
) -> Iterator[dict[str, Target]]:
    """Lock files and recover them."""
    while True:
        with contextlib.ExitStack() as stack:
            targets = _lock_inodes(names, timeout, opened, stack)
            for target in targets.values():
                check_is_data(target.path, changes=True)
                if has_log(target.path, os.fstat(target.fd)):
                    _recover(target.name, target.path, timeout)
                target.status = os.fstat(target.fd)
            # If a file was replaced during the wait, the new file is not locked yet.
            if all(calls.leads_to(target.base, target.dirfd, target.fd) for target in targets.values()):
                yield targets
                return


def _lock_inodes(
    names: Sequence[str], timeout: LockTimeout, opened: Callable[[str], Target | None], stack: contextlib.ExitStack
) -> dict[str, Target]:
    """Open files and lock them, each inode once."""
    targets: dict[str, Target] = {}
    dirfds: dict[str, int] = {}  # by directory, so that many targets in one directory share one descriptor
    for name in names:
        if (target := opened(name)) is not None:
            targets[name] = stack.enter_context(target)
            dirfd = dirfds.setdefault(target.directory, target.dirfd)
            if dirfd != target.dirfd:
                close_open(target.dirfd)
            target.dirfd, target.timeout = dirfd, timeout
    locked: set[Inode] = set()
    # All commands lock in the order of the inodes, so two commands never wait for each other.
    for name, target in sorted(targets.items(), key=lambda item: inode(item[1].status)):
        if inode(target.status) in locked:
            continue
        if reason := mounts.obstacle(target.fd):  # other machines must not change the file at the same time
            raise NoLocksError(name, reason)
        try:
            acquire(target.fd, name, timeout, shared=target.shared)
        except NoLocksError:
            if not target.optional:
                raise
            del targets[name]
        locked.add(inode(target.status))
    return targets


def take_pointer(file: Place, take: Callable[[], _T]) -> _T:
    """Create the log of a file by `take`; a log that another command has left since the lock is recovered first."""
    try:
        return take()
    except FileExistsError:
        if not _recover(file.name, file.path, LockTimeout()):
            with contextlib.suppress(FileExistsError):
                return take()
        raise LockError(file.name, "had a change of another command at work; run again") from None
