"""What a dead process has left beside a file: an update to finish, or files to remove.

A journal is made and removed only under the lock on its target. So one that is there while we hold
the lock belongs to nobody alive: if it is whole, its update was committed and is finished now; if
not, it was not committed and is forgotten.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from mpired.errors import BufferFileError, LockError
from mpired.storage import calls, journal
from mpired.storage.journal import Journal
from mpired.storage.lock import Target, Waiting, acquire, lock_target
from mpired.storage.temporary import leftovers, remove_dead


class Found(NamedTuple):
    """What was found beside a file.

    Parameters
    ----------
    journal
        What became, or would become, of a journal: "finished", "forgotten", "discarded", or "" if there is none.
    nbytes
        Bytes of the update that was finished.
    removed
        The names of dead temporary files.
    """

    journal: str = ""
    nbytes: int = 0
    removed: tuple[str, ...] = ()


def has_journal(path: str) -> bool:
    """Tell whether something with the name of a journal lies beside the file that `path` leads to."""
    directory, base = os.path.split(os.fsencode(calls.followed(path)))
    try:
        os.lstat(os.path.join(directory, journal.journal_name(base)))
    except OSError:
        return False
    return True


def settle(target: Target, *, discard: bool = False) -> Found:
    """Finish or forget what a dead process has begun with a target that is locked.

    Parameters
    ----------
    target
        The file.
    discard
        Whether to forget a committed update too, or a journal that is another file's.

    Raises
    ------
    BufferFileError
        If what is there cannot be trusted or belongs to another file.
    OSError
        If a committed update cannot be finished now; its journal stays.
    """
    if discard:
        return _discarded(target)
    opened = _open(target)
    if opened is None:
        return Found()
    try:
        with calls.blaming(target.name):
            found = journal.read_journal(opened)
            if found is None:
                _remove(target)
                return Found("forgotten")
            if not journal.belongs(found, target.fd):
                raise BufferFileError(target.name, _not_its_own(target))
            _finish(target, found)
            return Found("finished", sum(nbytes for _, nbytes in found.ranges))
    finally:
        os.close(opened)


def _not_its_own(target: Target) -> str:
    shown = os.fsdecode(journal.journal_name(target.base))
    return f"the journal {shown} beside it is of another file; `mpired recover --discard` removes the journal"


def _open(target: Target) -> int | None:
    status = target.status
    return journal.open_journal(target.base, target.dirfd, {0, os.geteuid(), status.st_uid}, status.st_mode)


def _finish(target: Target, found: Journal) -> None:
    try:
        with calls.interruptions_blocked():  # so that who is interrupted leaves no half
            journal.apply(found, target.fd, durable=True)
            _remove(target)
    except OSError as error:
        reason = f"an earlier update in its journal cannot be finished yet, {error.strerror}; it is kept"
        raise OSError(error.errno, reason, target.name) from error


def _remove(target: Target) -> None:
    calls.unlink(journal.journal_name(target.base), target.dirfd)
    calls.fsync_directory(target.dirfd)


def _discarded(target: Target) -> Found:
    name = journal.journal_name(target.base)
    try:
        status = os.stat(name, dir_fd=target.dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return Found()
    if stat.S_ISDIR(status.st_mode):
        raise BufferFileError(os.fsdecode(name), "is a directory, so it is not the journal of an update; remove it")
    _remove(target)
    return Found("discarded")


def clean(target: Target) -> tuple[str, ...]:
    """Remove the temporary files that dead processes have left beside a target, and return their names."""
    return tuple(os.fsdecode(name) for name in remove_dead(target.base, target.dirfd))


def settle_for_reading(name: str, waiting: Waiting | None = None) -> None:
    """Make sure that no update of the file is half done, before it is read.

    Raises
    ------
    BufferFileError
        If there is one that this user cannot finish.
    MpiredError, OSError
        As of `settle` and `lock_target`.
    """
    if not has_journal(name):
        return
    waiting = waiting or Waiting()
    if os.access(name, os.W_OK):
        with lock_target(name, waiting) as target:
            settle(target)
        return
    fd = calls.open_existing(os.path.realpath(name), name, writable=False)
    try:
        acquire(fd, name, waiting, shared=True)  # whoever is at work now ends first
    finally:
        os.close(fd)
    if has_journal(name):
        raise BufferFileError(
            name, "has an unfinished update, and you may not write to it; its owner runs `mpired recover`"
        )


def look(name: str) -> tuple[str, list[str]]:
    """Return the state of what lies beside a file, changing nothing.

    Returns
    -------
    state, names
        "" without a journal, else "pending", "incomplete", "busy" or "foreign"; and the temporary files.
    """
    directory, base = os.path.split(os.fsencode(os.path.realpath(name)))
    with calls.blaming(name):
        dirfd = calls.open_directory(directory)
        try:
            names = [os.fsdecode(each) for each in leftovers(base, dirfd)]
        finally:
            os.close(dirfd)
    return _state(name) if has_journal(name) else "", names


def _state(name: str) -> str:
    try:
        with lock_target(name, Waiting(timeout=0)) as target:
            opened = _open(target)
            if opened is None:
                return ""
            try:
                found = journal.read_journal(opened)
                if found is None:
                    return "incomplete"
                return "pending" if journal.belongs(found, target.fd) else "foreign"
            finally:
                os.close(opened)
    except LockError:
        return "busy"
    except BufferFileError:
        return "foreign"
