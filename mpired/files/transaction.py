"""The commit of new files and replaced files: completely or not at all.

A new file is linked to its name when it is complete and on the disk. Several new files are linked one after another
when all are on the disk, and removed again after an error. The draft of a single replaced file is renamed over it. Two
or more replaced files have a redo log (`log`), which `recovery` finishes after a crash.
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

_PAUSE = 0.005  # seconds between two attempts


class Draft(Place, Scratch):
    """A new file before its commit. If the block ends without a commit, nothing has changed."""

    # A symbolic link stays, and the file that it leads to is replaced. The draft gets mode, owner and attributes of the
    # replaced file.

    directory: str
    fd, _owns_dirfd, _is_sealed = -1, False, False
    has_name = False  # whether the draft has a name, which `close` removes
    inode = 0, 0
    # Fields of a draft that replaces a target of an update:
    into = -1  # descriptor that gets the new bytes
    complete: Callable[[Draft], None] | None = None  # writes the file from these bytes
    old_nbytes = 0  # size of the old file, if its unchanged bytes are copied into the draft
    copied = sys.maxsize  # the draft has the bytes before this offset; the default copies none

    def __init__(  # noqa: PLR0913 - the properties of a result
        self,
        path: str,
        *,
        overwrite: bool = False,  # whether an existing file may be replaced
        context: Context = NO_LIMITS,
        durable: bool = True,  # whether the file and its name are synced
        place: Place | None = None,  # locked `Target`, or a place that is checked already
        named: bool = False,  # whether the draft has a name, so that processes other than children can open it
        compression: Compression | None = None,
        kept_open: bool = True,  # False for a draft with a name, which is opened for each access
    ) -> None:
        self._compression, self._overwrite, self.durable, self._kept_open = compression, overwrite, durable, kept_open
        self.target = target = place if isinstance(place, Target) else None
        self.protocol = "rename" if target else "new file"  # for the summary
        self._timeout = target.timeout if target else None
        self._lock_timeout = context.lock_timeout
        self.content_of: list[str] = []  # other files with content of the draft; it admits only users of all of them
        status = place.status if place else recover_replaced(path, context, overwrite=overwrite)
        with calls.errors_name(path), calls.undoing(self.close):  # the current directory may not exist any more
            real = place.path if place else os.path.realpath(path)
            dirfd = place.dirfd if place else calls.open_directory(os.path.dirname(real))
            Place.__init__(self, path, real, dirfd, status)
            self._owns_dirfd = place is None
            self.take_draft_name(named=named or not kept_open)
            if not self.has_name and calls.status_at(self.draft_name, self.dirfd):
                remove_dead(self.draft_name, self.dirfd)

    @property
    def shared(self) -> calls.SharedFile:
        """The draft in the tasks of an engine, by its name or its descriptor."""
        return calls.SharedFile(own_path(self.path, DRAFT), self.inode) if self.has_name else super().shared

    def take_draft_name(self, *, named: bool) -> None:
        """Create the draft, with a name if `named`, or give the open draft its name.

        Waits for other commands that write to the same path.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                if self.fd >= 0:
                    calls.link(self.fd, self.draft_name, self.dirfd)
                    self.has_name = True
                    return
                try:
                    with interrupts.defer_signals() if named else contextlib.nullcontext():
                        self.fd, self.has_name = create(self.draft_name, self.dirfd, named=named)
                        self.inode = inode(os.fstat(self.fd))
                except OSError as error:
                    raise _draft_error(error.errno, self.directory, self.status) from error
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
            self._timeout = self._timeout or LockTimeout(self._lock_timeout)
            if self._timeout.deadline <= time.monotonic():
                reason = f"another command writes to it ({name} is there); wait for it, or"
                raise LockError(self.name, f"{reason} `mpired recover` removes the draft of one that was killed")
            interrupts.interruptible(time.sleep, _PAUSE)

    def copy_from(self, original: Draft, *, link: bool) -> None:
        """Make this draft a hard link of the original if `link` is true and possible, otherwise a copy."""
        with calls.errors_name(self.name), original.created() as source:
            if link and os.fstat(source).st_dev == os.fstat(self.dirfd).st_dev:
                self.close()  # keeps the directory open, which belongs to the transaction
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
        """Write new bytes; offsets ascend if old bytes are copied too."""
        self.skip(offset, len(data))
        with calls.errors_name(self.name):
            calls.pwrite_all(self.into, data, offset)

    def skip(self, offset: int, nbytes: int) -> None:
        """Copy the old bytes before a range, and skip the range, which gets new bytes."""
        if self.copied < offset:
            assert self.target is not None  # noqa: S101 - has the old bytes
            with calls.errors_name(self.name):
                copying.copy_sparse(self.target.fd, self.fd, self.copied, offset, self.copied)
        self.copied = max(self.copied, offset + nbytes)

    def seal(self, new_keys: bytes = b"") -> None:
        """Complete, compress and sync the draft; raise `OSError` for a lack of space or rights."""
        if self.copied < self.old_nbytes:
            self.skip(self.old_nbytes, 0)
        with self.created() as fd:
            if self.complete is not None:
                self.complete(self)
            if self.into >= 0:
                old_keys = b"" if self.target is None else calls.attribute(self.target.fd, keys.ATTRIBUTE)
                if value := new_keys or old_keys:
                    keys.set_attribute(fd, value)
            if self._compression is not None:
                mtime = os.fstat(fd).st_mtime_ns  # a provenance file must not be older than its result
                with Scratch(self.directory, self.name) as packed:
                    self._compression.pack(fd, packed.fd)
                    os.ftruncate(fd, 0)
                    copying.copy_file(packed.fd, fd)
                os.utime(fd, ns=(mtime, mtime))
            if self.status is not None:
                copying.copy_metadata(self.status, self.path, fd, content_of=self.content_of)
            else:
                mode = calls.default_mode()
                os.fchmod(fd, mode & copying.common_mode(self.content_of, fd) if self.content_of else mode)
            if self.durable:
                calls.fsync(fd)
        self._is_sealed = True

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Give the draft its final name, durably; `on_commit` is called while signals are still deferred."""
        if not self._is_sealed:
            self.seal()
        publish([self], on_commit)

    def take_free_name(self) -> None:
        """Give a new file its name; a file that another process has created is replaced only if `overwrite`."""
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
                    raise FileExistsError  # noqa: TRY301 - like the calls above
            except FileExistsError:
                if not self._overwrite:
                    raise exists_error(self.name, appeared=True) from None
                if not self.has_name:
                    self.take_draft_name(named=True)
                self.rename()

    def check_unchanged(self) -> None:
        """Raise an error if another process has removed the draft, or replaced the old file."""
        draft, current = calls.status_at(self.draft_name, self.dirfd), calls.status_at(self.base, self.dirfd)
        if draft is None or draft.st_ino != self.inode[1]:
            raise OSError(errno.ENOENT, "its draft was removed by another process; run again", self.name)
        if current is None or self.status is None or not os.path.samestat(current, self.status):
            raise ChangedError(self.name, "was replaced by another program meanwhile; nothing was done, run again")

    def rename(self) -> None:
        """Rename the draft to its final name, over any old file."""
        with calls.errors_name(self.name):
            calls.rename(self.draft_name, self.base, self.dirfd)
        self.has_name = False

    def take_back(self) -> bool:
        """Remove a new file that has its name already; return whether it was removed."""
        if self.status is not None:
            return False
        try:
            calls.unlink_inode(self.base, self.dirfd, self.inode[1])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the draft, and remove it unless it has its final name."""
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


