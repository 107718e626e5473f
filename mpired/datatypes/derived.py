"""Constructors of derived datatypes, one row for each (MPI-4.1, 5.1.2 to 5.1.7).

A constructor takes the arguments of the MPI function with its name, and makes a type map. Strides and displacements are
in extents; in the functions that begin with h they are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from mpired.datatypes.datatype import DATATYPE_NULL, Datatype, Group
from mpired.datatypes.dtypes import BY_NAME
from mpired.datatypes.predefined import value_index
from mpired.datatypes.typemap import Run, TypeMap, bounded, check_range, combined
from mpired.errors import DatatypeError

MAX_LENGTH = 32 << 10
"""The maximum length of the text of a datatype, in characters."""
MAX_DEPTH = 100
"""The maximum number of levels of nested datatypes."""


def contiguous(count: int, old: TypeMap) -> TypeMap:
    """Return `count` adjacent elements."""
    return combined([Run(old, 0, count, old.extent)])


def vector(count: int, blocklength: int, stride: int, old: TypeMap) -> TypeMap:
    """Return blocks `stride` extents apart."""
    return hvector(count, blocklength, stride * old.extent, old)


def hvector(count: int, blocklength: int, stride: int, old: TypeMap) -> TypeMap:
    """Return blocks `stride` bytes apart."""
    return combined([Run(contiguous(blocklength, old), 0, count, stride)])


def indexed(blocklengths: Sequence[int], displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks of one datatype at displacements in extents."""
    return hindexed(blocklengths, [disp * old.extent for disp in displacements], old)


def hindexed(blocklengths: Sequence[int], displacements: Sequence[int], old: TypeMap) -> TypeMap:
    """Return blocks of one datatype at displacements in bytes."""
    return struct(blocklengths, displacements, [old] * len(blocklengths))


def struct(blocklengths: Sequence[int], displacements: Sequence[int], olds: Sequence[TypeMap]) -> TypeMap:
    """Return blocks of several datatypes at displacements in bytes."""
    _check_lengths(blocklengths, displacements, olds)
    blocks = zip(blocklengths, displacements, olds, strict=True)
    return combined([Run(old, disp, count, old.extent) for count, disp, old in blocks])


