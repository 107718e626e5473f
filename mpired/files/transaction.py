"""The one way to commit new files, and new bytes of existing ones: wholly or not at all.

A new file is a file without a name until it is whole and on the disk; then it is linked to its name. Several are linked
one after another when all are on the disk; an error or a signal takes them back. One replaced file is renamed over the
old one. Two or more replaced files, and a patch of a file, have a redo log (`log`), which `recovery` finishes after a
crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mpired import codecs, interrupts
from mpired.context import NO_LIMITS, RESERVED, Context, spare_open_files
from mpired.errors import ChangedError, LockError, UnconfirmedError, UsageError, raise_all
from mpired.files import calls, copying, metadata
from mpired.files.access import recover_for_reading
from mpired.files.lock import NOTHING_HELD, Held, LockTimeout, Target, descriptors_of, inode
from mpired.files.log import LogKind, LogWriter, stamp
from mpired.files.names import DRAFT, Place, check_no_old_journal, exists_error, has_log, own_path, sync_folders
from mpired.files.places import check_new, existing_file, is_stream, within
from mpired.files.scratch import Compression, Scratch, Single, claimed, lock_own, remove_dead

_PAUSE = 0.005  # seconds
_T = TypeVar("_T")


class Draft(Place, Single):
    """A new file on its way to its name. Leaving the block before the commit changes nothing."""

    # A symbolic link stays, and its target is replaced. An existing file gives its mode, owner and attributes.

    def __init__(  # noqa: PLR0913 - all that a result depends on
        self,
        path: str,
        *,
        overwrite: bool = False,  # whether an existing file may be replaced
        context: Context = NO_LIMITS,
        durable: bool = True,  # whether the file and its name are synced
        place: Place | None = None,  # a `Target` that is locked, or a place in a checked folder
        named: bool = False,  # whether it has a name, by which processes that are not children of this one can open it
        packing: Compression | None = None,  # how it is compressed when it is complete
        kept_open: bool = True,  # else, of many, it is opened when it is filled, and has a name
    ) -> None:
        self.fd, self.has_name, self._owns_dirfd, self._is_locked = -1, False, False, False
        self.inode = 0, 0  # when the file is made
        self._packing, self._overwrite, self.durable = packing, overwrite, durable
        self.target = target = place if isinstance(place, Target) else None
        self._waiting = target.waiting if target else LockTimeout(context.lock_timeout)
        self.within: list[str] = []  # the files of its content: it is open to no more users than each of them
        self.existing = target.status if target else existing_file(path)
        if self.existing is not None and not overwrite:
            raise exists_error(path)
        with calls.errors_name(path), calls.undoing(self.close):  # the current directory may be gone
            real = place.path if place else os.path.realpath(path)
            if place is None and (self.existing is not None or has_log(real)):
                recover_for_reading(path, context)  # else an unfinished change would meet a new file
            check_no_old_journal(real)
            super().__init__(path, real, place.dirfd if place else calls.open_directory(os.path.dirname(real)))
            self._owns_dirfd = place is None
            if kept_open:
                fd = None if named else calls.open_unnamed(self.dirfd)
                self.fd = self._claimed() if fd is None else fd
                if not self.has_name:
                    self.inode = inode(os.fstat(self.fd))
                    remove_dead(self.draft_name, self.dirfd)  # of a command that was killed

    @property
    def shared(self) -> calls.SharedFile:
        """The file for the tasks of an engine."""
        if self.has_name:
            return calls.SharedFile(own_path(self.path, DRAFT), self.inode)
        return calls.SharedFile(self.shared_path)

    def _claimed(self) -> int:
        """Create the file under its own name, when no other command writes to the same place."""
        while True:
            with interrupts.defer_signals():
                fd = claimed(self.draft_name, self.dirfd)
                self.has_name = self._is_locked = fd is not None
            if fd is not None:
                self.inode = inode(os.fstat(fd))
                return fd
            self._wait()

    def _wait(self) -> None:
        status = calls.status_at(self.draft_name, self.dirfd)
        if status is not None and not stat.S_ISREG(status.st_mode):
            reason = f"needs the name {os.fsdecode(self.draft_name)} for its draft, which something else has"
            raise OSError(errno.EEXIST, f"{reason}; remove that", self.name)
        if self._waiting.deadline <= time.monotonic():
            reason = f"another command writes to it ({os.fsdecode(self.draft_name)} is there); wait for it, or"
            raise LockError(self.name, f"{reason} `mpired recover` removes the draft of one that was killed")
        interrupts.waited(time.sleep, _PAUSE)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        if self.fd >= 0:
            yield self.fd
            return
        fd = self._claimed() if not self.has_name else self.shared.open()
        try:
            yield fd
        finally:
            calls.let_go(fd)

    def repeat(self, original: Draft, *, link: bool) -> None:
        """Make this file a second name of another draft, if it may be linked, or a copy, by sharing blocks."""
        with calls.errors_name(self.name), original._opened() as source:
            if link and os.fstat(source).st_dev == os.fstat(self.dirfd).st_dev and self._joins(original, source):
                return
            with self.created() as fd:
                copying.copy_file(source, fd)

    def _joins(self, original: Draft, source: int) -> bool:
        """Become another name of a draft; return whether the file system can."""
        self._drop()
        self.inode = original.inode
        if not original.has_name:
            self.fd = os.dup(source)
            return True
        self.has_name = calls.linked(original.draft_name, self.draft_name, original.dirfd, self.dirfd)
        return self.has_name

    def seal(self) -> None:
        """Compress and sync the file; raise `OSError` for a lack of space or rights."""
        with calls.errors_name(self.name), self._opened() as fd:
            if self._packing is not None:
                made = os.fstat(fd).st_mtime_ns  # a record beside the result is made after that
                with Scratch(self.directory, self.name) as packed:
                    self._packing.pack(fd, packed.fd)
                    calls.set_size(fd, 0)
                    copying.copy_file(packed.fd, fd)
                os.utime(fd, ns=(made, made))
            if self.existing is not None:
                metadata.copy_metadata(self.existing, self.path, fd, within=self.within)
            else:
                mode = metadata.default_mode()
                os.fchmod(fd, mode & metadata.widest(self.within, fd) if self.within else mode)
            if self.durable:
                calls.fsync(fd)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Make the file durable and put it in its place; `on_commit` is called while signals are still held back."""
        self.seal()
        publish([self], on_commit)

    def take_free_name(self) -> None:
        """Take a name that was free; a file that has come meanwhile is replaced if that is allowed."""
        with calls.errors_name(self.name):
            try:
                if self.has_name:
                    calls.move_exclusively(self.draft_name, self.base, self.dirfd)
                    self.has_name = False
                else:
                    calls.link(self.fd, self.base, self.dirfd)
            except FileExistsError:
                if not self._overwrite:
                    raise exists_error(self.name, appeared=True) from None
                self.take_draft_name()
                self.rename()

    def take_draft_name(self) -> None:
        """Give the file the name of its draft, from which it can be renamed."""
        self.lock()
        while not self.has_name:
            try:
                calls.link(self.fd, self.draft_name, self.dirfd)
                self.has_name = True
            except FileExistsError:
                if not remove_dead(self.draft_name, self.dirfd):
                    self._wait()

    def lock(self) -> None:
        """Show other commands that the owner of the file lives; a file without a name needs no lock."""
        if self.fd >= 0 and not self._is_locked:
            with calls.errors_name(self.name):
                self._is_locked = lock_own(self.fd)

    def check_in_place(self) -> None:
        """Raise an error unless the draft has its name, and the file that it replaces is still the same."""
        draft, now = calls.status_at(self.draft_name, self.dirfd), calls.status_at(self.base, self.dirfd)
        if draft is None or draft.st_ino != self.inode[1]:
            raise OSError(errno.ENOENT, "its draft was removed by another process; run again", self.name)
        if now is None or self.existing is None or not os.path.samestat(now, self.existing):
            raise ChangedError(self.name, "was replaced by another program meanwhile; nothing was done, run again")

    def rename(self) -> None:
        """Replace the old file."""
        with calls.errors_name(self.name):
            calls.rename(self.draft_name, self.base, self.dirfd)
        self.has_name = False

    def enter(self, folder: NewFolder) -> None:
        """Move to a directory that is made now."""
        old, above = self.draft_name, self.dirfd
        Place.__init__(self, self.name, os.path.join(folder.path, os.path.basename(self.name)), folder.fd)
        if self.has_name:
            os.rename(old, self.draft_name, src_dir_fd=above, dst_dir_fd=self.dirfd)

    def take_back(self) -> bool:
        """Remove a file again that was new; return whether that worked."""
        if self.existing is not None:
            return False
        try:
            calls.unlink_inode(self.base, self.dirfd, self.inode[1])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file, and remove it if it has not got its name."""
        self._drop()
        if self._owns_dirfd:
            calls.let_go(self.dirfd)
            self._owns_dirfd = False

    def _drop(self) -> None:
        if self.has_name:
            with contextlib.suppress(OSError):
                calls.unlink(self.draft_name, self.dirfd)
            self.has_name = False
        if self.fd >= 0:
            if self._is_locked:
                calls.unlock(self.fd)
            calls.let_go(self.fd)
            self.fd = -1


class NewFolder(Place, calls.Closing):
    """A directory for new files, which appears when they take their names. Without any it is removed again."""

    fd = -1

    def make(self, drafts: Sequence[Draft]) -> None:
        """Make it, and let its files come to it from the directory above."""
        with calls.errors_name(self.name):
            try:
                os.mkdir(self.base, dir_fd=self.dirfd)
            except FileExistsError:
                raise ChangedError(self.name, "was made by another program meanwhile; run again") from None
            self.fd = os.open(self.base, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.dirfd)
        for draft in drafts:
            if os.path.dirname(draft.name) == self.name:
                draft.enter(self)

    def close(self) -> None:
        """Close it, and remove it if it is empty."""
        if self.fd >= 0:
            calls.let_go(self.fd)
            with contextlib.suppress(OSError):
                os.rmdir(self.base, dir_fd=self.dirfd)


class Transaction(contextlib.ExitStack):
    """Files that appear under their names together, durable, or not at all."""

    def __init__(  # noqa: PLR0913 - all that results depend on
        self,
        paths: Sequence[str],
        *,
        overwrite: bool = False,  # whether existing files may be replaced
        context: Context = NO_LIMITS,
        held: Held = NOTHING_HELD,  # the files that are replaced and locked, by their names
        named: bool = False,  # see `Draft`
        level: int | None = None,  # of compression, where a suffix asks for a codec
        folders: Sequence[str] = (),  # the directories of some of them, which are made
    ) -> None:
        super().__init__()
        packings = [Compression.of(path, level if codecs.by_suffix(path) else None) for path in paths]
        reason = "is a stream, and results that appear together are files"
        raise_all([UsageError(path, reason) for path in filter(is_stream, paths)], len(paths), "outputs")
        check_new(within(paths, folders), context, overwrite=overwrite)
        self.drafts: list[Draft] = []
        self._new: list[NewFolder] = []
        self._folders: dict[str, int] = {}
        wanted = len(paths) + len(set(map(os.path.dirname, paths))) + descriptors_of(len(held)) + RESERVED
        many = spare_open_files(wanted, context.max_open_files) < wanted or calls.allow_descriptors(wanted) < wanted
        with calls.undoing(self.close):
            for folder, real in zip(folders, calls.real_paths(folders), strict=True):
                self._new.append(self.enter_context(NewFolder(folder, real, self._place(folder, real).dirfd)))
            for path, real, packing in zip(paths, calls.real_paths(paths), packings, strict=True):
                draft = Draft(
                    path, overwrite=overwrite, context=context, place=held.get(path) or self._place(path, real),
                    named=named or many, packing=packing, kept_open=not many,
                )  # fmt: skip
                self.drafts.append(self.enter_context(draft))
            _check_one_device([draft for draft in self.drafts if draft.existing is not None])

    def _place(self, path: str, real: str) -> Place:
        """Open the folder of a file, each once; until that is made the file has another name above it."""
        directory = os.path.dirname(real)
        if any(directory == each.path for each in self._new):
            directory, name = os.path.split(directory)
            real = os.path.join(directory, f"{name}-{os.path.basename(real)}")
        if directory not in self._folders:
            with calls.errors_name(path):
                self._folders[directory] = calls.open_directory(directory)
            self.callback(calls.let_go, self._folders[directory])
        return Place(path, real, self._folders[directory])

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Make all files durable and put them in their places."""
        for draft in self.drafts:
            draft.seal()
        publish(self.drafts, on_commit, self._new)


