"""The keys of `--once`: a file of keys beside the target, and an attribute of the target with the number of valid keys.

    NAME.mpired-keys   a header (magic, identity), then pages of 1,024 keys
    page               16 bytes for each key, then for each key: chain digest, date, text
    user.mpired.once   attribute: magic, identity, number of keys, chain digest of the last key, name of the file

The file of keys only grows. Keys are on the disk before an update of the target is committed, and the attribute changes
with the data: keys beyond its number are not valid. A chain digest covers a key and all earlier keys, so the last
chain digest shows whether the file of keys belongs to the target. If another program replaces the target, the new file
has no attribute, and so no keys. In version 0.1 the attribute had the keys themselves, ten bytes each.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpired.errors import BufferFileError, UsageError, number
from mpired.files import calls, copying
from mpired.files.lock import Target
from mpired.files.places import KEYS, Place, digest, own_path

ATTRIBUTE = copying.OWN_ATTRIBUTES + "once"
KEY_NBYTES = 16
PREFIX_NBYTES = 4
"""The length of the prefixes by which keys are searched, in bytes."""
_MAGIC = b"MPIREDK1"
_HEADER_NBYTES = 4096
_ATTRIBUTE = struct.Struct("<8s16sQ16s")
_TEXT_NBYTES = 88
_DETAILS = struct.Struct(f"<16sq{_TEXT_NBYTES}s")
_PAGE = 1024  # keys
_PAGE_NBYTES = _PAGE * (KEY_NBYTES + _DETAILS.size)
_OLD_NBYTES = 10


class KeyRecord(NamedTuple):
    """A recorded key."""

    key: bytes
    text: str  # key of the user, or path of the origin; "" if unknown
    seconds: int  # time since 1970; 0 if unknown
    chain: bytes = b""  # chain digest, of a record from a file


class KeyCount(NamedTuple):
    """The attribute of a target: the valid keys in its file of keys."""

    identity: bytes  # of the file of keys
    number: int  # of valid keys
    chain: bytes  # chain digest of the last valid key
    name: bytes  # of the file of keys


def set_attribute(fd: int, value: bytes) -> None:
    """Set the attribute of a target."""
    try:
        os.setxattr(fd, ATTRIBUTE, value)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}:
            error.strerror = f"has no room for {len(value)} more bytes of extended attributes ({error.strerror})"
            error.add_note("remove other attributes of the file")
        raise


class Keys:
    """The keys of a locked target; `UsageError` if its file system has no attributes."""

    def __init__(self, place: Place, target: int | None) -> None:  # the descriptor of the target; None for a new file
        self._name, self._dirfd, self._target = place.name, place.dirfd, target
        base = own_path(os.fsdecode(place.base), KEYS)
        self._own_name, self._keys_path = os.fsencode(base), os.path.join(os.path.dirname(place.name), base)
        try:
            value = b"" if target is None else calls.attribute(target, ATTRIBUTE, frozenset({errno.ENODATA}))
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                error.filename = place.name
                raise
            reason = f"its file system keeps no extended attributes ({error.strerror}), so `once` has no place for keys"
            raise UsageError(place.name, reason) from error
        self._valid: KeyCount | None = None  # None if the target has no file of keys
        self._old: list[KeyRecord] = []  # keys of version 0.1
        if len(value) >= _ATTRIBUTE.size and value.startswith(_MAGIC):
            fields = _ATTRIBUTE.unpack_from(value)[1:]
            self._valid = KeyCount._make((*fields, value[_ATTRIBUTE.size :].rstrip(b"\0")))
        else:
            old_keys = (value[offset : offset + _OLD_NBYTES] for offset in range(0, len(value), _OLD_NBYTES))
            self._old = [KeyRecord(key.ljust(KEY_NBYTES, b"\0"), "", 0) for key in old_keys if any(key)]
        self.count = self._valid.number if self._valid else len(self._old)  # of keys

    def find(self, prefixes: Collection[bytes]) -> set[bytes]:
        """Return the keys with these prefixes."""
        if self._valid is None:
            return {record.key for record in self._old if record.key[:PREFIX_NBYTES] in prefixes}
        with self._open_keys(self._valid) as (fd, _):
            keys = np.empty((self.count, KEY_NBYTES), np.uint8)
            for start in range(0, self.count, _PAGE):
                calls.pread_into(fd, keys[start : start + _PAGE].reshape(-1).data, _offset(start, KEY_NBYTES))
        numbers = np.frombuffer(b"".join(prefixes), np.uint32)
        return {key.tobytes() for key in keys[np.isin(keys.view(np.uint32)[:, 0], numbers)]}

    def last(self, limit: int) -> list[KeyRecord]:
        """Return the last keys in reverse order, at most `limit`."""
        if self._valid is None:
            return [record._replace(key=record.key[:_OLD_NBYTES]) for record in self._old[: -limit - 1 : -1]]
        with self._open_keys(self._valid) as (fd, _):
            return [*_read_records(fd, max(0, self.count - limit), self.count)][::-1]

    def append(self, new: Sequence[tuple[bytes, str]], *, durable: bool) -> bytes:
        """Write keys with a text each; return the attribute that makes them valid."""
        records, old = [KeyRecord(key, text, int(time.time())) for key, text in new], iter(self._old)
        with contextlib.ExitStack() as stack:
            if self._valid is not None:
                fd, name = stack.enter_context(self._open_keys(self._valid, writable=True))
                has_several_names = self._target is not None and calls.names_of(os.fstat(self._target)) > 1
                if name == self._own_name or has_several_names:
                    return self._extend(fd, self._valid._replace(name=name), records, durable=durable)
                old = _verified_records(fd, self._valid, self._name)
            with calls.errors_name(self._keys_path):
                new_fd = self._create_file()
                stack.callback(os.close, new_fd)
                identity = os.urandom(16)
                calls.pwrite_all(new_fd, (_MAGIC + identity).ljust(_HEADER_NBYTES, b"\0"), 0)
                empty = KeyCount(identity, 0, identity, self._own_name)
                value = self._extend(new_fd, empty, itertools.chain(old, records), durable=durable)
                if durable:
                    calls.fsync_directory(self._dirfd)
            return value

    def _create_file(self) -> int:
        """Create the file of keys with the rights of the target; replace a file of keys of another target."""
        with contextlib.suppress(FileNotFoundError):
            fd = calls.open_regular(self._own_name, os.O_RDONLY, self._dirfd)
            magic = calls.pread_some(fd, len(_MAGIC), 0)
            os.close(fd)
            if magic not in {_MAGIC, b""}:
                raise BufferFileError(self._keys_path, "is not a file of keys, but has its name; move it away")
            calls.unlink(self._own_name, self._dirfd)
        fd = calls.open_new(self._own_name, self._dirfd)
        if self._target is None:
            os.fchmod(fd, calls.default_mode())
        else:
            copying.copy_metadata(os.fstat(self._target), self._target, fd, bits=0o666, attributes=False)
        return fd

    def _extend(self, fd: int, valid: KeyCount, records: Iterable[KeyRecord], *, durable: bool) -> bytes:
        """Write records after the valid keys; return the attribute that makes them valid too."""
        remaining = iter(records)
        with calls.errors_name(self._keys_path):
            while page := list(itertools.islice(remaining, _PAGE - valid.number % _PAGE)):
                details = bytearray()
                index, chain = valid.number, valid.chain
                for record in page:
                    details += (packed := _packed_details(chain, record))
                    chain = packed[: len(chain)]
                calls.pwrite_all(fd, b"".join(record.key for record in page), _offset(index, KEY_NBYTES))
                calls.pwrite_all(fd, bytes(details), _offset(index, _DETAILS.size, _PAGE * KEY_NBYTES))
                valid = valid._replace(number=index + len(page), chain=chain)
            if durable:
                calls.fsync(fd)
        return _ATTRIBUTE.pack(_MAGIC, valid.identity, valid.number, valid.chain) + valid.name

    @contextlib.contextmanager
    def _open_keys(self, valid: KeyCount, *, writable: bool = False) -> Iterator[tuple[int, bytes]]:
        """Open the file of keys, which may have an old name if the target was renamed; yield descriptor and name."""
        for name in dict.fromkeys((self._own_name, valid.name)):
            try:
                with calls.errors_name(self._keys_path):
                    fd = calls.open_regular(name, os.O_RDWR if writable else os.O_RDONLY, self._dirfd)
            except FileNotFoundError:
                continue
            try:
                header = calls.pread_some(fd, len(_MAGIC) + len(valid.identity), 0)
                last = next(_read_records(fd, valid.number - 1, valid.number))
                if header == _MAGIC + valid.identity and last.chain == valid.chain:
                    yield fd, name
                    return
            finally:
                os.close(fd)
        reason = f"{self._keys_path} is missing or belongs to another file"
        hint = "put that back, or go on with a copy of the target made by `cp`, which has no keys"
        raise BufferFileError(self._name, f"has {number(valid.number, 'key')} of `once`, but {reason}; {hint}")


@contextlib.contextmanager
def of_file(path: str) -> Iterator[Keys]:
    """Open the keys of a file without a lock; a file that cannot have keys, or cannot be read, has none."""
    with contextlib.ExitStack() as stack:
        try:
            target = stack.enter_context(Target(path, shared=True))
            keys = Keys(target, target.fd)
        except (OSError, UsageError):
            keys = Keys(Place(path, "", -1), None)
        yield keys


def _offset(index: int, nbytes: int, column: int = 0) -> int:
    """Return the offset of a field of a key: `nbytes` is its size, `column` the offset of all such fields in a page."""
    page, slot = divmod(index, _PAGE)
    return _HEADER_NBYTES + page * _PAGE_NBYTES + column + slot * nbytes


def _read_records(fd: int, start: int, stop: int) -> Iterator[KeyRecord]:
    """Yield the records from `start` to `stop`; each page is read by two calls."""
    while start < stop:
        end = min(stop, start + _PAGE - start % _PAGE)
        keys = calls.pread_some(fd, (end - start) * KEY_NBYTES, _offset(start, KEY_NBYTES))
        nbytes = (end - start) * _DETAILS.size
        details = calls.pread_some(fd, nbytes, _offset(start, _DETAILS.size, _PAGE * KEY_NBYTES)).ljust(nbytes, b"\0")
        for index, (chain, seconds, text) in enumerate(_DETAILS.iter_unpack(details)):
            key = keys[index * KEY_NBYTES : (index + 1) * KEY_NBYTES]
            yield KeyRecord(key, os.fsdecode(text.rstrip(b"\0")), seconds, chain)
        start = end


def _verified_records(fd: int, valid: KeyCount, name: str) -> Iterator[KeyRecord]:
    """Yield the valid keys; raise `BufferFileError` at the end if they do not have the chain digest."""
    chain = valid.identity
    for record in _read_records(fd, 0, valid.number):
        chain = _packed_details(chain, record)[: len(chain)]
        yield record
    if chain != valid.chain:
        raise BufferFileError(name, f"has a damaged file of keys ({os.fsdecode(valid.name)}); restore it")


def _packed_details(chain: bytes, record: KeyRecord) -> bytes:
    """Return the details of a key after a key with this chain digest; a long text is shortened to its end."""
    text = record.text.encode(errors="surrogateescape")
    text = text if len(text) <= _TEXT_NBYTES else b"..." + text[3 - _TEXT_NBYTES :]
    data = b"%b%b%d %b" % (chain, record.key, record.seconds, text)
    return _DETAILS.pack(digest(data, len(chain)).digest(), record.seconds, text)
