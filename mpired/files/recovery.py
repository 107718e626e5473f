"""What an interrupted command has left of a file: a committed change to finish, or a log and a draft to remove.

Whoever opens NAME looks for `.NAME.mpired`. If a living command holds it, its end is awaited. If that command has ended
and was committed, its change is finished here; if it was not committed, nothing has happened, and its log goes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from mpired.context import Context
from mpired.errors import BufferFileError, LockError, MpiredError, UnconfirmedError, UsageError, raise_all
from mpired.files import calls, interruptions, log, mounts
from mpired.files.lock import NoLocksError, Waiting, acquire
from mpired.files.log import Header, Kind
from mpired.files.names import (
    MARK,
    check_is_data,
    check_no_old_journal,
    draft_name,
    has_log,
    mark_of,
    pointer_name,
    pointer_path,
    scratch_name,
)
from mpired.files.scratch import remove_dead
from mpired.log import heard_by, notice
from mpired.options import Options

_SCRATCH_FILES = 100
"""So many of one result may have been left; more commands are not at work on it at a time."""

FINISHED, DISCARDED = "finished", "gave up an unfinished change"
_NO_FILE = "is not a regular file, so it is not the log of a change; remove it"
_GIVE_UP = "`mpired recover --discard --force` gives the change up, and leaves the file as it is"
# These tell nothing of a file.
_SYSTEM_FAILS = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})
_PENDING, _FOREIGN = "a committed change to finish", "a log that is not its own"
_INCOMPLETE = "the log of a change that was never committed"
FORGOTTEN = f"removed {_INCOMPLETE}"
_MARK = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,20}) ([0-9]{1,20}) (/[^\0]*)", re.DOTALL)


class How(NamedTuple):
    """How a file is recovered."""

    waiting: Waiting = Waiting()
    writing: bool = False  # whether the file is to be written to, and so must be free
    alone: bool = False  # whether the user says that no other command is at work, where locks do not show that
    adopt: bool = False  # whether a log that was copied, or restored, is believed
    discard: bool = False  # whether a change is given up of which nothing was committed
    force: bool = False  # whether a committed one is given up


class Place(NamedTuple):
    """A file, by the open directory that it is in."""

    name: str  # what messages call it
    directory: str
    dirfd: int
    base: bytes

    @property
    def path(self) -> str:
        """The path of the file."""
        return os.path.join(self.directory, os.fsdecode(self.base))

    @property
    def pointer(self) -> str:
        """The path of its log, or of the note that leads to that."""
        return pointer_path(self.path)


@contextlib.contextmanager
def _opened(name: str, path: str) -> Iterator[Place]:
    directory, base = os.path.split(path)
    with calls.directory(directory) as dirfd:
        yield Place(name, directory or os.curdir, dirfd, os.fsencode(base))


def recover(name: str, path: str, how: How) -> str:
    """Finish or forget what an interrupted command has begun with the file `path`, which messages call `name`.

    Return what became of it: `FINISHED`, `FORGOTTEN`, `DISCARDED`, or "" if there was nothing.
    """
    how = how._replace(waiting=how.waiting.begun())
    with calls.blaming(name):
        if not has_log(path) and (mark := mark_of(path)) is not None:
            return _recover_by_mark(name, path, mark, how)
        with _opened(name, path) as place, _locked(place, how) as fd:
            return "" if fd is None else _recover_locked(place, fd, how)


def _recover_by_mark(name: str, path: str, mark: bytes, how: How) -> str:
    """Recover a file with several names by that by which its change was begun."""
    match = _MARK.fullmatch(mark)
    if match is None:  # not written by mpired, so it says nothing
        return ""
    identity, other = bytes.fromhex(match[1].decode()), os.fsdecode(match[4])
    status = os.stat(path)
    if int(match[2]) != status.st_ino and not how.force:
        reason = f"was copied in the middle of a change of {other}, and may be half changed"
        raise BufferFileError(name, f"{reason}; copy that file again, or take this one as it is: {_GIVE_UP}")
    done, is_lost = "", False
    try:
        with _opened(name, other) as place, _locked(place, how) as fd:
            header, folder = None if fd is None else log.read_header(fd), os.fstat(place.dirfd)
            if fd is not None and header is not None and header.identity == identity:
                done = _recover_locked(place, fd, how)
            else:
                is_lost = (folder.st_dev, folder.st_ino) != (status.st_dev, int(match[3]))
    except (FileNotFoundError, NotADirectoryError):
        is_lost = True
    if is_lost and not how.force:
        reason = f"has a change that was begun by its name {other}, whose directory is not there"
        raise BufferFileError(name, f"{reason}; bring it back, or {_GIVE_UP}")
    done = DISCARDED if is_lost else done
    if (now := mark_of(path)) is not None and now != mark:  # another change has begun meanwhile
        return _recover_by_mark(name, path, now, how)
    with contextlib.suppress(OSError):
        os.removexattr(path, MARK)  # its change is finished
    return done


@contextlib.contextmanager
def _locked(place: Place, how: How) -> Iterator[int | None]:
    """Open and lock what has the name of a log, when no living command has it; None if nothing has that name."""
    name = pointer_name(place.base)
    while True:
        fd = _open(place, name)
        if fd is None:
            yield None
            return
        try:
            _acquire(place, fd, how)
            if calls.leads_to(name, place.dirfd, fd):
                yield fd
                return
        finally:
            calls.unlock(fd)
            calls.let_go(fd)


def _open(place: Place, name: bytes) -> int | None:
    """Open what has the name of a log, for reading alone where it may not be written to; None if nothing has it."""
    try:
        try:
            return calls.open_regular(name, os.O_RDWR, place.dirfd)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                raise
            return calls.open_regular(name, os.O_RDONLY, place.dirfd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EINVAL}:
            raise BufferFileError(place.pointer, _NO_FILE) from error
        if isinstance(error, PermissionError):
            raise _of_another(place, os.stat(name, dir_fd=place.dirfd, follow_symlinks=False)) from error
        raise


def _is_writable(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _acquire(place: Place, fd: int, how: How) -> None:
    """Wait until no living command holds a log."""
    with contextlib.suppress(NoLocksError):
        acquire(fd, place.name, how.waiting, shared=not _is_writable(fd))
        if how.alone or mounts.obstacle(fd) is None or not calls.leads_to(pointer_name(place.base), place.dirfd, fd):
            return
    if not how.alone:
        reason = "has an unfinished change, and there are no locks that show whether its command still runs"
        raise LockError(place.name, f"{reason}; when it does not, `mpired recover` of this file finishes it")


def _of_another(place: Place, status: os.stat_result) -> BufferFileError:
    """Return the error for a change that only another user can finish."""
    user, name = _shown_user(status.st_uid)
    command = f"mpired recover {place.name}"
    way_out = f"run `runuser -u {name} -- {command}`" if os.geteuid() == 0 else f"that user finishes it: `{command}`"
    return BufferFileError(place.name, f"has an unfinished change of {user}; {way_out}")


def _shown_user(user: int) -> tuple[str, str]:
    """Return a user as messages name it, and by the name alone."""
    import pwd  # noqa: PLC0415 - most commands meet no log of another user

    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}", f"'#{user}'"
    return f"user {name} ({user})", name


def _recover_locked(place: Place, fd: int, how: How) -> str:
    """Recover what a log, or a note, of a command that has ended says."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        if _judged(place, fd, how, own=False) is not None:
            raise _of_another(place, status)
        if how.writing:
            reason = f"has a log of {_shown_user(status.st_uid)[0]} beside it, of which nothing was committed"
            raise LockError(place.name, f"{reason}; that user removes it: `mpired recover {place.name}`")
        return ""
    header = _judged(place, fd, how)
    if header is not None and header.kind == Kind.NOTE:
        return _recover_noted(place, fd, header, how)
    if not _is_writable(fd):
        if header is None and not how.writing:
            return ""
        reason = "has an unfinished change, and nothing can be written here"
        raise BufferFileError(place.name, f"{reason}; `mpired recover` finishes it where that can be done")
    if header is None:
        if mark_of(fd) is not None:  # what is not known as a log is not written to
            os.ftruncate(fd, 0)
            calls.fsync(fd)  # so that no loss of power brings it back to life
        return _forgotten(place, fd)
    return _finish(place, fd, header, how, place)