def _check_one_device(drafts: Sequence[Draft]) -> None:
    """Raise `UsageError` unless files that are replaced together are on one file system: a log is of one."""
    if len(drafts) < 2:  # noqa: PLR2004 - one has no log
        return
    first = os.fstat(drafts[0].dirfd).st_dev
    for draft in drafts:
        if draft.existing is not None and {os.fstat(draft.dirfd).st_dev, draft.existing.st_dev} != {first}:
            reason = f"is not on the file system of {drafts[0].name}, and both are replaced together"
            raise UsageError(draft.name, f"{reason}; replace the files of each file system by a command of their own")


def publish(drafts: Sequence[Draft], on_commit: Callable[[], None], folders: Sequence[NewFolder] = ()) -> None:
    """Let sealed drafts take their places, all of them or none: the new ones first, then those that replace."""
    new = [draft for draft in drafts if draft.existing is None]
    replaced = [draft for draft in drafts if draft.existing is not None]
    with interrupts.defer_signals():
        linked: list[Draft] = []
        try:
            for draft in drafts if len(drafts) > 1 else ():
                draft.lock()  # so that no command changes a file that may be taken back
            for folder in folders:
                folder.make(new)
            for draft in new:
                draft.take_free_name()
                linked.append(draft)
            if replaced:
                sync_folders([*new, *folders])
            if len(replaced) > 1:
                _publish_set(replaced, on_commit)
                return
            for draft in replaced:
                draft.take_draft_name()
                draft.check_in_place()
                draft.rename()
        except Exception as error:
            if not isinstance(error, UnconfirmedError):
                _take_back(linked, error)
            raise
        on_commit()
        try:
            sync_folders(replaced or [*new, *folders])
        except Exception as error:
            what = "result is in place, but its" if len(drafts) == 1 else "results are in place, but their"
            reason = f"the {what} directory could not be synced ({_why(error)})"
            raise UnconfirmedError(drafts[0].name, reason) from error


