"""Files that are alike but for the elements of their arrays, so that a library has to look at one of them only.

A file that is damaged, or made to deceive, may have what describes its arrays among the elements of one of them. So
what a library finds is taken for that of another file only if it reads none of these elements to find it. It may do so
only because it reads more at a time than it needs; then it looks at each file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias

from mpired.buffers.arrays import Array
from mpired.buffers.memory import MemorySource
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source
from mpired.storage import calls

Asked: TypeAlias = tuple[bool, ...]

_MOST_NBYTES = 256 << 10  # that are compared of a file, and kept of another one


class Known(NamedTuple):
    """A file that the library has looked at; files that differ in elements of buffers alone are alike."""

    asked: Asked  # what the library was asked for, besides the file
    nbytes: int  # the bytes of the file
    # where it has others than these elements: the first byte of each piece, and the one behind it
    rest: tuple[tuple[int, int], ...]
    content: bytes  # what is there
    found: list[Array]  # the arrays
    name: str  # what messages call it
    is_sure: bool = False  # whether the library was seen to find the same without the elements

    @classmethod
    def of(cls, source: Source, asked: Asked, found: list[Array]) -> Known | None:
        """Return that of a local file, if all its buffers lie as they are and little else is in it; else None."""
        if not isinstance(source, LocalSource) or any(map(_is_elsewhere, found)):
            return None
        pieces = sorted(
            (each.offset, each.offset + each.count * (each.stored or each.dtype).itemsize)
            for each in found
            if each.offset is not None and each.dtype is not None and not each.carried
        )
        ends = [0, *itertools.accumulate((stop for _, stop in pieces), max)]
        starts = [*(start for start, _ in pieces), source.nbytes]
        rest = [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]
        if not pieces or not starts[0] or sum(start - end for end, start in rest) > _MOST_NBYTES:
            return None
        return cls(asked, source.nbytes, tuple(rest), _read_pieces(source, rest), found, source.name)

    def is_as(self, source: Source, asked: Asked) -> bool:
        """Tell whether another file has the same bytes there, so that the same is found in it."""
        is_like = isinstance(source, LocalSource) and (source.nbytes, asked) == (self.nbytes, self.asked)
        return is_like and _read_pieces(source, self.rest) == self.content

    def is_found(self, look: Callable[..., object]) -> bool:
        """Tell whether a library needs no elements for what it finds; where it does, it may end the process."""
        rest = _Rest(self)
        try:
            look(rest, *self.asked)
        except Exception:  # noqa: BLE001 - whatever a library makes of a failed read
            return False
        return not rest.missed  # which may have gone on without what it wanted to read


class _Rest(MemorySource):
    """A file that is known, without the elements: to read one is an error. `missed` gets where that was wanted."""

    def __init__(self, known: Known) -> None:
        super().__init__(known.name)
        self.nbytes = known.nbytes
        self.known = known
        self.missed: list[int] = []

    def open(self) -> OpenSource:
        """Open it for reading."""
        return _RestFile(self)


class _RestFile(OpenSource):
    def __init__(self, rest: _Rest) -> None:
        self._known, self._missed = rest.known, rest.missed

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        at, end = 0, min(offset + len(view), self._known.nbytes)
        for start, stop in self._known.rest:
            if start <= offset and end <= stop:
                view[: end - offset] = self._known.content[at + offset - start : at + end - start]
                return end - offset
            at += stop - start
        self._missed.append(offset)
        raise ValueError(f"the bytes from {offset} to {end} are not all known")


def _is_elsewhere(array: Array) -> bool:
    """Tell whether the elements of an array are not in the file, or only the library knows where they are."""
    return array.unseen or (array.dtype is not None and array.offset is None and not array.carried)


def _read_pieces(source: Source, pieces: Sequence[tuple[int, int]]) -> bytes:
    with closing(source.open()) as file, calls.blaming(source.name):
        return b"".join(file.read(stop - start, start) for start, stop in pieces)