def _judged(place: Place, fd: int, how: How, *, own: bool = True) -> Header | None:
    """Return the header of a log; None if nothing was committed; an error if it is not what it says."""
    header = log.read_header(fd)
    if header is None:
        return None
    if own and not how.adopt:
        if (os.fstat(fd).st_ino, os.fstat(place.dirfd).st_ino) != (header.inode, header.folder):
            reason = "is a copy of a log, of a change that its original finishes"
            raise BufferFileError(
                place.pointer, f"{reason}; `mpired recover --adopt {place.name}` takes it for its own"
            )
        marked = log.has_mark(fd, place.dirfd, header.identity)
        if marked is None:
            reason = "may be of another user, as others can write to its directory, which has no attributes"
            raise BufferFileError(place.pointer, f"{reason}; look at it, and remove it")
        if not marked:
            return None  # it came to the disk before its mark, and so before the commit
    return header if log.is_whole(fd, header) else None


def _forgotten(place: Place, fd: int, *, alone: bool = False) -> str:
    """Remove a log of which nothing was committed, or a note of which nothing is left to do, and the draft."""
    remove_dead(draft_name(place.base), place.dirfd, alone=alone)
    calls.unlink_inode(pointer_name(place.base), place.dirfd, os.fstat(fd).st_ino)
    return FORGOTTEN