def subarray(sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: str, old: TypeMap) -> TypeMap:
    """Return a box in an array; the extent is that of the array."""
    _check_lengths(sizes, subsizes, starts)
    for size, subsize, start in zip(sizes, subsizes, starts, strict=True):
        if not (1 <= subsize <= size and 0 <= start <= size - subsize):
            raise ValueError(f"{subsize} elements from {start} on are not in a dimension of {size}")
    box, stride = old, old.extent
    for size, subsize, start in _fastest_first(order, sizes, subsizes, starts):
        if size > 1:  # true for at most 63 dimensions, so that the tree is not deep
            box = combined([Run(box, start * stride, subsize, stride)])
            stride *= size
            check_range(stride)
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
    """Return the elements of an array that one process owns; the extent is that of the array."""
    # The distributions are those of High Performance Fortran.
    _check_lengths(gsizes, distribs, dargs, psizes)
    if math.prod(psizes) != size:
        raise ValueError(f"a grid of {'x'.join(map(str, psizes))} is not {size} processes")
    if rank >= size:
        raise ValueError(f"there is no rank {rank} among {size} processes")
    owned, stride = old, old.extent
    coordinates: list[int] = []  # the place of the process in the grid, which has row-major order for any `order`
    for psize in reversed(psizes):
        rank, coordinate = divmod(rank, psize)
        coordinates.insert(0, coordinate)
    blocks = list(map(_block_size, gsizes, distribs, dargs, psizes))
    for gsize, block, psize, coordinate in _fastest_first(order, gsizes, blocks, psizes, coordinates):
        if gsize > 1 or psize > 1:
            owned = _select_blocks(owned, stride, gsize, block, range(coordinate, -(-gsize // block), psize))
            stride *= gsize
            check_range(stride)
    return bounded(owned, 0, stride)


def _block_size(gsize: int, distrib: str, darg: Any, psize: int) -> int:
    """Return the number of elements in a block of a dimension."""
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


def _select_blocks(old: TypeMap, stride: int, gsize: int, block: int, numbers: range) -> TypeMap:
    """Return the blocks of a dimension with these numbers; the last block of the dimension may be short."""
    full = len(range(numbers.start, gsize // block, numbers.step))
    short = gsize % block if full < len(numbers) else 0
    whole = combined([Run(old, 0, block, stride)])
    full_blocks = Run(whole, numbers.start * block * stride, full, numbers.step * block * stride)
    return combined([full_blocks, Run(old, (gsize - short) * stride, short, stride)])


def _fastest_first(order: str, *lists: Sequence[Any]) -> list[tuple[Any, ...]]:
    dimensions = list(zip(*lists, strict=True))
    return dimensions[::-1] if order == "C" else dimensions


def _check_lengths(*lists: Sequence[object]) -> None:
    """Raise an error unless the lists have the same length."""
    if len(set(map(len, lists))) > 1:
        raise ValueError(f"the lists have {', '.join(str(len(items)) for items in lists)} items; they go together")


class Constructor(NamedTuple):
    """A row: a constructor in the text of a datatype."""

    name: str  # the name before the parentheses
    kinds: tuple[str, ...]  # the kind of each argument, for the parser, in the order of MPI
    make: Callable[..., Datatype]  # takes the arguments and returns the datatype


def _make_pair(value: Datatype, index: Datatype) -> Datatype:
    if (pair := value_index(value, index)) is None:
        reason = "a pair has a value that MAX and MIN take and an integer index (MPI-4.1, 6.9.4)"
        raise DatatypeError(f"pair of {value} and {index}", reason)
    return pair


# Ranks are compared by the identity of their datatypes. Datatypes that are not in use are forgotten.
_instances: WeakValueDictionary[str, Datatype] = WeakValueDictionary()


def _derived(name: str, build: Callable[..., TypeMap]) -> Callable[..., Datatype]:
    """Return the function that makes the one instance of a derived datatype, whose type map `build` makes."""

    def make(*arguments: Any) -> Datatype:
        parts = _text_parts(f"{name}(", arguments, ")")
        if sum(map(len, parts)) > MAX_LENGTH:
            raise DatatypeError(name, f"is written with more than {MAX_LENGTH} characters")
        text = "".join(parts)
        datatype = _instances.get(text)
        if datatype is None:
            try:
                structure = build(*map(_typemaps, arguments))
            except ValueError as error:
                raise DatatypeError(name, str(error)) from error
            datatype = Datatype(text, Group.DERIVED, None, handle=DATATYPE_NULL, structure=structure)
            _instances[text] = datatype
        return datatype

    return make


def _text_parts(opening: str, arguments: tuple[Any, ...], closing: str) -> list[str]:
    """Return the pieces of the text of arguments with commas and brackets."""
    parts = [opening]
    for argument in arguments:
        if isinstance(argument, tuple):
            parts += _text_parts("[", argument, "]")
        elif isinstance(argument, Datatype):
            parts.append(argument.name.lower() if argument.is_named else argument.name)
        else:
            parts.append(str(argument))
        parts.append(",")
    return [*parts[:-1], closing] if arguments else [opening, closing]


def _typemaps(argument: Any) -> Any:
    """Return an argument with type maps in the place of datatypes."""
    if isinstance(argument, tuple):
        return tuple(map(_typemaps, argument))
    return argument.typemap if isinstance(argument, Datatype) else argument


# name, kinds of the arguments, function that makes the type map
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
    "pair": Constructor("pair", ("type", "type"), _make_pair),
    **{name: Constructor(name, tuple(kinds.split()), _derived(name, build)) for name, kinds, build in _ROWS},
}


def repeated_unit(datatype: Datatype) -> Datatype:
    """Return the datatype of the shortest sequence of entries that a datatype repeats: a number, pair or structure."""
    unit = datatype.typemap.unit
    if not unit:
        count = datatype.typemap.entries
        reason = f"its {count} entries do not make a structure that NumPy can hold; use `to='raw'`"
        raise DatatypeError(f"{datatype}", reason)
    types = tuple(BY_NAME[entry.name.upper()] for entry in unit)
    if len(types) == 1:
        return types[0]
    pair = value_index(*types) if len(types) == 2 else None  # noqa: PLR2004 - value and index
    if pair is not None:
        return pair
    aligned = np.dtype([(f"f{i}", component.form) for i, component in enumerate(types)], align=True)
    disps = tuple(field[1] for field in (aligned.fields or {}).values())
    structure_type = CONSTRUCTORS["struct"].make((1,) * len(types), disps, types)
    _ = structure_type.form  # raises an error if NumPy has none
    return structure_type
