"""Derived datatypes: their constructors, one row a word of the grammar (MPI-4.1, 5.1.2 to 5.1.7).

The constructors make type maps; each takes the arguments of the MPI function of its name. Strides and displacements are
in extents, those of the h-constructors in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.pairs import value_index
from mpired.datatypes.typemap.typemap import Run, TypeMap, bounded, bounds_checked, combined
from mpired.errors import DatatypeError

MAX_LENGTH = 32 << 10
"""Characters of the text of a datatype."""
MAX_DEPTH = 100
"""Levels of types inside one another."""


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


def struct(blocklengths: Sequence[int], displacements: Sequence[int], olds: Sequence[TypeMap]) -> TypeMap:
    """Return blocks of several types at displacements in bytes."""
    _same_lengths(blocklengths, displacements, olds)
    blocks = zip(blocklengths, displacements, olds, strict=True)
    return combined([Run(old, disp, count, old.extent) for count, disp, old in blocks])


def subarray(sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: str, old: TypeMap) -> TypeMap:
    """Return a box out of an array; the extent is that of the array."""
    _same_lengths(sizes, subsizes, starts)
    for size, subsize, start in zip(sizes, subsizes, starts, strict=True):
        if not (1 <= subsize <= size and 0 <= start <= size - subsize):
            raise ValueError(f"{subsize} elements from {start} on are not in a dimension of {size}")
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
    _same_lengths(gsizes, distribs, dargs, psizes)
    if math.prod(psizes) != size:
        raise ValueError(f"a grid of {'x'.join(map(str, psizes))} is not {size} processes")
    if rank >= size:
        raise ValueError(f"there is no rank {rank} among {size} processes")
    owned, stride = old, old.extent
    coordinates: list[int] = []  # of the process; they are in row-major order whatever that of the array is
    for psize in reversed(psizes):
        rank, at = divmod(rank, psize)
        coordinates.insert(0, at)
    blocks = list(map(_block, gsizes, distribs, dargs, psizes))
    for gsize, block, psize, at in _fastest_first(order, gsizes, blocks, psizes, coordinates):
        if gsize > 1 or psize > 1:
            owned = _dealt(owned, stride, gsize, block, psize, at)
            stride *= gsize
            bounds_checked(stride)
    return bounded(owned, 0, stride)


def _block(gsize: int, distrib: str, darg: Any, psize: int) -> int:
    """Return how many elements of a dimension a process has at a time."""
    if gsize < 1:
        raise ValueError("a size is at least 1")
    if darg == 0:
        raise ValueError("a darg is at least 1")
    if distrib == "none":
        if psize != 1:
            raise ValueError(f"a dimension that is not distributed has 1 process, not {psize}")
        return gsize
    if distrib == "cyclic":
        return 1 if darg == "dflt" else int(darg)
    block = -(-gsize // psize) if darg == "dflt" else int(darg)
    if block * psize < gsize:
        raise ValueError(f"{psize} blocks of {block} are fewer than {gsize}")
    return block


def _dealt(old: TypeMap, stride: int, gsize: int, block: int, psize: int, at: int) -> TypeMap:
    """Return the blocks at, at + psize, ... of one dimension; the last may be short."""
    turn = block * psize
    full = max(0, (gsize - at * block - block) // turn + 1) if gsize >= at * block + block else 0
    start = at * block + full * turn
    rest = max(0, min(block, gsize - start))
    whole = combined([Run(old, 0, block, stride)])
    return combined([Run(whole, at * block * stride, full, turn * stride), Run(old, start * stride, rest, stride)])


def _fastest_first(order: str, *lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    dimensions = list(zip(*lists, strict=True))
    return dimensions[::-1] if order == "C" else dimensions


def _same_lengths(*lists: Sequence[object]) -> None:
    """Raise an error unless lists go together."""
    if len(set(map(len, lists))) > 1:
        raise ValueError(f"the lists have {', '.join(str(len(each)) for each in lists)} items; they go together")


class Constructor(NamedTuple):
    """A row: the word, the sorts of its arguments, and the function that makes the datatype."""

    name: str  # the word
    sorts: tuple[str, ...]  # the sort of each argument, one that the parser knows, in the order of MPI
    make: Callable[..., Datatype]  # takes the arguments and returns the datatype


def _pair(value: Datatype, index: Datatype) -> Datatype:
    made = value_index(value, index)
    if made is None:
        reason = "a pair has a value that MAX and MIN take and an integer index (MPI-4.1, 6.9.4)"
        raise DatatypeError(f"pair of {value} and {index}", reason)
    return made


# One instance of each, to compare ranks by; those that are not used any more are forgotten.
_instances: WeakValueDictionary[str, Datatype] = WeakValueDictionary()


def _derived(name: str, build: Callable[..., TypeMap]) -> Callable[..., Datatype]:
    """Return what makes the one instance of a datatype by a function of type maps."""

    def make(*arguments: Any) -> Datatype:
        parts = _listed(f"{name}(", arguments, ")")
        if sum(map(len, parts)) > MAX_LENGTH:
            raise DatatypeError(name, f"is written with more than {MAX_LENGTH} characters")
        text = "".join(parts)
        made = _instances.get(text)
        if made is None:
            try:
                structure = build(*map(_mapped, arguments))
            except ValueError as error:
                raise DatatypeError(name, str(error)) from error
            _instances[text] = made = Datatype(text, Group.DERIVED, None, handle=DATATYPE_NULL, structure=structure)
        return made

    return make


def _listed(opening: str, arguments: tuple[Any, ...], closing: str) -> list[str]:
    """Return what the text of some arguments consists of."""
    parts = [opening]
    for argument in arguments:
        if isinstance(argument, tuple):
            parts += _listed("[", argument, "]")
        elif isinstance(argument, Datatype):
            parts.append(argument.name.lower() if argument.is_named else argument.name)
        else:
            parts.append(str(argument))
        parts.append(",")
    return [*parts[:-1], closing] if arguments else [opening, closing]


def _mapped(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_mapped, argument))
    return argument.typemap if isinstance(argument, Datatype) else argument


# the word, the sorts of its arguments, and what makes its type map
_ROWS: tuple[tuple[str, str, Callable[..., TypeMap]], ...] = (
    ("contiguous", "count type", contiguous),
    ("vector", "count count number type", vector),
    ("hvector", "count count number type", hvector),
    ("indexed", "counts numbers type", indexed),
    ("hindexed", "counts numbers type", hindexed),
    ("indexed_block", "count numbers type", lambda length, disps, old: indexed([length] * len(disps), disps, old)),
    ("hindexed_block", "count numbers type", lambda length, disps, old: hindexed([length] * len(disps), disps, old)),
    ("struct", "counts numbers types", struct),
    ("subarray", "counts counts counts order type", subarray),
    ("darray", "count count counts distributions dargs counts order type", darray),
    ("resized", "number number type", lambda lb, extent, old: bounded(old, lb, extent)),
    ("dup", "type", lambda old: old),
)

CONSTRUCTORS = {
    "pair": Constructor("pair", ("type", "type"), _pair),
    **{name: Constructor(name, tuple(sorts.split()), _derived(name, build)) for name, sorts, build in _ROWS},
}
