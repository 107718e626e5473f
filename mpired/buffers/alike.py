"""Files that are alike but for the elements of their arrays, so that a library has to look at one of them only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias

from mpired.buffers.arrays import Array
from mpired.sources.local import LocalSource
from mpired.sources.source import Source
from mpired.storage import calls

Asked: TypeAlias = tuple[bool, ...]

_MOST_NBYTES = 256 << 10  # that are compared of a file, and kept of another one


class Known(NamedTuple):
    """A file that the library has looked at. What it found is in each file that differs in elements of buffers alone.

    Parameters
    ----------
    asked
        What the library was asked for, besides the file.
    nbytes
        The bytes of the file.
    rest
        Where it has others than these elements: the first byte of each piece, and the one behind it.
    content
        What is there.
    found
        The arrays.
    """

    asked: Asked
    nbytes: int
    rest: tuple[tuple[int, int], ...]
    content: bytes
    found: list[Array]

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
        return cls(asked, source.nbytes, tuple(rest), _read_pieces(source, rest), found)

    def is_as(self, source: Source, asked: Asked) -> bool:
        """Tell whether another file has the same bytes there, so that the same is found in it."""
        is_like = isinstance(source, LocalSource) and (source.nbytes, asked) == (self.nbytes, self.asked)
        return is_like and _read_pieces(source, self.rest) == self.content


def _is_elsewhere(array: Array) -> bool:
    """Tell whether the elements of an array are not in the file, or only the library knows where they are."""
    return array.unseen or (array.dtype is not None and array.offset is None and not array.carried)


def _read_pieces(source: Source, pieces: Sequence[tuple[int, int]]) -> bytes:
    with closing(source.open()) as file, calls.blaming(source.name):
        return b"".join(file.read(stop - start, start) for start, stop in pieces)
