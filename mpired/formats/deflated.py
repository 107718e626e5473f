"""Chunks of HDF5 that several threads deflate: the library has one."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from h5py import h5z

Selection: TypeAlias = Sequence[int | slice]
_LEAST_NBYTES = 64 << 10  # of a chunk; a thread would begin and end with a smaller one in no time
_AHEAD_NBYTES = 32 << 20  # of chunks in memory


def level_of(dataset: Any, selections: Sequence[Selection]) -> int | None:
    """Return the level of deflate; None if selections are not whole chunks, or are filtered in another way."""
    plist, chunk = dataset.id.get_create_plist(), dataset.chunks or ()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    if [code for code, *_ in filters] not in ([h5z.FILTER_DEFLATE], [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE]):
        return None
    are_whole = all(
        each.start % step == 0 if isinstance(each, slice) else step == 1
        for selection in selections
        for each, step in zip(selection, chunk, strict=False)
    )
    is_long = math.prod(chunk) * dataset.dtype.itemsize >= _LEAST_NBYTES
    level: int = filters[-1][2][0]
    return level if are_whole and is_long else None


def write(dataset: Any, level: int, blocks: Iterable[tuple[Selection, np.ndarray]], nthreads: int) -> None:
    """Write blocks of whole chunks; one at an edge of the array ends with zeros."""
    is_shuffled = dataset.id.get_create_plist().get_nfilters() > 1
    most = max(1, min(2 * nthreads, _AHEAD_NBYTES // (math.prod(dataset.chunks) * dataset.dtype.itemsize)))

    def deflated(part: np.ndarray) -> bytes:
        chunk = np.zeros(dataset.chunks, part.dtype)
        chunk[tuple(map(slice, part.shape))] = part
        octets = chunk.reshape(-1).view(np.uint8)
        if is_shuffled:  # the first bytes of all elements, then the second ones
            octets = np.ascontiguousarray(octets.reshape(-1, part.dtype.itemsize).T)
        return zlib.compress(octets.data, level)

    begun: deque[tuple[tuple[int, ...], Future[bytes]]] = deque()

    def write_first() -> None:
        at, chunk = begun.popleft()
        dataset.id.write_direct_chunk(at, chunk.result())

    with ThreadPoolExecutor(nthreads) as pool:
        for at, part in _chunks(dataset.chunks, blocks):
            begun.append((at, pool.submit(deflated, part)))
            if len(begun) > most:
                write_first()
        while begun:
            write_first()


def _chunks(
    chunk: Sequence[int], blocks: Iterable[tuple[Selection, np.ndarray]]
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Yield where each chunk of some blocks begins, and its elements."""
    for selection, values in blocks:
        first = [each.start if isinstance(each, slice) else each for each in selection]
        first += [0] * (len(chunk) - len(first))
        block = values.reshape((1,) * (len(chunk) - values.ndim) + values.shape)
        for number in np.ndindex(*(-(-length // step) for length, step in zip(block.shape, chunk, strict=True))):
            at = [each * step for each, step in zip(number, chunk, strict=True)]
            part = block[tuple(slice(each, each + step) for each, step in zip(at, chunk, strict=True))]
            yield tuple(map(sum, zip(first, at, strict=True))), part
