"""The lock on a target: only one mpired process at a time changes a file.

A lock belongs to the open file description of the target, and covers the whole file. The kernel releases the lock when
its process ends, so no lock is ever stale.
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

_MIN_PAUSE, _MAX_PAUSE = 0.0005, 0.02  # seconds between two attempts
# A file that cannot be opened for writing can still be replaced, by a user who may write to its directory.
_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY})
_PATIENCE, _REMINDER = 2.0, 10.0  # seconds of a wait before a message, and between two messages


class LockTimeout:
    """The time limit of a command for all its waits for locks."""

    def __init__(self, timeout: float = LOCK_TIMEOUT) -> None:
        self.seconds = timeout  # 0: one attempt

    @functools.cached_property
    def deadline(self) -> float:
        """The end of all waits on the monotonic clock; the time begins with the first wait."""
        return time.monotonic() + self.seconds


class NoLocksError(LockError):
    """Raised when a file system has no locks, or does not show the locks of other machines."""


# Descriptors of all targets and their directories.
_open: set[int] = set()


def close_open(*fds: int) -> None:
    """Close descriptors of targets, unless they are closed already: several targets may share one directory."""
    for fd in _open.intersection(fds):
        _open.discard(fd)
        calls.close_quietly(fd)


# Otherwise a worker would keep the lock after the end of its command.
os.register_at_fork(after_in_child=lambda: close_open(*_open))


class Target(Place, calls.Closing):
    """An existing file that this process has locked. The lock ends with the block."""

    status: os.stat_result  # when the file was locked
    optional = False  # whether the file may stay without a lock on a file system without locks
    timeout: LockTimeout | None = None  # of its command; None for the default

    def __init__(self, name: str, *, shared: bool = False) -> None:
        path = os.path.realpath(name)
        with calls.errors_name(name):
            self.fd = calls.open_regular(path, os.O_RDONLY if shared else os.O_RDWR)
            with calls.undoing(lambda: calls.close_quietly(self.fd)):
                super().__init__(name, path, calls.open_directory(os.path.dirname(path)))
        _open.update((self.fd, self.dirfd))
        self.shared = shared  # whether the file is open for reading only, and other readers may lock it too
        self.status = os.fstat(self.fd)

    def close(self) -> None:
        """Close the file and release its lock."""
        close_open(self.fd, self.dirfd)


LockedTargets = Mapping[str, Target]
"""Files that this process has locked, by the paths of the caller."""
NO_LOCKED_TARGETS: LockedTargets = {}


def open_replaced(name: str, *, updated: Container[str] = ()) -> Target | None:
    """Open a file that a result replaces; None if the file needs no lock. Files in `updated` are also inputs."""
    # A file that is not writable gets a read lock, which excludes writers. If other machines do not see locks, no
    # command can update the file in place. A file that cannot be opened cannot be updated either.
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
    """Raise `NoLocksError` if other machines do not see locks on a file, which may be new."""
    with calls.errors_name(name):
        if file is None:
            path = os.path.realpath(name)
            file = path if os.path.exists(path) else os.path.dirname(path)
        if reason := mounts.obstacle(file):
            raise NoLocksError(name, reason)


def descriptors_of(nfiles: int) -> int:
    """Return the number of descriptors for the locks on `nfiles` files in one directory."""
    return nfiles + 1 if nfiles else 0


def acquire(fd: int, name: str, timeout: LockTimeout, *, shared: bool = False) -> None:
    """Wait for the lock on an open file."""
    started, pause, next_message = time.monotonic(), _MIN_PAUSE, _PATIENCE
    with calls.errors_name(name), step("waiting for locks"):
        while not (is_free := calls.lock(fd, shared=shared)):
            if is_free is None:
                kind = mounts.mount_of_device(os.fstat(fd).st_dev).kind or "unknown"
                reason = f"its file system ({kind}) has no locks"
                raise NoLocksError(name, f"{reason}, so no update is safe; copy it elsewhere")
            left = timeout.deadline - time.monotonic()
            if left <= 0:
                reason = f"others kept it locked for {round(timeout.seconds, 2):g} s"
                raise LockError(name, f"{reason}; wait longer with `lock_timeout`, or run again")
            if time.monotonic() - started > next_message:
                hint = "ctrl-C ends the wait and changes nothing, `lock_timeout` limits it"
                notice([name], f"waiting for another process, which has it locked; {hint}", "INFO")
                next_message += _REMINDER
            jitter = 0.5 + os.urandom(1)[0] / 255
            interrupts.interruptible(time.sleep, min(pause * jitter, left))
            pause = min(2 * pause, _MAX_PAUSE)
