"""What a dead process has left beside a file: an update to finish, or files to remove.

A journal is made and removed only under the lock on its target. So one that is there while we hold
the lock belongs to nobody alive: if it is whole, its update was committed and is finished now; if
not, it was not committed and is forgotten.
"""

from __future__ import annotations

import os
import stat

from mpired.errors import BufferFileError, LockError, UnconfirmedError
from mpired.storage import calls, interruptions, journal, notices
from mpired.storage.journal import Journal
from mpired.storage.lock import Target, Waiting, acquire, lock_target, usual
from mpired.storage.temporary import leftovers, remove_dead


def journal_path(path: str) -> str:
    """Return where the journal of the file is that `path` leads to."""
    directory, base = os.path.split(os.fsencode(calls.followed(path)))
    return os.fsdecode(os.path.join(directory, journal.journal_name(base)))


def has_journal(path: str) -> bool:
    """Tell whether something with the name of a journal lies beside the file that `path` leads to."""
    return os.path.lexists(journal_path(path))


def is_orphan(path: str) -> bool:
    """Tell whether there is a journal of a file, and the file that `path` leads to is missing."""
    return has_journal(path) and not os.path.exists(path)


def check_not_orphan(path: str) -> None:
    """Raise `BufferFileError` if of a file only its journal is there: somebody waits for the update in it."""
    if is_orphan(path):
        reason = f"is missing, but its journal {journal_path(path)} is there"
        raise BufferFileError(path, f"{reason}; bring the file back, or `mpired recover --discard` removes the journal")


def discard_orphan(path: str) -> str:
    """Remove the journal of a file that is missing."""
    directory, base = os.path.split(os.fsencode(journal_path(path)))
    with calls.blaming(journal_path(path)):
        dirfd = calls.open_directory(directory)
        try:
            return _discarded(journal_path(path), base, dirfd)
        finally:
            os.close(dirfd)


def settle(target: Target, *, discard: bool = False) -> str:
    """Finish or forget what a dead process has begun with a target that is locked, and say what was finished.

    Parameters
    ----------
    target
        The file.
    discard
        Whether to forget a committed update too, or a journal that is another file's.

    Returns
    -------
    str
        What became of a journal: "finished", "forgotten", "discarded", or "" if there is none.

    Raises
    ------
    BufferFileError
        If what is there cannot be trusted or belongs to another file.
    OSError
        If a committed update cannot be finished now; its journal stays.
    UnconfirmedError
        If it is finished, but its journal stays.
    """
    if discard:
        return _discarded(_shown(target), journal.journal_name(target.base), target.dirfd)
    opened = _open(target)
    if opened is None:
        return ""
    try:
        with calls.blaming(target.name):
            found = journal.read_journal(opened)
            if found is None:
                _remove(target)
                return "forgotten"
            if not journal.belongs(found, target.fd):
                raise BufferFileError(target.name, _not_its_own(target))
            with interruptions.blocked():  # so that who is interrupted leaves no half
                _finish(target, found)
            nbytes = sum(nbytes for _, nbytes in found.ranges)
            words = f"finished an update of {nbytes} bytes that an interrupted command had committed"
            notices.tell([target.name], words)
            return "finished"
    finally:
        os.close(opened)


def _not_its_own(target: Target) -> str:
    return f"the journal {_shown(target)} is of another file; `mpired recover --discard` removes the journal"


def _shown(target: Target) -> str:
    """Return the path of the journal of a target, in the directory as the user gave it."""
    directory = os.path.dirname(journal_path(target.name))
    return os.path.join(directory, os.fsdecode(journal.journal_name(target.base)))


def _open(target: Target) -> int | None:
    status = target.status
    return journal.open_journal(_shown(target), target.dirfd, {0, os.geteuid(), status.st_uid}, status.st_mode)


def _finish(target: Target, found: Journal) -> None:
    try:
        journal.apply(found, target.fd, durable=True)
    except OSError as error:
        reason = f"an earlier update in its journal cannot be finished yet, {error.strerror}; it is kept"
        raise OSError(error.errno, reason, target.name) from error
    try:
        _remove(target)
    except OSError as error:
        reason = f"an earlier update is applied, but its journal {_shown(target)} cannot be removed ({error.strerror})"
        way_out = "allow that and run `mpired recover`; nothing else was done"
        raise UnconfirmedError(target.name, f"{reason}; {way_out}") from error


def _remove(target: Target) -> None:
    calls.unlink(journal.journal_name(target.base), target.dirfd)
    calls.fsync_directory(target.dirfd)


def _discarded(shown: str, name: bytes, dirfd: int) -> str:
    try:
        status = os.stat(name, dir_fd=dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return ""
    if stat.S_ISDIR(status.st_mode):
        raise BufferFileError(shown, "is a directory, so it is not the journal of an update; remove it")
    calls.unlink(name, dirfd)
    calls.fsync_directory(dirfd)
    return "discarded"


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
    waiting = waiting or usual()
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
