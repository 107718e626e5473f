"""The slow obvious twin of derived datatypes: a type map as a list of bytes, by the definitions of MPI-4.1, 5.1.

`Drawn` is a type that hypothesis draws: its text and its twin.
"""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import reference
from hypothesis import strategies as st
from real_mpi import real_type

# name in the grammar: bytes, alignment
BASIC = {
    "double": (8, 8), "int": (4, 4), "short": (2, 2), "int8_t": (1, 1), "float": (4, 4), "long_double": (16, 16),
    "long": (8, 8), "uint16_t": (2, 2), "byte": (1, 1), "logical": (4, 4), "c_float_complex": (8, 4),
    "c_double_complex": (16, 8), "int64_t": (8, 8), "count": (8, 8), "char": (1, 1), "c_bool": (1, 1),
}  # fmt: skip
PAIRS = {"double_int": ("double", "int"), "short_int": ("short", "int"), "float_int": ("float", "int"),
         "long_double_int": ("long_double", "int")}  # fmt: skip
# The same of each type that is one entry, also of pairs, as one-sided calls take them.
SIZES = {
    name.lower(): (max(at + reference.STORED_BYTES[code] for code, at in parts),
                   max(reference.STORED_BYTES[code] for code, _ in parts))
    for name, (parts, _) in reference.FORMS.items()
} | BASIC  # fmt: skip


class Twin(NamedTuple):
    """A type map: (name, displacement) of each entry, and the bounds, with whether they were set."""

    entries: tuple[tuple[str, int], ...]
    lb: int
    ub: int
    marked: bool

    @property
    def extent(self) -> int:
        return self.ub - self.lb

    @property
    def size(self) -> int:
        return sum(SIZES[name][0] for name, _ in self.entries)

    @property
    def true_lb(self) -> int:
        return min((disp for _, disp in self.entries), default=0)

    @property
    def true_extent(self) -> int:
        return max((disp + SIZES[name][0] for name, disp in self.entries), default=0) - self.true_lb


