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
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mpired import interrupts
from mpired.context import NO_LIMITS, RESERVED, Context
from mpired.errors import ChangedError, LockError, MpiredError, UnconfirmedError, UsageError, raise_all
from mpired.files import calls, copying, keys
from mpired.files.access import recover_for_reading, take_pointer
from mpired.files.lock import NO_LOCKED_TARGETS, LockedTargets, LockTimeout, Target, descriptors_of
from mpired.files.log import LogKind, LogWriter, finish, reason_of, stamp, unconfirmed
from mpired.files.places import (
    DRAFT,
    Place,
    check_is_data,
    check_stdout,
    descriptor_of,
    exists_error,
    has_log,
    inode,
    is_stream,
    own_path,
    sync_folders,
)
from mpired.files.scratch import Compression, Scratch, StreamOutput, create, remove_dead
from mpired.files.urls import is_url

if TYPE_CHECKING:
    from mpired.files.stores import RemoteOutput

_PAUSE = 0.005  # seconds


class Draft(Place, Scratch):
    """A new file on its way to its name. Leaving the block before the commit changes nothing."""

    # A symbolic link stays, and its target is replaced. An existing file gives its mode, owner and attributes.

    directory: str
    fd, has_name, _owns_dirfd, _is_sealed = -1, False, False, False
    inode = 0, 0
    # Of one that a target becomes:
    into = -1  # the descriptor that gets the new bytes
    complete: Callable[[Draft], None] | None = None  # fills the file when all bytes are written
    old_nbytes = 0  # of the old file, if they are taken over
    copied = sys.maxsize  # how many of these the new file has, or others in their place

    def __init__(  # noqa: PLR0913 - all that a result depends on
        self,
        path: str,
        *,
        overwrite: bool = False,  # whether an existing file may be replaced
        context: Context = NO_LIMITS,
        durable: bool = True,  # whether the file and its name are synced
        place: Place | None = None,  # a `Target` that is locked, or a place that was checked
        named: bool = False,  # whether it has a name, by which processes that are not children of this one can open it
        packing: Compression | None = None,  # how it is compressed when it is complete
        kept_open: bool = True,  # else it has a name, and is opened when it is used
    ) -> None:
        self._packing, self._overwrite, self.durable, self._kept_open = packing, overwrite, durable, kept_open
        self.target = target = place if isinstance(place, Target) else None
        self.protocol = "rename" if target else "new file"  # the name of the way in which a target changes
        self._waiting = target.waiting if target else None  # how long to wait for others, from the first wait on
        self._timeout = context.lock_timeout
        self.within: list[str] = []  # the files of its content: it is open to no more users than each of them
        status = place.status if place else replaced_file(path, context, overwrite=overwrite)
        with calls.errors_name(path), calls.undoing(self.close):  # the current directory may be gone
            real = place.path if place else os.path.realpath(path)
            dirfd = place.dirfd if place else calls.open_directory(os.path.dirname(real))
            Place.__init__(self, path, real, dirfd, status)
            self._owns_dirfd = place is None
            self.take_draft_name(named=named or not kept_open)
            if not self.has_name and calls.status_at(self.draft_name, self.dirfd):
                remove_dead(self.draft_name, self.dirfd)  # of a command that was killed

    @property
    def shared(self) -> calls.SharedFile:
        """The file for the tasks of an engine, by its own name if it has one."""
        return calls.SharedFile(own_path(self.path, DRAFT), self.inode) if self.has_name else super().shared

    def take_draft_name(self, *, named: bool) -> None:
        """Create the file, or name the one that is there, when no other command writes to the same place.

        A new file gets its own name only if it has to be `named`; one that is there gets it to be renamed.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                if self.fd >= 0:
                    calls.link(self.fd, self.draft_name, self.dirfd)
                    self.has_name = True
                    return
                with interrupts.defer_signals() if named else contextlib.nullcontext():
                    self.fd, self.has_name = create(self.draft_name, self.dirfd, named=named)
                    self.inode = inode(os.fstat(self.fd))
                if not self._kept_open:
                    calls.close_quietly(self.fd)
                    self.fd = -1
                return
            if remove_dead(self.draft_name, self.dirfd):
                continue
            status, name = calls.status_at(self.draft_name, self.dirfd), os.fsdecode(self.draft_name)
            if status is not None and not stat.S_ISREG(status.st_mode):
                reason = f"needs the name {name} for its draft, which something else has"
                raise OSError(errno.EEXIST, f"{reason}; remove that", self.name)
            self._waiting = self._waiting or LockTimeout(self._timeout)
            if self._waiting.deadline <= time.monotonic():
                reason = f"another command writes to it ({name} is there); wait for it, or"
                raise LockError(self.name, f"{reason} `mpired recover` removes the draft of one that was killed")
            interrupts.interruptible(time.sleep, _PAUSE)

    def repeat(self, original: Draft, *, link: bool) -> None:
        """Make this file a second name of another draft, if it may be linked, or a copy, by sharing blocks."""
        with calls.errors_name(self.name), original.created() as source:
            if link and os.fstat(source).st_dev == os.fstat(self.dirfd).st_dev:
                self.close()  # its directory belongs to the transaction
                self.inode = original.inode
                if not original.has_name:
                    self.fd = os.dup(source)
                    return
                self.has_name = calls.linked(original.draft_name, self.draft_name, original.dirfd, self.dirfd)
                if self.has_name:
                    return
                self.take_draft_name(named=True)
            with self.created() as fd:
                copying.copy_file(source, fd)

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place; offsets ascend if the old ones before it are taken over."""
        self.skip(offset, len(data))
        with calls.errors_name(self.name):
            calls.pwrite_all(self.into, data, offset)

    def skip(self, offset: int, nbytes: int) -> None:
        """Give the new file the old bytes before a range that is written otherwise."""
        if self.copied < offset:
            assert self.target is not None  # noqa: S101 - whose bytes are taken over
            with calls.errors_name(self.name):
                copying.copy_sparse(self.target.fd, self.fd, self.copied, offset, self.copied)
        self.copied = max(self.copied, offset + nbytes)

    def seal(self, new_keys: bytes = b"") -> None:
        """Complete, compress and sync the file; raise `OSError` for a lack of space or rights."""
        if self.copied < self.old_nbytes:
            self.skip(self.old_nbytes, 0)
        with self.created() as fd:
            if self.complete is not None:
                self.complete(self)
            if self.into >= 0:  # without new keys a target has those that it had
                old_keys = b"" if self.target is None else calls.attribute(self.target.fd, keys.ATTRIBUTE)
                if value := new_keys or old_keys:
                    keys.remember(fd, value)
            if self._packing is not None:
                made = os.fstat(fd).st_mtime_ns  # a record beside the result is made after that
                with Scratch(self.directory, self.name) as packed:
                    self._packing.pack(fd, packed.fd)
                    os.ftruncate(fd, 0)
                    copying.copy_file(packed.fd, fd)
                os.utime(fd, ns=(made, made))
            if self.status is not None:
                copying.copy_metadata(self.status, self.path, fd, within=self.within)
            else:
                mode = calls.default_mode()
                os.fchmod(fd, mode & copying.widest(self.within, fd) if self.within else mode)
            if self.durable:
                calls.fsync(fd)
        self._is_sealed = True

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Make the file durable and put it in its place; `on_commit` is called while signals are still held back."""
        if not self._is_sealed:
            self.seal()
        publish([self], on_commit)

    def take_free_name(self) -> None:
        """Take a name that was free; a file that has come meanwhile is replaced if that is allowed."""
        with calls.errors_name(self.name):
            try:
                if not self.has_name:
                    calls.link(self.fd, self.base, self.dirfd)
                elif calls.linked(self.draft_name, self.base, self.dirfd, self.dirfd):
                    calls.unlink(self.draft_name, self.dirfd)
                    self.has_name = False
                elif calls.status_at(self.base, self.dirfd) is None:  # a file system without hard links
                    self.rename()
                else:
                    raise FileExistsError  # noqa: TRY301 - as the others do
            except FileExistsError:
                if not self._overwrite:
                    raise exists_error(self.name, appeared=True) from None
                if not self.has_name:
                    self.take_draft_name(named=True)
                self.rename()

    def check_in_place(self) -> None:
        """Raise an error unless the draft has its name, and the file that it replaces is still the same."""
        draft, now = calls.status_at(self.draft_name, self.dirfd), calls.status_at(self.base, self.dirfd)
        if draft is None or draft.st_ino != self.inode[1]:
            raise OSError(errno.ENOENT, "its draft was removed by another process; run again", self.name)
        if now is None or self.status is None or not os.path.samestat(now, self.status):
            raise ChangedError(self.name, "was replaced by another program meanwhile; nothing was done, run again")

    def rename(self) -> None:
        """Replace the old file."""
        with calls.errors_name(self.name):
            calls.rename(self.draft_name, self.base, self.dirfd)
        self.has_name = False

    def take_back(self) -> bool:
        """Remove a file again that was new; return whether that worked."""
        if self.status is not None:
            return False
        try:
            calls.unlink_inode(self.base, self.dirfd, self.inode[1])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file, and remove it if it has not got its name."""
        if self.has_name:
            with contextlib.suppress(OSError):
                calls.unlink(self.draft_name, self.dirfd)
            self.has_name = False
        if self.fd >= 0:
            calls.release(self.fd)
            self.fd = -1
        if self._owns_dirfd:
            calls.close_quietly(self.dirfd)
            self._owns_dirfd = False