def _take_back(linked: Sequence[Draft], error: Exception) -> None:
    """Remove new files that have got their names before an error; raise an error if one stays, or may come back."""
    stay = [draft.name for draft in linked if not draft.take_back()]
    try:
        sync_folders(linked)
    except OSError:
        stay += [draft.name for draft in linked]
    if stay:
        reason = f"is in place and cannot be removed for good, but not all results are ({error}); remove it, or run"
        raise UnconfirmedError(stay[0], f"{reason} again with `overwrite=True`") from error


def _publish_set(drafts: Sequence[Draft], on_commit: Callable[[], None]) -> None:
    """Let several drafts replace their files by a log, which finishes that after a crash."""
    for draft in drafts:
        draft.take_draft_name()
    with contextlib.ExitStack() as stack:
        logs = _logs_of(drafts, stack)
        for draft in drafts:
            link_log(logs[draft.directory], draft)
        for directory, each in logs.items():
            each.check(directory)
        for draft in drafts:
            draft.check_in_place()
        sync_folders(drafts)
        log, *notes = logs.values()
        try:
            log.commit(drafts[0].name)
        finally:  # whatever becomes of the commit, the drafts are not ours to remove if the log stays
            for draft in drafts if log.is_committed else ():
                draft.has_name = False
            for note in notes:
                note.is_committed = log.is_committed
        on_commit()
        with unconfirmed(drafts[0].name, "the results are committed, but not all in place or confirmed"):
            for draft in drafts:
                draft.rename()
            sync_folders(drafts)
            for note in notes:
                note.unlink()
            log.finish()


