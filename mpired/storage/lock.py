"""The lock on a target: of all mpired processes, one at a time changes a file.

It is a lock on the open file description of the target itself. The kernel drops it with its owner,
so that none is ever stale. It covers the whole file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from mpired.errors import LockError
from mpired.storage import calls

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # seconds between two attempts
_PATIENCE = 2.0  # seconds before somebody is told


class Waiting(NamedTuple):
    """How long to wait for a lock.

    Parameters
    ----------
    timeout
        Seconds; 0 tries once.
    tell
        Called with the name of the file when the wait has become long.
    """

    timeout: float = 60.0
    tell: Callable[[str], None] = lambda _name: None


@dataclass(frozen=True)
class Target:
    """An existing file that this process has locked. The lock ends with the block.

    Parameters
    ----------
    name
        What messages call it.
    path
        Where it is, without symbolic links.
    fd
        Open for reading and writing.
    dirfd
        Its directory.
    """

    name: str
    path: str
    fd: int
    dirfd: int

    @property
    def base(self) -> bytes:
        """The name in the directory."""
        return os.path.basename(os.fsencode(self.path))

    @property
    def status(self) -> os.stat_result:
        """What the file is like now."""
        return os.fstat(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls.let_go(self.dirfd, self.fd)


def lock_target(name: str, waiting: Waiting, *, shared: bool = False) -> Target:
    """Open and lock the file that `name` leads to; `shared` is for one that is only read, with other readers.

    Raises
    ------
    LockError
        If others hold the lock all the time, or the file system has no locks.
    OSError
        If there is no such file, or it may not be changed.
    """
    deadline = time.monotonic() + waiting.timeout
    path = os.path.realpath(name)
    while True:
        fd = calls.open_existing(path, name, writable=not shared)
        try:
            acquire(fd, name, waiting._replace(timeout=max(deadline - time.monotonic(), 0)), shared=shared)
            # While we waited the file may have been replaced: what we have locked then is nobody's any more.
            with calls.blaming(name):
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd)):
                    return Target(name, path, fd, calls.open_directory(os.path.dirname(path)))
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def acquire(fd: int, name: str, waiting: Waiting, *, shared: bool = False) -> None:
    """Wait for the lock on an open file.

    Raises
    ------
    LockError
        As of `lock_target`.
    """
    started, pause, told = time.monotonic(), _FIRST_PAUSE, False
    while not _taken(fd, name, shared=shared):
        waited = time.monotonic() - started
        if waited >= waiting.timeout:
            reason = f"others kept it locked for {waiting.timeout:g} s; wait longer with --lock-timeout, or run again"
            raise LockError(name, reason)
        if waited > _PATIENCE and not told:
            waiting.tell(name)
            told = True
        spread = 0.5 + os.urandom(1)[0] / 255  # so that those who wait do not go on in step
        time.sleep(min(pause * spread, max(waiting.timeout - waited, 0)))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _taken(fd: int, name: str, *, shared: bool) -> bool:
    try:
        return calls.lock(fd, shared=shared)
    except OSError as error:
        if error.errno not in calls.NO_LOCKS:
            error.filename = name
            raise
        kind = calls.filesystem_type(fd) or "unknown"
        reason = f"its file system ({kind}) has no locks ({error.strerror}), so no update is safe; copy it elsewhere"
        raise LockError(name, reason) from error