Output: TypeAlias = "Draft | StreamOutput | RemoteOutput"
"""The place of a result: fill `fd` by ranges, then `commit`. Leaving the block without it changes nothing."""


def open_output(
    path: str,
    *,
    overwrite: bool = False,
    context: Context = NO_LIMITS,
    locked: LockedTargets = NO_LOCKED_TARGETS,  # the files that this process has locked, by their names
    packing: Compression | None = None,  # how it is compressed
) -> Output:
    """Open the output of a path: `-` is standard output, a URL an object, anything but a file a stream."""
    if "://" in path and is_url(path):
        from mpired.files.stores import RemoteOutput  # noqa: PLC0415 - most results are files

        return RemoteOutput(path, overwrite=overwrite, packing=packing)
    if is_stream(path):
        check_stdout(path)
        return StreamOutput(path, descriptor_of(path), packing)
    return Draft(path, overwrite=overwrite, context=context, place=locked.get(path), packing=packing)


def replaced_file(path: str, context: Context, *, overwrite: bool) -> os.stat_result | None:
    """Return the status of the file that a result replaces, None if there is none; finish a change of it first."""
    status = None
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if not path:
            raise
    if path.endswith("/") or (status is not None and stat.S_ISDIR(status.st_mode)):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if status is not None and not overwrite:
        raise exists_error(path)
    if has_log(check_is_data(path, changes=True), status):
        recover_for_reading(path, context)
    return status


