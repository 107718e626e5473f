"""The leftovers of interrupted commands: a committed change to finish, or a log and a draft to remove.

Every command that opens NAME looks for `.NAME.mpired`. If a living command holds it, its end is awaited. If that
command has ended and was committed, its change is finished here; else nothing has happened, and its log is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from mpired import interrupts
from mpired.context import Context
from mpired.errors import BufferFileError, LockError, MpiredError, raise_all
from mpired.files import calls, log, mounts
from mpired.files.lock import LockTimeout, NoLocksError, acquire
from mpired.files.log import LogHeader, LogKind, unconfirmed
from mpired.files.places import MARK, Place, check_is_data, has_log, own_path, sync_folders
from mpired.files.scratch import remove_dead
from mpired.log import notice, notices_to
from mpired.options import Options

FINISHED, DISCARDED = "finished", "gave up an unfinished change"
_NO_FILE = "is not a regular file, so it is not the log of a change; remove it"
_GIVE_UP = "`mpired recover --discard --force` gives the change up, and leaves the file as it is"
# These errors are not about the file.
_SYSTEM_FAILS = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})
_PENDING = "a committed change to finish"
_INCOMPLETE = "the log of a change that was never committed"
FORGOTTEN = f"removed {_INCOMPLETE}"
_MARK = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,20}) ([0-9]{1,20}) (/[^\0]*)", re.DOTALL)


class How(NamedTuple):
    """Options of the recovery of a file."""

    waiting: LockTimeout
    writing: bool = False  # whether the file will be written to, and so must be free
    alone: bool = False  # whether the user asserts that no other command is at work, where locks do not show that
    adopt: bool = False  # whether a log that was copied, or restored, is believed
    discard: bool = False  # whether a change is given up of which nothing was committed
    force: bool = False  # whether a committed one is given up


@contextlib.contextmanager
def _opened(name: str, path: str) -> Iterator[Place]:
    path = path if os.path.dirname(path) else os.path.join(os.curdir, path)
    with calls.directory(os.path.dirname(path)) as dirfd:
        yield Place(name, path, dirfd)


def recover(name: str, path: str, how: How) -> str:
    """Finish or forget the interrupted change of a file; return `FINISHED`, `FORGOTTEN`, `DISCARDED`, or ""."""
    with calls.errors_name(name), _opened(name, path) as place:
        if not has_log(path) and (mark := calls.attribute(path, MARK)):
            return _recover_by_mark(place, mark, how)
        with _locked(place, how) as fd:
            return "" if fd is None else _recover_locked(place, fd, how, place)


def _recover_by_mark(place: Place, mark: bytes, how: How) -> str:
    """Recover a file with several names by the name that its change was begun by."""
    match = _MARK.fullmatch(mark)
    if match is None:  # not written by mpired
        return ""
    identity, other = bytes.fromhex(match[1].decode()), os.fsdecode(match[4])
    if int(match[2]) != os.stat(place.path).st_ino and not how.force:
        reason = f"was copied in the middle of a change of {other}, and may be half changed"
        raise BufferFileError(place.name, f"{reason}; copy that file again, or take this one as it is: {_GIVE_UP}")
    done = _recover_elsewhere(place, other, int(match[3]), identity, how)
    if (now := calls.attribute(place.path, MARK)) and now != mark:  # another change has begun meanwhile
        return _recover_by_mark(place, now, how)
    with contextlib.suppress(OSError):
        os.removexattr(place.path, MARK)  # its change is finished
    return done or ""


def _recover_elsewhere(place: Place, path: str, inode: int, identity: bytes, how: How) -> str | None:
    """Recover a file by the log of another one, in the directory of an inode; None if that log is done."""
    with ExitStack() as stack:
        try:
            home = _folder(place, path, inode, how, stack)
        except BufferFileError:
            if not how.force:
                raise
            return DISCARDED
        fd = stack.enter_context(_locked(home, how))
        header = None if fd is None else log.read_header(fd)
        if fd is None or header is None or header.identity != identity or header.kind == LogKind.NOTE:
            return None
        return _recover_locked(home, fd, how, place)


@contextlib.contextmanager
def _locked(place: Place, how: How) -> Iterator[int | None]:
    """Open and lock the log of a file, when no living command has it; None if there is none."""
    while (fd := _open(place)) is not None:
        try:
            is_shown = how.alone  # whether a lock that is free shows that no command is at work
            with contextlib.suppress(NoLocksError):
                acquire(fd, place.name, how.waiting, shared=not _is_writable(fd))
                is_shown = how.alone or mounts.obstacle(fd) is None
            is_current = calls.leads_to(place.pointer, place.dirfd, fd)
            if is_current and not is_shown:
                reason = "has an unfinished change, and there are no locks that show whether its command still runs"
                raise LockError(place.name, f"{reason}; when it does not, `mpired recover` of this file finishes it")
            if is_current:
                yield fd
                return
        finally:
            calls.release(fd)
    yield None


def _open(place: Place) -> int | None:
    """Open the log of a file, for reading alone where it may not be written to; None if there is none."""
    try:
        try:
            return calls.open_regular(place.pointer, os.O_RDWR, place.dirfd)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                raise
            return calls.open_regular(place.pointer, os.O_RDONLY, place.dirfd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EINVAL}:
            raise BufferFileError(own_path(place.path), _NO_FILE) from error
        if isinstance(error, PermissionError):
            status = os.stat(place.pointer, dir_fd=place.dirfd, follow_symlinks=False)
            raise _of_another(place, status) from error
        raise


def _is_writable(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _of_another(place: Place, status: os.stat_result) -> BufferFileError:
    """Return the error for a change that only another user can finish."""
    user, command = _user(status.st_uid), f"mpired recover {place.name}"
    hint = f"run `runuser -u {user} -- {command}`" if os.geteuid() == 0 else f"that user finishes it: `{command}`"
    return BufferFileError(place.name, f"has an unfinished change of user {user} ({status.st_uid}); {hint}")


def _user(number: int) -> str:
    """Return the name of a user; the number if there is none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _recover_locked(place: Place, fd: int, how: How, asked: Place) -> str:
    """Recover a file by a log, or a note, of a command that has ended."""
    header, status, done = _judged(place, fd, how), os.fstat(fd), FORGOTTEN
    if header is None and status.st_uid != os.geteuid():
        if how.writing:
            reason = f"has a log of user {_user(status.st_uid)} beside it, of which nothing was committed"
            raise LockError(place.name, f"{reason}; that user removes it: `mpired recover {place.name}`")
        return ""
    if header is not None and header.kind == LogKind.NOTE:
        body = log.body_of(fd, header)
        first = os.path.join(body["home"], _name(body["first"]))
        # The log goes last: without it all was finished, or never committed.
        if (found := _recover_elsewhere(place, first, body["inode"], header.identity, how)) in {"", FINISHED}:
            return found or ""
        done = found or FORGOTTEN
    elif not _is_writable(fd):
        if header is None and not how.writing:
            return ""
        reason = "has an unfinished change, and nothing can be written here"
        raise BufferFileError(place.name, f"{reason}; `mpired recover` finishes it where that can be done")
    elif header is not None:
        return _finish(place, fd, header, how, asked)
    elif calls.attribute(fd, MARK):  # a file that is not known as a log is not written to
        os.ftruncate(fd, 0)
        calls.fsync(fd)  # so that no loss of power brings it back to life
    remove_dead(place.draft_name, place.dirfd, alone=header is not None)
    calls.unlink_inode(place.pointer, place.dirfd, status.st_ino)
    return done


