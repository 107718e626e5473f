"""Many new files that appear together: all of them, or none.

The drafts of a directory's files lie in a staging directory beside them, `.HEX.mpired-together`, each
under a number. When all are on the disk, a manifest says which draft goes where, and what is there
now; then an empty file `commit` in the first staging directory, durable itself, is the commit point.
After it the drafts are renamed, one after another. A crash before the commit point leaves every file
as it was, and a crash after it something that `settle` finishes: each command calls it for the
directories of its files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from mpired.errors import BufferFileError, MpiredError, OutputExistsError, RanksError, UnconfirmedError, UsageError
from mpired.storage import calls
from mpired.storage.output import existing_file, is_stream, nothing

_STAGING = re.compile(r"\.[0-9a-f]{8}\.mpired-together")
_DRAFT = re.compile(r"\d{1,18}")
# What a staging directory holds besides drafts. Only the first of a commit has a lock and can have the commit;
# in the others `home` leads to it.
_LOCK, _HOME, _MANIFEST, _COMMIT = "lock", "home", "manifest", "commit"
_LONGEST_MANIFEST = 64 << 20  # bytes
_VERSION = 1
_ATTEMPTS = 100
# Seconds to wait for a living process that puts its files in place.
_PATIENCE, _PAUSE = 30.0, 0.005

Stamp = tuple[int, int, int, int]


class Draft:
    """One of the files, while it is made.

    Parameters
    ----------
    name
        Its path as given, for messages.
    staging
        The staging directory that it lies in.
    number
        Its number there.
    """

    def __init__(self, name: str, staging: str, number: int) -> None:
        self.name = name
        self.target = os.path.realpath(name)
        self.directory = os.path.dirname(self.target)
        self.number = str(number)
        self.shared_path = os.path.join(staging, self.number)

    @contextlib.contextmanager
    def created(self, nbytes: int | None = None) -> Generator[int, None, None]:
        """Create the file, with `nbytes` reserved for it, and give its descriptor for the block."""
        with calls.blaming(self.name):
            fd = _create(self.shared_path)
            try:
                if nbytes is not None:
                    calls.allocate(fd, nbytes)
                yield fd
            finally:
                os.close(fd)

    def repeat(self, original: Draft, *, link: bool) -> None:
        """Make this file what another one is: its second name, if it may be linked, or a copy, by sharing blocks."""
        with calls.blaming(self.name):
            if link and calls.linked(original.shared_path, self.shared_path):
                return
        with self.created() as fd:
            source = os.open(original.shared_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                calls.copy_file(source, fd)
            finally:
                os.close(source)

    def seal(self, mode: int) -> None:
        """Give the file the metadata of what it replaces, or else `mode`, and bring it to the disk."""
        with calls.blaming(self.name), calls.opened_for_writing(self.shared_path, self.name) as fd:
            existing = existing_file(self.target)
            if existing is not None:
                calls.copy_metadata(existing, self.target, fd)
            else:
                os.fchmod(fd, mode)
            calls.fsync(fd)


class Together:
    """Files that appear under their names together, durable, or not at all.

    Parameters
    ----------
    paths
        The names.
    overwrite
        Whether existing files may be replaced.
    on_commit
        Called when it is certain that the files will be in place, while interruptions are held back.

    Raises
    ------
    OutputExistsError
        If one is there and `overwrite` is false.
    UsageError
        If one is a stream.
    RanksError
        If several cannot be written: one error that lists them all.
    OSError
        If a name is a directory, or a directory cannot be written to.
    """

    def __init__(
        self, paths: Sequence[str], *, overwrite: bool = False, on_commit: Callable[[], None] = nothing
    ) -> None:
        check_outputs(paths, overwrite=overwrite)
        self._overwrite = overwrite
        self._on_commit = on_commit
        self._committed = False
        self._stagings: dict[str, str] = {}
        self._lock = -1
        self.drafts: list[Draft] = []
        try:
            for number, path in enumerate(paths):
                with calls.blaming(path):
                    staging = self._staging(os.path.dirname(os.path.realpath(path)))
                self.drafts.append(Draft(path, staging, number))
        except BaseException:
            self._clear()
            raise

    def _staging(self, directory: str) -> str:
        """Return the staging directory beside the files of a directory."""
        for _ in range(_ATTEMPTS):
            if directory in self._stagings:
                return self._stagings[directory]
            staging = os.path.join(directory, f".{os.urandom(4).hex()}.mpired-together")
            try:
                calls.make_private_directory(staging)
                if self._marked(staging):
                    self._stagings[directory] = staging
            except FileExistsError:  # the name is another command's
                continue
            except FileNotFoundError:
                if not os.path.isdir(directory):
                    raise
            except OSError:
                _discard(staging)
                raise
        raise OSError(errno.EBUSY, "cannot keep a directory for the drafts: others remove it")

    def _marked(self, staging: str) -> bool:
        """Mark a new staging directory as ours; until then somebody may take it for left behind and remove it."""
        for home in self._stagings.values():
            calls.symlink(home, os.path.join(staging, _HOME))
            return True
        return self._locked(staging)

    def _locked(self, staging: str) -> bool:
        """Take the lock that shows that this process lives."""
        path = os.path.join(staging, _LOCK)
        fd = _create(path)
        if calls.lock_exclusive(fd) and _is_there(path, fd):
            self._lock = fd
            return True
        os.close(fd)
        return False

    def commit(self) -> None:
        """Make all files durable and put them in their places.

        Raises
        ------
        OSError, OutputExistsError
            Before the commit point: nothing has changed.
        UnconfirmedError
            After it: not all files are in place, or not confirmed; the next command that needs one finishes it.
        """
        if not self.drafts:
            self._on_commit()
            return
        mode = calls.default_mode()
        for draft in self.drafts:
            draft.seal(mode)
        home, *_ = self._stagings.values()
        self._write_manifests()
        with calls.interruptions_blocked():
            with calls.blaming(self.drafts[0].name):
                _commit(home)
            self._committed = True
            self._on_commit()
            try:
                # What has come there since the manifest was written is replaced, as it would have been before.
                _finish(list(self._stagings.values()), overwrite=self._overwrite)
            except (OSError, MpiredError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                why = f"the results are committed, but not all in place or confirmed ({reason})"
                raise UnconfirmedError(
                    self.drafts[0].name, f"{why}; the next mpired command on them finishes it"
                ) from error

    def _write_manifests(self) -> None:
        """Say in each staging directory what goes where, and bring that and all names to the disk."""
        members = list(self._stagings.values())
        for directory, staging in self._stagings.items():
            drafts = [draft for draft in self.drafts if draft.directory == directory]
            with calls.blaming(drafts[0].name):
                manifest = _Manifest([(d.number, os.path.basename(d.target), self._old(d)) for d in drafts], members)
                fd = _create(os.path.join(staging, _MANIFEST))
                try:
                    calls.pwrite_all(fd, manifest.text(), 0)
                    calls.fsync(fd)
                finally:
                    os.close(fd)
                calls.fsync_directory_at(staging)
                calls.fsync_directory_at(directory)

    def _old(self, draft: Draft) -> Stamp | None:
        old = _stamp(draft.target)
        if old is not None and not self._overwrite:
            raise OutputExistsError(
                draft.name, "appeared in the meantime; --force replaces it; in Python overwrite=True"
            )
        return old

    def _clear(self) -> None:
        """Remove what is left, unless it is committed."""
        if not self._committed:
            for staging in reversed(self._stagings.values()):
                with contextlib.suppress(OSError):
                    _remove(staging)
        if self._lock >= 0:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


def check_outputs(paths: Sequence[str], *, overwrite: bool) -> None:
    """Raise an error unless files can be written under all of these names; it lists each that is in the way."""
    errors: list[MpiredError | OSError] = []
    for path in paths:
        try:
            if is_stream(path):
                raise UsageError(path, "is a stream, and the results of many ranks are files")
            if existing_file(path) is not None and not overwrite:
                raise OutputExistsError(path, "is there already; --force replaces it; in Python overwrite=True")
        except (MpiredError, OSError) as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(paths), errors, "outputs")


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

    Raises
    ------
    BufferFileError
        If a file is not what it was at the commit.
    OSError
        If it cannot be finished, or a living command does not finish it.
    """
    directories: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # there may be no current directory
        named = {os.path.dirname(os.path.realpath(path) if os.path.islink(path) else path) for path in paths}
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
                home = os.readlink(os.path.join(staging, _HOME))
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
        _discard(left.staging)
        return
    while True:
        try:
            fd = calls.open_existing_lock(os.path.join(home, _LOCK))
        except FileNotFoundError:  # its owner has not come further, or whoever removed it
            with contextlib.suppress(OSError):
                calls.remove_directory(home)
            return
        try:
            if calls.lock_exclusive(fd):
                if _is_there(os.path.join(home, _COMMIT)):
                    _finish([staging for staging in _members(home) if _is_ours(staging)], overwrite=False)
                else:
                    _discard(home)
                return
        finally:
            os.close(fd)
        if not _is_there(os.path.join(home, _COMMIT)):
            return  # its owner lives, and has changed nothing yet
        if time.monotonic() > until:
            raise OSError(errno.EBUSY, "a command that puts its results in place does not come to an end", home)
        time.sleep(_PAUSE)


