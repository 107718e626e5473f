"""Temporary files beside a result: hard to leave behind, and known for left behind when they are."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from mpired.storage import calls, reach

_NAME = rb"\.(?P<base>.*)\.[0-9a-f]{8}(?P<machine>[0-9a-f]{8})?\.mpired-tmp"
# So that a name of 255 bytes still has a temporary one beside it, of at most 129.
_KEPT_OF_A_NAME = 100
_ATTEMPTS = 100


def temporary_name(base: bytes, dirfd: int) -> bytes:
    """Return a new name for a file that is to replace `base`; it ends with a mark of this machine where that counts."""
    digits = os.urandom(4).hex() + reach.digits(reach.mark(dirfd))
    return b".%b.%b.mpired-tmp" % (base[:_KEPT_OF_A_NAME], digits.encode())


def open_temporary(base: bytes, dirfd: int, *, named: bool = False) -> tuple[int, bytes, bool]:
    """Open a locked file that is to replace `base`: its descriptor, its name, and whether it has the name already.

    It has, if it is to be `named` or the file system has no files without a name. The lock tells others that its owner
    lives. What commands left that were killed is removed first.
    """
    remove_dead(base, dirfd)
    fd = None if named else calls.open_unnamed(dirfd)
    if fd is not None:
        _lock(fd)
        return fd, temporary_name(base, dirfd), False
    for _ in range(_ATTEMPTS):
        name = temporary_name(base, dirfd)
        fd = calls.open_new(name, dirfd)
        try:
            # Between the opening and the lock another command may have taken the file for left behind.
            if _lock(fd) and _has_name(fd, name, dirfd):
                return fd, name, True
        except BaseException:
            _forget(fd, name, dirfd)
            raise
        _forget(fd, name, dirfd)
    raise OSError("cannot keep a temporary file: others remove it")


def _forget(fd: int, name: bytes, dirfd: int) -> None:
    os.close(fd)
    with contextlib.suppress(OSError):
        calls.unlink(name, dirfd)


def _lock(fd: int) -> bool:
    """Lock a file of our own; a file system without locks is no reason to fail, because none can be taken then."""
    try:
        return calls.lock(fd)
    except OSError:
        return True


def _has_name(fd: int, name: bytes, dirfd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(name, dir_fd=dirfd, follow_symlinks=False), os.fstat(fd))
    return False


def remove_dead(base: bytes, dirfd: int, *, alone: bool = False) -> list[bytes]:
    """Remove the temporary files for `base` that interrupted commands have left, and return their names.

    Only files of this user, for root of all users, and only those whose lock is free: a living command keeps its lock.
    Where locks do not reach other machines, only those that this one has made in this boot, unless it works `alone`.
    That a folder cannot be listed is no error.
    """
    with contextlib.suppress(OSError):
        return [name for name in leftovers(base, dirfd) if _remove_if_dead(name, dirfd, alone=alone)]
    return []


def leftovers(base: bytes, dirfd: int) -> list[bytes]:
    """Return the names of the temporary files for `base`, of living commands too."""
    found = [os.fsencode(name) for name in os.listdir(dirfd) if name.endswith(".mpired-tmp")]
    matches = [(name, re.fullmatch(_NAME, name, re.DOTALL)) for name in found]
    return sorted(name for name, match in matches if match and match["base"] == base[:_KEPT_OF_A_NAME])


def _remove_if_dead(name: bytes, dirfd: int, *, alone: bool) -> bool:
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=dirfd)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        ours = os.geteuid() in {0, status.st_uid}
        match = re.fullmatch(_NAME, name, re.DOTALL)
        made = ((match and match["machine"]) or b"").decode()
        shows = alone or reach.is_conclusive(dirfd, made, reach.digits(reach.machine()))
        dead = stat.S_ISREG(status.st_mode) and ours and shows and calls.lock(fd)
        if dead and _has_name(fd, name, dirfd):
            calls.unlink(name, dirfd)
            return True
    except OSError:  # no locks here, so it may be at work
        pass
    finally:
        os.close(fd)
    return False