def _draft_error(number: int | None, directory: str, status: os.stat_result | None) -> OSError:
    """Return an error for a draft that cannot be made; for lack of rights it names the directory of an old file."""
    is_of_directory = status is not None and number in {errno.EACCES, errno.EPERM}
    reason = os.strerror(number or 0)
    return OSError(number, f"cannot make a file in {directory}: {reason}" if is_of_directory else reason)


Output: TypeAlias = "Draft | StreamOutput | RemoteOutput"
"""An output: write ranges of `fd`, then `commit`. If the block ends without a commit, nothing has changed."""


def open_output(
    path: str,
    *,
    overwrite: bool = False,
    context: Context = NO_LIMITS,
    locked: LockedTargets = NO_LOCKED_TARGETS,  # files that this process has locked, by name
    compression: Compression | None = None,
) -> Output:
    """Open an output: a file, an object of a URL, or a stream, such as a FIFO or `-` for standard output."""
    if "://" in path and is_url(path):
        from mpired.files.stores import RemoteOutput  # noqa: PLC0415 - most results are files

        return RemoteOutput(path, overwrite=overwrite, compression=compression)
    if is_stream(path):
        check_stdout(path)
        return StreamOutput(path, descriptor_of(path), compression)
    return Draft(path, overwrite=overwrite, context=context, place=locked.get(path), compression=compression)


