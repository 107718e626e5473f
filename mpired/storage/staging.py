"""Staging directories: where the drafts of many files lie until all of them are put in place.

The drafts of a directory's files lie beside them in `.HEX.mpired-together`, each under a number. A manifest says
which draft goes where, and what is there now. An empty file `commit` in the first staging directory, durable
itself, is the commit point: a crash before it leaves every file as it was, and a crash after it something
that `finish` finishes. Each command calls that for the directories of its files.

`home` is in a staging directory, durable, before anything else, and leaves it as the last but for the lock. So a
directory without it has nothing to finish, and nothing in one that somebody has renamed is taken for ours.

Until a new directory has `home` another command takes it for left behind. The lock decides: whoever removes a directory
holds it until `home` and then the lock are gone; whoever has made one goes on if it gets the lock and `home` is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from mpired.errors import BufferFileError, RanksError, UnconfirmedError
from mpired.log import notice
from mpired.storage import calls, reach
from mpired.storage.folder import LOCK, Folder
from mpired.storage.manifest import MANIFEST, Entry, Manifest, is_number, is_same, stamp
from mpired.storage.names import is_staging, staging_in

# What a staging directory holds besides drafts and the manifest. `home` is a link to the first one of the commit, by
# its path, or in that one itself by its name. That one is locked while the command lives, and it alone has the commit.
HOME, COMMIT = "home", "commit"
_MARK_NBYTES = 256  # more than a name of a machine, of at most 64, and the number of its boot
# Seconds to wait for a living process that puts its files in place.
_PATIENCE, _PAUSE = 30.0, 0.005


def commit(home: Folder) -> None:
    """Make the commit durable: from here on the results go forward, whatever happens."""
    try:
        calls.let_go(home.create(COMMIT))
        home.sync()
    except OSError as error:
        try:
            calls.unlink(COMMIT, home.fd)
        except OSError:
            if home.status(COMMIT) is None:
                raise error from None
            reason = f"the commit of the results could neither be confirmed nor taken back ({error.strerror})"
            raise UnconfirmedError(home.path, f"{reason}; the next mpired command finishes it") from error
        with contextlib.suppress(OSError):
            home.sync()
        raise


def put_in_place(folders: Iterable[Folder], *, overwrite: bool) -> None:
    """Rename or link all drafts of a commit that are still there to their places, and sync these.

    Without `overwrite` only what was there at the commit is replaced. Each folder is done when the next is asked for.
    """
    doubtful: list[BufferFileError] = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # this one was done
            manifest = Manifest.read(folder)
            moved = bool(manifest.moved_from(folder))
            for entry in manifest.files:
                doubtful += _put(folder, entry, overwrite=overwrite, moved=moved)
            folder.sync_around()
    if doubtful:
        raise doubtful[0] if len(doubtful) == 1 else RanksError(len(doubtful), doubtful, "results")


def _put(folder: Folder, entry: Entry, *, overwrite: bool, moved: bool) -> list[BufferFileError]:
    """Put a draft in its place, unless it is there; return what speaks against it."""
    number, name, old = entry
    target = os.path.join(folder.place.directory, name)
    with calls.blaming(target):
        draft, there = folder.status(number), folder.status_beside(name)
        if draft is None or (there is not None and os.path.samestat(draft, there)):
            return []  # one that was linked has both names until the directory is removed
        if not stat.S_ISREG(draft.st_mode):
            return [BufferFileError(os.path.join(folder.path, number), "is not a regular file, so it is not a result")]
        if overwrite or is_same(stamp(there), old, moved=moved):
            calls.rename(number, name, folder.fd, folder.dirfd)
        elif there is not None or old is not None or not _takes_free_name(folder, number, name):
            changed = "was changed, or copied without its times," if moved else "was changed"
            what = "was removed" if there is None and old else changed if old else "appeared"
            reason = f"{what} while a committed result for it waits in {folder.path}"
            return [BufferFileError(target, f"{reason}; move the result from there, or remove that directory")]
    return []


def _takes_free_name(folder: Folder, number: str, name: str) -> bool:
    """Put a draft in a place where nothing is; tell whether still nothing was there.

    The draft keeps its number until its new name is on the disk: the two names are in two directories, of which
    either can be there first.
    """
    try:
        if not calls.linked(number, name, folder.fd, folder.dirfd):
            calls.rename(number, name, folder.fd, folder.dirfd)  # a file system without hard links
    except FileExistsError:
        return False
    return True


def remove(folder: Folder, lock: int = -1) -> None:
    """Remove a staging directory whose results are in place and synced, or were never committed.

    What cannot be removed is left to the next command: it is in no one's way.
    """
    with contextlib.suppress(OSError):
        # The commit first, so that no drafts are ever taken for committed that were in place already.
        for name in sorted(os.listdir(folder.fd), key=lambda name: name != COMMIT):
            if name in {COMMIT, MANIFEST} or is_number(name):
                calls.unlink(name, folder.fd)
        folder.sync()
        for name in (HOME, LOCK):
            calls.unlink(name, folder.fd)
        # A file that is open keeps a name in its directory on FUSE and NFS.
        calls.let_go(lock)
        lock = -1
        calls.remove_directory(folder.place.name, folder.dirfd)
    calls.let_go(lock)


def finish_all(paths: Sequence[str], *, alone: bool = False, dry_run: bool = False) -> bool:
    """Finish what is in staging directories, as of `remains.finish_staged`, or say what is if nothing may change."""
    if dry_run:
        for path in (each for each in paths if _is_ours(each) and _is_committed(each)):
            notice([path], "has results that an interrupted command has committed, which the call finishes first")
        return False
    done = [finish(path, alone=alone) for path in paths]
    return any(done)


def _is_committed(path: str) -> bool:
    """Tell whether what a staging directory belongs to is committed, changing nothing."""
    with contextlib.suppress(OSError):
        home = os.readlink(os.path.join(path, HOME))
        return os.path.lexists(os.path.join(os.path.dirname(path), home, COMMIT))
    return False


def pending(directory: str) -> list[str]:
    """Return the staging directories of interrupted or living commands of this user in a directory."""
    return list(filter(_is_ours, staging_in(directory)))


def _is_ours(path: str) -> bool:
    folder = _left(path)
    if folder is not None:
        folder.close()
    return folder is not None


def of_others(directory: str) -> list[tuple[str, int]]:
    """Return the staging directories of other users in a directory, which they alone can finish, and these users."""
    here = []
    for path in staging_in(directory):
        with contextlib.suppress(OSError):
            status = os.stat(path, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid():
                here.append((path, status.st_uid))
    return here


def _left(path: str) -> Folder | None:
    """Open a staging directory that was found; None if it is gone, or another user's, which is not believed."""
    try:
        return _opened(path)
    except PermissionError:
        return None


