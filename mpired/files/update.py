"""The two ways to change a locked file so that it is wholly old or wholly new after any crash.

Replacement writes a whole new file and renames it over the old one: every reader sees the old or the new. A patch
writes the new bytes to a log first and then into the file: the work is that of the change alone, and links and open
descriptors stay, but a reader that knows nothing of logs can see half of the change while it is made, or after a crash
until the next mpired command.

Both go through the same steps: `write` the new bytes, `seal` all that can fail, `publish`. Leaving the block before
`publish` changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence

from mpired import interrupts
from mpired.errors import ChangedError, MpiredError, UsageError
from mpired.files import calls, copying, keys, log
from mpired.files.lock import Target, open_target
from mpired.files.names import MARK
from mpired.files.scratch import Scratch, Single, remove_dead
from mpired.files.transaction import Draft, link_log, new_log, publish, unconfirmed

# A file up to this size is copied without asking; of a larger one so much has to change.
_SMALL_NBYTES = 64 << 20
_LARGE_PART = 4


class Update(calls.Closing):
    """A change of a locked file in preparation; this base changes nothing, for a request that only fetches."""

    protocol = ""

    def __init__(self, source: int) -> None:
        self.source = source  # the descriptor that has the old bytes

    def write(self, data: memoryview | bytes, offset: int, /) -> None:
        """Take new bytes of the file; offsets ascend."""

    def seal(self, new_keys: bytes, /) -> None:
        """Do all that can fail; the file gets an attribute of new keys, if there are any."""

    def publish(self, on_commit: Callable[[], None], /) -> None:
        """Change the file."""


class NewFile(Update):
    """An update by a new file, of a new target or in the place of the old file."""

    def __init__(
        self,
        draft: Draft,
        source: int,  # see `Update`; the new bytes are written there too
        complete: Callable[[Draft], None] | None = None,  # fills the draft when all bytes are written
    ) -> None:
        super().__init__(source)
        self.protocol = "new file" if draft.target is None else "rename"
        self.draft, self._complete = draft, complete

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place."""
        with calls.errors_name(self.draft.name):
            calls.pwrite_all(self.source, data, offset)

    def seal(self, new_keys: bytes) -> None:
        """Complete the new file, and bring it to the disk."""
        with calls.errors_name(self.draft.name):
            if self._complete is not None:
                self._complete(self.draft)
            keys.hand_over(new_keys, self.draft.target, self.draft.fd)
        self.draft.seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take its place."""
        publish([self.draft], on_commit)

    def close(self) -> None:
        """Remove the new file, if it was not published."""
        self.draft.close()


class Replacement(NewFile):
    """An update by a new file that has the other bytes of the old one."""

    def __init__(self, target: Target, *, durable: bool) -> None:
        draft = Draft(target.name, overwrite=True, durable=durable, place=target)
        super().__init__(draft, target.fd, lambda _: self._copy(self._size))
        self._size = target.status.st_size
        with calls.errors_name(target.name), calls.undoing(self.close):
            self.is_clone = copying.clone(target.fd, draft.fd)  # which shares the blocks of the target
            if not self.is_clone:
                os.ftruncate(draft.fd, self._size)
        self._copied = self._size if self.is_clone else 0

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Give the new file `data` at `offset`, and the old bytes before it; offsets ascend."""
        self.skip(offset, len(data))
        with calls.errors_name(self.draft.name):
            calls.pwrite_all(self.draft.fd, data, offset)

    def skip(self, offset: int, nbytes: int) -> None:
        """Give the new file the old bytes before a range that is written otherwise."""
        self._copy(offset)
        self._copied = max(self._copied, offset + nbytes)

    def _copy(self, stop: int) -> None:
        if self._copied < stop:
            with calls.errors_name(self.draft.name):
                copying.copy_sparse(self.source, self.draft.fd, self._copied, stop, self._copied)
            self._copied = stop