def check_new(paths: Iterable[str], context: Context, *, overwrite: bool) -> dict[str, os.stat_result | None]:
    """Check that results can be written to paths, without making anything; return the status of replaced files."""
    checked, errors = list(paths), []
    replaced: dict[str, os.stat_result | None] = {}
    folders = set[str]()  # in which files can be made: each is checked once
    for path in checked:
        try:
            check_stdout(path)
            if is_stream(path):
                continue
            if is_url(path):
                from mpired.files import stores  # noqa: PLC0415 - most results are files

                stores.check_new(path, overwrite=overwrite)
                continue
            replaced[path] = replaced_file(path, context, overwrite=overwrite)
            if (folder := os.path.dirname(calls.followed(path))) in folders:
                continue
            with calls.errors_name(path):
                directory = os.path.realpath(folder)
                calls.close_quietly(calls.open_directory(directory))
                if not os.access(directory, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            folders.add(folder)
        except (MpiredError, OSError) as error:
            errors.append(error)
    raise_all(errors, len(checked), "outputs")
    return replaced


class Transaction(contextlib.ExitStack):
    """Files that appear under their names together, durable, or not at all."""

    def __init__(  # noqa: PLR0913 - all that results depend on
        self,
        paths: Sequence[str],
        *,
        overwrite: bool = False,  # whether existing files may be replaced
        context: Context = NO_LIMITS,
        locked: LockedTargets = NO_LOCKED_TARGETS,  # the files that are replaced and locked, by their names
        named: bool = False,  # see `Draft`
        packings: Sequence[Compression | None] = (),  # how each is compressed, if any is
        folders: Sequence[str] = (),  # new directories for some of them, which are removed if nothing is committed
    ) -> None:
        super().__init__()
        reason = "is a stream, and results that appear together are files"
        raise_all([UsageError(path, reason) for path in filter(is_stream, paths)], len(paths), "outputs")
        self.drafts: list[Draft] = []
        opened: dict[str, int] = {}  # directories
        wanted = len(paths) + len(set(map(os.path.dirname, paths))) + descriptors_of(len(locked)) + RESERVED
        limit = context.max_open_files
        many = (limit is not None and limit - RESERVED < wanted) or calls.allow_descriptors(wanted) < wanted
        with calls.undoing(self.close):
            for folder in folders:
                self._make_folder(folder)
            replaced = check_new(paths, context, overwrite=overwrite)
            packings = packings or [None] * len(paths)
            for path, real, packing in zip(paths, calls.real_paths(paths), packings, strict=True):
                place: Place | None = locked.get(path)
                if place is None:
                    if (directory := os.path.dirname(real)) not in opened:
                        with calls.errors_name(path):
                            opened[directory] = calls.open_directory(directory)
                        self.callback(calls.close_quietly, opened[directory])
                    place = Place(path, real, opened[directory], replaced.get(path))
                draft = Draft(
                    path, overwrite=overwrite, context=context, place=place, named=named, packing=packing,
                    kept_open=not many,
                )  # fmt: skip
                self.drafts.append(self.enter_context(draft))
            _check_one_device([draft for draft in self.drafts if draft.status is not None])

    def _make_folder(self, folder: str) -> None:
        """Make a directory, unless another process has made it meanwhile."""

        def remove() -> None:
            with contextlib.suppress(OSError):  # it is not empty when all is done
                os.rmdir(folder)

        with calls.errors_name(folder), contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            self.callback(remove)
            with calls.directory(os.path.dirname(os.path.abspath(folder))) as above:
                calls.fsync_directory(above)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Make all files durable and put them in their places."""
        for draft in self.drafts:
            draft.seal()
        publish(self.drafts, on_commit)


def _check_one_device(drafts: Sequence[Draft]) -> None:
    """Raise `UsageError` unless files that are replaced together are on one file system: a log is of one."""
    for draft in drafts if len(drafts) > 1 else ():  # one has no log
        devices = {os.fstat(each.dirfd).st_dev for each in (drafts[0], draft)}
        if draft.status is not None and devices != {draft.status.st_dev}:
            reason = f"is not on the file system of {drafts[0].name}, and both are replaced together"
            raise UsageError(draft.name, f"{reason}; replace the files of each file system by a command of their own")


def publish(drafts: Sequence[Draft], on_commit: Callable[[], None]) -> None:
    """Let sealed drafts take their places, all of them or none: the new ones first, then those that replace."""
    new = [draft for draft in drafts if draft.status is None]
    replaced = [draft for draft in drafts if draft.status is not None]
    linked: list[Draft] = []
    with interrupts.defer_signals():
        try:
            for draft in new:
                draft.take_free_name()
                linked.append(draft)
            if replaced:
                sync_folders(new)
            for draft in replaced:
                if not draft.has_name:
                    draft.take_draft_name(named=True)
            if len(replaced) > 1:
                _publish_set(replaced, on_commit)
                return
            for draft in replaced:
                draft.check_in_place()
                draft.rename()
        except Exception as error:
            if not isinstance(error, UnconfirmedError):
                _take_back(linked, error)
            raise
        on_commit()
        try:
            sync_folders(replaced or new)
        except Exception as error:
            what = "result is in place, but its" if len(drafts) == 1 else "results are in place, but their"
            reason = f"the {what} directory could not be synced ({reason_of(error)})"
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
    with contextlib.ExitStack() as stack:
        logs = _logs_of(drafts, stack)
        for draft in drafts:
            take_pointer(draft, partial(logs[draft.directory].link, draft))
        for each in logs.values():
            each.check()
        for draft in drafts:
            draft.check_in_place()
        sync_folders(drafts)
        log, *notes = logs.values()
        try:
            log.commit_header()
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
            for each in (*notes, log):
                finish(each.fd, each.names, each.dirfd)


def _logs_of(drafts: Sequence[Draft], stack: contextlib.ExitStack) -> dict[str, LogWriter]:
    """Write the log of a set, but for its header, in the directory of the first file, and a note in each other one."""
    first = {draft.directory: draft for draft in reversed(drafts)}
    home, *others = dict.fromkeys(draft.directory for draft in drafts)
    inodes = {directory: os.fstat(first[directory].dirfd).st_ino for directory in (home, *others)}
    numbers = {directory: number for number, directory in enumerate(inodes)}
    log = stack.enter_context(take_pointer(drafts[0], partial(LogWriter, drafts[0], [draft.path for draft in drafts])))
    steps = [[numbers[each.directory], os.fsdecode(each.base), each.inode[1], stamp(each.status)] for each in drafts]
    folders = [[inode, os.path.relpath(directory, home)] for directory, inode in inodes.items()]
    log.write_body(LogKind.PUTS, {"folders": folders, "steps": steps})
    logs, name = {home: log}, os.fsdecode(drafts[0].base)
    for directory in others:
        place = first[directory]
        note = take_pointer(place, partial(LogWriter, place, [place.path], log.identity))
        logs[directory] = stack.enter_context(note)
        note.write_body(LogKind.NOTE, {"home": os.path.relpath(home, directory), "inode": inodes[home], "first": name})
        note.complete()
    return logs
