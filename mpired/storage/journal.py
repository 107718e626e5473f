"""The redo journal: what an update will have written, beside the target until it is written.

    header   4096 bytes  magic, version, what the target is, what follows, digest over all
    payload  the new bytes, range after range
    table    offset and number of bytes of each range, two unsigned 64-bit integers
    keys     the new value of the attribute with the keys of --once

The header is written last and by itself, so that a journal is valid when it is whole. It says
what bytes the target has to have, not how to change them: applying it twice does no harm.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mpired.errors import BufferFileError
from mpired.storage import calls

ONCE_ATTRIBUTE = calls.OWN_ATTRIBUTES + "once"

_MAGIC = b"MPIREDJ1"
_VERSION = 1
_HEADER = struct.Struct("<8sQQQQ16sQQQQ")
_RANGE = struct.Struct("<QQ")
_HEADER_NBYTES = 4096  # a sector of its own on any disk
_DIGEST_NBYTES = 16
_MAX_HEAD = 1 << 20
_MAX_KEYS = 1 << 16
_LONGEST_BASE = 200


class Header(NamedTuple):
    """The fixed part of a journal: what its target is, and what follows."""

    magic: bytes
    version: int
    inode: int
    generation: int
    size: int
    head_digest: bytes
    head_nbytes: int
    nranges: int
    payload_nbytes: int
    keys_nbytes: int


class Journal(NamedTuple):
    """A journal that is whole: all that is needed to finish its update."""

    fd: int
    header: Header
    ranges: tuple[tuple[int, int], ...]
    keys: bytes


def _blake2b(data: bytes, nbytes: int) -> Any:
    import hashlib  # noqa: PLC0415 - a tenth of the start of a command that meets no journal

    return hashlib.blake2b(data, digest_size=nbytes)


def journal_name(base: bytes) -> bytes:
    """Return the name of the journal of the file `base`, which fits beside the longest names."""
    if len(base) > _LONGEST_BASE:
        base = base[:100] + b"." + _blake2b(base, 16).hexdigest().encode()
    return b".%b.mpired-journal" % base


def head_digest(fd: int, nbytes: int) -> bytes:
    """Return the digest of the first bytes of a target, its header."""
    digest = _blake2b(b"", _DIGEST_NBYTES)
    for block in calls.blocks(fd, 0, nbytes):
        digest.update(block)
    found: bytes = digest.digest()
    return found


class JournalWriter:
    """Writes the journal of an update that is being prepared.

    Parameters
    ----------
    target
        The descriptor of the target.
    head_nbytes
        Bytes before its elements, which the update leaves alone.
    base, dirfd
        Its name and its directory.
    """

    def __init__(self, target: int, head_nbytes: int, base: bytes, dirfd: int) -> None:
        self._target = target
        self._head_nbytes = head_nbytes
        self._dirfd = dirfd
        self.name = journal_name(base)
        self.fd = calls.open_new(self.name, dirfd)
        self.ranges: list[tuple[int, int]] = []
        self._end = _HEADER_NBYTES
        self._digest = _blake2b(b"", _DIGEST_NBYTES)
        try:
            # Whoever may change the target may finish its update, and no other user learns its content.
            calls.copy_access(os.fstat(target), target, self.fd, bits=0o666)
        except BaseException:
            self.remove()
            raise

    def reserve(self, nbytes: int) -> None:
        """Reserve space for a payload of so many bytes."""
        calls.reserve(self.fd, 0, _HEADER_NBYTES + nbytes)

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Note that the target is to have `data` at `offset`; offsets ascend."""
        nbytes = len(data)
        if not nbytes:
            return
        self._append(data)
        last = self.ranges[-1] if self.ranges else (0, 0)
        if self.ranges and sum(last) == offset:
            self.ranges[-1] = last[0], last[1] + nbytes
        else:
            self.ranges.append((offset, nbytes))

    def seal(self, keys: bytes) -> None:
        """Write all but the header."""
        payload = self._end - _HEADER_NBYTES
        self._append(b"".join(_RANGE.pack(*each) for each in self.ranges))
        self._append(keys)
        os.ftruncate(self.fd, self._end)  # what was reserved too much
        status = os.fstat(self._target)
        fixed = _HEADER.pack(
            _MAGIC, _VERSION, status.st_ino, calls.generation(self._target), status.st_size,
            head_digest(self._target, self._head_nbytes), self._head_nbytes, len(self.ranges), payload, len(keys),
        )  # fmt: skip
        self._digest.update(fixed)
        self._header = (fixed + self._digest.digest()).ljust(_HEADER_NBYTES, b"\0")
        self._keys = keys

    def publish(self, *, durable: bool) -> Journal:
        """Write the header and bring the journal to the disk: the commit point of an update."""
        calls.pwrite_all(self.fd, self._header, 0)
        if durable:
            calls.fsync(self.fd)
            calls.fsync_directory(self._dirfd)
        header = Header(*_HEADER.unpack_from(self._header))
        return Journal(self.fd, header, tuple(self.ranges), self._keys)

    def remove(self) -> None:
        """Remove the journal; the update was not made."""
        try:
            calls.unlink(self.name, self._dirfd)
        finally:
            os.close(self.fd)

    def _append(self, data: memoryview | bytes) -> None:
        self._digest.update(data)
        calls.pwrite_all(self.fd, data, self._end)
        self._end += len(data)