def _opened(path: str) -> Folder | None:
    """Open a staging directory; None if it is not there, or does not belong to this user alone."""
    try:
        folder = Folder.at(path)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return None
        raise
    if folder.is_private(os.geteuid()):
        return folder
    folder.close()
    return None


def finish(path: str, *, alone: bool = False) -> bool:
    """Put committed files in their places, and remove the drafts of others; leave those of living commands alone.

    Returns whether there were committed ones.
    """
    folder = _left(path)
    if folder is None:
        return False
    with folder:
        home = _home(folder)
        if home == path:
            return _finish_home(folder, alone=alone)
    folder = _opened(home) if home else None
    if folder is None:
        return False
    with folder:
        return _finish_home(folder, alone=alone)


def _home(folder: Folder) -> str:
    """Return the path of the first staging directory of a commit, "" if there is nothing to finish."""
    try:
        home = os.readlink(HOME, dir_fd=folder.fd)
    except OSError:
        return folder.path if {*calls.names_in(folder.fd)} <= {LOCK} else ""
    if home == folder.place.name:
        return folder.path
    made = ""
    with contextlib.suppress(FileNotFoundError, BufferFileError):  # its owner has not written it yet
        made = Manifest.read(folder).moved_from(folder)
    if made:
        raise _moved(folder.path, made)
    with _saying_what_waits(home), contextlib.suppress(FileNotFoundError):
        os.stat(home, follow_symlinks=False)
        return home if is_staging(os.path.basename(home)) else ""
    if not os.path.isdir(os.path.dirname(home)):
        raise _separated(folder.path, os.path.dirname(home))
    # The first staging directory is the last to be removed: what is left here was finished, or never committed.
    remove(folder)
    return ""


