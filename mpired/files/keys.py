"""The keys of `--once`: a file beside the target that only grows, and an attribute of the target that counts its keys.

    NAME.mpired-keys   a header (magic, identity), then pages of 1,024 keys
    page               16 bytes of each key; then of each: chain digest, date, text
    user.mpired.once   of the target: magic, identity, number of keys, chain digest of the last, name of the file

Keys are on the disk before a change of the target is committed, and the attribute changes with the data: keys beyond
its number do not exist. A chain digest covers a key and all before it, so the last one shows whether the file belongs
to the target. A program that replaces the target leaves it without the attribute, and so without keys. In version 0.1
the attribute had the keys themselves, ten bytes each.
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
"""The bytes of a key by which it is searched."""
_MAGIC = b"MPIREDK1"
_HEADER_NBYTES = 4096
_COUNTED = struct.Struct("<8s16sQ16s")
_TEXT_NBYTES = 88
_DETAILS = struct.Struct(f"<16sq{_TEXT_NBYTES}s")
_PAGE = 1024  # keys
_PAGE_NBYTES = _PAGE * (KEY_NBYTES + _DETAILS.size)
_OLD_NBYTES = 10


class KeyRecord(NamedTuple):
    """A recorded key."""

    key: bytes
    text: str  # the key of the user, or the place of the origin; "" if only the digest is known
    seconds: int  # when, since 1970; 0 if that is not known
    chain: bytes = b""  # digest up to it, if it is read from a file


class Counted(NamedTuple):
    """The attribute of a target: which keys count."""

    identity: bytes  # of the file
    number: int  # of the keys that count
    chain: bytes  # digest of the last
    name: bytes  # of the file


def remember(fd: int, value: bytes) -> None:
    """Give a file the attribute, in the place of the one that it has."""
    try:
        os.setxattr(fd, ATTRIBUTE, value)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}:
            error.strerror = f"has no room for {len(value)} more bytes of extended attributes ({error.strerror})"
            error.add_note("remove other attributes of the file")
        raise


class Keys:
    """The keys of a target, which its lock guards; `UsageError` where no file can have attributes."""

    def __init__(self, place: Place, target: int | None) -> None:
        # `target` is the descriptor of the file; None if it does not exist yet.
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
        self._counted: Counted | None = None
        self._old: list[KeyRecord] = []
        if len(value) >= _COUNTED.size and value.startswith(_MAGIC):
            fields = _COUNTED.unpack_from(value)[1:]
            self._counted = Counted._make((*fields, value[_COUNTED.size :].rstrip(b"\0")))
        else:  # none, or those of version 0.1
            pieces = (value[at : at + _OLD_NBYTES] for at in range(0, len(value), _OLD_NBYTES))
            self._old = [KeyRecord(each.ljust(KEY_NBYTES, b"\0"), "", 0) for each in pieces if any(each)]
        self.count = self._counted.number if self._counted else len(self._old)  # of keys

    def find(self, prefixes: Collection[bytes]) -> set[bytes]:
        """Return the keys that begin with one of some prefixes."""
        if self._counted is None:
            return {each.key for each in self._old if each.key[:PREFIX_NBYTES] in prefixes}
        with self._opened(self._counted) as (fd, _):
            keys = np.empty((self.count, KEY_NBYTES), np.uint8)
            for start in range(0, self.count, _PAGE):
                calls.pread_into(fd, keys[start : start + _PAGE].reshape(-1).data, _place(start, KEY_NBYTES))
        wanted = np.frombuffer(b"".join(prefixes), np.uint32)
        return {each.tobytes() for each in keys[np.isin(keys.view(np.uint32)[:, 0], wanted)]}

    def last(self, most: int) -> list[KeyRecord]:
        """Return at most `most` keys, the last one first."""
        if self._counted is None:
            return [each._replace(key=each.key[:_OLD_NBYTES]) for each in self._old[: -most - 1 : -1]]
        with self._opened(self._counted) as (fd, _):
            return [*_entries(fd, max(0, self.count - most), self.count)][::-1]

    def append(self, new: Sequence[tuple[bytes, str]], *, durable: bool) -> bytes:
        """Record keys with their labels; return the attribute that lets them count."""
        records, old = [KeyRecord(key, text, int(time.time())) for key, text in new], iter(self._old)
        with contextlib.ExitStack() as stack:
            if self._counted is not None:
                fd, name = stack.enter_context(self._opened(self._counted, writable=True))
                has_several_names = self._target is not None and calls.names_of(os.fstat(self._target)) > 1
                if name == self._own_name or has_several_names:
                    return self._extended(fd, self._counted._replace(name=name), records, durable=durable)
                old = _verified(fd, self._counted, self._name)
            with calls.errors_name(self._keys_path):
                created = self._created()
                stack.callback(os.close, created)
                identity = os.urandom(16)
                calls.pwrite_all(created, (_MAGIC + identity).ljust(_HEADER_NBYTES, b"\0"), 0)
                counted = Counted(identity, 0, identity, self._own_name)
                value = self._extended(created, counted, itertools.chain(old, records), durable=durable)
                if durable:
                    calls.fsync_directory(self._dirfd)
            return value

    def _created(self) -> int:
        """Create the file, which is as open to others as the target, in the place of one of another target."""
        with contextlib.suppress(FileNotFoundError):
            fd = calls.open_regular(self._own_name, os.O_RDONLY, self._dirfd)
            begin = calls.pread_some(fd, len(_MAGIC), 0)
            os.close(fd)
            if begin not in {_MAGIC, b""}:
                raise BufferFileError(self._keys_path, "is not a file of keys, but has its name; move it away")
            calls.unlink(self._own_name, self._dirfd)
        fd = calls.open_new(self._own_name, self._dirfd)
        if self._target is None:
            os.fchmod(fd, calls.default_mode())
        else:
            copying.copy_metadata(os.fstat(self._target), self._target, fd, bits=0o666, attributes=False)
        return fd

    def _extended(self, fd: int, counted: Counted, entries: Iterable[KeyRecord], *, durable: bool) -> bytes:
        """Write entries behind those that count, and return the attribute for all."""
        left = iter(entries)
        with calls.errors_name(self._keys_path):
            while page := list(itertools.islice(left, _PAGE - counted.number % _PAGE)):
                details = bytearray()
                at, chain = counted.number, counted.chain
                for entry in page:
                    details += (packed := _details(chain, entry))
                    chain = packed[: len(chain)]
                calls.pwrite_all(fd, b"".join(entry.key for entry in page), _place(at, KEY_NBYTES))
                calls.pwrite_all(fd, bytes(details), _place(at, _DETAILS.size, _PAGE * KEY_NBYTES))
                counted = counted._replace(number=at + len(page), chain=chain)
            if durable:
                calls.fsync(fd)
        return _COUNTED.pack(_MAGIC, counted.identity, counted.number, counted.chain) + counted.name

    @contextlib.contextmanager
    def _opened(self, counted: Counted, *, writable: bool = False) -> Iterator[tuple[int, bytes]]:
        """Open the file that has the keys that count, which may have the name of before a move of the target."""
        for name in dict.fromkeys((self._own_name, counted.name)):
            try:
                with calls.errors_name(self._keys_path):
                    fd = calls.open_regular(name, os.O_RDWR if writable else os.O_RDONLY, self._dirfd)
            except FileNotFoundError:
                continue
            try:
                header = calls.pread_some(fd, len(_MAGIC) + len(counted.identity), 0)
                last = next(_entries(fd, counted.number - 1, counted.number))
                if header == _MAGIC + counted.identity and last.chain == counted.chain:
                    yield fd, name
                    return
            finally:
                os.close(fd)
        reason = f"{self._keys_path} is missing or belongs to another file"
        hint = "put that back, or go on with a copy of the target made by `cp`, which has no keys"
        raise BufferFileError(self._name, f"has {number(counted.number, 'key')} of `once`, but {reason}; {hint}")


@contextlib.contextmanager
def of_file(path: str) -> Iterator[Keys]:
    """Open the keys of a file without a lock; none if it cannot have keys, or cannot be read."""
    with contextlib.ExitStack() as stack:
        try:
            target = stack.enter_context(Target(path, shared=True))
            keys = Keys(target, target.fd)
        except (OSError, UsageError):
            keys = Keys(Place(path, "", -1), None)
        yield keys


def _place(index: int, nbytes: int, begin: int = 0) -> int:
    """Return the place of a field of a key, of `nbytes`, whose column begins at `begin` of its page."""
    page, slot = divmod(index, _PAGE)
    return _HEADER_NBYTES + page * _PAGE_NBYTES + begin + slot * nbytes


def _entries(fd: int, start: int, stop: int) -> Iterator[KeyRecord]:
    """Yield the recorded keys of a range; a page is read at once."""
    while start < stop:
        end = min(stop, start + _PAGE - start % _PAGE)
        keys = calls.pread_some(fd, (end - start) * KEY_NBYTES, _place(start, KEY_NBYTES))
        nbytes = (end - start) * _DETAILS.size
        details = calls.pread_some(fd, nbytes, _place(start, _DETAILS.size, _PAGE * KEY_NBYTES)).ljust(nbytes, b"\0")
        for index, (chain, seconds, text) in enumerate(_DETAILS.iter_unpack(details)):
            key = keys[index * KEY_NBYTES : (index + 1) * KEY_NBYTES]
            yield KeyRecord(key, os.fsdecode(text.rstrip(b"\0")), seconds, chain)
        start = end


def _verified(fd: int, counted: Counted, name: str) -> Iterator[KeyRecord]:
    """Yield the keys that count; `BufferFileError` at the end if they have changed."""
    chain = counted.identity
    for record in _entries(fd, 0, counted.number):
        chain = _details(chain, record)[: len(chain)]
        yield record
    if chain != counted.chain:
        raise BufferFileError(name, f"has a damaged file of keys ({os.fsdecode(counted.name)}); restore it")


def _details(chain: bytes, record: KeyRecord) -> bytes:
    """Return the details of a key behind others, which begin with its chain digest, with the end of a long text."""
    text = record.text.encode(errors="surrogateescape")
    text = text if len(text) <= _TEXT_NBYTES else b"..." + text[3 - _TEXT_NBYTES :]
    data = b"%b%b%d %b" % (chain, record.key, record.seconds, text)
    return _DETAILS.pack(digest(data, len(chain)).digest(), record.seconds, text)