def _recover_noted(place: Place, fd: int, header: Header, how: How) -> str:
    """Recover a file whose log lies in another folder."""
    body = log.body_of(fd, header)
    with _folder(place, body["home"], body["inode"], how, _name(body["first"])) as home:
        with _locked(home, how) as found:
            whole = None if found is None else _judged(home, found, how)
            if found is not None and whole is not None and whole.identity == header.identity:
                return _finish(home, found, whole, how, place)
        return _forgotten(place, fd, alone=True)  # the log goes last: all of it was finished, or never committed


@contextlib.contextmanager
def _folder(place: Place, path: str, inode: int, how: How, base: str = "") -> Iterator[Place]:
    """Open another folder of a set of files, which must be the one that it was."""
    directory = os.path.normpath(os.path.join(place.directory, path))
    reason = f"has an unfinished change that belongs to files in {directory}, which is not the directory that it was"
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(_opened(place.name, os.path.join(directory, base)))
        except OSError as error:
            why = f"{reason} ({error.strerror}); bring it back, or {_GIVE_UP}"
            raise BufferFileError(place.name, why) from error
        status, here = os.fstat(folder.dirfd), os.fstat(place.dirfd)
        if (status.st_dev, status.st_ino) != (here.st_dev, inode) and not how.adopt:
            raise BufferFileError(place.name, f"{reason}; bring it back, or {_GIVE_UP}")
        yield folder


def _name(name: str) -> str:
    """Return a name that a log has; one with a path is none."""
    if "/" in name or name in {"", ".", ".."}:
        raise BufferFileError(name, "is not a name of a file, so it is not from a log of mpired")
    return name


def _finish(home: Place, fd: int, header: Header, how: How, asked: Place) -> str:
    """Do what a committed log says, and remove it: each step may have been done before."""
    if how.discard and not how.force:
        reason = f"has a committed change, so its log {asked.pointer} stays"
        raise BufferFileError(asked.name, f"{reason}; `mpired recover` finishes it; {_GIVE_UP}")
    with interruptions.blocked():  # so that who is interrupted leaves no half
        body = log.body_of(fd, header)
        calls.fsync(fd)  # what was read may be in memory alone
        if header.kind == Kind.PATCH:
            _finish_patch(home, fd, header, body, how)
        else:
            _finish_puts(home, fd, header, body, how, asked)
    return DISCARDED if how.force else FINISHED


def _finish_patch(home: Place, fd: int, header: Header, body: dict[str, Any], how: How) -> None:
    place = home._replace(base=os.fsencode(_name(body["name"])))
    calls.fsync_directory(home.dirfd)
    if not how.force:
        target = _patched(place, home.pointer, body, how)
        try:
            log.apply(fd, header, target, body["attributes"])
            calls.fsync(target)
            with contextlib.suppress(OSError):
                os.removexattr(target, MARK)
        except OSError as error:
            reason = f"an earlier change in its log cannot be finished yet, {error.strerror}; it is kept"
            raise OSError(error.errno, reason, home.name) from error
        finally:
            calls.let_go(target)
    _end(home, fd, [place])
    if not how.force:
        text = f"finished an update of {header.payload_nbytes} bytes that an interrupted command had committed"
        notice([home.name], text)


