"""Updates of a locked file: after a crash the file has its old or its new content.

A replacement writes a new file and renames it over the old file: every reader sees the old or the new content. A patch
writes the new bytes to a log first, then into the file: it writes only the changed bytes, and hard links and open
descriptors stay valid. But other programs can see a part of the change during the update, or after a crash until the
next mpired command.

Both have the same steps: `write` the new bytes, `seal` them, which may fail, and `commit`. If the block ends without a
commit, nothing has changed.
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

# A file is replaced up to this size, or if at least a quarter of it changes.
_SMALL_NBYTES = 64 << 20
_MAX_RATIO = 4


class Patch(log.LogWriter):
    """New bytes of a file, written to a log and then into the file."""

    protocol = "journal"

    def __init__(self, target: Target, *, durable: bool) -> None:
        self._target = target
        self._added: list[str] = []  # attributes that are removed unless the patch is committed
        self._attributes: dict[str, str] = {}  # new values in hexadecimal, by name
        with calls.errors_name(target.name):
            if target.status.st_dev != os.fstat(target.dirfd).st_dev:
                reason = "is mounted by itself, so its directory can have no log of it"
                raise UsageError(target.name, f"{reason}; `commit='rename'` replaces it")
            remove_dead(target.draft_name, target.dirfd)
            try:
                take_pointer(target, partial(super().__init__, target, [target.path], durable=durable))
            except OSError as error:
                if isinstance(error, MpiredError):
                    raise
                raise OSError(error.errno, f"cannot make a log in {target.directory}: {error.strerror}") from error

    def seal(self, new_keys: bytes = b"") -> None:
        """Complete the log except for its header, and reserve space for bytes in holes."""
        target, status = self._target, self._target.status
        with calls.errors_name(target.name):
            if status.st_blocks * 512 < status.st_size:
                for offset, nbytes in self.ranges:
                    calls.allocate(target.fd, nbytes, offset)
            if new_keys:
                if not (old_keys := calls.attribute(target.fd, keys.ATTRIBUTE)):
                    self._added.append(keys.ATTRIBUTE)
                # Reserve the space of the attribute, because after the commit no write may fail.
                keys.set_attribute(target.fd, old_keys.ljust(len(new_keys), b"\0"))
                self._attributes = {keys.ATTRIBUTE: new_keys.hex()}
            body = {
                "name": os.fsdecode(target.base), "inode": status.st_ino, "generation": calls.generation(target.fd),
                "size": status.st_size, "attributes": self._attributes,
            }  # fmt: skip
            self.write_body(log.LogKind.PATCH, body)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Commit the log, apply it to the file, and remove it."""
        target = self._target
        has_hard_links = calls.names_of(os.fstat(target.fd)) > 1
        with interrupts.defer_signals():
            with calls.errors_name(target.name):
                take_pointer(target, partial(self.link, target))
                self.check()
                if not calls.leads_to(target.base, target.dirfd, target.fd):
                    raise ChangedError(target.name, "was replaced by another program meanwhile; run again")
                if has_hard_links:
                    self._mark()
                if self.durable:
                    calls.fsync_directory(target.dirfd)
            self.commit_header()
            on_commit()
            with log.unconfirmed(target.name, "the update is committed, but not finished"):
                log.apply(self.fd, self.header, target.fd, self._attributes)
                if self.durable:
                    calls.fsync(target.fd, content_only=not self._attributes)
                if has_hard_links:
                    os.removexattr(target.fd, MARK)
                log.finish(self.fd, self.names, self.dirfd, durable=self.durable)

    def _mark(self) -> None:
        """Set the attribute by which the other hard links of the file lead to the log."""
        target = self._target
        pointer = f"{self.identity.hex()} {target.status.st_ino} {os.fstat(target.dirfd).st_ino} "
        try:
            os.setxattr(target.fd, MARK, pointer.encode() + os.fsencode(target.path))
        except OSError as error:
            reason = f"has {target.status.st_nlink} names (hard links), and its file system cannot mark it so that its"
            reason = f"{reason} log is found by each ({error.strerror})"
            hint = "`commit='rename'` changes the file of this name alone"
            raise OSError(error.errno, f"{reason}; {hint}") from error
        self._added.append(MARK)
        if self.durable:
            calls.fsync(target.fd)

    def close(self) -> None:
        """Close the log; undo all changes unless it is committed."""
        for name in [] if self.is_committed else self._added:
            with contextlib.suppress(OSError):
                os.removexattr(self._target.fd, name)
        super().close()


def open_update(target: Target, changed_nbytes: int, commit: str, *, durable: bool) -> Update:
    """Open an update of about `changed_nbytes` of a locked target: a replacement if it is cheap, otherwise a patch."""
    status, user = os.fstat(target.fd), os.geteuid()  # the target may have a new hard link
    if target.shared:  # open for reading only
        commit = "rename"
    # A replacement loses the other hard links, and may change owner and group.
    is_own = user == 0 or (status.st_uid == user and status.st_gid in {os.getegid(), *os.getgroups()})
    if commit == "journal" or (commit == "auto" and (calls.names_of(status) > 1 or not is_own)):
        return Patch(target, durable=durable)
    is_cheap = commit == "rename" or status.st_size <= max(_SMALL_NBYTES, _MAX_RATIO * changed_nbytes)
    try:
        new = Draft(target.name, overwrite=True, durable=durable, place=target)
    except OSError:
        if is_cheap:
            raise
        return Patch(target, durable=durable)
    new.into = new.fd
    with calls.errors_name(target.name), calls.undoing(new.close):
        if copying.clone(target.fd, new.fd):
            return new
        if is_cheap:
            os.ftruncate(new.fd, status.st_size)
            new.old_nbytes, new.copied = status.st_size, 0
            return new
    new.close()
    return Patch(target, durable=durable)


Update: TypeAlias = "Draft | Patch"
"""An update of a locked file before its commit."""


class ChangedFile(contextlib.ExitStack):
    """A file with new bytes in some ranges; until the commit they are in a draft, at the same offsets."""

    def __init__(
        self,
        path: str,
        target: Target | None,  # locked; None for a file without a lock, which can only be replaced
        ranges: Sequence[tuple[int, int]],  # offset and number of bytes, ascending, without overlap
    ) -> None:
        super().__init__()
        self._ranges = ranges
        with calls.undoing(self.close):
            target = target or self.enter_context(Target(path, shared=True))
            changed_nbytes = sum(nbytes for _, nbytes in ranges)
            self._update = self.enter_context(open_update(target, changed_nbytes, "auto", durable=True))
            if isinstance(self._update, Draft):
                for offset, nbytes in ranges:
                    self._update.skip(offset, nbytes)
                self.drafts: Sequence[Scratch] = (self._update,)
                return
            scratch = self.enter_context(Scratch(target.directory, path))
            with calls.errors_name(path):
                for offset, nbytes in ranges:
                    calls.allocate(scratch.fd, nbytes, offset)
            self.drafts = (scratch,)

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Commit the new bytes."""
        for start, nbytes in self._ranges if isinstance(self._update, Patch) else ():
            offset = start
            for block in calls.blocks(self.drafts[0].fd, start, start + nbytes):
                self._update.write(block, offset)
                offset += len(block)
        self._update.seal()
        self._update.commit(on_commit)