def _judged(place: Place, fd: int, how: How) -> LogHeader | None:
    """Return the header of a log; None if nothing was committed; an error if it is of another user, or a copy."""
    header, status = log.read_header(fd), os.fstat(fd)
    if header is None:
        return None
    is_own = status.st_uid == os.geteuid()
    if is_own and not how.adopt:
        if (status.st_ino, os.fstat(place.dirfd).st_ino) != (header.inode, header.folder):
            reason = "is a copy of a log, of a change that its original finishes"
            reason = f"{reason}; `mpired recover --adopt {place.name}` takes it for its own"
            raise BufferFileError(own_path(place.path), reason)
        marked = log.has_mark(fd, place.dirfd, header.identity)
        if marked is None:
            reason = "may be of another user, as others can write to its directory, which has no attributes"
            raise BufferFileError(own_path(place.path), f"{reason}; look at it, and remove it")
        if not marked:
            return None  # it came to the disk before its mark, and so before the commit
    if not log.is_whole(fd, header):
        return None
    if not is_own:
        raise _of_another(place, status)
    return header


def _folder(place: Place, path: str, inode: int, how: How, stack: ExitStack) -> Place:
    """Open the directory of another file of a set, which must be the one of an inode."""
    directory, base = os.path.split(os.path.join(place.directory, path))
    directory, why = os.path.normpath(directory), ""
    try:
        other = stack.enter_context(_opened(place.name, os.path.join(directory, base)))
        here, there = os.fstat(place.dirfd), os.fstat(other.dirfd)
        if (there.st_dev, there.st_ino) == (here.st_dev, inode) or how.adopt:
            return other
    except OSError as error:
        why = f" ({error.strerror})"
    reason = f"has an unfinished change that belongs to files in {directory}, which is not the directory that it was"
    raise BufferFileError(place.name, f"{reason}{why}; bring it back, or {_GIVE_UP}")