def _discard(staging: str) -> None:
    """Remove drafts that nobody will commit; if that is not allowed, they are in nobody's way."""
    with contextlib.suppress(OSError):
        _remove(staging)


class _Manifest(NamedTuple):
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

    def text(self) -> bytes:
        return json.dumps({"version": _VERSION, "files": self.files, "members": self.members}).encode()

    @classmethod
    def read(cls, staging: str) -> Self:
        """Read it back; it is input like any other, and may only name files beside it.

        Raises
        ------
        BufferFileError
            If it is damaged.
        """
        path = os.path.join(staging, _MANIFEST)
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


def _create(path: str) -> int:
    """Create a file that this user can open again, whatever the umask takes away."""
    fd = calls.open_new(path)
    try:
        os.fchmod(fd, 0o600)
    except OSError:
        os.close(fd)
        raise
    return fd


def _commit(home: str) -> None:
    """Make the commit durable: from here on the results go forward, whatever happens."""
    path = os.path.join(home, _COMMIT)
    os.close(_create(path))
    try:
        calls.fsync_directory_at(home)
    except OSError:
        calls.unlink(path)
        raise


def _members(home: str) -> Sequence[str]:
    """Return the staging directories of a commit, its home first."""
    try:
        return _Manifest.read(home).members
    except FileNotFoundError:  # all was done, down to the removal
        return [home]