def _finish_home(home: Folder, *, alone: bool) -> bool:
    """Finish what the first staging directory of a commit says, when its owner is not at work any more."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            lock, has_locks, free = take_lock(home)
        except OSError:
            if home.status(COMMIT) is None:
                return False  # nothing waits here, and whoever may write here removes it
            raise
        try:
            if free and not reach.is_conclusive(
                lock, calls.pread_some(lock, _MARK_NBYTES, 0).decode(), reach.machine()
            ):
                has_locks = free = False  # one that is free where that shows nothing is as if there were no locks
            committed = home.status(COMMIT) is not None
            if free or (alone and not has_locks):
                if _home(home) != home.path:
                    return False  # it was new, and its owner has marked it since
                if committed:
                    _finish_committed(home)
                remove(home, lock)
                lock = -1
                return committed
        finally:
            calls.let_go(lock)
        if not committed:
            return False  # its owner lives, and has changed nothing yet
        if time.monotonic() > until:
            raise OSError(errno.EBUSY, _ENDLESS[has_locks], home.path)
        time.sleep(_PAUSE)


_ENDLESS = {
    True: "a command that puts its results in place does not come to an end",
    False: "results of a command wait here, and there are no locks that show whether it still runs; when it "
    "does not, `mpired recover` on a file in that directory finishes it",
}


def take_lock(folder: Folder) -> tuple[int, bool, bool]:
    """Open the lock of a staging directory, which is made if it is not there, and try to take it.

    Returns its descriptor, whether the file system has locks, and whether it was free; one that was removed
    meanwhile is not.
    """
    lock = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
    try:
        os.fchmod(lock, 0o600)  # whatever the umask takes away
        free = calls.lock(lock)
        there = folder.status(LOCK)
        return lock, True, free and there is not None and os.path.samestat(there, os.fstat(lock))
    except OSError as error:
        if error.errno in calls.NO_LOCKS:
            return lock, False, False
        calls.let_go(lock)
        raise


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


def _finish_committed(home: Folder) -> None:
    """Put the files of an interrupted command in their places, remove all but its home, and say so."""
    paths: list[str] = []
    with _saying_what_waits(home.path):
        members = _members(home)
        put_in_place(_each(home, members, paths), overwrite=False)
        for folder in _each(home, members, []):
            if folder is not home:
                remove(folder)
    files = f" ({len(paths)} file{'s' if len(paths) > 1 else ''})" if paths else ""
    notice(paths or [home.place.directory], f"finished what an interrupted command had committed{files}")


def _each(home: Folder, members: Sequence[str], paths: list[str]) -> Iterator[Folder]:
    """Open one staging directory of a commit after another, and note in `paths` which files its drafts are for."""
    for member in members:
        folder = home if member == home.path else _opened(member)
        if folder is None:
            continue
        with contextlib.suppress(FileNotFoundError):  # they are in place
            paths += [os.path.join(folder.place.directory, name) for _, name, _ in Manifest.read(folder).files]
        try:
            yield folder
        finally:
            if folder is not home:
                folder.close()


def _members(home: Folder) -> Sequence[str]:
    """Return the staging directories of a commit, its home first.

    Results for one directory go where that is now. Those for several belong together, so none may have been moved.
    """
    try:
        manifest = Manifest.read(home)
    except FileNotFoundError:  # all was done, down to the removal
        return [home.path]
    if len(manifest.members) == 1:
        return [home.path]
    if made := manifest.moved_from(home):
        raise _moved(home.path, made)
    for directory in map(os.path.dirname, manifest.members):
        if not os.path.lexists(directory):
            raise _separated(home.path, directory)
    return manifest.members
