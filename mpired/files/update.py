"""The two ways to change a locked file so that it is wholly old or wholly new after any crash.

Replacement writes a whole new file and renames it over the old one: every reader sees the old or the new. A patch
writes the new bytes to a log first and then into the file: the work is that of the change alone, and links and open
descriptors stay, but a reader that knows nothing of logs can see half of the change while it is made, or after a crash
until the next mpired command.

Both are an `Update` with the same steps: `write` the new bytes, `seal` all that can fail, `commit`. Leaving the block
before `commit` changes nothing.
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
from mpired.files.access import take_pointer
from mpired.files.lock import Target
from mpired.files.places import MARK
from mpired.files.scratch import Scratch, remove_dead
from mpired.files.transaction import Draft

# A file up to this size is copied without asking; of a larger one so much has to change.
_SMALL_NBYTES = 64 << 20
_LARGE_PART = 4


class Patch(log.LogWriter):
    """New bytes of a file, which are first in a log and then written where they belong."""

    protocol = "journal"

    def __init__(self, target: Target, *, durable: bool) -> None:
        self._target = target
        self._new: list[str] = []  # attributes that the file did not have, which are removed if nothing is committed
        self._attributes: dict[str, str] = {}  # new attributes of the file, in hexadecimal
        with calls.errors_name(target.name):
            if target.status.st_dev != os.fstat(target.dirfd).st_dev:
                reason = "is mounted by itself, so its directory can have no log of it"
                raise UsageError(target.name, f"{reason}; `commit='rename'` replaces it")
            remove_dead(target.draft_name, target.dirfd)  # of a command that was killed
            try:
                take_pointer(target, partial(super().__init__, target, [target.path], durable=durable))
            except OSError as error:
                if isinstance(error, MpiredError):
                    raise
                raise OSError(error.errno, f"cannot make a log in {target.directory}: {error.strerror}") from error

    def seal(self, new_keys: bytes = b"") -> None:
        """Complete the log, but for its header, and reserve space in the holes that will be written to."""
        target, status = self._target, self._target.status
        with calls.errors_name(target.name):
            if status.st_blocks * 512 < status.st_size:
                for offset, nbytes in self.ranges:
                    calls.allocate(target.fd, nbytes, offset)
            if new_keys:
                if not (old_keys := calls.attribute(target.fd, keys.ATTRIBUTE)):
                    self._new.append(keys.ATTRIBUTE)
                # Room for the attribute: after the commit nothing may be refused.
                keys.remember(target.fd, old_keys.ljust(len(new_keys), b"\0"))
                self._attributes = {keys.ATTRIBUTE: new_keys.hex()}
            body = {
                "name": os.fsdecode(target.base), "inode": status.st_ino, "generation": calls.generation(target.fd),
                "size": status.st_size, "attributes": self._attributes,
            }  # fmt: skip
            self.write_body(log.LogKind.PATCH, body)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Commit the log, write its bytes into the file, and remove it."""
        target = self._target
        has_names = calls.names_of(os.fstat(target.fd)) > 1
        with interrupts.defer_signals():
            with calls.errors_name(target.name):
                take_pointer(target, partial(self.link, target))
                self.check()
                if not calls.leads_to(target.base, target.dirfd, target.fd):
                    raise ChangedError(target.name, "was replaced by another program meanwhile; run again")
                if has_names:
                    self._mark()
                if self.durable:
                    calls.fsync_directory(target.dirfd)
            self.commit_header()
            on_commit()
            with log.unconfirmed(target.name, "the update is committed, but not finished"):
                log.apply(self.fd, self.header, target.fd, self._attributes)
                if self.durable:
                    # Attributes are brought to the disk by a full sync only.
                    calls.fsync(target.fd, content_only=not self._attributes)
                if has_names:
                    os.removexattr(target.fd, MARK)
                log.finish(self.fd, self.names, self.dirfd, durable=self.durable)

    def _mark(self) -> None:
        """Let all names of the file lead to the log before it can be committed."""
        target = self._target
        pointer = f"{self.identity.hex()} {target.status.st_ino} {os.fstat(target.dirfd).st_ino} "
        try:
            os.setxattr(target.fd, MARK, pointer.encode() + os.fsencode(target.path))
        except OSError as error:
            why = f"has {target.status.st_nlink} names (hard links), and its file system cannot mark it so that its log"
            why = f"{why} is found by each ({error.strerror}); `commit='rename'` changes the file of this name alone"
            raise OSError(error.errno, why) from error
        self._new.append(MARK)
        if self.durable:
            calls.fsync(target.fd)

    def close(self) -> None:
        """Close the log; if it was not committed, nothing has happened."""
        for name in [] if self.is_committed else self._new:
            with contextlib.suppress(OSError):
                os.removexattr(self._target.fd, name)
        super().close()


def open_update(target: Target, changed_nbytes: int, commit: str, *, durable: bool) -> Update:
    """Begin to change about `changed_nbytes` of a locked target: by a new file if that costs little, or by a patch."""
    status, user = os.fstat(target.fd), os.geteuid()  # it may have got another name since it was locked
    if target.shared:  # which may only be read
        commit = "rename"
    # A new file has one name, and perhaps another owner and group.
    is_own = user == 0 or (status.st_uid == user and status.st_gid in {os.getegid(), *os.getgroups()})
    if commit == "journal" or (commit == "auto" and (calls.names_of(status) > 1 or not is_own)):
        return Patch(target, durable=durable)
    is_cheap = commit == "rename" or status.st_size <= max(_SMALL_NBYTES, _LARGE_PART * changed_nbytes)
    try:
        new = Draft(target.name, overwrite=True, durable=durable, place=target)
    except OSError:
        if is_cheap:
            raise
        return Patch(target, durable=durable)
    new.into = new.fd
    with calls.errors_name(target.name), calls.undoing(new.close):
        if copying.clone(target.fd, new.fd):  # which shares the blocks of the target
            return new
        if is_cheap:
            os.ftruncate(new.fd, status.st_size)
            new.old_nbytes, new.copied = status.st_size, 0
            return new
    new.close()
    return Patch(target, durable=durable)


Update: TypeAlias = "Draft | Patch"
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
        with calls.undoing(self.close):
            target = target or self.enter_context(Target(path, shared=True))
            changed = sum(nbytes for _, nbytes in ranges)
            self._update = self.enter_context(open_update(target, changed, "auto", durable=True))
            if isinstance(self._update, Draft):
                for each in ranges:
                    self._update.skip(*each)
                self.drafts: Sequence[Scratch] = (self._update,)
                return
            scratch = self.enter_context(Scratch(target.directory, path))
            with calls.errors_name(path):
                for offset, nbytes in ranges:
                    calls.allocate(scratch.fd, nbytes, offset)
            self.drafts = (scratch,)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Let the file have the new bytes."""
        for offset, nbytes in self._ranges if isinstance(self._update, Patch) else ():
            at = offset
            for block in calls.blocks(self.drafts[0].fd, offset, offset + nbytes):
                self._update.write(block, at)
                at += len(block)
        self._update.seal()
        self._update.commit(on_commit)
