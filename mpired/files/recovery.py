"""Recovery of files after interrupted commands: finish a committed change, or remove a log and a draft.

Every command that opens NAME looks for the log `.NAME.mpired`. While a running command holds the lock on the log,
recovery waits. If the command has ended after its commit, recovery finishes the change; otherwise it removes the log.
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
# Errors of the system, not of the file.
_SYSTEM_ERRORS = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})
_PENDING = "a committed change to finish"
_INCOMPLETE = "the log of a change that was never committed"
FORGOTTEN = f"removed {_INCOMPLETE}"
_MARK = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,20}) ([0-9]{1,20}) (/[^\0]*)", re.DOTALL)


class RecoveryOptions(NamedTuple):
    """Options of the recovery of a file."""

    timeout: LockTimeout
    writing: bool = False  # whether the caller will write to the file
    alone: bool = False  # whether no other mpired command runs, for file systems without locks
    adopt: bool = False  # accept a copied or restored log
    discard: bool = False  # give up a change that is not committed
    force: bool = False  # with `discard`: give up a committed change too


@contextlib.contextmanager
def _open_place(name: str, path: str) -> Iterator[Place]:
    path = path if os.path.dirname(path) else os.path.join(os.curdir, path)
    with calls.directory(os.path.dirname(path)) as dirfd:
        yield Place(name, path, dirfd)


def recover(name: str, path: str, options: RecoveryOptions) -> str:
    """Finish or forget the interrupted change of a file; return `FINISHED`, `FORGOTTEN`, `DISCARDED`, or ""."""
    with calls.errors_name(name), _open_place(name, path) as place:
        if not has_log(path) and (mark := calls.attribute(path, MARK)):
            return _recover_by_mark(place, mark, options)
        with _lock_log(place, options) as fd:
            return "" if fd is None else _recover_by_log(place, fd, options, place)


def _recover_by_mark(place: Place, mark: bytes, options: RecoveryOptions) -> str:
    """Recover a file with several hard links by the path that its mark has."""
    match = _MARK.fullmatch(mark)
    if match is None:  # not written by mpired
        return ""
    identity, path = bytes.fromhex(match[1].decode()), os.fsdecode(match[4])
    if int(match[2]) != os.stat(place.path).st_ino and not options.force:
        reason = f"was copied in the middle of a change of {path}, and may be half changed"
        raise BufferFileError(place.name, f"{reason}; copy that file again, or take this one as it is: {_GIVE_UP}")
    action = _recover_elsewhere(place, path, int(match[3]), identity, options)
    if (new_mark := calls.attribute(place.path, MARK)) and new_mark != mark:  # the next change has begun
        return _recover_by_mark(place, new_mark, options)
    with contextlib.suppress(OSError):
        os.removexattr(place.path, MARK)
    return action or ""


def _recover_elsewhere(place: Place, path: str, inode: int, identity: bytes, options: RecoveryOptions) -> str | None:
    """Recover a file by the log of `path`, whose directory has the inode; None if this log does not exist any more."""
    with ExitStack() as stack:
        try:
            home = _open_folder(place, path, inode, options, stack)
        except BufferFileError:
            if not options.force:
                raise
            return DISCARDED
        fd = stack.enter_context(_lock_log(home, options))
        header = None if fd is None else log.read_header(fd)
        if fd is None or header is None or header.identity != identity or header.kind == LogKind.NOTE:
            return None
        return _recover_by_log(home, fd, options, place)


@contextlib.contextmanager
def _lock_log(place: Place, options: RecoveryOptions) -> Iterator[int | None]:
    """Open and lock the log of a file, after its command has ended; None if the file has no log."""
    while (fd := _open_log(place)) is not None:
        try:
            has_ended = options.alone  # whether the command of the log has certainly ended
            with contextlib.suppress(NoLocksError):
                acquire(fd, place.name, options.timeout, shared=not _is_writable(fd))
                has_ended = options.alone or mounts.obstacle(fd) is None
            is_current = calls.leads_to(place.pointer, place.dirfd, fd)
            if is_current and not has_ended:
                reason = "has an unfinished change, and there are no locks that show whether its command still runs"
                raise LockError(place.name, f"{reason}; when it does not, `mpired recover` of this file finishes it")
            if is_current:
                yield fd
                return
        finally:
            calls.release(fd)
    yield None


def _open_log(place: Place) -> int | None:
    """Open the log of a file, only for reading if writing is not allowed; None if the file has no log."""
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
            raise _foreign_log_error(place, status) from error
        raise


def _is_writable(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _foreign_log_error(place: Place, status: os.stat_result) -> BufferFileError:
    """Return the error for a log that only another user can finish."""
    user, command = _user_name(status.st_uid), f"mpired recover {place.name}"
    hint = f"run `runuser -u {user} -- {command}`" if os.geteuid() == 0 else f"that user finishes it: `{command}`"
    return BufferFileError(place.name, f"has an unfinished change of user {user} ({status.st_uid}); {hint}")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _recover_by_log(place: Place, fd: int, options: RecoveryOptions, requested: Place) -> str:
    """Recover a file by the log, or note, of a command that has ended."""
    header, status, action = _committed_header(place, fd, options), os.fstat(fd), FORGOTTEN
    if header is None and status.st_uid != os.geteuid():
        if options.writing:
            reason = f"has a log of user {_user_name(status.st_uid)} beside it, of which nothing was committed"
            raise LockError(place.name, f"{reason}; that user removes it: `mpired recover {place.name}`")
        return ""
    if header is not None and header.kind == LogKind.NOTE:
        body = log.body_of(fd, header)
        path = os.path.join(body["home"], _check_name(body["first"]))
        result = _recover_elsewhere(place, path, body["inode"], header.identity, options)
        if result in {"", FINISHED}:
            return result or ""
        action = result or FORGOTTEN  # the log is removed last: without a log no change is pending
    elif not _is_writable(fd):
        if header is None and not options.writing:
            return ""
        reason = "has an unfinished change, and nothing can be written here"
        raise BufferFileError(place.name, f"{reason}; `mpired recover` finishes it where that can be done")
    elif header is not None:
        return _finish(place, fd, header, options, requested)
    elif calls.attribute(fd, MARK):  # a file without the mark may be data of the user, and is not written to
        os.ftruncate(fd, 0)
        calls.fsync(fd)  # otherwise the content may reappear after a loss of power
    remove_dead(place.draft_name, place.dirfd, alone=header is not None)
    calls.unlink_inode(place.pointer, place.dirfd, status.st_ino)
    return action


def _committed_header(place: Place, fd: int, options: RecoveryOptions) -> LogHeader | None:
    """Return the header of a committed log, or None; refuse a copied log, and a committed log of another user."""
    header, status = log.read_header(fd), os.fstat(fd)
    if header is None:
        return None
    is_own = status.st_uid == os.geteuid()
    if is_own and not options.adopt:
        if (status.st_ino, os.fstat(place.dirfd).st_ino) != (header.inode, header.folder):
            reason = "is a copy of a log, of a change that its original finishes"
            reason = f"{reason}; `mpired recover --adopt {place.name}` takes it for its own"
            raise BufferFileError(own_path(place.path), reason)
        is_marked = log.has_mark(fd, place.dirfd, header.identity)
        if is_marked is None:
            reason = "may be of another user, as others can write to its directory, which has no attributes"
            raise BufferFileError(own_path(place.path), f"{reason}; look at it, and remove it")
        if not is_marked:  # the mark is on the disk before the commit
            return None
    if not log.is_whole(fd, header):
        return None
    if not is_own:
        raise _foreign_log_error(place, status)
    return header


def _open_folder(place: Place, path: str, inode: int, options: RecoveryOptions, stack: ExitStack) -> Place:
    """Open the directory of another file of a set, which must have the inode."""
    directory, base = os.path.split(os.path.join(place.directory, path))
    directory, error_text = os.path.normpath(directory), ""
    try:
        other = stack.enter_context(_open_place(place.name, os.path.join(directory, base)))
        status = os.fstat(other.dirfd)
        if (status.st_dev, status.st_ino) == (os.fstat(place.dirfd).st_dev, inode) or options.adopt:
            return other
    except OSError as error:
        error_text = f" ({error.strerror})"
    reason = f"has an unfinished change that belongs to files in {directory}, which is not the directory that it was"
    raise BufferFileError(place.name, f"{reason}{error_text}; bring it back, or {_GIVE_UP}")


def _check_name(name: str) -> str:
    """Return a name from a log; refuse a path, which may lead to another directory."""
    if "/" in name or name in {"", ".", ".."}:
        raise BufferFileError(name, "is not a name of a file, so it is not from a log of mpired")
    return name


def _finish(home: Place, fd: int, header: LogHeader, options: RecoveryOptions, requested: Place) -> str:
    """Carry out all steps of a committed log, some perhaps again, and remove the log."""
    if options.discard and not options.force:
        reason = f"has a committed change, so its log {own_path(requested.path)} stays"
        raise BufferFileError(requested.name, f"{reason}; `mpired recover` finishes it; {_GIVE_UP}")
    with interrupts.defer_signals():
        body = log.body_of(fd, header)
        calls.fsync(fd)  # the bytes may be in the page cache only
        if header.kind == LogKind.PATCH:
            place, changed = home.neighbour(_check_name(body["name"])), [] if options.force else [home.name]
            calls.fsync_directory(home.dirfd)
            if not options.force:
                _apply(place, fd, header, body, options)
            pointers = [place.pointer]
            text = f"finished an update of {header.payload_nbytes} bytes that an interrupted command had committed"
        else:
            pointers, changed = _finish_puts(home, header, body, options, requested)
            files = f" ({len(changed)} file{'s' if len(changed) > 1 else ''})"
            text = f"finished what an interrupted command had committed{files}"
        with unconfirmed(
            home.name, f"an earlier change is finished, but its log {own_path(home.path)} cannot be removed"
        ):
            log.finish(fd, pointers, home.dirfd)
        if changed:
            notice(changed, text)
    return DISCARDED if options.force else FINISHED


def _apply(place: Place, fd: int, header: LogHeader, body: dict[str, Any], options: RecoveryOptions) -> None:
    """Apply a patch to its file, if the file is still the same."""
    reason = f"is not the file any more that the unfinished update in {own_path(place.path)} is of"
    with ExitStack() as stack:
        try:
            target = calls.open_regular(place.base, os.O_RDWR, place.dirfd)
            stack.callback(calls.close_quietly, target)
            status, generations = os.fstat(target), {calls.generation(target), body["generation"]}
        except OSError as error:
            if error.errno in _SYSTEM_ERRORS:
                raise
            reason = f"has an unfinished update, and cannot be opened for it ({error.strerror})"
        else:
            # A generation of 0 is unknown, such as on a file system that is now mounted by NFS.
            is_same = status.st_ino == body["inode"] and (len(generations) == 1 or 0 in generations)
            if status.st_size == body["size"] and (is_same or options.adopt):
                log.apply(fd, header, target, body["attributes"])
                calls.fsync(target)
                with contextlib.suppress(OSError):
                    os.removexattr(target, MARK)
                return
    hint = f"give that file its name again and run `mpired recover`, or {_GIVE_UP}"
    raise BufferFileError(place.path, f"{reason}; {hint}")


def _finish_puts(
    home: Place, header: LogHeader, body: dict[str, Any], options: RecoveryOptions, requested: Place
) -> tuple[list[bytes], list[str]]:
    """Replace the files of a set by their drafts; return the names of the log, and the paths of replaced files."""
    replaced: list[str] = []
    with ExitStack() as stack:
        other_folders = [
            _open_folder(home, os.path.join(path, ""), inode, options, stack) for inode, path in body["folders"][1:]
        ]
        folders = [home, *other_folders]
        steps = []  # for each file: its place, the inodes of its pointer and draft, the stamp of the old file
        for number, name, inode, old_stamp in body["steps"]:
            place = folders[number].neighbour(_check_name(name))
            # A file without a pointer to this log is finished, or was removed from the set.
            if (pointer := _pointer_to(place, header.identity)) is not None:
                steps.append((place, pointer, inode, old_stamp))
        sync_folders(folders)
        for place, _, inode, old_stamp in steps:
            if options.force and place.path == requested.path:
                remove_dead(requested.draft_name, requested.dirfd, alone=True)
            elif _put(place, inode, old_stamp, options):
                replaced.append(place.path)
        sync_folders(folders)
        for place, pointer, _, _ in steps:
            if place.dirfd != home.dirfd:
                calls.unlink_inode(place.pointer, place.dirfd, pointer)
        sync_folders(other_folders)
        return [place.pointer for place, *_ in steps if place.dirfd == home.dirfd], replaced


def _pointer_to(place: Place, identity: bytes) -> int | None:
    """Return the inode of the log or note of a file; None if the file has none with this identity."""
    if (fd := _open_log(place)) is None:
        return None
    try:
        header = log.read_header(fd)
        return os.fstat(fd).st_ino if header is not None and header.identity == identity else None
    finally:
        calls.close_quietly(fd)


def _put(place: Place, inode: int, old_stamp: list[int] | None, options: RecoveryOptions) -> bool:
    """Replace a file by its draft, which has the inode, unless that is done already; return whether it was replaced."""
    name, path = place.draft_name, place.path
    draft, current = calls.status_at(name, place.dirfd), calls.status_at(place.base, place.dirfd)
    if draft is None or (draft.st_ino != inode and not options.adopt):
        if current is None or current.st_ino != inode:
            notice([path], "was changed or removed since a command had committed its result, which is gone")
        return False
    if log.stamp(current) == old_stamp or (options.adopt and current is not None):
        calls.rename(name, place.base, place.dirfd)
        return True
    kept = place.neighbour(place.base[:200] + b".mpired-kept")
    calls.rename(name, kept.base, place.dirfd)
    reason = "was changed since a command had committed a new content of it"
    notice([path], f"{reason}, which is kept as {kept.path}")
    return False


class Recovered(NamedTuple):
    """Leftovers of a file, and the actions of its recovery."""

    file: str  # path of the caller
    words: tuple[str, ...] = ()  # actions; with `only_list` the leftovers
    changed: bool = False


def recover_files(
    files: Sequence[str], options: Options, context: Context, report: Callable[[Recovered], None]
) -> None:
    """Recover files and remove their drafts, or list their leftovers; report each file."""
    chosen = {name: options[name] for name in ("adopt", "discard", "force")}
    recovery_options = RecoveryOptions(LockTimeout(context.lock_timeout), alone=True, **chosen)
    errors: list[MpiredError | OSError] = []
    for name in files:
        notices: list[tuple[Sequence[str], str]] = []
        try:
            path = os.path.realpath(check_is_data(name))
            with calls.errors_name(name), notices_to(lambda *message, notices=notices: notices.append(message)):
                lines = _leftovers(name, path) if options["only_list"] else _recover_file(name, path, recovery_options)
        except (MpiredError, OSError) as error:
            errors.append(error)
            for message in notices:
                notice(*message)
        else:
            lines = [*(text for _, text in notices), *lines]
            report(Recovered(name, tuple(lines), bool(lines) and not options["only_list"]))
    raise_all(errors, len(files), "files")


def _leftovers(name: str, path: str) -> list[str]:
    """List the leftovers of a file."""
    options = RecoveryOptions(LockTimeout(timeout=0), alone=True)
    with _open_place(name, path) as place:
        try:
            with _lock_log(place, options) as fd:
                state = _PENDING if fd is not None or calls.attribute(path, MARK) else ""
                if fd is not None and _committed_header(place, fd, options) is None:
                    state = _INCOMPLETE
        except LockError:
            state = "a change at work"
        except BufferFileError:
            state = "a log that is not its own"
        draft = f"draft {os.fsdecode(place.draft_name)}" if calls.status_at(place.draft_name, place.dirfd) else ""
        return [*filter(None, [state, draft])]


def _recover_file(name: str, path: str, options: RecoveryOptions) -> list[str]:
    """Recover a file and remove its draft; list the actions without a notice."""
    check_is_data(path, changes=True)
    action = recover(name, path, options)
    with _open_place(name, path) as place:
        draft = os.fsdecode(place.draft_name)
        is_removed = remove_dead(place.draft_name, place.dirfd, alone=True)
    if not action and not is_removed:
        calls.close_quietly(calls.open_regular(path, os.O_RDONLY))  # raises an error for a path that is not a file
    return [*({action} - {"", FINISHED}), *([f"removed {draft}"] if is_removed else [])]
