"""The two ways to change a locked file so that it is wholly old or wholly new after any crash.

Replacement writes a whole new file and renames it over the old one: every reader sees the old or the new. A patch
writes the new bytes to a log first and then into the file: the work is that of the change alone, and links and open
descriptors stay, but a reader that knows nothing of logs can see half of the change while it is made, or after a crash
until the next mpired command.

Both are an `Update` with the same steps: `write` the new bytes, `seal` all that can fail, `publish`. Leaving the block
before `publish` changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from mpired import interrupts
from mpired.errors import ChangedError, MpiredError, UsageError
from mpired.files import calls, copying, keys, log
from mpired.files.lock import Target, open_target
from mpired.files.names import MARK
from mpired.files.scratch import Scratch, Single, remove_dead
from mpired.files.transaction import Draft, new_log, publish, take_pointer

# A file up to this size is copied without asking; of a larger one so much has to change.
_SMALL_NBYTES = 64 << 20
_LARGE_PART = 4


class NewFile(Draft):
    """An update by a new file, of a new target or in the place of the old file."""

    source = -1  # the descriptor that has the old bytes; the new ones are written there too
    complete: Callable[[Draft], None] | None = None  # fills the file when all bytes are written

    @property
    def protocol(self) -> str:
        """The name of the way in which the target changes."""
        return "new file" if self.target is None else "rename"

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place."""
        with calls.errors_name(self.name):
            calls.pwrite_all(self.source, data, offset)

    def seal(self, new_keys: bytes = b"") -> None:
        """Complete the new file, and bring it to the disk."""
        with calls.errors_name(self.name):
            if self.complete is not None:
                self.complete(self)
            keys.hand_over(new_keys, self.target, self.fd)
        super().seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take its place."""
        publish([self], on_commit)


class Replacement(NewFile):
    """An update by a new file that has the other bytes of the old one."""

    def __init__(self, target: Target, *, durable: bool) -> None:
        super().__init__(target.name, overwrite=True, durable=durable, place=target)
        self.source, self._size, self._copied = target.fd, target.status.st_size, 0
        with calls.errors_name(target.name), calls.undoing(self.close):
            self.is_clone = copying.clone(target.fd, self.fd)  # which shares the blocks of the target
            if self.is_clone:
                self._copied = self._size
            else:
                calls.set_size(self.fd, self._size)

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Give the new file `data` at `offset`, and the old bytes before it; offsets ascend."""
        self.skip(offset, len(data))
        with calls.errors_name(self.name):
            calls.pwrite_all(self.fd, data, offset)

    def skip(self, offset: int, nbytes: int) -> None:
        """Give the new file the old bytes before a range that is written otherwise."""
        if self._copied < offset:
            with calls.errors_name(self.name):
                copying.copy_sparse(self.source, self.fd, self._copied, offset, self._copied)
        self._copied = max(self._copied, offset + nbytes)

    def seal(self, new_keys: bytes = b"") -> None:
        """Give the new file the old bytes after the last change too, and bring it to the disk."""
        self.skip(self._size, 0)
        super().seal(new_keys)


class Patch(calls.Closing):
    """New bytes of a file, which are first in a log and then written where they belong."""

    protocol = "journal"

    def __init__(self, target: Target, *, durable: bool) -> None:
        self._target, self._durable = target, durable
        self._has_names = calls.has_several_names(target.status)
        self._new: list[str] = []  # attributes that the file did not have, which are removed if nothing is committed
        self._attributes: dict[str, str] = {}  # new attributes of the file, in hexadecimal
        with calls.errors_name(target.name):
            if target.status.st_dev != os.fstat(target.dirfd).st_dev:
                reason = "is mounted by itself, so its directory can have no log of it"
                raise UsageError(target.name, f"{reason}; `commit='rename'` replaces it")
            remove_dead(target.draft_name, target.dirfd)  # of a command that was killed
            try:
                self._log = new_log(target, [target.path], durable=durable)
            except MpiredError:  # some are errors of the system, too
                raise
            except OSError as error:
                raise OSError(error.errno, f"cannot make a log in {target.directory}: {error.strerror}") from error

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes into the log; offsets ascend."""
        with calls.errors_name(self._target.name):
            self._log.write(data, offset)

    def seal(self, new_keys: bytes) -> None:
        """Complete the log, but for its header, and reserve space in the holes that will be written to."""
        target, status = self._target, self._target.status
        with calls.errors_name(target.name):
            if status.st_blocks * 512 < status.st_size:
                for offset, nbytes in self._log.ranges:
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
            self._log.seal(log.LogKind.PATCH, body)

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Commit the log, write its bytes into the file, and remove it."""
        target, writer = self._target, self._log
        with interrupts.defer_signals():
            with calls.errors_name(target.name):
                take_pointer(target, partial(writer.link, target.pointer))
                writer.check(target.directory)
                if not target.is_current:
                    raise ChangedError(target.name, "was replaced by another program meanwhile; run again")
                if self._has_names:
                    self._mark()
                if self._durable:
                    calls.fsync_directory(target.dirfd)
            writer.commit(target.name)
            on_commit()
            with log.unconfirmed(target.name, "the update is committed, but not finished"):
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
        try:
            os.setxattr(target.fd, MARK, pointer)
        except OSError as error:
            why = f"has {target.status.st_nlink} names (hard links), and its file system cannot mark it so that its log"
            why = f"{why} is found by each ({error.strerror}); `commit='rename'` changes the file of this name alone"
            raise OSError(error.errno, why) from error
        self._new.append(MARK)
        if self._durable:
            calls.fsync(target.fd)

    def close(self) -> None:
        """Close the log; if it was not committed, nothing has happened."""
        for name in [] if self._log.is_committed else self._new:
            with contextlib.suppress(OSError):
                os.removexattr(self._target.fd, name)
        self._log.close()


def replacement(target: Target, changed_nbytes: int, commit: str, *, durable: bool) -> Replacement | None:
    """Begin to replace a locked target; None where it takes a patch."""
    status, user = target.status, os.geteuid()
    if target.shared:  # which may only be read
        commit = "rename"
    # A new file has one name, and perhaps another owner and group.
    is_own = user == 0 or (status.st_uid == user and status.st_gid in {os.getegid(), *os.getgroups()})
    if commit == "journal" or (commit == "auto" and (calls.has_several_names(status) or not is_own)):
        return None
    is_cheap = commit == "rename" or status.st_size <= max(_SMALL_NBYTES, _LARGE_PART * changed_nbytes)
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


Update: TypeAlias = "NewFile | Patch"
"""A change of a locked file in preparation."""


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
            self._target = target or self.enter_context(open_target(path, shared=True))
            self._update = replacement(self._target, self._changed, "auto", durable=True)
            if self._update is not None:
                self.enter_context(self._update)
                for each in ranges:
                    self._update.skip(*each)
                self.drafts: Sequence[Single] = (self._update,)
                return
            scratch = self.enter_context(Scratch(self._target.directory, path))
            with calls.errors_name(path):
                for offset, nbytes in ranges:
                    calls.reserve(scratch.fd, offset, offset + nbytes)
            self.drafts = (scratch,)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Let the file have the new bytes."""
        update = self._update or self.enter_context(Patch(self._target, durable=True))
        if self._update is None:
            for offset, nbytes in self._ranges:
                at = offset
                for block in calls.blocks(self.drafts[0].fd, offset, offset + nbytes):
                    update.write(block, at)
                    at += len(block)
        update.seal(b"")
        update.publish(on_commit)
