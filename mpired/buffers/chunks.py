"""Chunks of HDF5 that are compressed here: the library does one after another, zlib several at once."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
from h5py import h5t

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_WAITING_NBYTES = 8 << 20


class Deflate(NamedTuple):
    """How chunks are compressed: the level, and whether the bytes of their elements are shuffled before."""

    level: int
    shuffled: bool

    def compressed(self, chunk: np.ndarray) -> bytes:
        """Return the bytes of a chunk as they lie in a file."""
        octets = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
        if self.shuffled:  # the first bytes of all elements, then the second ones
            octets = np.ascontiguousarray(octets.reshape(-1, chunk.itemsize).T)
        return zlib.compress(octets.data, self.level)


def deflate(dataset: h5py.Dataset) -> Deflate | None:
    """Return how the chunks of a dataset are compressed; None if by anything else than deflate, shuffled or not."""
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters() if dataset.chunks else 0)]
    codes = [code for code, _, _, _ in filters]
    if codes not in ([h5py.h5z.FILTER_DEFLATE], [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]):
        return None
    shuffled = len(codes) > 1
    if not dataset.id.get_type().equal(h5t.py_create(dataset.dtype, logical=True)):
        return None  # its elements lie in another form
    if shuffled and filters[0][2][:1] != (dataset.dtype.itemsize,):
        return None
    return Deflate(filters[-1][2][0], shuffled)


class Chunks:
    """Writes the elements of a dataset piece by piece: whole chunks when they are compressed."""

    def __init__(self, dataset: h5py.Dataset, threads: ThreadPoolExecutor) -> None:
        self._dataset = dataset
        self._deflate = deflate(dataset)
        self._threads = threads
        self._waiting: deque[tuple[tuple[Any, ...], Future[bytes]]] = deque()
        nbytes = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
        self._most = max(1, _WAITING_NBYTES // max(1, nbytes))

    def put(self, selection: tuple[int | slice, ...], values: np.ndarray) -> None:
        """Take the elements of a selection: an index in some dimensions, a slice of the next, and all of the rest."""
        chunk, form = self._dataset.chunks, self._deflate
        outer, within = selection[:-1], selection[-1] if selection else None
        is_row = chunk is not None and all(each == 1 for each in chunk[: len(outer)])  # else it is a part of a row
        if form is None or not is_row or not isinstance(within, slice) or within.start % chunk[len(outer)]:
            self._dataset[selection] = values
            return
        sides = chunk[len(outer) :]
        starts = (within.start, *[0] * (values.ndim - 1))
        for place in itertools.product(*map(range, itertools.repeat(0), values.shape, sides)):
            where = tuple(map(slice, place, map(sum, zip(place, sides, strict=True))))
            piece = values[where]
            at = tuple(map(sum, zip(starts, place, strict=True)))
            if piece.shape == sides:
                self.write(self._most - 1)
                self._waiting.append(((*outer, *at), self._threads.submit(form.compressed, piece)))
            else:  # the library knows what a chunk has behind the end of the array
                self._dataset[(*outer, *map(slice, at, map(sum, zip(at, piece.shape, strict=True))))] = piece

    def write(self, most: int = 0) -> None:
        """Write what is compressed until no more than `most` chunks wait."""
        while len(self._waiting) > most:
            place, octets = self._waiting.popleft()
            self._dataset.id.write_direct_chunk(place, octets.result())


@contextmanager
def compressing(dataset: h5py.Dataset, nthreads: int) -> Iterator[Chunks]:
    """Give what takes the elements of a dataset, whose chunks some threads compress; at the end all are written."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only where chunks are compressed

    with ThreadPoolExecutor(nthreads) as threads:
        chunks = Chunks(dataset, threads)
        yield chunks
        chunks.write()
