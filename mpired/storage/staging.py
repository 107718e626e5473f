"""Staging directories: where the drafts of many files lie until all of them are put in place.

The drafts of a directory's files lie beside them in `.HEX.mpired-together`, each under a number. A manifest says
which draft goes where, and what is there now. An empty file `commit` in the first staging directory, durable
itself, is the commit point: a crash before it leaves every file as it was, and a crash after it something
that `settle` finishes. Each command calls that for the directories of its files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mpired.errors import BufferFileError, MpiredError, RanksError
from mpired.storage import calls, notices
from mpired.storage.manifest import MANIFEST, STAGING, Entry, Manifest, create, is_same, stamp

# What a staging directory holds besides drafts and the manifest. Only the first of a commit has a lock and can have
# the commit; in the others `home` leads to it.
LOCK, HOME = "lock", "home"
_COMMIT = "commit"
# Seconds to wait for a living process that puts its files in place.
_PATIENCE, _PAUSE = 30.0, 0.005


def new_name(directory: str) -> str:
    """Return a name for a staging directory."""
    return os.path.join(directory, f".{os.urandom(4).hex()}.mpired-together")


def commit(home: str) -> None:
    """Make the commit durable: from here on the results go forward, whatever happens."""
    path = os.path.join(home, _COMMIT)
    os.close(create(path))
    try:
        calls.fsync_directory_at(home)
    except OSError:
        calls.unlink(path)
        raise


def put_in_place(stagings: Sequence[str], *, overwrite: bool) -> None:
    """Rename all drafts of a commit that are still there, sync, and remove the staging directories, the home last.

    Without `overwrite` only what was there at the commit is replaced.
    """
    doubtful: list[MpiredError | OSError] = []
    for staging in stagings:
        with contextlib.suppress(FileNotFoundError):  # this one was done
            manifest = Manifest.read(staging)
            moved = bool(manifest.moved_from(staging))
            for entry in manifest.files:
                doubtful += _put(staging, entry, overwrite=overwrite, moved=moved)
            calls.fsync_directory_at(os.path.dirname(staging))
    if doubtful:
        raise doubtful[0] if len(doubtful) == 1 else RanksError(len(doubtful), doubtful, "results")
    for staging in reversed(stagings):
        with contextlib.suppress(FileNotFoundError):
            _remove(staging)


def _put(staging: str, entry: Entry, *, overwrite: bool, moved: bool) -> list[BufferFileError]:
    """Put a draft in its place, unless it is there; return what speaks against it."""
    number, name, old = entry
    draft, target = os.path.join(staging, number), os.path.join(os.path.dirname(staging), name)
    if not is_there(draft):
        return []
    found = stamp(target)
    with calls.blaming(target):
        if found is not None and os.path.samestat(os.lstat(draft), os.lstat(target)):
            calls.unlink(draft)  # its owner died when it had both names
        elif overwrite or is_same(found, old, moved=moved):
            calls.rename(draft, target)
        elif found is not None or old is not None or not _takes_free_name(draft, target):
            changed = "was changed, or copied without its times," if moved else "was changed"
            what = "was removed" if found is None and old else changed if old else "appeared"
            reason = f"{what} while a committed result for it waits in {staging}"
            return [BufferFileError(target, f"{reason}; move the result from there, or remove that directory")]
    return []


def _takes_free_name(draft: str, target: str) -> bool:
    """Put a draft in a place where nothing is; tell whether still nothing was there."""
    try:
        if calls.linked(draft, target):
            calls.unlink(draft)
        else:
            calls.rename(draft, target)  # a file system without hard links
    except FileExistsError:
        return False
    return True


def _remove(staging: str) -> None:
    """Remove a staging directory: the commit before the lock, so that no drafts are ever left with a commit alone."""
    last = [MANIFEST, _COMMIT, HOME, LOCK]
    names = os.listdir(staging)
    for name in [*(name for name in names if name not in last), *(name for name in last if name in names)]:
        calls.unlink(os.path.join(staging, name))
    calls.remove_directory(staging)


def _is_ours(staging: str) -> bool:
    """Tell whether this user made a staging directory: what others say is no reason to rename anything."""
    try:
        status = os.lstat(staging)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def is_there(path: str, fd: int | None = None) -> bool:
    """Tell whether there is a file at `path`, and if `fd` is given, that one."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return fd is None or os.path.samestat(status, os.fstat(fd))


class Pending(NamedTuple):
    """What an earlier command left in a directory.

    Parameters
    ----------
    home
        The staging directory with the lock and, if there is one, the commit.
    staging
        The one in that directory, which may be the same.
    """

    home: str
    staging: str


def settle(paths: Iterable[str]) -> None:
    """Finish what an interrupted command has committed in the directories of these files, and clear what it has not.

    A path that is none, as `-`, is taken for a name in the current directory, where that does no harm.

    Raises
    ------
    BufferFileError
        If a file is not what it was at the commit.
    OSError
        If it cannot be finished, or a living command does not finish it.
    """
    directories: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # there may be no current directory
        named = {os.path.dirname(calls.followed(path)) for path in paths}
        directories += sorted({os.path.realpath(directory) for directory in named})
    for directory in directories:
        for each in pending(directory):
            finish(each)


