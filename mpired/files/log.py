"""The redo log of a committed change: the steps that remain after the commit.

    header    4096 bytes: kind, identity, inode and folder of the log, sizes and digest of the parts, own digest
    payload   the new bytes of a patch
    ranges    offset and number of bytes of each range, two unsigned 64-bit integers
    body      JSON: names, and the expected state of the files

`.NAME.mpired` beside each changed file is a hard link of the log, or in another folder a note that leads to the log.
The process of a log holds a lock on it, so another process that gets the lock knows that this process has ended.

The header is written last, alone: when it reaches the disk, the change is committed. A log has the new state of the
files, so it may be applied twice. Another user may have put a log there, so a recovery checks properties that content
cannot forge: owner, inode and an attribute.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from mpired.errors import UnconfirmedError
from mpired.files import calls, copying
from mpired.files.places import MARK, Place, digest
from mpired.files.scratch import create

_MAGIC = b"MPIREDL1"
_HEADER = struct.Struct("<8sQ8sQQQQQ16s")
_RANGE = struct.Struct("<QQ")
HEADER_NBYTES = 4096  # at least a sector, which a disk writes completely or not at all
_DIGEST_NBYTES = 16
_MAX_BODY_NBYTES = 1 << 30
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class LogKind(IntEnum):
    """The kind of a log."""

    PATCH = 1  # new bytes of a file
    PUTS = 2  # files that are replaced by their drafts
    NOTE = 3  # the path of the log


class LogHeader(NamedTuple):
    """The fixed part of a log."""

    magic: bytes
    kind: int
    identity: bytes  # of the change: the same in a log and its notes
    inode: int  # of the log
    folder: int  # inode of its directory
    payload_nbytes: int
    nranges: int
    body_nbytes: int
    digest: bytes  # of the bytes after the header

    @property
    def body(self) -> int:
        """The offset of the body."""
        return HEADER_NBYTES + self.payload_nbytes + self.nranges * _RANGE.size


def _sector(fixed: bytes) -> bytes:
    """Return a packed header with its digest and padding."""
    return (fixed + digest(fixed, _DIGEST_NBYTES).digest()).ljust(HEADER_NBYTES, b"\0")


class LogWriter(calls.Closing):
    """A log or note before its commit; it has no name until `link` if the file system allows that."""

    def __init__(
        self,
        file: Place,  # the first file of the change
        readers: Sequence[str],  # all files of the change, whose common readers may read the log
        identity: bytes = b"",  # for a note: the identity of its log
        *,
        durable: bool = True,  # whether the log and its name are synced
    ) -> None:
        self.file, self.dirfd, self.durable = file, file.dirfd, durable
        self.identity = identity or os.urandom(8)
        self.is_committed = False  # True also for an uncertain commit: the log must stay
        self.ranges: list[tuple[int, int]] = []
        self._end, self._content = HEADER_NBYTES, digest(nbytes=_DIGEST_NBYTES)
        self.fd, is_named = create(file.pointer, file.dirfd)
        self.names = [file.pointer] if is_named else []
        with calls.undoing(self.close):
            with contextlib.suppress(OSError):  # without attributes a recovery checks the rights of the directory
                os.setxattr(self.fd, MARK, self.identity.hex().encode())
            copying.limit_readers(self.fd, readers)

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Record new bytes of the file; offsets ascend."""
        start = offset
        if data and self.ranges and sum(self.ranges[-1]) == offset:
            start, _ = self.ranges.pop()
        if data:
            self._append(data)
            self.ranges.append((start, offset + len(data) - start))

    def write_body(self, kind: LogKind, body: Mapping[str, object]) -> None:
        """Write the ranges and the body, and prepare the header."""
        payload_nbytes, body_bytes = self._end - HEADER_NBYTES, json.dumps(body).encode()
        self._append(b"".join(_RANGE.pack(offset, nbytes) for offset, nbytes in self.ranges))
        self._append(body_bytes)
        self.header = LogHeader(
            _MAGIC, kind, self.identity, os.fstat(self.fd).st_ino, os.fstat(self.dirfd).st_ino, payload_nbytes,
            len(self.ranges), len(body_bytes), self._content.digest(),
        )  # fmt: skip

    def _append(self, data: memoryview | bytes) -> None:
        self._content.update(data)
        with calls.errors_name(self.file.name):
            calls.pwrite_all(self.fd, data, self._end)
        self._end += len(data)

    def link(self, file: Place) -> None:
        """Give the log its name beside a file; `FileExistsError` if the file has another log."""
        if file.pointer not in self.names:
            calls.link(self.fd, file.pointer, self.dirfd)
            self.names.append(file.pointer)

    def check(self) -> None:
        """Raise an error if a recovery would refuse the log, such as on a mount without owners and modes."""
        if os.fstat(self.fd).st_uid != os.geteuid() or not has_mark(self.fd, self.dirfd, self.identity):
            reason = "is not kept as a file of yours with its attributes, so after a crash it could not be believed"
            reason = f"{reason}; use a file system of this machine, or `commit='rename'`"
            raise OSError(errno.EOPNOTSUPP, reason, os.path.join(self.file.directory, os.fsdecode(self.names[0])))

    def complete(self) -> None:
        """Write the header, and sync the log."""
        calls.pwrite_all(self.fd, _sector(_HEADER.pack(*self.header)), 0)
        if self.durable:
            calls.fsync(self.fd)

    def commit_header(self) -> None:
        """Complete the log. This is the commit point: this command or the next finishes the change."""
        try:
            with calls.errors_name(self.file.name):
                self.complete()
        except OSError as error:
            try:
                if read_header(self.fd) is not None:  # the header was written, but perhaps not synced
                    os.ftruncate(self.fd, 0)  # without a header the log is ignored
                    if self.durable:
                        calls.fsync(self.fd)
            except OSError:
                self.is_committed = True
                reason = f"its log could neither be synced nor taken back ({error.strerror}); do not repeat it"
                reason = f"{reason}, the next mpired command finishes it"
                raise UnconfirmedError(self.file.name, reason) from error
            raise
        self.is_committed = True

    def close(self) -> None:
        """Close the log, and remove it unless it is committed."""
        if self.fd < 0:
            return
        if not self.is_committed:
            with contextlib.suppress(OSError):
                for name in self.names:
                    calls.unlink_inode(name, self.dirfd, os.fstat(self.fd).st_ino)
        calls.release(self.fd)
        self.fd = -1


