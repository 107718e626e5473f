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
import re
import stat
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from mpired.errors import BufferFileError, MpiredError, RanksError
from mpired.storage import calls

_STAGING = re.compile(r"\.[0-9a-f]{8}\.mpired-together")
_DRAFT = re.compile(r"\d{1,18}")
# What a staging directory holds besides drafts. Only the first of a commit has a lock and can have the commit;
# in the others `home` leads to it.
LOCK, HOME, MANIFEST = "lock", "home", "manifest"
_COMMIT = "commit"
_LONGEST_MANIFEST = 64 << 20  # bytes
_VERSION = 1
# Seconds to wait for a living process that puts its files in place.
_PATIENCE, _PAUSE = 30.0, 0.005

Stamp = tuple[int, int, int, int]
"""Device, inode, bytes and time of modification of a file."""


def new_name(directory: str) -> str:
    """Return a name for a staging directory."""
    return os.path.join(directory, f".{os.urandom(4).hex()}.mpired-together")


class Manifest(NamedTuple):
    """What a staging directory says of a commit.

    Parameters
    ----------
    files
        For each draft its number, the name that it gets, and what had that name.
    members
        All staging directories of the commit.
    """

    files: Sequence[tuple[str, str, Stamp | None]]
    members: Sequence[str]

    def write(self, folder: str) -> None:
        """Write it into a staging directory, and bring it to the disk."""
        import json  # noqa: PLC0415 - for commits of many files only

        text = json.dumps({"version": _VERSION, "files": self.files, "members": self.members})
        fd = create(os.path.join(folder, MANIFEST))
        try:
            calls.pwrite_all(fd, text.encode(), 0)
            calls.fsync(fd)
        finally:
            os.close(fd)

    @classmethod
    def read(cls, staging: str) -> Self:
        """Read it back; it is input like any other, and may only name files beside it.

        Raises
        ------
        BufferFileError
            If it is damaged.
        """
        import json  # noqa: PLC0415 - for commits of many files only

        path = os.path.join(staging, MANIFEST)
        try:
            said = json.loads(calls.read_small_file(path, _LONGEST_MANIFEST))
            if said["version"] != _VERSION:
                raise BufferFileError(path, f"is of version {said['version']!r}, which this mpired does not know")
            files = [(str(number), str(name), _as_stamp(old)) for number, name, old in said["files"]]
            members = [str(member) for member in said["members"]]
        except (ValueError, TypeError, KeyError) as error:
            raise BufferFileError(path, f"is damaged ({' '.join(str(error).split())})") from None
        good = all(_DRAFT.fullmatch(number) and _is_plain(name) for number, name, _ in files)
        if not good or not all(_STAGING.fullmatch(os.path.basename(member)) for member in members):
            raise BufferFileError(path, "names what is no result of a command")
        return cls(files, members)


def _as_stamp(old: Any) -> Stamp | None:
    if old is None:
        return None
    device, inode, nbytes, time_ns = map(int, old)
    return device, inode, nbytes, time_ns


def _is_plain(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def create(path: str) -> int:
    """Create a file that this user can open again, whatever the umask takes away."""
    fd = calls.open_new(path)
    try:
        os.fchmod(fd, 0o600)
    except OSError:
        os.close(fd)
        raise
    return fd


def commit(home: str) -> None:
    """Make the commit durable: from here on the results go forward, whatever happens."""
    path = os.path.join(home, _COMMIT)
    os.close(create(path))
    try:
        calls.fsync_directory_at(home)
    except OSError:
        calls.unlink(path)
        raise


def _members(home: str) -> Sequence[str]:
    """Return the staging directories of a commit, its home first."""
    try:
        return Manifest.read(home).members
    except FileNotFoundError:  # all was done, down to the removal
        return [home]


def put_in_place(stagings: Sequence[str], *, overwrite: bool) -> None:
    """Rename all drafts of a commit that are still there, sync, and remove the staging directories, the home last.

    Without `overwrite` only what was there at the commit is replaced.
    """
    doubtful: list[MpiredError | OSError] = []
    for staging in stagings:
        with contextlib.suppress(FileNotFoundError):  # this one was done
            for number, name, old in Manifest.read(staging).files:
                doubtful += _put(staging, number, name, old, overwrite=overwrite)
            calls.fsync_directory_at(os.path.dirname(staging))
    if doubtful:
        raise doubtful[0] if len(doubtful) == 1 else RanksError(len(doubtful), doubtful, "results")
    for staging in reversed(stagings):
        with contextlib.suppress(FileNotFoundError):
            _remove(staging)


def _put(staging: str, number: str, name: str, old: Stamp | None, *, overwrite: bool) -> list[BufferFileError]:
    """Put a draft in its place, unless it is there; return what speaks against it."""
    draft, target = os.path.join(staging, number), os.path.join(os.path.dirname(staging), name)
    if not is_there(draft):
        return []
    found = stamp(target)
    with calls.blaming(target):
        if found is not None and os.path.samestat(os.lstat(draft), os.lstat(target)):
            calls.unlink(draft)  # its owner died when it had both names
        elif overwrite or (found is not None and found == old):
            calls.rename(draft, target)
        elif found is not None or old is not None or not _takes_free_name(draft, target):
            what = "was removed" if found is None and old else "was changed" if old else "appeared"
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


def stamp(path: str) -> Stamp | None:
    """Return what tells a file from another one under its name, None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
        names = sorted(name for name in os.listdir(directory) if _STAGING.fullmatch(name))
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
    if home != left.staging and not (_STAGING.fullmatch(os.path.basename(home)) and _is_ours(home)):
        if not os.path.isdir(os.path.dirname(home)):
            reason = f"its results belong to others in {os.path.dirname(home)}, which is not there"
            raise BufferFileError(left.staging, f"{reason}; bring it back, or remove this directory")
        # The first staging directory is the last to be removed: what is left here was finished, or never committed.
        if not os.path.lexists(home):
            discard(left.staging)
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
                    put_in_place([staging for staging in _members(home) if _is_ours(staging)], overwrite=False)
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