def _finish(stagings: Sequence[str], *, overwrite: bool) -> None:
    """Rename all drafts of a commit that are still there, sync, and remove the staging directories, the home last.

    Without `overwrite` only what was there at the commit is replaced.
    """
    doubtful: list[MpiredError | OSError] = []
    for staging in stagings:
        with contextlib.suppress(FileNotFoundError):  # this one was done
            for number, name, old in _Manifest.read(staging).files:
                doubtful += _put(staging, number, name, None if overwrite else [old])
            calls.fsync_directory_at(os.path.dirname(staging))
    if doubtful:
        raise doubtful[0] if len(doubtful) == 1 else RanksError(len(doubtful), doubtful, "results")
    for staging in reversed(stagings):
        with contextlib.suppress(FileNotFoundError):
            _remove(staging)


def _put(staging: str, number: str, name: str, expected: Sequence[Stamp | None] | None) -> list[BufferFileError]:
    """Put a draft in its place, unless it is there; return what speaks against it.

    If `expected` is given, only one of these is replaced, None for nothing.
    """
    draft, target = os.path.join(staging, number), os.path.join(os.path.dirname(staging), name)
    if not _is_there(draft):
        return []
    if expected is not None and (found := _stamp(target)) not in expected:
        what = "was removed" if found is None else "was changed"
        reason = f"{what} while a committed result for it waits in {staging}"
        return [BufferFileError(target, f"{reason}; move the result from there, or remove that directory")]
    with calls.blaming(target):
        calls.rename(draft, target)
    return []


def _remove(staging: str) -> None:
    """Remove a staging directory: the commit before the lock, so that no drafts are ever left with a commit alone."""
    last = [_MANIFEST, _COMMIT, _HOME, _LOCK]
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


def _is_there(path: str, fd: int | None = None) -> bool:
    """Tell whether there is a file at `path`, and if `fd` is given, that one."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return fd is None or os.path.samestat(status, os.fstat(fd))


def _stamp(path: str) -> Stamp | None:
    """Return what tells a file from another one under its name, None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