def _logs_of(drafts: Sequence[Draft], stack: contextlib.ExitStack) -> dict[str, LogWriter]:
    """Write the log of a set, but for its header, in the directory of the first file, and a note in each other one."""
    first: dict[str, Draft] = {}  # of each directory
    for draft in drafts:
        first.setdefault(draft.directory, draft)
    home, *others = first
    log = stack.enter_context(new_log(drafts[0], [draft.path for draft in drafts]))
    folders = {directory: os.fstat(draft.dirfd).st_ino for directory, draft in first.items()}
    numbers = {directory: number for number, directory in enumerate(folders)}
    steps = [[numbers[each.directory], os.fsdecode(each.base), each.inode[1], stamp(each.existing)] for each in drafts]
    paths = [[folder, os.path.relpath(directory, home)] for directory, folder in folders.items()]
    log.seal(LogKind.PUTS, {"folders": paths, "steps": steps})
    logs, name = {home: log}, os.fsdecode(drafts[0].base)
    for directory in others:
        note = stack.enter_context(new_log(first[directory], [first[directory].path], identity=log.identity))
        note.seal(LogKind.NOTE, {"home": os.path.relpath(home, directory), "inode": folders[home], "first": name})
        note.complete()
        logs[directory] = note
    return logs


def new_log(first: Place, readers: Sequence[str], *, identity: bytes = b"", durable: bool = True) -> LogWriter:
    """Make the log of a change, or a note of it, in the directory of a file; see `LogWriter`."""
    # A name from the start is only where no file is without one.
    return _take_name(first, lambda: LogWriter(first.pointer, first.dirfd, readers, identity, durable=durable))


def link_log(writer: LogWriter, file: Place) -> None:
    """Let a file lead to a log."""
    _take_name(file, lambda: writer.link(file.pointer))


def _take_name(file: Place, take: Callable[[], _T]) -> _T:
    """Take the name of a log, after the recovery of a log that has come there since the file was locked."""
    while True:
        try:
            return take()
        except FileExistsError:
            from mpired.files import recovery  # noqa: PLC0415 - a rare case

            done = recovery.recover(file.name, file.path, recovery.How(LockTimeout(), writing=True))
            if done == recovery.FINISHED or calls.status_at(file.pointer, file.dirfd) is not None:
                raise LockError(file.name, "had a change of another command at work; run again") from None


@contextlib.contextmanager
def unconfirmed(name: str, what: str) -> Iterator[None]:
    """Raise `UnconfirmedError` for any error after a commit: the next command finishes the change."""
    try:
        yield
    except Exception as error:
        way_out = "do not repeat it, the next mpired command on it finishes it"
        raise UnconfirmedError(name, f"{what} ({_why(error)}); {way_out}") from error


def _why(error: Exception) -> str:
    """Return the reason of an error without its subject."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
