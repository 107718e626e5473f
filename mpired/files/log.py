"""The redo log of a committed change: the remaining steps, beside the files that change.

    header    4096 bytes: its kind, identity, inode and folder, what follows with a digest, and the digest of the header
    payload   the new bytes of a patch
    ranges    offset and number of bytes of each, two unsigned 64-bit integers
    body      JSON: names, and what must be there

`.NAME.mpired` beside each file is a hard link of the log; in another folder it is a note that leads to the log. The
process of a log holds a lock on it, so another process that gets the lock knows that this one has ended.

The header is written last, by itself: its coming to the disk is the commit. It has the new state of files, not the
way to it: to apply it twice does no harm. A log that is found is input, which a neighbour may have put there, so it is
judged by properties outside its content: its owner, its inode, an attribute.
"""

from __future__ import annotations

import contextlib
import errno
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
HEADER_NBYTES = 4096  # a sector of its own on any disk
_DIGEST_NBYTES = 16
_MOST_BODY_NBYTES = 1 << 30
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class LogKind(IntEnum):
    """The kind of a log."""

    PATCH = 1  # new bytes of a file
    PUTS = 2  # drafts that take the names of files
    NOTE = 3  # where the log of a file is


class LogHeader(NamedTuple):
    """The fixed part of a log."""

    magic: bytes
    kind: int
    identity: bytes  # of the change, and so of a log and its notes
    inode: int  # its own
    folder: int  # the inode of the directory that it is in
    payload_nbytes: int
    nranges: int
    body_nbytes: int
    digest: bytes  # of all that follows the header

    @property
    def body(self) -> int:
        """The offset of the body."""
        return HEADER_NBYTES + self.payload_nbytes + self.nranges * _RANGE.size


def _sector(fixed: bytes) -> bytes:
    """Return the sector of a header, with the digest that makes it whole."""
    return (fixed + digest(fixed, _DIGEST_NBYTES).digest()).ljust(HEADER_NBYTES, b"\0")


class LogWriter(calls.Closing):
    """A log, or a note, while its change is prepared; where nameless files exist it has no name until `link`."""

    def __init__(
        self,
        file: Place,  # the first of its files, with a name for it
        readers: Sequence[str],  # its files: it can be read by no more users than each of them
        identity: bytes = b"",  # the identity of its log, if it is a note
        *,
        durable: bool = True,  # whether it, and the names beside it, are synced
    ) -> None:
        self.file, self.dirfd, self.durable = file, file.dirfd, durable
        self.identity = identity or os.urandom(8)
        self.is_committed = False  # also set if that is not certain: it is not removed then
        self.ranges: list[tuple[int, int]] = []
        self._end, self._content = HEADER_NBYTES, digest(nbytes=_DIGEST_NBYTES)
        self.fd, is_named = create(file.pointer, file.dirfd)
        self.names = [file.pointer] if is_named else []
        with calls.undoing(self.close):
            with contextlib.suppress(OSError):  # without attributes the rights on the directory have to do
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
        """Write all but the header."""
        import json  # noqa: PLC0415 - few commands have a log

        payload, text = self._end - HEADER_NBYTES, json.dumps(body).encode()
        self._append(b"".join(_RANGE.pack(*each) for each in self.ranges))
        self._append(text)
        self.header = LogHeader(
            _MAGIC, kind, self.identity, os.fstat(self.fd).st_ino, os.fstat(self.dirfd).st_ino, payload,
            len(self.ranges), len(text), self._content.digest(),
        )  # fmt: skip

    def _append(self, data: memoryview | bytes) -> None:
        self._content.update(data)
        with calls.errors_name(self.file.name):
            calls.pwrite_all(self.fd, data, self._end)
        self._end += len(data)

    def link(self, file: Place) -> None:
        """Give the log the name by which it is found from a file; `FileExistsError` if another log has it."""
        if file.pointer not in self.names:
            calls.link(self.fd, file.pointer, self.dirfd)
            self.names.append(file.pointer)

    def check(self) -> None:
        """Raise an error if a recovery would not believe the log: not all mounts keep owners and modes."""
        if os.fstat(self.fd).st_uid != os.geteuid() or not has_mark(self.fd, self.dirfd, self.identity):
            reason = "is not kept as a file of yours with its attributes, so after a crash it could not be believed"
            reason = f"{reason}; use a file system of this machine, or `commit='rename'`"
            raise OSError(errno.EOPNOTSUPP, reason, os.path.join(self.file.directory, os.fsdecode(self.names[0])))

    def complete(self) -> None:
        """Write the header, and bring all to the disk."""
        calls.pwrite_all(self.fd, _sector(_HEADER.pack(*self.header)), 0)
        if self.durable:
            calls.fsync(self.fd)

    def commit_header(self) -> None:
        """Complete a log: the commit point, after which this or the next command finishes it."""
        try:
            with calls.errors_name(self.file.name):
                self.complete()
        except OSError as error:
            try:
                if read_header(self.fd) is not None:  # else it is not even in memory
                    os.ftruncate(self.fd, 0)  # which makes it worthless
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
        """Close the log, and remove it if it is not committed."""
        if self.fd < 0:
            return
        if not self.is_committed:
            with contextlib.suppress(OSError):
                for name in self.names:
                    calls.unlink_inode(name, self.dirfd, os.fstat(self.fd).st_ino)
        calls.release(self.fd)
        self.fd = -1


