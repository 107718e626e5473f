"""Files that are alike but for the elements of their arrays, so that a library has to look at one of them only.

A file that is damaged, or made to deceive, may have what describes its arrays among the elements of one of them. So
what a library finds is taken for that of another file only if it finds the same with other elements.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias

from mpired.buffers.arrays import Array
from mpired.errors import ChangedError
from mpired.sources.local import LocalSource
from mpired.sources.source import OpenSource, Source
from mpired.storage import calls

Asked: TypeAlias = tuple[bool, ...]

_MOST_NBYTES = 256 << 10  # that are compared of a file, and kept of another one
_FILLS = (b"\x55", b"\xaa")  # in one of them each bit is another one than in the file


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
    name
        What messages call it.
    is_sure
        Whether the library was seen to find the same with other elements.
    """

    asked: Asked
    nbytes: int
    rest: tuple[tuple[int, int], ...]
    content: bytes
    found: list[Array]
    name: str
    is_sure: bool = False

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

    def depends_on_elements(self, look: Callable[..., list[Array]]) -> bool:
        """Tell whether a library finds something else with other elements, or nothing; that may end the process."""
        try:
            found = [look(_Filled(self, fill), *self.asked) for fill in _FILLS]
            return any(repr(_sent(each)) != repr(self.found) for each in found)
        except Exception:  # noqa: BLE001 - whatever a library raises for damaged files
            return True


def _sent(found: list[Array]) -> list[Array]:
    """Return arrays as they come from another process; types of NumPy may be spelled in two ways before."""
    sent: list[Array] = pickle.loads(pickle.dumps(found))  # noqa: S301 - made here
    return sent


class _Filled(NamedTuple):
    """A file that is known, with one byte instead of those of the elements."""

    known: Known
    fill: bytes
    inode: None = None
    is_private: bool = False
    is_forward: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.known.name

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
        return self.known.nbytes

    def open(self) -> OpenSource:
        """Open it for reading."""
        return _FilledFile(self.known, self.fill)

    def kept(self) -> Source:
        """Return itself."""
        return self

    def check_unchanged(self) -> None:
        """Do nothing: it is in memory."""

    def changed(self) -> ChangedError:
        """Return the error for bytes that changed."""
        return ChangedError(self.name, "changed while being read; run again when its writer has finished")


class _FilledFile(OpenSource):
    def __init__(self, known: Known, fill: bytes) -> None:
        self._known, self._fill = known, fill

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from `offset` on, and return how many there were before the end."""
        end = max(offset, min(offset + len(view), self._known.nbytes))
        view[: end - offset] = self._fill * (end - offset)
        at = 0
        for start, stop in self._known.rest:
            first, last = max(start, offset), min(stop, end)
            if first < last:
                view[first - offset : last - offset] = self._known.content[at + first - start : at + last - start]
            at += stop - start
        return end - offset


def _is_elsewhere(array: Array) -> bool:
    """Tell whether the elements of an array are not in the file, or only the library knows where they are."""
    return array.unseen or (array.dtype is not None and array.offset is None and not array.carried)


def _read_pieces(source: Source, pieces: Sequence[tuple[int, int]]) -> bytes:
    with closing(source.open()) as file, calls.blaming(source.name):
        return b"".join(file.read(stop - start, start) for start, stop in pieces)