def _name(name: str) -> str:
    """Return a name that a log has; one with a path is refused."""
    if "/" in name or name in {"", ".", ".."}:
        raise BufferFileError(name, "is not a name of a file, so it is not from a log of mpired")
    return name


def _finish(home: Place, fd: int, header: LogHeader, how: How, asked: Place) -> str:
    """Do all steps of a committed log, and remove it: each step may have been done before."""
    if how.discard and not how.force:
        reason = f"has a committed change, so its log {own_path(asked.path)} stays"
        raise BufferFileError(asked.name, f"{reason}; `mpired recover` finishes it; {_GIVE_UP}")
    with interrupts.defer_signals():  # so that a signal leaves no half
        body = log.body_of(fd, header)
        calls.fsync(fd)  # its bytes may have come from memory alone
        if header.kind == LogKind.PATCH:
            place, done = home.neighbour(_name(body["name"])), [] if how.force else [home.name]
            calls.fsync_directory(home.dirfd)
            if not how.force:
                _apply(place, fd, header, body, how)
            pointers = [place.pointer]
            text = f"finished an update of {header.payload_nbytes} bytes that an interrupted command had committed"
        else:
            pointers, done = _finish_puts(home, header, body, how, asked)
            files = f" ({len(done)} file{'s' if len(done) > 1 else ''})"
            text = f"finished what an interrupted command had committed{files}"
        what = f"an earlier change is finished, but its log {own_path(home.path)} cannot be removed"
        with unconfirmed(home.name, what):
            log.finish(fd, pointers, home.dirfd)
        if done:
            notice(done, text)
    return DISCARDED if how.force else FINISHED


def _apply(place: Place, fd: int, header: LogHeader, body: dict[str, Any], how: How) -> None:
    """Apply a patch to its file, which must still be the same."""
    reason = f"is not the file any more that the unfinished update in {own_path(place.path)} is of"
    with ExitStack() as stack:
        try:
            target = calls.open_regular(place.base, os.O_RDWR, place.dirfd)
            stack.callback(calls.close_quietly, target)
            status, generations = os.fstat(target), {calls.generation(target), body["generation"]}
        except OSError as error:
            if error.errno in _SYSTEM_FAILS:
                raise
            reason = f"has an unfinished update, and cannot be opened for it ({error.strerror})"
        else:
            # A generation of 0 is not known, as where a file system is met by another way than before.
            is_same = status.st_ino == body["inode"] and (len(generations) == 1 or 0 in generations)
            if status.st_size == body["size"] and (is_same or how.adopt):
                log.apply(fd, header, target, body["attributes"])
                calls.fsync(target)
                with contextlib.suppress(OSError):
                    os.removexattr(target, MARK)
                return
    hint = f"give that file its name again and run `mpired recover`, or {_GIVE_UP}"
    raise BufferFileError(place.path, f"{reason}; {hint}")


def _finish_puts(
    home: Place, header: LogHeader, body: dict[str, Any], how: How, asked: Place
) -> tuple[list[bytes], list[str]]:
    """Let the drafts of a set take their places; return the names of the log, and the files that were replaced."""
    done: list[str] = []
    with ExitStack() as stack:
        others = [_folder(home, os.path.join(path, ""), inode, how, stack) for inode, path in body["folders"][1:]]
        folders = [home, *others]
        steps = []  # of each file its place, the inode of its pointer, that of its draft, the stamp of the old file
        for number, name, inode, old in body["steps"]:
            place = folders[number].neighbour(_name(name))
            # The files without a pointer to this log were taken out of the set, or are done.
            if (pointer := _pointer_to(place, header.identity)) is not None:
                steps.append((place, pointer, inode, old))
        sync_folders(folders)
        for place, _, inode, old in steps:
            if how.force and place.path == asked.path:
                remove_dead(asked.draft_name, asked.dirfd, alone=True)
            elif _put(place, inode, old, how):
                done.append(place.path)
        sync_folders(folders)
        for place, pointer, _, _ in steps:
            if place.dirfd != home.dirfd:
                calls.unlink_inode(place.pointer, place.dirfd, pointer)
        sync_folders(others)
        return [place.pointer for place, *_ in steps if place.dirfd == home.dirfd], done