def recover_replaced(path: str, context: Context, *, overwrite: bool) -> os.stat_result | None:
    """Check and recover the file that a result replaces; return its status, or None if it does not exist."""
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
    """Check that results can be written to paths, without creating files; return the status of replaced files."""
    outputs, errors = list(paths), []
    replaced: dict[str, os.stat_result | None] = {}
    writable_folders = set[str]()  # so that each folder is checked once
    for path in outputs:
        try:
            check_stdout(path)
            if is_stream(path):
                continue
            if is_url(path):
                from mpired.files import stores  # noqa: PLC0415 - most results are files

                stores.check_new(path, overwrite=overwrite)
                continue
            replaced[path] = recover_replaced(path, context, overwrite=overwrite)
            if (folder := os.path.dirname(calls.follow_link(path))) in writable_folders:
                continue
            with calls.errors_name(path):
                directory = os.path.realpath(folder)
                calls.close_quietly(calls.open_directory(directory))
                if not os.access(directory, os.W_OK | os.X_OK):
                    is_read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
                    raise _draft_error(errno.EROFS if is_read_only else errno.EACCES, directory, replaced[path])
            writable_folders.add(folder)
        except (MpiredError, OSError) as error:
            errors.append(error)
    raise_all(errors, len(outputs), "outputs")
    return replaced


