"""The constructors of derived datatypes, as type maps (MPI-4.1, 5.1.2 to 5.1.7).

Every function takes the arguments of the MPI function of its name. Strides and displacements are in
extents, those of the h-constructors in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpired.datatypes.typemap.typemap import Run, TypeMap, bounded, bounds_checked, combined

DFLT_DARG = "dflt"


class ArgumentError(ValueError):
    """Raised when one of the arguments is wrong: it has the number of that, and of the item in it if it is a list."""

    def __init__(self, reason: str, argument: int, item: int | None = None) -> None:
        super().__init__(reason, argument, item)  # as pickle gives them again
        self.argument = argument
        self.item = item

    def __str__(self) -> str:
        return str(self.args[0])


def contiguous(count: int, old: TypeMap) -> TypeMap:
    """Return `count` elements one after another."""
    return combined([Run(old, 0, count, old.extent)])


def vector(count: int, blocklength: int, stride: int, old: TypeMap) -> TypeMap:
    """Return blocks `stride` extents apart."""
    return hvector(count, blocklength, stride * old.extent, old)


def hvector(count: int, blocklength: int, stride: int, old: TypeMap) -> TypeMap:
    """Return blocks `stride` bytes apart."""
    return combined([Run(contiguous(blocklength, old), 0, count, stride)])


def indexed(blocklengths: Sequence[int], displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks at displacements in extents."""
    return hindexed(blocklengths, [disp * old.extent for disp in displacements], old)


def hindexed(blocklengths: Sequence[int], displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks at displacements in bytes."""
    return struct(blocklengths, displacements, [old] * len(blocklengths))


def indexed_block(blocklength: int, displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks of one length at displacements in extents."""
    return indexed([blocklength] * len(displacements), displacements, old)


def hindexed_block(blocklength: int, displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks of one length at displacements in bytes."""
    return hindexed([blocklength] * len(displacements), displacements, old)


def struct(blocklengths: Sequence[int], displacements: Sequence[int], olds: Sequence[TypeMap]) -> TypeMap:
    """Return blocks of several types at displacements in bytes."""
    _same_lengths(blocklengths, displacements, olds)
    blocks = zip(blocklengths, displacements, olds, strict=True)
    return combined([Run(old, disp, count, old.extent) for count, disp, old in blocks])


def subarray(sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: str, old: TypeMap) -> TypeMap:
    """Return a box out of an array; the extent is that of the array."""
    _same_lengths(sizes, subsizes, starts)
    for i, (size, subsize, start) in enumerate(zip(sizes, subsizes, starts, strict=True)):
        if not (1 <= subsize <= size and 0 <= start <= size - subsize):
            reason = f"{subsize} elements from {start} on are not in a dimension of {size}"
            raise ArgumentError(reason, 2 if 1 <= subsize <= size else 1, i)
    box, stride = old, old.extent
    for size, subsize, start in _fastest_first(order, sizes, subsizes, starts):
        if size > 1:  # which is at most 63 times
            box = combined([Run(box, start * stride, subsize, stride)])
            stride *= size
            bounds_checked(stride)
    return bounded(box, 0, stride)


def darray(  # noqa: PLR0913, PLR0917 - the arguments are those of MPI_Type_create_darray
    size: int,
    rank: int,
    gsizes: Sequence[int],
    distribs: Sequence[str],
    dargs: Sequence[Any],
    psizes: Sequence[int],
    order: str,
    old: TypeMap,
) -> TypeMap:
    """Return what a process owns of an array that is distributed as in HPF; the extent is that of the array."""
    _same_lengths(gsizes, distribs, dargs, psizes, first=2)
    if math.prod(psizes) != size:
        raise ArgumentError(f"a grid of {'x'.join(map(str, psizes))} is not {size} processes", 5)
    if rank >= size:
        raise ArgumentError(f"there is no rank {rank} among {size} processes", 1)
    owned, stride = old, old.extent
    coordinates = _row_major(rank, psizes)
    blocks = [_block(i, *each) for i, each in enumerate(zip(gsizes, distribs, dargs, psizes, strict=True))]
    for gsize, block, psize, at in _fastest_first(order, gsizes, blocks, psizes, coordinates):
        if gsize > 1 or psize > 1:
            owned = _dealt(owned, stride, gsize, block, psize, at)
            stride *= gsize
            bounds_checked(stride)
    return bounded(owned, 0, stride)


def _block(dimension: int, gsize: int, distrib: str, darg: Any, psize: int) -> int:
    """Return how many elements of a dimension a process has at a time."""
    if gsize < 1:
        raise ArgumentError("a size is at least 1", 2, dimension)
    if darg == 0:
        raise ArgumentError("a darg is at least 1", 4, dimension)
    if distrib == "none":
        if psize != 1:
            raise ArgumentError(f"a dimension that is not distributed has 1 process, not {psize}", 5, dimension)
        return gsize
    if distrib == "cyclic":
        return 1 if darg == DFLT_DARG else int(darg)
    block = -(-gsize // psize) if darg == DFLT_DARG else int(darg)
    if block * psize < gsize:
        raise ArgumentError(f"{psize} blocks of {block} are fewer than {gsize}", 4, dimension)
    return block


def _dealt(old: TypeMap, stride: int, gsize: int, block: int, psize: int, at: int) -> TypeMap:
    """Return the blocks at, at + psize, ... of one dimension; the last may be short."""
    turn = block * psize
    full = max(0, (gsize - at * block - block) // turn + 1) if gsize >= at * block + block else 0
    start = at * block + full * turn
    rest = max(0, min(block, gsize - start))
    whole = combined([Run(old, 0, block, stride)])
    return combined([Run(whole, at * block * stride, full, turn * stride), Run(old, start * stride, rest, stride)])


def _row_major(rank: int, psizes: Sequence[int]) -> list[int]:
    """Return the coordinates of a process; they are in row-major order whatever that of the array is."""
    coordinates = []
    for psize in reversed(psizes):
        rank, at = divmod(rank, psize)
        coordinates.append(at)
    return coordinates[::-1]


def _fastest_first(order: str, *lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    dimensions = list(zip(*lists, strict=True))
    return dimensions[::-1] if order == "C" else dimensions


def resized(lb: int, extent: int, old: TypeMap) -> TypeMap:
    """Return the same entries with other bounds."""
    return bounded(old, lb, extent)


def dup(old: TypeMap) -> TypeMap:
    """Return the same again."""
    return old


def _same_lengths(*lists: Sequence[object], first: int = 0) -> None:
    """Raise an error unless lists go together; `first` is the number of the argument that the first one is."""
    for i, each in enumerate(lists):
        if len(each) != len(lists[0]):
            reason = f"the lists have {', '.join(str(len(each)) for each in lists)} items; they go together"
            raise ArgumentError(reason, first + i)
