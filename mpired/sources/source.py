"""Sources: bytes with a name, opened where they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from mpired.errors import ChangedError

STANDARD_INPUT = "standard input"
STORE_HEAD = b"\0a store of arrays in a directory\n"
"""The first bytes of a directory of arrays, by which its format is recognised like that of a file."""
STORE_SUFFIX = ".zarr"
"""The usual suffix of stores of arrays."""
STORE_MARKS = frozenset({".zgroup", ".zarray", "zarr.json"})
"""The documents of which every store of arrays has one, and each array and group in it."""
STORE_DOCUMENTS = STORE_MARKS | {".zattrs", ".zmetadata"}
"""The documents that describe the arrays of a store."""


class OpenSource:
    """The bytes of a source that is open. The caller closes it."""

    fd: int | None = None
    """The descriptor, for those who copy within the system; None if there is none."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        raise NotImplementedError

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return `nbytes` bytes from `offset` on, or those that there are before the end."""
        content = bytearray(nbytes)
        return bytes(content[: self.read_into(memoryview(content), offset)])

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note ranges (offset, number of bytes) that will be read: a remote source asks for several at once."""

    def ahead(self, nbytes: int, offset: int) -> int:
        """Return how many of `nbytes` bytes from `offset` on are before the end of a stream."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""


class OpenBytes(OpenSource):
    """Bytes in memory."""

    def __init__(self, *parts: bytes | memoryview) -> None:
        self._parts = parts

    def read_into(self, view: memoryview, offset: int) -> int:
        done = 0
        for part in self._parts:
            known = part[offset : offset + len(view) - done] if offset < len(part) else b""
            view[done : done + len(known)] = known
            done += len(known)
            offset = max(0, offset - len(part))
        return done


class OpenStore(OpenBytes):
    """A store of arrays that is open: many files, or objects, by their names within it."""

    def __init__(self, source: Source) -> None:
        super().__init__(STORE_HEAD)
        self.source = source

    def names(self) -> list[str]:
        """Return the names, in their order."""
        raise NotImplementedError

    def content(self, name: str, most: int) -> bytes:
        """Return the bytes that have a name, `most` and one more at most."""
        raise NotImplementedError

    def expect_names(self, names: Iterable[str], most: int) -> None:
        """Note the names of files, which may be missing, that are read next: a remote store asks for several at once.

        A store takes no more than `most` bytes for them.
        """


class Source:
    """The bytes of a rank, which are read in any order unless it `is_sequential`. Small and picklable."""

    name: str  # in messages
    nbytes: int  # the number of bytes; of a stream 0, because it is not known
    # the bytes as in the file, of a source that decompresses them: it has their identity, and changes with them
    packed: Source | None = None
    inode: tuple[int, int] | None = None  # device and inode of the local file; None if it is none, as a stream
    is_private = False  # whether only this process and its children can open it
    # Of a source that is far away: how many blocks of ranks are asked for at a time, and how many bytes a block has, if
    # there is memory; 0 on this machine or on a file system.
    depth = block_nbytes = 0
    # whether it is read from its start to its end, which shows only there: a stream, or a compressed source
    is_sequential = False

    def __eq__(self, other: object) -> bool:
        """Return whether it is of the same bytes, also where one was sent to another process."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self) -> OpenSource:
        """Open it for reading."""
        raise NotImplementedError

    def kept(self) -> Source:
        """Return a source of the same bytes that is read in any order: itself, or a copy in a scratch file."""
        return self

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the bytes are not those that were there when it was looked at."""
        if self.packed is not None:
            self.packed.check_unchanged()

    def changed(self) -> ChangedError:
        """Return the error for bytes that changed."""
        if self.packed is not None:
            return self.packed.changed()
        return ChangedError(self.name, "changed while being read; run again when its writer has finished")

    def named(self, name: str) -> Self:
        """Return it with another name in messages."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), name=name)
        return other


def local_fd(file: OpenSource) -> int:
    """Return the descriptor of a local file: a result replaces no other."""
    assert file.fd is not None  # noqa: S101 - checked where the call is planned
    return file.fd
