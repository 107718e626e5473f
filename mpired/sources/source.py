"""Sources: the bytes of ranks, with a name for messages; each process opens a source to read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from mpired.errors import ChangedError

STANDARD_INPUT = "standard input"
STORE_HEAD = b"\0a store of arrays in a directory\n"
"""The content of a directory of arrays for the recognition of its format."""
STORE_SUFFIX = ".zarr"
"""The usual suffix of stores of arrays."""
STORE_MARKS = frozenset({".zgroup", ".zarray", "zarr.json"})
"""Documents of arrays and groups; every store of arrays has at least one."""
STORE_DOCUMENTS = STORE_MARKS | {".zattrs", ".zmetadata"}
"""The documents that describe the arrays of a store."""


class OpenSource:
    """An open source. The caller closes it."""

    fd: int | None = None
    """The descriptor, for copies by the kernel; None if the source has no descriptor."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with bytes from `offset` on; return their number, which is smaller at the end of the source."""
        raise NotImplementedError

    def read(self, nbytes: int, offset: int) -> bytes:
        """Return `nbytes` from `offset` on, or fewer at the end of the source."""
        content = bytearray(nbytes)
        return bytes(content[: self.read_into(memoryview(content), offset)])

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce ranges (offset, number of bytes) that will be read; a remote source requests several at once."""

    def available(self, nbytes: int, offset: int) -> int:
        """Return the number of bytes available from `offset` on in a stream, at most `nbytes`; wait for them."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the source."""


class OpenBytes(OpenSource):
    """Bytes in memory."""

    def __init__(self, *parts: bytes | memoryview) -> None:
        self._parts = parts

    def read_into(self, view: memoryview, offset: int) -> int:
        filled = 0
        for part in self._parts:
            content = part[offset : offset + len(view) - filled] if offset < len(part) else b""
            view[filled : filled + len(content)] = content
            filled += len(content)
            offset = max(0, offset - len(part))
        return filled


class OpenStore(OpenBytes):
    """An open store of arrays: many files or objects, with names relative to the store."""

    def __init__(self, source: Source) -> None:
        super().__init__(STORE_HEAD)
        self.source = source

    def names(self) -> list[str]:
        """Return the sorted names."""
        raise NotImplementedError

    def content(self, name: str, limit: int) -> bytes:
        """Return the first bytes of a file or object, at most `limit + 1`."""
        raise NotImplementedError

    def expect_names(self, names: Iterable[str], limit: int) -> None:
        """Announce names, which may be missing, that will be read next; a remote store requests several at once.

        The announced files that are longer than `limit` bytes are not requested ahead.
        """


class Source:
    """The bytes of a rank, which are read in any order unless the source `is_sequential`. Small and picklable."""

    name: str  # in messages
    nbytes: int  # number of bytes; 0 for a source of unknown length
    packed: Source | None = None  # compressed source, if this source decompresses it
    inode: tuple[int, int] | None = None  # device and inode number; None if the source is not a local file
    is_private = False  # whether only this process and its children can open the source
    depth = 0  # of a remote source: number of ranks whose blocks are requested at the same time; otherwise 0
    block_nbytes = 0  # of a remote source: size of a block, if there is enough memory; otherwise 0
    is_sequential = False  # whether the source is read from start to end, and has unknown length

    def __eq__(self, other: object) -> bool:
        """Return whether both sources have the same bytes; a source may come from another process."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self) -> OpenSource:
        """Open the source for reading."""
        raise NotImplementedError

    def seekable(self) -> Source:
        """Return a seekable source of the same bytes: this source, or a copy in a scratch file."""
        return self

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the bytes have changed since the source was inspected."""
        if self.packed is not None:
            self.packed.check_unchanged()

    def changed(self) -> ChangedError:
        """Return the error for changed bytes."""
        if self.packed is not None:
            return self.packed.changed()
        return ChangedError(self.name, "changed while being read; run again when its writer has finished")

    def named(self, name: str) -> Self:
        """Return a copy of the source with another name in messages."""
        source = object.__new__(type(self))
        vars(source).update(vars(self), name=name)
        return source


def local_fd(file: OpenSource) -> int:
    """Return the descriptor of a local file."""
    assert file.fd is not None  # noqa: S101 - the plan has checked that the file is local
    return file.fd
