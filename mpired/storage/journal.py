"""The redo journal: what an update will have written, beside the target until it is written.

    header   4096 bytes  magic, version, what the target is, what follows with a digest of it, digest of the header
    payload  the new bytes, range after range
    table    offset and number of bytes of each range, two unsigned 64-bit integers
    keys     the new value of the attribute with the keys of --once

The header is written last and by itself, so that a journal is valid when it is whole. It says
what bytes the target has to have, not how to change them: applying it twice does no harm.

A journal that is found is input, which somebody else may have put there. So the header is judged first, by itself and
beside the target, and what follows is then read in blocks: it is no larger than an update of the target can be.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from mpired.storage import calls, metadata, names

ONCE_ATTRIBUTE = metadata.OWN_ATTRIBUTES + "once"

_MAGIC = b"MPIREDJ1"
_VERSION = 2
_HEADER = struct.Struct("<8sQ16sQQQ16sQQQQ16s")
_RANGE = struct.Struct("<QQ")
_HEADER_NBYTES = 4096  # a sector of its own on any disk
_DIGEST_NBYTES = 16
MOST_HEAD_NBYTES = 1 << 20
"""The most bytes at the start of a file by which a journal knows it."""
_MAX_KEYS = 1 << 16


class Header(NamedTuple):
    """The fixed part of a journal: what its target is, and what follows; `identity` is of this journal alone."""

    magic: bytes
    version: int
    identity: bytes
    inode: int
    generation: int
    size: int
    head_digest: bytes
    head_nbytes: int
    nranges: int
    payload_nbytes: int
    keys_nbytes: int
    body_digest: bytes

    @property
    def table(self) -> int:
        """Where the table of ranges begins."""
        return _HEADER_NBYTES + self.payload_nbytes

    @property
    def keys(self) -> int:
        """Where the keys begin."""
        return self.table + self.nranges * _RANGE.size

    @property
    def nbytes(self) -> int:
        """The size of the whole journal."""
        return self.keys + self.keys_nbytes


class Journal(NamedTuple):
    """A journal that is whole: all that is needed to finish its update."""

    fd: int
    header: Header


def _blake2b(data: bytes, nbytes: int) -> Any:
    import hashlib  # noqa: PLC0415 - a tenth of the start of a command that meets no journal

    return hashlib.blake2b(data, digest_size=nbytes)


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
        self.name = names.journal_name(base)
        self.fd = calls.open_new(self.name, dirfd)
        self.ranges: list[tuple[int, int]] = []
        self.identity = os.urandom(_DIGEST_NBYTES)
        self._end = _HEADER_NBYTES
        self._digest = _blake2b(b"", _DIGEST_NBYTES)
        self._name_is_durable = False
        try:
            # Whoever may change the target may finish its update, and no other user learns its content.
            metadata.copy_access(os.fstat(target), target, self.fd, bits=0o666)
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
        last = self.ranges[-1] if self.ranges else (0, 0)
        if offset < sum(last):
            raise ValueError(f"offset {offset} is before {sum(last)}, to which the journal has come")
        self._append(data)
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
        self._header = Header(
            _MAGIC, _VERSION, self.identity, status.st_ino, calls.generation(self._target), status.st_size,
            head_digest(self._target, self._head_nbytes), self._head_nbytes, len(self.ranges), payload, len(keys),
            self._digest.digest(),
        )  # fmt: skip

    def sync_name(self) -> None:
        """Bring the name of the journal to the disk before the commit."""
        calls.fsync_directory(self._dirfd)
        self._name_is_durable = True

    def publish(self, *, durable: bool) -> Journal:
        """Write the header and bring the journal to the disk: the commit point of an update."""
        fixed = _HEADER.pack(*self._header)
        calls.pwrite_all(self.fd, _sector(fixed), 0)
        if durable:
            calls.fsync(self.fd)
            if not self._name_is_durable:
                self.sync_name()
        return Journal(self.fd, self._header)

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


def _sector(fixed: bytes) -> bytes:
    """Return the sector of a header: with its digest, which makes it valid."""
    digest: bytes = _blake2b(fixed, _DIGEST_NBYTES).digest()
    return (fixed + digest).ljust(_HEADER_NBYTES, b"\0")


def read_header(fd: int) -> Header | None:
    """Return the header of a journal, or None if that is not whole, or none that an update can have."""
    sector = bytearray(_HEADER_NBYTES)
    if calls.pread_into(fd, memoryview(sector), 0) < _HEADER_NBYTES:
        return None
    fixed = bytes(sector[: _HEADER.size])
    header = Header(*_HEADER.unpack(fixed))
    known = (header.magic, header.version) == (_MAGIC, _VERSION) and sector == _sector(fixed)
    return header if known and _is_sane(header, os.fstat(fd).st_size) else None


def _is_sane(header: Header, size: int) -> bool:
    """Tell whether a journal of that many bytes can have that header: no range is empty, so they are not too many."""
    if header.nbytes != size or header.keys_nbytes > _MAX_KEYS or header.head_nbytes > MOST_HEAD_NBYTES:
        return False
    return header.nranges <= header.payload_nbytes <= header.size


def fits(header: Header, target: int) -> bool:
    """Tell whether a journal is of this very file, as it was: inode, generation, size and header.

    A generation of 0 is not known, as where a file system is met by another way than before.
    """
    status, generation = os.fstat(target), calls.generation(target)
    if (header.inode, header.size) != (status.st_ino, status.st_size):
        return False
    if header.generation != generation and header.generation and generation:
        return False
    return head_digest(target, header.head_nbytes) == header.head_digest


def is_whole(journal: Journal) -> bool:
    """Tell whether what follows the header is what it says; if not, the update was never committed."""
    header = journal.header
    if not _has_legal_ranges(journal):  # a look that is much shorter than the next
        return False
    found = _blake2b(b"", _DIGEST_NBYTES)
    for block in calls.blocks(journal.fd, _HEADER_NBYTES, header.nbytes):
        found.update(block)
    return bool(found.digest() == header.body_digest)


def _has_legal_ranges(journal: Journal) -> bool:
    """Tell whether the ranges are as an update writes them: among the elements, ascending, apart, for all bytes."""
    header = journal.header
    end, total = header.head_nbytes - 1, 0
    for offset, nbytes in _ranges(journal):
        if offset <= end or nbytes == 0:
            return False
        end, total = offset + nbytes, total + nbytes
    return end <= header.size and total == header.payload_nbytes


def _ranges(journal: Journal) -> Iterator[tuple[int, int]]:
    """Yield offset and number of bytes of each range; the table may be large, so it is read in blocks."""
    header = journal.header
    for block in calls.blocks(journal.fd, header.table, header.keys):
        yield from _RANGE.iter_unpack(block[: len(block) // _RANGE.size * _RANGE.size])


def stored_keys(fd: int) -> bytes:
    """Return the keys of the updates that a file remembers, b"" if there are none."""
    try:
        return os.getxattr(fd, ONCE_ATTRIBUTE)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return b""
        raise


def remember(fd: int, keys: bytes) -> None:
    """Let a file remember keys, in the place of those that it has."""
    try:
        os.setxattr(fd, ONCE_ATTRIBUTE, keys)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}:
            way_out = "name fewer origins, use `once_key`, or remove other attributes of the file"
            error.strerror = f"no room for {len(keys)} bytes of keys in its extended attributes ({error.strerror})"
            error.add_note(way_out)
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


def apply(journal: Journal, target: int) -> None:
    """Give the target the bytes of the journal, and its keys; what brings them to the disk comes later."""
    for start, stop, position in _pieces(journal):
        calls.copy_range(journal.fd, target, start, stop, position)
    if journal.header.keys_nbytes:
        keys = bytearray(journal.header.keys_nbytes)
        calls.pread_into(journal.fd, memoryview(keys), journal.header.keys)
        remember(target, bytes(keys))


def _pieces(journal: Journal) -> Iterator[tuple[int, int, int]]:
    """Yield where each range lies in the journal, from and to, and where it goes."""
    at = _HEADER_NBYTES
    for offset, nbytes in _ranges(journal):
        yield at, at + nbytes, offset
        at += nbytes