def _patched(place: Place, pointer: str, body: dict[str, Any], how: How) -> int:
    """Open the file that a patch is of, and make sure that it is that very file."""
    try:
        fd = calls.open_regular(place.base, os.O_RDWR, place.dirfd)
    except OSError as error:
        if error.errno in _SYSTEM_FAILS:
            raise
        reason = f"has an unfinished update, and cannot be opened for it ({error.strerror})"
        raise BufferFileError(place.path, f"{reason}; bring it back, or {_GIVE_UP}") from error
    status, generations = os.fstat(fd), {calls.generation(fd), body["generation"]}
    # A generation of 0 is not known, as where a file system is met by another way than before.
    is_same = status.st_ino == body["inode"] and (len(generations) == 1 or 0 in generations)
    if status.st_size != body["size"] or not (is_same or how.adopt):
        calls.let_go(fd)
        reason = f"is not the file any more that the unfinished update in {pointer} is of"
        way_out = f"give that file its name again and run `mpired recover`, or {_GIVE_UP}"
        raise BufferFileError(place.path, f"{reason}; {way_out}")
    return fd


class _Step(NamedTuple):
    """What is still to be done with one file of a set."""

    place: Place
    pointer: int  # the inode of what leads to the log: itself, or a note
    inode: int  # that of the draft
    old: list[int] | None  # the stamp of what it replaces


def _finish_puts(home: Place, fd: int, header: Header, body: dict[str, Any], how: How, asked: Place) -> None:
    done: list[str] = []
    with ExitStack() as stack:
        others = [stack.enter_context(_folder(home, path, inode, how)) for inode, path in body["folders"][1:]]
        folders = [home, *others]
        steps = _steps(folders, header, body)
        _sync(folders)
        for step in steps:
            if how.force and step.place.path == asked.path:
                remove_dead(draft_name(asked.base), asked.dirfd, alone=True)
            elif _put(step, how):
                done.append(step.place.path)
        _sync(folders)
        for step in steps:
            if step.place.dirfd != home.dirfd:
                log.unlink([pointer_name(step.place.base)], step.place.dirfd, step.pointer, durable=False)
        _sync(others)
        _end(home, fd, [step.place for step in steps if step.place.dirfd == home.dirfd])
    if done:
        files = f" ({len(done)} file{'s' if len(done) > 1 else ''})"
        notice(done, f"finished what an interrupted command had committed{files}")


def _steps(folders: list[Place], header: Header, body: dict[str, Any]) -> list[_Step]:
    """Return the steps for those files of a set that still lead to its log: the others were taken out, or are done."""
    found = []
    for number, name, inode, old in body["steps"]:
        place = folders[number]._replace(base=os.fsencode(_name(name)))
        if (pointer := _pointer_to(place, header.identity)) is not None:
            found.append(_Step(place, pointer, inode, old))
    return found


def _sync(folders: list[Place]) -> None:
    for folder in folders:
        calls.fsync_directory(folder.dirfd)


def _pointer_to(place: Place, identity: bytes) -> int | None:
    """Return the inode of what leads from a file to the log of an identity; None if nothing does."""
    fd = _open(place, pointer_name(place.base))
    if fd is None:
        return None
    try:
        header = log.read_header(fd)
        return os.fstat(fd).st_ino if header is not None and header.identity == identity else None
    finally:
        calls.let_go(fd)


def _put(step: _Step, how: How) -> bool:
    """Let a draft take its place, if it has not yet; tell whether it did."""
    place, _, inode, old = step
    name, path = draft_name(place.base), place.path
    draft, now = calls.status_at(name, place.dirfd), calls.status_at(place.base, place.dirfd)
    if draft is None or (draft.st_ino != inode and not how.adopt):
        if now is None or now.st_ino != inode:
            notice([path], "was changed or removed since a command had committed its result, which is gone")
        return False
    if log.stamp(now) == old or (how.adopt and now is not None):
        calls.rename(name, place.base, place.dirfd)
        return True
    kept = place._replace(base=place.base[:200] + b".mpired-kept")
    calls.rename(name, kept.base, place.dirfd)
    reason = "was changed since a command had committed a new content of it"
    notice([path], f"{reason}, which is kept as {kept.path}")
    return False