def open_journal(shown: str, dirfd: int, owners: set[int], target_mode: int) -> int | None:
    """Open a journal, or return None if there is none.

    Parameters
    ----------
    shown, dirfd
        Its path as messages show it, and the directory that it is in.
    owners
        Who may have written it.
    target_mode
        The mode of the file: a journal that others may write to is trusted only if they may write to the file.

    Raises
    ------
    BufferFileError
        If what has the name is no journal that this user can trust.
    """
    name, flags = os.path.basename(shown), os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=dirfd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise BufferFileError(
                shown, "is no regular file, so it is not the journal of an update; remove it"
            ) from error
        raise
    status = os.fstat(fd)
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = "is no regular file, so it is not the journal of an update; remove it"
    elif status.st_nlink != 1:
        reason = f"has {status.st_nlink} names, so it is not the journal of an update; remove it"
    elif status.st_uid not in owners:
        reason = f"belongs to user {status.st_uid}, who has no part in the file; `mpired recover --discard` removes it"
    elif status.st_mode & 0o022 & ~target_mode:
        reason = "can be written to by others than the file; `mpired recover --discard` removes it"
    if reason:
        os.close(fd)
        raise BufferFileError(shown, reason)
    return fd


def read_journal(fd: int) -> Journal | None:
    """Read a journal, or return None if it is not whole: then its update was never committed."""
    size = os.fstat(fd).st_size
    sector = bytearray(_HEADER_NBYTES)
    if calls.pread_into(fd, memoryview(sector), 0) < _HEADER_NBYTES:
        return None
    fixed = bytes(sector[: _HEADER.size])
    header = Header(*_HEADER.unpack(fixed))
    if (header.magic, header.version) != (_MAGIC, _VERSION) or not _is_sane(header, size):
        return None
    found = _blake2b(b"", _DIGEST_NBYTES)
    for block in calls.blocks(fd, _HEADER_NBYTES, size):
        found.update(block)
    found.update(fixed)
    if sector[_HEADER.size :] != found.digest().ljust(_HEADER_NBYTES - _HEADER.size, b"\0"):
        return None
    rest = bytearray(header.nranges * _RANGE.size + header.keys_nbytes)
    calls.pread_into(fd, memoryview(rest), size - len(rest))
    ranges = tuple(_RANGE.iter_unpack(rest[: header.nranges * _RANGE.size]))
    return Journal(fd, header, ranges, bytes(rest[header.nranges * _RANGE.size :]))


def _is_sane(header: Header, size: int) -> bool:
    """Tell whether a journal of that header can have that size in bytes; nothing of it is believed before."""
    table = header.nranges * _RANGE.size
    fits = _HEADER_NBYTES + header.payload_nbytes + table + header.keys_nbytes == size
    return fits and header.keys_nbytes <= _MAX_KEYS and header.head_nbytes <= _MAX_HEAD


def stored_keys(fd: int) -> bytes:
    """Return the keys of the updates that a file remembers, b"" if there are none.

    Raises
    ------
    OSError
        If the file system has no extended attributes.
    """
    try:
        return os.getxattr(fd, ONCE_ATTRIBUTE)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return b""
        raise


def remember(fd: int, keys: bytes) -> None:
    """Let a file remember keys, in the place of those that it has.

    Raises
    ------
    OSError
        If the file system refuses, as where all attributes of a file share one block.
    """
    try:
        os.setxattr(fd, ONCE_ATTRIBUTE, keys)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}:
            way_out = "name fewer origins, use --once-key, or remove other attributes of the file"
            error.strerror = (
                f"no room for {len(keys)} bytes of keys in its extended attributes ({error.strerror}); {way_out}"
            )
        raise


def forget(fd: int) -> None:
    """Let a file remember nothing."""
    os.removexattr(fd, ONCE_ATTRIBUTE)


def kept_keys(fd: int) -> bytes:
    """Return the keys that a new file takes over from the old one."""
    try:
        return stored_keys(fd)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return b""


def belongs(journal: Journal, target: int) -> bool:
    """Tell whether a journal is of this very file, as it was: inode, generation, size and header."""
    header, status = journal.header, os.fstat(target)
    if (header.inode, header.generation, header.size) != (status.st_ino, calls.generation(target), status.st_size):
        return False
    if sum(nbytes for _, nbytes in journal.ranges) != header.payload_nbytes:
        return False
    if any(offset < header.head_nbytes or offset + nbytes > header.size for offset, nbytes in journal.ranges):
        return False
    return head_digest(target, header.head_nbytes) == header.head_digest


def apply(journal: Journal, target: int, *, durable: bool) -> None:
    """Give the target the bytes of the journal, and bring them to the disk."""
    for start, stop, position in _pieces(journal):
        calls.copy_range(journal.fd, target, start, stop, position)
    if journal.keys:
        remember(target, journal.keys)
    if durable:
        # Attributes are brought to the disk by a full sync only.
        (calls.fsync if journal.keys else calls.fdatasync)(target)


def _pieces(journal: Journal) -> Iterator[tuple[int, int, int]]:
    """Yield where each range lies in the journal, from and to, and where it goes."""
    at = _HEADER_NBYTES
    for offset, nbytes in journal.ranges:
        yield at, at + nbytes, offset
        at += nbytes