def read_header(fd: int) -> LogHeader | None:
    """Return the header of a log; None if it is not whole, so that nothing was committed."""
    sector = calls.pread_some(fd, HEADER_NBYTES, 0)
    if len(sector) < HEADER_NBYTES:
        return None
    fixed = sector[: _HEADER.size]
    header = LogHeader(*_HEADER.unpack(fixed))
    if header.magic != _MAGIC or sector != _sector(fixed) or header.body + header.body_nbytes != os.fstat(fd).st_size:
        return None
    return header if header.body_nbytes <= _MOST_BODY_NBYTES and header.nranges <= header.payload_nbytes else None


def is_whole(fd: int, header: LogHeader) -> bool:
    """Return whether a log has the content of its header; if not, the change was never committed."""
    found = digest(nbytes=_DIGEST_NBYTES)
    for block in calls.blocks(fd, HEADER_NBYTES, header.body + header.body_nbytes):
        found.update(block)
    return found.digest() == header.digest


def has_mark(fd: int, dirfd: int, identity: bytes) -> bool | None:
    """Return whether a log has its mark, which content cannot give; None if that cannot be known."""
    # Where there are no attributes, only this user may be able to put files into the directory.
    try:
        return os.getxattr(fd, MARK) == identity.hex().encode()
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        if error.errno not in calls.UNSUPPORTED:
            raise
    folder = os.fstat(dirfd)
    return True if folder.st_uid in {0, os.geteuid()} and not folder.st_mode & _OTHERS_WRITE else None


def body_of(fd: int, header: LogHeader) -> dict[str, Any]:
    """Return the body of a log."""
    import json  # noqa: PLC0415 - as above

    body: dict[str, Any] = json.loads(calls.pread_some(fd, header.body_nbytes, header.body))
    return body


def apply(fd: int, header: LogHeader, target: int, attributes: Mapping[str, str]) -> None:
    """Give a file the bytes and the attributes of a patch, without a sync."""
    at = HEADER_NBYTES
    for block in calls.blocks(fd, HEADER_NBYTES + header.payload_nbytes, header.body):  # the table of ranges
        for offset, nbytes in _RANGE.iter_unpack(block[: len(block) // _RANGE.size * _RANGE.size]):
            calls.copy_range(fd, target, at, at + nbytes, offset)
            at += nbytes
    for name, value in attributes.items():
        os.setxattr(target, name, bytes.fromhex(value))


def finish(fd: int, names: Sequence[bytes], dirfd: int, *, durable: bool = True) -> None:
    """Remove a log that is done: first its content, so that no name that a neighbour has kept means anything."""
    os.ftruncate(fd, 0)
    for name in reversed(names):  # another file with such a name stays
        calls.unlink_inode(name, dirfd, os.fstat(fd).st_ino)
    if durable:
        calls.fsync_directory(dirfd)


def stamp(status: os.stat_result | None) -> list[int] | None:
    """Return the identity of a replaced file in a log; None if no file is replaced."""
    return None if status is None else [status.st_ino, status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def unconfirmed(name: str, what: str) -> Iterator[None]:
    """Raise `UnconfirmedError` for any error after a commit: the next command finishes the change."""
    try:
        yield
    except Exception as error:
        hint = "do not repeat it, the next mpired command on it finishes it"
        raise UnconfirmedError(name, f"{what} ({reason_of(error)}); {hint}") from error


def reason_of(error: Exception) -> str:
    """Return the reason of an error without its subject."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
