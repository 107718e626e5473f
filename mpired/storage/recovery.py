"""What an interrupted command has left beside a file: an update to finish, or files to remove.

A journal is made and removed only under the lock on its target. So one that is there while we hold
the lock is at work for no living command: if it is whole, its update was committed and is finished now; if
not, it was not committed and is forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from mpired.errors import BufferFileError, LockError, UnconfirmedError
from mpired.log import notice
from mpired.storage import calls, interruptions, journal, marks, names, trust
from mpired.storage.journal import Journal
from mpired.storage.lock import Target, Waiting, acquire, lock_target
from mpired.storage.marks import Mark
from mpired.storage.names import check_is_data, check_not_orphan, journal_path
from mpired.storage.remains import has_journal
from mpired.storage.temporary import leftovers, remove_dead

_NO_FILE = "is not a regular file, so it is not the journal of an update; remove it"
_GIVE_UP = "`mpired recover --discard --force` gives its update up, and leaves the file as it is, perhaps half changed"


class Discard(Enum):
    """Whether a journal is removed without finishing its update."""

    NO = 0
    UNLESS_NEEDED = 1
    """Unless it is the journal of a committed update: the file, or one that had its name, may be half changed."""
    ALWAYS = 2


class _Place(NamedTuple):
    """Where a journal may lie: its path as messages show it, its name, and the open directory."""

    shown: str
    name: bytes
    dirfd: int

    def remove(self) -> None:
        """Remove what is there, for good."""
        try:
            calls.unlink(self.name, self.dirfd)
            calls.fsync_directory(self.dirfd)
        except OSError as error:
            reason = f"its journal {self.shown} cannot be removed ({error.strerror})"
            raise OSError(error.errno, f"{reason}{self._who_can(error)}") from error

    def _who_can(self, error: OSError) -> str:
        if not isinstance(error, PermissionError):
            return ""
        folder = os.path.dirname(self.shown) or os.curdir
        if not os.fstat(self.dirfd).st_mode & stat.S_ISVTX:
            return f"; a user who may write to the folder {folder} can do that"
        owner = os.stat(self.name, dir_fd=self.dirfd, follow_symlinks=False).st_uid
        return f"; the folder {folder} is sticky, so only {trust.shown_user(owner)}, its owner and root can do that"


@contextlib.contextmanager
def _opened_place(path: str) -> Iterator[_Place | None]:
    """Open the directory of a journal; None if there is no such directory."""
    directory, name = os.path.split(os.fsencode(path))
    try:
        dirfd = calls.open_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    try:
        yield _Place(path, name, dirfd)
    finally:
        os.close(dirfd)


def _beside(target: Target) -> _Place:
    """Return where the journal of a target lies, in the directory as the user gave it."""
    name = names.journal_name(target.base)
    return _Place(os.path.join(os.path.dirname(journal_path(target.name)), os.fsdecode(name)), name, target.dirfd)


def discard_orphan(path: str, discard: Discard) -> str:
    """Remove the journal of a file that is missing."""
    with calls.blaming(journal_path(path)), _opened_place(journal_path(path)) as place:
        if place is not None:
            if discard is not Discard.ALWAYS and _is_committed(place):
                check_not_orphan(path)
            _check_no_directory(place)
            place.remove()
    return "discarded"


def _is_committed(place: _Place) -> bool:
    """Tell whether what has the name of a journal has the header of one, which is written last."""
    fd = None if _is_no_file(place) else _open(place)
    if fd is None:
        return False
    try:
        return journal.read_header(fd) is not None
    finally:
        os.close(fd)


def _check_no_directory(place: _Place) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(place.name, dir_fd=place.dirfd, follow_symlinks=False).st_mode):
            raise BufferFileError(place.shown, "is a directory, so it is not the journal of an update; remove it")


def recover(target: Target, *, discard: Discard = Discard.NO) -> str:
    """Finish or forget what an interrupted command has begun with a target that is locked, and say what was finished.

    Returns
    -------
    str
        What became of a journal: "finished", "forgotten", "discarded", or "" if there is none.
    """
    check_is_data(target.path)
    with calls.blaming(target.name):
        mark = marks.read(target.fd)
        marked = _recover_by_mark(target, mark, discard) if mark else ""
        return _recover_place(target, _beside(target), None, discard) or marked


def _recover_by_mark(target: Target, mark: Mark, discard: Discard) -> str:
    """Recover the journal that a mark leads to, which may lie beside another name of the target."""
    with _opened_place(mark.journal) as place:
        if not mark.begun:
            if place is not None:
                _remove_stale(target, place, mark)
            marks.clear(target.fd)
            return ""
        done = "" if place is None else _recover_place(target, place, mark, discard)
    if not done and discard is not Discard.ALWAYS:
        reason = f"has an update that was begun by its name {os.fsdecode(mark.path)}, and the journal"
        raise BufferFileError(target.name, f"{reason} {mark.journal} is missing; bring it back, or {_GIVE_UP}")
    if not done:
        marks.end(target.fd, mark, durable=True)
        marks.clear(target.fd)
    return done or "discarded"


def _remove_stale(target: Target, place: _Place, mark: Mark) -> None:
    """Remove the journal of a mark that says that its bytes are in the target; another one is left as it is."""
    with _judged(target, place) as found:
        whole = found is not None and found.journal is not None and found.journal.header.identity == mark.identity
        if whole or (found is not None and found.state == "incomplete" and _is_named(target, mark)):
            place.remove()


def _is_named(target: Target, mark: Mark) -> bool:
    """Tell whether the name in a mark still is one of the target, so that the journal beside it is its own."""
    status = names.status(mark.path)
    return status is not None and os.path.samestat(status, target.status)


class _Found(NamedTuple):
    """What has the name of a journal."""

    # "pending" is a committed update, "incomplete" one that was not committed, "foreign" that of another file
    state: str
    doubt: str = ""  # why it is not to be applied, though it is pending
    journal: Journal | None = None  # to be read, if it is pending


@contextlib.contextmanager
def _judged(target: Target, place: _Place) -> Iterator[_Found | None]:
    """Open and judge what has the name of a journal, for the block; None if nothing has it."""
    fd = _open(place)
    if fd is None:
        yield None
        return
    try:
        header = journal.read_header(fd)
        if header is None:
            yield _Found("incomplete")
        elif not journal.fits(header, target.fd):
            yield _Found("foreign")
        elif not journal.is_whole(Journal(fd, header)):
            yield _Found("incomplete")
        else:
            yield _Found("pending", _doubt(target, place, os.fstat(fd)), Journal(fd, header))
    finally:
        os.close(fd)


def _open(place: _Place) -> int | None:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(place.name, flags, dir_fd=place.dirfd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise BufferFileError(place.shown, _NO_FILE) from error
        if isinstance(error, PermissionError):
            owner = trust.shown_user(os.stat(place.name, dir_fd=place.dirfd, follow_symlinks=False).st_uid)
            reason = f"its journal {place.shown} belongs to {owner} and cannot be read ({error.strerror})"
            raise OSError(error.errno, f"{reason}; {owner} or root finishes it by `mpired recover`") from error
        raise
    status = os.fstat(fd)
    reason = "" if stat.S_ISREG(status.st_mode) else _NO_FILE
    if not reason and status.st_nlink != 1:
        reason = f"has {status.st_nlink} names, so it is not the journal of an update; remove it"
    if reason:
        os.close(fd)
        raise BufferFileError(place.shown, reason)
    return fd


def _doubt(target: Target, place: _Place, status: os.stat_result) -> str:
    """Say why a journal that fits the target is not applied all the same; "" if nothing speaks against it."""
    if not trust.may_write(status.st_uid, target.fd):
        owner = trust.shown_user(status.st_uid)
        reason = f"a committed update of {owner} waits in {place.shown}, and is not finished here because that user"
        way_out = f"{owner}, or root in that user's name, finishes it by `mpired recover`"
        return f"{reason} is not known as one who may write to the file; {way_out}; {_GIVE_UP}"
    if trust.can_be_changed_by_others(status, target.status):
        reason = f"a committed update waits in {place.shown}, to which others can write who may not write to the file"
        return f"{reason}; look at it, take that right away (chmod go-w) and run `mpired recover`; {_GIVE_UP}"
    return ""


def _recover_place(target: Target, place: _Place, mark: Mark | None, discard: Discard) -> str:
    """Recover what has the name of a journal in one place; `mark` is that of the target if it has led there."""
    if discard is Discard.ALWAYS or (discard is Discard.UNLESS_NEEDED and _is_no_file(place)):
        return _discarded(target, place, mark)
    with _judged(target, place) as found:
        if found is None:
            return ""
        if found.state == "incomplete":
            _retire(target, place, mark)
            return "forgotten"
        if found.journal is None:
            raise BufferFileError(target.name, _not_its_own(place, mark))
        if discard is Discard.UNLESS_NEEDED:
            reason = f"is half changed without its journal {place.shown}, which is whole, so that stays"
            raise BufferFileError(target.name, f"{reason}; `mpired recover` finishes the update; {_GIVE_UP}")
        if found.doubt:
            raise BufferFileError(target.name, found.doubt)
        with interruptions.blocked():  # so that who is interrupted leaves no half
            _finish(target, place, found.journal, mark)
        words = f"finished an update of {found.journal.header.payload_nbytes} bytes"
        notice([target.name], f"{words} that an interrupted command had committed")
        return "finished"


def _not_its_own(place: _Place, mark: Mark | None) -> str:
    if mark is None:
        reason = (
            f"the journal {place.shown} is of another file, which is half changed without it if it has another name"
        )
        return f"{reason} now; give that file this name again and run `mpired recover`, or {names.DISCARDS}"
    reason = f"has the mark of an update, and its journal {place.shown} is of another file; perhaps this one was"
    return f"{reason} copied in the middle of the update; recover the original and copy it again, or {_GIVE_UP}"


def _is_no_file(place: _Place) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return not stat.S_ISREG(os.stat(place.name, dir_fd=place.dirfd, follow_symlinks=False).st_mode)
    return False


def _discarded(target: Target, place: _Place, mark: Mark | None) -> str:
    """Remove what has the name of a journal without looking at it, and say so if there is something."""
    try:
        os.stat(place.name, dir_fd=place.dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return ""
    _check_no_directory(place)
    _retire(target, place, mark)
    return "discarded"


def _finish(target: Target, place: _Place, found: Journal, mark: Mark | None) -> None:
    try:
        marks.apply(found, target.fd, mark, durable=True)
    except OSError as error:
        reason = f"an earlier update in its journal cannot be finished yet, {error.strerror}; it is kept"
        raise OSError(error.errno, reason, target.name) from error
    try:
        place.remove()
    except OSError as error:
        reason = f"an earlier update is applied, but {error.strerror}"
        way_out = "allow that and run `mpired recover`; nothing else was done"
        raise UnconfirmedError(target.name, f"{reason}; {way_out}") from error
    if mark is not None:
        marks.clear(target.fd)


def _retire(target: Target, place: _Place, mark: Mark | None) -> None:
    """Remove a journal that is not to be applied, so that no loss of power brings it back to life.

    The path in a mark is input, and what lies there may be at work for another file: it is removed if the target still
    has the name that it is the journal of.
    """
    if mark is not None:
        marks.end(target.fd, mark, durable=True)
    if mark is None or _is_named(target, mark):
        place.remove()
    if mark is not None:
        marks.clear(target.fd)


def clean(target: Target) -> tuple[str, ...]:
    """Remove what interrupted commands have left beside a target, no other machine being at work; return the names."""
    return tuple(os.fsdecode(name) for name in remove_dead(target.base, target.dirfd, alone=True))


def finish_for_reading(name: str, waiting: Waiting, *, dry_run: bool) -> None:
    """Finish the update of a file that seems to have a journal; errors as of `unfinished.recover_for_reading`."""
    check_not_orphan(name)
    if dry_run:
        notice([name], "has an unfinished update of an interrupted command, which the call itself finishes first")
        return
    if os.access(name, os.W_OK):
        with lock_target(name, waiting) as target:
            recover(target)
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
        "" without a journal, else "pending", "incomplete", "foreign", "doubtful", "missing" (there is a mark of it) or
        "busy"; and the temporary files.
    """
    directory, base = os.path.split(os.fsencode(os.path.realpath(name)))
    with calls.blaming(name):
        dirfd = calls.open_directory(directory)
        try:
            temporaries = [os.fsdecode(each) for each in leftovers(base, dirfd)]
        finally:
            os.close(dirfd)
        return _state(name) if has_journal(name) else "", temporaries


def _state(name: str) -> str:
    try:
        with lock_target(name, Waiting(timeout=0), alone=True) as target:
            mark = marks.read(target.fd)
            if mark is not None and mark.begun:
                with _opened_place(mark.journal) as place:
                    return (place and _state_in(target, place)) or "missing"
            return _state_in(target, _beside(target))
    except LockError:
        return "busy"
    except BufferFileError:
        return "foreign"


def _state_in(target: Target, place: _Place) -> str:
    with _judged(target, place) as found:
        if found is None:
            return ""
        return "doubtful" if found.doubt else found.state