class Transaction(contextlib.ExitStack):
    """Several result files that are committed together."""

    def __init__(  # noqa: PLR0913 - the properties of results
        self,
        paths: Sequence[str],
        *,
        overwrite: bool = False,  # whether existing files may be replaced
        context: Context = NO_LIMITS,
        locked: LockedTargets = NO_LOCKED_TARGETS,  # replaced files that this process has locked, by name
        named: bool = False,  # see `Draft`
        compressions: Sequence[Compression | None] = (),  # of each file; () if no file is compressed
        folders: Sequence[str] = (),  # new directories for files, which are removed if nothing is committed
    ) -> None:
        super().__init__()
        reason = "is a stream, and results that appear together are files"
        raise_all([UsageError(path, reason) for path in filter(is_stream, paths)], len(paths), "outputs")
        self.drafts: list[Draft] = []
        dirfds: dict[str, int] = {}  # by directory
        needed = len(paths) + len(set(map(os.path.dirname, paths))) + descriptors_of(len(locked)) + RESERVED
        limit = context.max_open_files
        kept_open = (limit is None or needed <= limit - RESERVED) and needed <= calls.allow_descriptors(needed)
        with calls.undoing(self.close):
            for folder in folders:
                self._make_folder(folder)
            replaced = check_new(paths, context, overwrite=overwrite)
            compressions = compressions or [None] * len(paths)
            for path, real, compression in zip(paths, calls.real_paths(paths), compressions, strict=True):
                place: Place | None = locked.get(path)
                if place is None:
                    if (directory := os.path.dirname(real)) not in dirfds:
                        with calls.errors_name(path):
                            dirfds[directory] = calls.open_directory(directory)
                        self.callback(calls.close_quietly, dirfds[directory])
                    place = Place(path, real, dirfds[directory], replaced.get(path))
                draft = Draft(
                    path, overwrite=overwrite, context=context, place=place, named=named, compression=compression,
                    kept_open=kept_open,
                )  # fmt: skip
                self.drafts.append(self.enter_context(draft))
            _check_one_device([draft for draft in self.drafts if draft.status is not None])

    def _make_folder(self, folder: str) -> None:
        """Make a directory, unless it exists; the end of the transaction removes it if it is empty."""

        def remove() -> None:
            with contextlib.suppress(OSError):  # it has files after a commit
                os.rmdir(folder)

        with calls.errors_name(folder), contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            self.callback(remove)
            with calls.directory(os.path.dirname(os.path.abspath(folder))) as dirfd:
                calls.fsync_directory(dirfd)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Give all drafts their final names, durably."""
        for draft in self.drafts:
            draft.seal()
        publish(self.drafts, on_commit)


def _check_one_device(drafts: Sequence[Draft]) -> None:
    """Raise `UsageError` unless files that are replaced together are on one file system, like their log."""
    for draft in drafts if len(drafts) > 1 else ():
        devices = {os.fstat(dirfd).st_dev for dirfd in (drafts[0].dirfd, draft.dirfd)}
        if draft.status is not None and devices != {draft.status.st_dev}:
            reason = f"is not on the file system of {drafts[0].name}, and both are replaced together"
            raise UsageError(draft.name, f"{reason}; replace the files of each file system by a command of their own")


def publish(drafts: Sequence[Draft], on_commit: Callable[[], None]) -> None:
    """Give sealed drafts their final names: first the new files, then the replacements of existing files."""
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
                draft.check_unchanged()
                draft.rename()
        except BaseException as error:  # such as ctrl-C, while a name of another command is awaited
            if not isinstance(error, UnconfirmedError):
                _take_back(linked, error)
            raise
        on_commit()
        try:
            sync_folders(replaced or new)
        except Exception as error:
            results = "result is in place, but its" if len(drafts) == 1 else "results are in place, but their"
            reason = f"the {results} directory could not be synced ({reason_of(error)})"
            raise UnconfirmedError(drafts[0].name, reason) from error


def _take_back(linked: Sequence[Draft], error: BaseException) -> None:
    """Remove new files after an error; raise `UnconfirmedError` for a file that stays or may reappear."""
    left = [draft.name for draft in linked if not draft.take_back()]
    try:
        sync_folders(linked)
    except OSError:
        left += [draft.name for draft in linked]
    if left:
        reason = f"is in place and cannot be removed for good, but not all results are ({error}); remove it, or run"
        raise UnconfirmedError(left[0], f"{reason} again with `overwrite=True`") from error


def _publish_set(drafts: Sequence[Draft], on_commit: Callable[[], None]) -> None:
    """Replace several files through a log, so that a recovery can finish the replacement after a crash."""
    with contextlib.ExitStack() as stack:
        logs = _logs_of(drafts, stack)
        for draft in drafts:
            take_pointer(draft, partial(logs[draft.directory].link, draft))
        log, *notes = logs.values()
        for writer in logs.values():
            writer.check()
        for draft in drafts:
            draft.check_unchanged()
        sync_folders(drafts)
        try:
            log.commit_header()
        finally:  # a recovery needs the drafts and notes if the log stays, even after an error
            for draft in drafts if log.is_committed else ():
                draft.has_name = False
            for note in notes:
                note.is_committed = log.is_committed
        on_commit()
        with unconfirmed(drafts[0].name, "the results are committed, but not all in place or confirmed"):
            for draft in drafts:
                draft.rename()
            sync_folders(drafts)
            for writer in (*notes, log):
                finish(writer.fd, writer.names, writer.dirfd)


def _logs_of(drafts: Sequence[Draft], stack: contextlib.ExitStack) -> dict[str, LogWriter]:
    """Write a log without its header beside the first file and notes in the other directories; return them."""
    first = {draft.directory: draft for draft in reversed(drafts)}
    home, *other_directories = dict.fromkeys(draft.directory for draft in drafts)
    inodes = {directory: os.fstat(first[directory].dirfd).st_ino for directory in (home, *other_directories)}
    numbers = {directory: number for number, directory in enumerate(inodes)}
    log = stack.enter_context(take_pointer(drafts[0], partial(LogWriter, drafts[0], [draft.path for draft in drafts])))
    steps = [
        [numbers[draft.directory], os.fsdecode(draft.base), draft.inode[1], stamp(draft.status)] for draft in drafts
    ]
    folders = [[folder_inode, os.path.relpath(directory, home)] for directory, folder_inode in inodes.items()]
    log.write_body(LogKind.PUTS, {"folders": folders, "steps": steps})
    logs, name = {home: log}, os.fsdecode(drafts[0].base)
    for directory in other_directories:
        draft = first[directory]
        note = take_pointer(draft, partial(LogWriter, draft, [draft.path], log.identity))
        logs[directory] = stack.enter_context(note)
        note.write_body(LogKind.NOTE, {"home": os.path.relpath(home, directory), "inode": inodes[home], "first": name})
        note.complete()
    return logs