class Patch(Update):
    """New bytes of a file, which are first in a log and then written where they belong."""

    protocol = "journal"

    def __init__(self, target: Target, nbytes: int, *, durable: bool) -> None:
        super().__init__(target.fd)
        self._target, self._durable = target, durable
        status = target.status
        self._has_names = calls.has_several_names(status)
        self._new: list[str] = []  # attributes that the file did not have, which are removed if nothing is committed
        self._attributes: dict[str, str] = {}  # new attributes of the file, in hexadecimal
        with calls.errors_name(target.name):
            self._check_possible(status)
            remove_dead(target.draft_name, target.dirfd)  # of a command that was killed
            try:
                self._log: log.LogWriter = new_log(target, [target.path], durable=durable)
            except MpiredError:  # some are errors of the system, too
                raise
            except OSError as error:
                raise OSError(error.errno, f"cannot make a log in {target.directory}: {error.strerror}") from error
            with calls.undoing(self.close):
                calls.reserve(self._log.fd, 0, log.HEADER_NBYTES + nbytes)

    def _check_possible(self, status: os.stat_result) -> None:
        """Raise an error if an interrupted patch of the file could not be found, or not be finished."""
        if status.st_dev != os.fstat(self._target.dirfd).st_dev:
            reason = "is mounted by itself, so its directory can have no log of it"
            raise UsageError(self._target.name, f"{reason}; `commit='rename'` replaces it")
        try:
            if self._has_names:
                calls.attribute(self._target.fd, MARK, frozenset({errno.ENODATA}))
        except OSError as error:
            why = f"has {status.st_nlink} names (hard links), and"
            why = f"{why} its file system cannot mark it so that its log is found by each ({error.strerror})"
            raise OSError(error.errno, f"{why}; `commit='rename'` changes the file of this name alone") from error

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes into the log; offsets ascend."""
        with calls.errors_name(self._target.name):
            self._log.write(data, offset)

    def seal(self, new_keys: bytes) -> None:
        """Complete the log, but for its header, and reserve space in the holes that will be written to."""
        target, status, writer = self._target, self._target.status, self._log
        with calls.errors_name(target.name):
            if status.st_blocks * 512 < status.st_size:
                for offset, nbytes in writer.ranges:
                    calls.reserve(target.fd, offset, offset + nbytes)
            if new_keys:
                if not (old_keys := keys.stored(target.fd)):
                    self._new.append(keys.ATTRIBUTE)
                # Room for the attribute: after the commit nothing may be refused.
                keys.remember(target.fd, old_keys.ljust(len(new_keys), b"\0"))
                self._attributes = {keys.ATTRIBUTE: new_keys.hex()}
            body = {
                "name": os.fsdecode(target.base), "inode": status.st_ino, "generation": calls.generation(target.fd),
                "size": status.st_size, "attributes": self._attributes,
            }  # fmt: skip
            writer.seal(log.LogKind.PATCH, body)

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Commit the log, write its bytes into the file, and remove it."""
        target, writer = self._target, self._log
        with interrupts.defer_signals():
            with calls.errors_name(target.name):
                link_log(writer, target)
                writer.check(target.directory)
                if not target.is_current:
                    raise ChangedError(target.name, "was replaced by another program meanwhile; run again")
                if self._has_names:
                    self._mark()
                if self._durable:
                    calls.fsync_directory(target.dirfd)
            writer.commit(target.name)
            on_commit()
            with unconfirmed(target.name, "the update is committed, but not finished"):
                log.apply(writer.fd, writer.header, target.fd, self._attributes)
                if self._durable:
                    # Attributes are brought to the disk by a full sync only.
                    calls.fsync(target.fd, content_only=not self._attributes)
                if self._has_names:
                    os.removexattr(target.fd, MARK)
                writer.finish()

    def _mark(self) -> None:
        """Let all names of the file lead to the log before it can be committed."""
        target = self._target
        inodes = target.status.st_ino, os.fstat(target.dirfd).st_ino
        pointer = "{} {} {} ".format(self._log.identity.hex(), *inodes).encode() + os.fsencode(target.path)
        os.setxattr(target.fd, MARK, pointer)
        self._new.append(MARK)
        if self._durable:
            calls.fsync(target.fd)

    def close(self) -> None:
        """Close the log; if it was not committed, nothing has happened."""
        for name in [] if self._log.is_committed else self._new:
            with contextlib.suppress(OSError):
                os.removexattr(self.source, name)
        self._log.close()


def replacement(target: Target, changed_nbytes: int, commit: str, *, durable: bool) -> Replacement | None:
    """Begin to replace a locked target; None where it takes a patch."""
    if target.shared:  # which may only be read
        commit = "rename"
    if commit == "journal" or (commit == "auto" and not _rename_keeps(target.status)):
        return None
    is_cheap = commit == "rename" or target.status.st_size <= max(_SMALL_NBYTES, _LARGE_PART * changed_nbytes)
    try:
        update = Replacement(target, durable=durable)
    except OSError:
        if is_cheap:
            raise
        return None
    if is_cheap or update.is_clone:
        return update
    update.close()
    return None


def _rename_keeps(status: os.stat_result) -> bool:
    """Return whether a new file can keep the only name, the owner and the group of the old one."""
    if calls.has_several_names(status):
        return False
    if os.geteuid() == 0:
        return True
    return status.st_uid == os.geteuid() and status.st_gid in {os.getegid(), *os.getgroups()}


class ChangedFile(contextlib.ExitStack):
    """Ranges of a file that change: the one draft has them at the offsets of the file until the commit."""

    def __init__(
        self,
        path: str,
        target: Target | None,  # locked; None if it cannot be, so that the file can only be replaced
        ranges: Sequence[tuple[int, int]],  # offset and number of bytes, ascending, without overlap
    ) -> None:
        super().__init__()
        self._ranges = ranges
        self._changed = sum(nbytes for _, nbytes in ranges)
        with calls.undoing(self.close):
            self._target = target or self.enter_context(open_target(path, shared=True, is_seen=False))
            self._update = replacement(self._target, self._changed, "auto", durable=True)
            if self._update is not None:
                self.enter_context(self._update)
                for each in ranges:
                    self._update.skip(*each)
                self.drafts: Sequence[Single] = (self._update.draft,)
                return
            scratch = self.enter_context(Scratch(self._target.directory, path))
            with calls.errors_name(path):
                for offset, nbytes in ranges:
                    calls.reserve(scratch.fd, offset, offset + nbytes)
            self.drafts = (scratch,)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Let the file have the new bytes."""
        update = self._update or self.enter_context(Patch(self._target, self._changed, durable=True))
        if self._update is None:
            for offset, nbytes in self._ranges:
                at = offset
                for block in calls.blocks(self.drafts[0].fd, offset, offset + nbytes):
                    update.write(block, at)
                    at += len(block)
        update.seal(b"")
        update.publish(on_commit)