def _pointer_to(place: Place, identity: bytes) -> int | None:
    """Return the inode of the pointer from a file to the log of an identity; None if there is none."""
    if (fd := _open(place)) is None:
        return None
    try:
        header = log.read_header(fd)
        return os.fstat(fd).st_ino if header is not None and header.identity == identity else None
    finally:
        calls.close_quietly(fd)


def _put(place: Place, inode: int, old: list[int] | None, how: How) -> bool:
    """Let the draft of an inode take its place, if it has not yet; return whether it did."""
    name, path = place.draft_name, place.path
    draft, now = calls.status_at(name, place.dirfd), calls.status_at(place.base, place.dirfd)
    if draft is None or (draft.st_ino != inode and not how.adopt):
        if now is None or now.st_ino != inode:
            notice([path], "was changed or removed since a command had committed its result, which is gone")
        return False
    if log.stamp(now) == old or (how.adopt and now is not None):
        calls.rename(name, place.base, place.dirfd)
        return True
    kept = place.neighbour(place.base[:200] + b".mpired-kept")
    calls.rename(name, kept.base, place.dirfd)
    reason = "was changed since a command had committed a new content of it"
    notice([path], f"{reason}, which is kept as {kept.path}")
    return False


class Recovered(NamedTuple):
    """Leftovers beside a file, and the actions on them."""

    file: str  # the name as given
    words: tuple[str, ...] = ()  # the actions, or with `only_list` the leftovers
    changed: bool = False


def recover_files(files: Sequence[str], options: Options, context: Context, tell: Callable[[Recovered], None]) -> None:
    """Finish the interrupted update of each file, and remove its leftovers."""
    # The user asserts that no other command is at work.
    chosen = {name: options[name] for name in ("adopt", "discard", "force")}
    how = How(LockTimeout(context.lock_timeout), alone=True, **chosen)
    errors: list[MpiredError | OSError] = []
    for name in files:
        notices: list[tuple[Sequence[str], str]] = []
        try:
            path = os.path.realpath(check_is_data(name))
            with calls.errors_name(name), notices_to(lambda *each, to=notices: to.append(each)):
                done = (_leftovers if options["only_list"] else _actions)(name, path, how)
        except (MpiredError, OSError) as error:
            errors.append(error)
            for each in notices:
                notice(*each)
        else:
            words = (*(text for _, text in notices), *done)
            tell(Recovered(name, words, bool(words) and not options["only_list"]))
    raise_all(errors, len(files), "files")


def _leftovers(name: str, path: str, _how: How) -> list[str]:
    """List the leftovers beside a file."""
    how = How(LockTimeout(timeout=0), alone=True)
    with _opened(name, path) as place:
        try:
            with _locked(place, how) as fd:
                found = _PENDING if fd is not None or calls.attribute(path, MARK) else ""
                if fd is not None and _judged(place, fd, how) is None:
                    found = _INCOMPLETE
        except LockError:
            found = "a change at work"
        except BufferFileError:
            found = "a log that is not its own"
        draft = f"draft {os.fsdecode(place.draft_name)}"
        return [*filter(None, [found]), *([draft] if calls.status_at(place.draft_name, place.dirfd) else [])]


def _actions(name: str, path: str, how: How) -> list[str]:
    """Recover a file, and remove its draft; list the actions of which there is no notice."""
    check_is_data(path, changes=True)
    done = recover(name, path, how)
    with _opened(name, path) as place:
        draft = os.fsdecode(place.draft_name)
        is_removed = remove_dead(place.draft_name, place.dirfd, alone=True)
    if not done and not is_removed:
        calls.close_quietly(calls.open_regular(path, os.O_RDONLY))  # raises an error for a path that is not a file
    return [*({done} - {"", FINISHED}), *([f"removed {draft}"] if is_removed else [])]