def read_header(fd: int) -> LogHeader | None:
    """Return the header of a log; None if the header is incomplete, so the change was not committed."""
    sector = calls.pread_some(fd, HEADER_NBYTES, 0)
    if len(sector) < HEADER_NBYTES:
        return None
    fixed = sector[: _HEADER.size]
    header = LogHeader(*_HEADER.unpack(fixed))
    if header.magic != _MAGIC or sector != _sector(fixed) or header.body + header.body_nbytes != os.fstat(fd).st_size:
        return None
    return header if header.body_nbytes <= _MAX_BODY_NBYTES and header.nranges <= header.payload_nbytes else None


def is_whole(fd: int, header: LogHeader) -> bool:
    """Return whether a log has the digest of its header; if not, the change was not committed."""
    content = digest(nbytes=_DIGEST_NBYTES)
    for block in calls.blocks(fd, HEADER_NBYTES, header.body + header.body_nbytes):
        content.update(block)
    return content.digest() == header.digest


def has_mark(fd: int, dirfd: int, identity: bytes) -> bool | None:
    """Return whether a log has the attribute that marks a log of mpired; None if unknown."""
    # On a file system without attributes the mark is assumed if only this user and root may write to the directory.
    try:
        return os.getxattr(fd, MARK) == identity.hex().encode()
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        if error.errno not in calls.UNSUPPORTED:
            raise
    status = os.fstat(dirfd)
    return True if status.st_uid in {0, os.geteuid()} and not status.st_mode & _WRITABLE_BY_OTHERS else None


def body_of(fd: int, header: LogHeader) -> dict[str, Any]:
    """Return the body of a log."""
    body: dict[str, Any] = json.loads(calls.pread_some(fd, header.body_nbytes, header.body))
    return body


def apply(fd: int, header: LogHeader, target: int, attributes: Mapping[str, str]) -> None:
    """Write the new bytes and attributes of a patch to its target, without a sync."""
    start = HEADER_NBYTES
    for block in calls.blocks(fd, HEADER_NBYTES + header.payload_nbytes, header.body):  # the ranges
        for offset, nbytes in _RANGE.iter_unpack(block[: len(block) // _RANGE.size * _RANGE.size]):
            calls.copy_range(fd, target, start, start + nbytes, offset)
            start += nbytes
    for name, value in attributes.items():
        os.setxattr(target, name, bytes.fromhex(value))


def finish(fd: int, names: Sequence[bytes], dirfd: int, *, durable: bool = True) -> None:
    """Remove a finished log."""
    os.ftruncate(fd, 0)  # another user may have a hard link of the log
    for name in reversed(names):
        calls.unlink_inode(name, dirfd, os.fstat(fd).st_ino)
    if durable:
        calls.fsync_directory(dirfd)


def stamp(status: os.stat_result | None) -> list[int] | None:
    """Return inode, size and mtime of a replaced file, for the log; None if no file is replaced."""
    return None if status is None else [status.st_ino, status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def unconfirmed(name: str, state: str) -> Iterator[None]:
    """Raise `UnconfirmedError` for any error after a commit: the next command finishes the change."""
    try:
        yield
    except Exception as error:
        hint = "do not repeat it, the next mpired command on it finishes it"
        raise UnconfirmedError(name, f"{state} ({reason_of(error)}); {hint}") from error


def reason_of(error: Exception) -> str:
    """Return the reason of an error without its subject."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