def basic(name: str) -> Twin:
    if name not in PAIRS:
        return Twin(((name, 0),), 0, SIZES[name][0], marked=False)
    value, index = PAIRS[name]
    offset = -(-BASIC[value][0] // BASIC[index][1]) * BASIC[index][1]
    return placed([(basic(value), 0), (basic(index), offset)])


def placed(parts: Sequence[tuple[Twin, int]]) -> Twin:
    """Return the map of some types at displacements (MPI-4.1, 5.1.2 to 5.1.7)."""
    entries = tuple((name, disp + at) for twin, at in parts for name, disp in twin.entries)
    markers = [(at + twin.lb, at + twin.ub) for twin, at in parts if twin.marked]
    if markers:
        return Twin(entries, min(lb for lb, _ in markers), max(ub for _, ub in markers), marked=True)
    if not entries:
        return Twin((), 0, 0, marked=False)
    lb = min(disp for _, disp in entries)
    extent = max(disp + SIZES[name][0] for name, disp in entries) - lb
    while extent % max(SIZES[name][1] for name, _ in entries):
        extent += 1
    return Twin(entries, lb, lb + extent, marked=False)


def block(length: int, at: int, twin: Twin) -> list[tuple[Twin, int]]:
    return [(twin, at + i * twin.extent) for i in range(length)]


def blocks(lengths: Sequence[int], displacements: Sequence[int], twins: Sequence[Twin]) -> Twin:
    rows = zip(lengths, displacements, twins, strict=True)
    return placed([part for length, at, twin in rows for part in block(length, at, twin)])


def box(sizes: Sequence[int], owned: Sequence[Sequence[int]], order: str, twin: Twin) -> Twin:
    """Return the elements of an array whose index in each dimension is owned, in storage order."""
    # The slowest dimension comes first in C order, last in Fortran order.
    slowest_first = list(range(len(sizes))) if order == "C" else list(range(len(sizes)))[::-1]
    parts = []
    for indices in itertools.product(*(owned[dim] for dim in slowest_first)):
        position = 0
        for dim, index in zip(slowest_first, indices, strict=True):
            position = position * sizes[dim] + index
        parts.append((twin, position * twin.extent))
    return Twin(placed(parts).entries, 0, math.prod(sizes) * twin.extent, marked=True)


class Drawn(NamedTuple):
    """A type: its text and its twin."""

    text: str
    twin: Twin

    def real(self, mpi: Any) -> Any:
        """Return the same type of mpi4py's module."""
        return real_type(mpi, self.text)


def leaf(name: str) -> Drawn:
    return Drawn(name, basic(name))


def one_entry(name: str) -> Drawn:
    """Return a type that is one entry, also if it is a pair."""
    return leaf(name)._replace(twin=Twin(((name, 0),), 0, reference.FORMS[name.upper()][1], marked=False))


WORDS = ("contiguous", "vector", "hvector", "indexed", "hindexed", "indexed_block", "hindexed_block", "struct",
         "subarray", "darray", "resized", "dup")  # fmt: skip


def listed(numbers: Sequence[object]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def wrapped(
    rng: random.Random, word: str, inner: Drawn, other: Drawn, *, like_mpich: bool = False, least: int = 0
) -> Drawn:
    """Draw arguments for a constructor on a type; `like_mpich` keeps to what MPICH does as the standard says.

    MPICH pads the extent only of structures of several types, takes the padding of a part for an entry, keeps empty
    blocks in the bounds, and lets bounds that are set bind no structure that has other parts.
    """
    text, twin = inner
    if like_mpich and twin.marked != other.twin.marked:
        other = inner
    least = max(least, like_mpich)
    count, length, stride = rng.randint(least, 3), rng.randint(least, 3), rng.randint(-4, 5)
    number = max(count, 1)
    disps, near = ([rng.randint(-4, 9) for _ in range(number)] for _ in range(2))
    lengths = [rng.randint(least, 3) for _ in range(number)]
    far = [16 * disp for disp in disps] if like_mpich else [7 * disp for disp in disps]
    odd = [3 * a + b for a, b in zip(disps, near, strict=True)]
    entries = twin.entries + other.twin.entries
    plain = len(entries) == 2 and len({SIZES[name][0] for name, _ in entries}) == 2
    if like_mpich and not (plain and number > 1):
        odd = far
    step = 16 * stride if like_mpich else 5 * stride

    def over(made: Twin, *arguments: object) -> Drawn:
        """Return the constructor with its arguments."""
        words = ",".join(listed(each) if isinstance(each, list) else str(each) for each in arguments)
        return Drawn(f"{word}({words},{text})", made)

    at = [disp * twin.extent for disp in disps]
    of_one_type = {  # the lengths of blocks, where they are, and the arguments
        "contiguous": ([count], [0], (count,)),
        "vector": ([length] * count, [j * stride * twin.extent for j in range(count)], (count, length, stride)),
        "hvector": ([length] * count, [j * step for j in range(count)], (count, length, step)),
        "indexed": (lengths, at, (lengths, disps)),
        "hindexed": (lengths, far, (lengths, far)),
        "indexed_block": ([length] * number, at, (length, disps)),
        "hindexed_block": ([length] * number, far, (length, far)),
    }
    if word in of_one_type:
        lengths, at, arguments = of_one_type[word]
        return over(blocks(lengths, at, [twin] * len(lengths)), *arguments)
    match word:
        case "resized":
            lb, extent = 3 * stride, 11 * length + abs(disps[0])
            if like_mpich:  # which pads these too
                lb, extent = 16 * stride, 16 * (length + abs(disps[0]))
            return over(Twin(twin.entries, lb, lb + extent, marked=True), lb, extent)
        case "struct":
            kinds = [(inner, other)[i % 2] for i in range(number)]
            made = blocks(lengths, odd, [kind.twin for kind in kinds])
            return Drawn(f"struct({listed(lengths)},{listed(odd)},{listed([kind.text for kind in kinds])})", made)
        case "subarray":
            inside = [max(each, 1) for each in lengths]
            starts = [abs(disp) % 3 for disp in disps]
            sizes = [n + start + abs(stride) % 2 for n, start in zip(inside, starts, strict=True)]
            order = rng.choice("CF")
            owned = [range(start, start + n) for n, start in zip(inside, starts, strict=True)]
            return over(box(sizes, owned, order, twin), sizes, inside, starts, order)
        case "darray":
            return _distributed(rng, inner, like_mpich=like_mpich)
    return Drawn(f"dup({text})", twin)


def _distributed(rng: random.Random, inner: Drawn, *, like_mpich: bool) -> Drawn:
    order, rank = rng.choice("CF"), rng.randint(0, 3)
    kinds, dargs, owned = [], [], []
    for size, at in zip((9, 8), divmod(rank, 2), strict=True):
        kind, darg = rng.choice(["block", "cyclic"]), rng.choice(["dflt", 2, 5])
        darg = 2 if like_mpich and kind == "cyclic" and darg == 5 else darg
        darg = "dflt" if kind == "block" and darg == 2 else darg  # too small a block
        each = {"block": -(-size // 2), "cyclic": 1}[kind] if darg == "dflt" else darg
        kinds.append(kind)
        dargs.append(darg)
        owned.append([i for i in range(size) if i // each % 2 == at])

    text = f"darray(4,{rank},[9,8],{listed(kinds)},{listed(dargs)},[2,2],{order},{inner.text})"
    return Drawn(text, box((9, 8), owned, order, inner.twin))


@st.composite
def types(draw: Any, names: Sequence[str], *, like_mpich: bool = False, outermost: str | None = None) -> Drawn:
    """Draw a type of types of the named ones."""
    rng = draw(st.randoms(use_true_random=False))
    made, other = leaf(rng.choice(names)), leaf(rng.choice(names))
    words = [rng.choice(WORDS) for _ in range(rng.randint(0, 2) if outermost else rng.randint(1, 3))]
    for word in [*words, *([outermost] if outermost else [])]:
        if len(made.twin.entries) > 500:  # it grows fast
            break
        made, other = wrapped(rng, word, made, other, like_mpich=like_mpich), made
    return made


def spelled(name: str) -> str:
    """Return a name as it is here, not one of its synonyms."""
    return {"c_complex": "c_float_complex"}.get(name, name)


def positions(twin: Twin, count: int, offset: int = 0) -> list[tuple[int, int]]:
    """Return start and bytes of each entry of some elements, in the order of the map."""
    return [(offset + i * twin.extent + disp, BASIC[name][0]) for i in range(count) for name, disp in twin.entries]


assert all(reference.FORMS[name.upper()][1] == BASIC[name][0] for name in BASIC if name.upper() in reference.FORMS)