def _end(home: Place, fd: int, places: Iterable[Place]) -> None:
    """Remove a log that is finished."""
    try:
        log.finish(fd, [pointer_name(place.base) for place in places], home.dirfd)
    except OSError as error:
        reason = f"an earlier change is finished, but its log {home.pointer} cannot be removed ({error.strerror})"
        raise UnconfirmedError(home.name, f"{reason}; allow that and run `mpired recover`") from error


def _look(name: str, path: str) -> list[str]:
    """Say what there is beside a file, changing nothing."""
    with calls.blaming(name), _opened(name, path) as place:
        draft = draft_name(place.base)
        drafts = [f"draft {os.fsdecode(draft)}"] if calls.status_at(draft, place.dirfd) else []
        try:
            with _locked(place, How(Waiting(timeout=0), alone=True)) as fd:
                if fd is None:
                    return ([_PENDING] if mark_of(path) else []) + drafts
                if os.fstat(fd).st_uid != os.geteuid():
                    return [_FOREIGN, *drafts]
                return [_INCOMPLETE if _judged(place, fd, How()) is None else _PENDING, *drafts]
        except LockError:
            return ["a change at work", *drafts]
        except BufferFileError:
            return [_FOREIGN, *drafts]


class Recovered(NamedTuple):
    """Leftovers beside a file, and what became of them."""

    file: str  # as it was named
    words: tuple[str, ...] = ()  # the actions, or with `only_list` the leftovers
    changed: bool = False


def recover_files(files: Sequence[str], options: Options, context: Context, tell: Callable[[Recovered], None]) -> None:
    """Finish the interrupted update of each file, and remove its leftovers."""
    check(options)
    wanted = {name: options[name] for name in ("adopt", "discard", "force")}
    how = How(Waiting(context.lock_timeout), alone=True, **wanted)
    errors: list[MpiredError | OSError] = []
    heard: list[tuple[Sequence[str], str]] = []  # the files that were finished, and the message
    done: list[str] = []
    with heard_by(lambda *notice: heard.append(notice)):
        for name in files:
            try:
                path = os.path.realpath(check_is_data(name))
                if options["only_list"]:
                    found = Recovered(name, tuple(_look(name, path)))
                else:
                    found = _recovered(name, path, heard, how)
            except (MpiredError, OSError) as error:
                errors.append(error)
            else:
                tell(found)
                done.append(name)
    for paths, words in heard:
        if not any(_concerns(paths, name) for name in done):
            notice(paths, words)
    raise_all(errors, len(files), "files")


def check(options: Options) -> None:
    """Raise `UsageError` if the options contradict each other."""
    if options["only_list"] and options["discard"]:
        raise UsageError("`only_list`", "changes nothing, and `discard` removes logs; give one of the two")
    if options["force"] and not options["discard"]:
        reason = "lets `discard` remove a log that is needed; give `discard` too, or neither"
        raise UsageError("`force`", reason)


def _concerns(paths: Sequence[str], name: str) -> bool:
    return os.path.realpath(name) in map(os.path.realpath, paths)


def _recovered(name: str, path: str, heard: Sequence[tuple[Sequence[str], str]], how: How) -> Recovered:
    """Recover a file, and remove its drafts and scratch files; the user says that no other command is at work."""
    check_no_old_journal(path)
    found = recover(name, path, how)
    with calls.blaming(name), _opened(name, path) as place:
        own = [draft_name(place.base), *(scratch_name(place.base, number) for number in range(_SCRATCH_FILES))]
        removed = [os.fsdecode(each) for each in own if remove_dead(each, place.dirfd, alone=True)]
    if not found and not removed:
        calls.let_go(calls.open_existing(path, name, writable=False))  # what is missing, or not a file, is an error
    done = [words for paths, words in heard if _concerns(paths, name)]
    done += [found] if found not in {"", FINISHED} else []
    done += [f"removed {draft}" for draft in removed]
    return Recovered(name, tuple(done), bool(done))
