"""The lock on a target: of all mpired processes, one at a time changes a file.

It is a lock on the open file description of the target itself. The kernel drops it with its owner,
so that none is ever stale. It covers the whole file.
"""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Container, Mapping

from mpired import interrupts
from mpired.context import LOCK_TIMEOUT
from mpired.errors import LockError
from mpired.files import calls, mounts
from mpired.files.places import Place
from mpired.log import notice, step

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02  # seconds between two attempts
# A file that may not be opened for writing can still be replaced by a user who may write to its directory.
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY})
_PATIENCE, _REMINDER = 2.0, 10.0  # seconds of a wait before a message, and between two messages


class LockTimeout:
    """The time that a command waits for locks."""

    def __init__(self, timeout: float = LOCK_TIMEOUT) -> None:
        self.timeout = timeout  # seconds; 0 tries once

    @functools.cached_property
    def deadline(self) -> float:
        """The end of all its waits, by the monotonic clock: the time begins with the first wait."""
        return time.monotonic() + self.timeout


class NoLocksError(LockError):
    """Raised when a file system has no locks, or does not show those of other machines."""


# The descriptors of all that is locked.
_open: set[int] = set()


def close_open(*fds: int) -> None:
    """Close descriptors of targets that are open in this process; several targets may have one directory."""
    for fd in _open.intersection(fds):
        _open.discard(fd)
        calls.close_quietly(fd)


# A worker must not keep the lock when the command ends that took it.
os.register_at_fork(after_in_child=lambda: close_open(*_open))


class Target(Place, calls.Closing):
    """An existing file that this process has locked. The lock ends with the block."""

    status: os.stat_result  # when it was locked
    optional = False  # whether it may stay without a lock where there are none
    waiting: LockTimeout | None = None  # how long its command waits for others; None for the usual time

    def __init__(self, name: str, *, shared: bool = False) -> None:
        path = os.path.realpath(name)
        with calls.errors_name(name):
            self.fd = calls.open_regular(path, os.O_RDONLY if shared else os.O_RDWR)
            with calls.undoing(lambda: calls.close_quietly(self.fd)):
                super().__init__(name, path, calls.open_directory(os.path.dirname(path)))
        _open.update((self.fd, self.dirfd))
        self.shared = shared  # whether it is open for reading alone, and other readers may have it locked as well
        self.status = os.fstat(self.fd)

    def close(self) -> None:
        """Close the file."""
        close_open(self.fd, self.dirfd)


LockedTargets = Mapping[str, Target]
"""Files that this process has locked, by their paths as given."""
NO_LOCKED_TARGETS: LockedTargets = {}


def open_replaced(name: str, *, updated: Container[str] = ()) -> Target | None:
    """Open a file that a result replaces, which may be `updated`: made of it; None if it cannot be a target."""
    # A file that may not be written to is locked as by a reader, which keeps those out that write to it. Where other
    # machines do not see locks nothing can update the file in place, and a file that may not be opened is not a target.
    for shared in (False, True):
        try:
            target = Target(name, shared=shared)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            continue
        target.optional = True
        if name in updated or mounts.obstacle(target.fd) is None:
            return target
        target.close()
        return None
    return None


def check_reach(name: str, file: int | str | None = None) -> None:
    """Raise `NoLocksError` if other machines would not see a lock on a file, named or open, or on its replacement."""
    with calls.errors_name(name):
        if file is None:
            path = os.path.realpath(name)
            file = path if os.path.exists(path) else os.path.dirname(path)
        if reason := mounts.obstacle(file):
            raise NoLocksError(name, reason)


def descriptors_of(nfiles: int) -> int:
    """Return how many open files the locks on `nfiles` files take, their directory among them."""
    return nfiles + 1 if nfiles else 0


def acquire(fd: int, name: str, waiting: LockTimeout, *, shared: bool = False) -> None:
    """Wait for the lock on an open file."""
    started, pause, next_message = time.monotonic(), _FIRST_PAUSE, _PATIENCE
    with calls.errors_name(name), step("waiting for locks"):
        while not (is_free := calls.lock(fd, shared=shared)):
            if is_free is None:
                kind = mounts.mount_of_device(os.fstat(fd).st_dev).kind or "unknown"
                reason = f"its file system ({kind}) has no locks"
                raise NoLocksError(name, f"{reason}, so no update is safe; copy it elsewhere")
            left = waiting.deadline - time.monotonic()
            if left <= 0:
                reason = f"others kept it locked for {round(waiting.timeout, 2):g} s"
                raise LockError(name, f"{reason}; wait longer with `lock_timeout`, or run again")
            if time.monotonic() - started > next_message:
                hint = "ctrl-C ends the wait and changes nothing, `lock_timeout` limits it"
                notice([name], f"waiting for another process, which has it locked; {hint}", "INFO")
                next_message += _REMINDER
            spread = 0.5 + os.urandom(1)[0] / 255  # so that those who wait do not go on in step
            interrupts.interruptible(time.sleep, min(pause * spread, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