def pending(directory: str) -> list[Pending]:
    """Return what earlier or living commands of this user have left in a directory."""
    try:
        names = sorted(name for name in os.listdir(directory) if STAGING.fullmatch(name))
    except OSError:  # whoever opens a file there will say why
        return []
    found = []
    for staging in (os.path.join(directory, name) for name in names):
        if _is_ours(staging):
            try:
                home = os.readlink(os.path.join(staging, HOME))
            except OSError:
                home = staging
            found.append(Pending(home, staging))
    return found


def finish(left: Pending) -> None:
    """Put committed files in their places, and remove the drafts of others; leave those of living commands alone.

    Raises
    ------
    BufferFileError, OSError
        As `settle`.
    """
    home, until = left.home, time.monotonic() + _PATIENCE
    if home != left.staging and not _leads_home(left):
        return
    while True:
        try:
            fd = calls.open_existing_lock(os.path.join(home, LOCK))
        except FileNotFoundError:  # its owner has not come further, or whoever removed it
            with contextlib.suppress(OSError):
                calls.remove_directory(home)
            return
        try:
            if is_free(fd):
                if is_there(os.path.join(home, _COMMIT)):
                    _finish_committed(home)
                else:
                    discard(home)
                return
        finally:
            os.close(fd)
        if not is_there(os.path.join(home, _COMMIT)):
            return  # its owner lives, and has changed nothing yet
        if time.monotonic() > until:
            raise OSError(errno.EBUSY, "a command that puts its results in place does not come to an end", home)
        time.sleep(_PAUSE)


def _leads_home(left: Pending) -> bool:
    """Tell whether the home of a staging directory is there, and remove what nobody needs without it."""
    home, staging = left
    made = ""
    with contextlib.suppress(FileNotFoundError, BufferFileError):  # its owner has not written it yet
        made = Manifest.read(staging).moved_from(staging)
    if made:
        raise _moved(staging, made)
    with _saying_what_waits(home):
        if is_there(home):
            return bool(STAGING.fullmatch(os.path.basename(home))) and _is_ours(home)
    if not os.path.isdir(os.path.dirname(home)):
        raise _separated(staging, os.path.dirname(home))
    # The first staging directory is the last to be removed: what is left here was finished, or never committed.
    discard(staging)
    return False


@contextlib.contextmanager
def _saying_what_waits(home: str) -> Iterator[None]:
    """Say with the errors of the block why they matter to who only wants to read a file."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}, so the committed results of an interrupted command cannot be put in place, and"
        way_out = f"allow it and run `mpired recover`, or remove {home} to give them up"
        where = error.filename or os.path.dirname(home)
        raise OSError(error.errno, f"{reason} wait in {home}; {way_out}", where) from error


def _separated(staging: str, missing: str) -> BufferFileError:
    reason = f"its results belong to others in {missing}, which is not there"
    return BufferFileError(staging, f"{reason}; bring it back, or remove this directory")


def _moved(staging: str, made: str) -> BufferFileError:
    reason = f"was moved or copied from {made}, and its results belong to others in other directories"
    return BufferFileError(staging, f"{reason}; bring it back or finish them there, or remove this directory")


def _finish_committed(home: str) -> None:
    """Put the files of a dead command in their places, and say so."""
    with _saying_what_waits(home):
        members = _members(home)
        paths = [path for member in members for path in _results(member)]
        put_in_place(members, overwrite=False)
    files = f" ({len(paths)} file{'s' if len(paths) > 1 else ''})" if paths else ""
    notices.tell(paths or [os.path.dirname(home)], f"finished what an interrupted command had committed{files}")


def _members(home: str) -> Sequence[str]:
    """Return the staging directories of a commit, its home first.

    Results for one directory go where that is now. Those for several belong together, so none may have been moved.
    """
    try:
        manifest = Manifest.read(home)
    except FileNotFoundError:  # all was done, down to the removal
        return [home]
    if len(manifest.members) == 1:
        return [home]
    if made := manifest.moved_from(home):
        raise _moved(home, made)
    for directory in map(os.path.dirname, manifest.members):
        if not is_there(directory):
            raise _separated(home, directory)
    return [member for member in manifest.members if is_there(member) and _is_ours(member)]


def _results(staging: str) -> list[str]:
    """Return the files that the drafts of a staging directory are for."""
    try:
        return [os.path.join(os.path.dirname(staging), name) for _, name, _ in Manifest.read(staging).files]
    except FileNotFoundError:  # they are in place
        return []


def is_free(fd: int) -> bool:
    """Take the lock of a living owner, if nobody has it; where there are no locks it cannot be had."""
    try:
        return calls.lock(fd)
    except OSError:
        return False


def discard(staging: str) -> None:
    """Remove drafts that nobody will commit; if that is not allowed, they are in nobody's way."""
    with contextlib.suppress(OSError):
        _remove(staging)
