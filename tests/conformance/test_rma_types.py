"""One-sided calls with derived datatypes, made by a real MPI and by mpired on files of both byte orders.

Where elements lie is told by lists of displacements that are made here; the bytes of the other order are swapped by
these, and every byte of a window is compared, gaps and padding included.
"""

import io
import itertools
import math
import os
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import typemaps
from real_mpi import handle
from typemaps import Drawn, Twin

import mpired

INTEGERS = ["SHORT", "INT", "LONG", "INT8_T", "UINT16_T", "UINT32_T", "UINT64_T"]
FLOATS = ["FLOAT", "DOUBLE", "LONG_DOUBLE"]
PAIRS = ["DOUBLE_INT", "FLOAT_INT", "LONG_INT", "SHORT_INT", "LONG_DOUBLE_INT", "2INT"]
OPS = {
    **{name: ["SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"] for name in INTEGERS},
    **{name: ["SUM", "PROD", "MAX", "MIN"] for name in FLOATS},
    **{name: ["SUM", "PROD"] for name in ("C_COMPLEX", "C_DOUBLE_COMPLEX")},
    **{name: ["MAXLOC", "MINLOC"] for name in PAIRS},
    "BYTE": ["BAND", "BOR", "BXOR"],
}
SWAPPED = [*INTEGERS, "INTEGER", "AINT", "BYTE"]  # MPICH refuses LOGICAL, which the standard allows
MOST = 60
"""Elements of a type, and about so many of a call."""


class Type(NamedTuple):
    """A datatype: its text, the same of the real MPI, and the displacements of its elements of the one basic type."""

    text: str
    real: Any
    disps: list[int]

    @property
    def extent(self) -> int:
        return self.real.Get_extent()[1]


class Draw:
    """Draws types of one basic type, with elements at any byte."""

    def __init__(self, mpi: Any, name: str, rng: random.Random) -> None:
        self.mpi, self.rng = mpi, rng
        self._one = typemaps.one_entry(name.lower())
        self.leaf = self._realized(self._one)

    def type(self) -> Type:
        """Draw a type of a few levels."""
        made = other = self._one
        for _ in range(self.rng.randint(0, 3)):
            word = self.rng.choice([word for word in typemaps.WORDS if word != "darray"])
            new = self._bounded(typemaps.wrapped(self.rng, word, made, other, least=1))
            if len(new.twin.entries) > MOST:
                break
            made, other = new, made
        if self.rng.randrange(6) == 0:
            made = self._resized(made, self.rng.randint(-9, 9), -self.rng.randint(1, 60))
        return self._realized(made)

    def _bounded(self, made: Drawn) -> Drawn:
        """Set the bounds where MPICH does not round the extent as the standard says."""
        lb, extent = made.real(self.mpi).Get_extent()
        return made if (made.twin.lb, made.twin.extent) == (lb, extent) else self._resized(made, lb, extent)

    @staticmethod
    def _resized(made: Drawn, lb: int, extent: int) -> Drawn:
        twin = Twin(made.twin.entries, lb, lb + extent, marked=True)
        text = f"resized({lb},{extent},{made.text})"
        return Drawn(text, twin)

    def _realized(self, made: Drawn) -> Type:
        real = made.real(self.mpi)
        if made is not self._one:
            real.Commit()
        return Type(made.text, real, [disp for _, disp in made.twin.entries])


class Side(NamedTuple):
    """One side of a call: its bytes, and where in them the elements are, from a displacement of the first type on."""

    name: str
    type: Type
    count: int
    start: int
    octets: bytes
    places: list[int]

    @property
    def apart(self) -> bool:
        """Whether no byte is in two elements."""
        near = true_extent(self.name)
        return all(b - a >= near for a, b in itertools.pairwise(sorted(self.places)))

    def swapped(self, octets: bytes) -> bytes:
        """Return bytes with every number of the elements in the other byte order."""
        out = bytearray(octets)
        for place, (at, nbytes) in itertools.product(self.places, spans(self.name)):
            out[place + at : place + at + nbytes] = octets[place + at : place + at + nbytes][::-1]
        return bytes(out)


def message(one: Side) -> list[Any]:
    """Return elements as mpi4py takes them."""
    room = bytearray(one.octets).ljust(one.start + 1)  # the first type may begin behind all of its elements
    return [memoryview(room)[one.start :], one.count, one.type.real]


def spans(name: str) -> list[tuple[int, int]]:
    """Return offset and bytes of each number in an element."""
    return [(at, reference.STORED_BYTES[code]) for code, at in reference.FORMS[name][0]]


def true_extent(name: str) -> int:
    return max(at + nbytes for at, nbytes in spans(name))


def side(name: str, kind: Type, count: int, rng: random.Random, *, step: int = 1) -> Side:
    """Draw the bytes of elements and of what lies between them, which may end with the last element.

    The displacement of the first type is a multiple of `step`.
    """
    disps = [i * kind.extent + disp for i in range(count) for disp in kind.disps]
    start = -(-max(0, -min(disps)) // step) * step + step * rng.randint(0, 9)
    places = [start + disp for disp in disps]
    size = max(places) + true_extent(name) + rng.choice([0, 0, 1, 7, 40])
    if kind.text == name.lower() and step > 1:  # a file of plain elements has whole ones
        size = -(-size // step) * step
    octets = bytearray(rng.randbytes(size))
    for place, element in zip(places, elements(name, len(places), rng), strict=True):
        for at, nbytes in spans(name):
            octets[place + at : place + at + nbytes] = element[at : at + nbytes]
    return Side(name, kind, count, start, bytes(octets), places)


def elements(name: str, count: int, rng: random.Random) -> list[bytes]:
    """Draw elements: small numbers of both signs with ties, never zero if floating, and any bits of integers."""
    made = []
    for _ in range(count):
        element = bytearray(reference.FORMS[name][1])
        for code, at in reference.FORMS[name][0]:
            number = rng.randint(1, 9) * (1 if code[0] == "u" else rng.choice([-1, 1]))
            octets = reference.encode(code, np.longdouble(number) if code == "g" else number)
            if code[0] in "iu" and name not in PAIRS and rng.randrange(2):
                octets = rng.randbytes(len(octets))
            if code == "g":
                octets += rng.randbytes(6)
            element[at : at + len(octets)] = octets
        made.append(bytes(element))
    return made


class Both:
    """Makes calls of the real MPI, and the same of mpired in both byte orders."""

    def __init__(self, mpi: Any, folder: Any) -> None:
        self.mpi, self.folder = mpi, folder
        self.calls = 0

    def call(self, seed: str) -> None:
        """Draw a call and make it, if it is legal."""
        rng = random.Random(seed)
        name = rng.choice([*OPS])
        draw = Draw(self.mpi, name, rng)
        kinds = [draw.type(), draw.type()] if rng.randrange(4) else [draw.type(), draw.leaf]
        least = math.lcm(*(len(kind.disps) for kind in kinds))
        counts = [rng.randint(1, max(1, MOST // least)) * least // len(kinds[0].disps)]
        counts.append(counts[0] * len(kinds[0].disps) // len(kinds[1].disps))
        if least > 4 * MOST or not all(kind.real.Get_extent()[1] for kind in kinds):
            return
        target = side(name, kinds[0], counts[0], rng)
        origin = side(name, kinds[1], counts[1], rng, step=reference.FORMS[name][1])
        # Elements of an origin may overlap, if any bytes are elements; but what is in two of them cannot be swapped.
        if target.apart and (origin.apart or name in INTEGERS) and self.sends(target) and self.sends(origin):
            verb = rng.choice(["accumulate", "get_accumulate"])
            op = rng.choice([*OPS[name], "REPLACE", *(["NO_OP"] if verb == "get_accumulate" else [])])
            expected = self.theirs(target, origin, op, verb)
            for order in ("little", "big") if origin.apart else ("little",):
                found, fetched = self.ours(target, origin, op, verb, order=order)
                about = seed, order, op, target.type.text, target.count, target.start, origin.type.text, origin.count
                assert same(target, found if order == "little" else target.swapped(found), expected[0]), about
                assert values(name, fetched) == values(name, expected[1]), about
            self.calls += 1

    def sends(self, one: Side) -> bool:
        """Tell whether the real MPI sends the bytes that its type means: of a few with negative extents it does not."""
        codes = reference.FORMS[one.name][0]
        sent = [(one.octets[place + at :], code) for place in one.places for code, at in codes]
        received = io.BytesIO(bytes(sum(reference.STORED_BYTES[code] for _, code in sent)))
        with received.getbuffer() as room:
            self.mpi.COMM_SELF.Sendrecv(message(one), 0, 0, [room, len(room), self.mpi.BYTE], 0, 0)
        arrived = ((octets, received.read(reference.STORED_BYTES[code]), code) for octets, code in sent)
        return all(a[: reference.VALUE_BYTES[code]] == b[: reference.VALUE_BYTES[code]] for a, b, code in arrived)

    def element(self, seed: str) -> None:
        """Draw a call on one element, at any byte, and make it."""
        rng = random.Random(seed)
        verb = rng.choice(["fetch_and_op", "compare_and_swap"])
        name = rng.choice(SWAPPED if verb == "compare_and_swap" else [*OPS])
        leaf = Draw(self.mpi, name, rng).leaf
        target, origin = side(name, leaf, 1, rng), side(name, leaf, 1, random.Random(rng.choice([seed, "other"])))
        op = rng.choice([*OPS.get(name, ()), "REPLACE"])
        expected = self.theirs(target, origin, op, verb)
        for order in ("little", "big"):
            found, fetched = self.ours(target, origin, op, verb, order=order)
            assert same(target, found if order == "little" else target.swapped(found), expected[0]), (seed, order)
            assert values(name, fetched) == values(name, expected[1]), (seed, order)
        self.calls += 1

    def theirs(self, target: Side, origin: Side, op: str, verb: str) -> tuple[bytes, bytes]:
        """Return the window after a call of the real MPI, and what that fetched."""
        memory = self.mpi.Alloc_mem(len(target.octets))
        memory[:] = target.octets
        window = self.mpi.Win.Create(memory, 1, comm=self.mpi.COMM_SELF)
        window.Lock(0)
        given = message(origin)
        place, mpi_op = [target.start, target.count, target.type.real], getattr(self.mpi, op)
        basic, extent = handle(self.mpi, target.name), reference.FORMS[target.name][1]
        old = bytearray(0 if verb == "accumulate" else extent * len(target.places))
        fetched = [old, len(target.places), basic]
        if verb == "accumulate":
            window.Accumulate(given, 0, place, mpi_op)
        elif verb == "get_accumulate":
            window.Get_accumulate(given, fetched, 0, place, mpi_op)
        elif verb == "fetch_and_op":
            window.Fetch_and_op(given, fetched, 0, target.start, mpi_op)
        else:
            window.Compare_and_swap(given, [bytearray(compared(target)), 1, basic], fetched, 0, target.start)
        window.Unlock(0)
        found = bytes(memory)
        window.Free()
        self.mpi.Free_mem(memory)
        return found, bytes(old)

    def ours(self, target: Side, origin: Side, op: str, verb: str, *, order: str) -> tuple[bytes, bytes]:
        """Return the window after a call of mpired on files in a byte order, in that, and what was fetched."""
        paths = [self.folder / "target.bin", self.folder / "origin.bin"]
        for path, each in zip(paths, (target, origin), strict=True):
            path.write_bytes(each.octets if order == "little" else each.swapped(each.octets))
            os.utime(path, (0, 0))  # one that has just changed is looked at again
        name, extent = target.name.lower(), reference.FORMS[target.name][1]
        commit = ("rename", "journal")[self.calls % 2]
        window = mpired.Window(paths[0], type=name, byte_order=order, commit=commit, durability="process")
        where: dict[str, Any] = {"target_disp": target.start, "disp_unit": 1}
        fetched: Any = b""
        if verb in {"fetch_and_op", "compare_and_swap"}:
            value, other = (element(target.name, each) for each in (origin.octets[origin.start :], compared(target)))
            if verb == "fetch_and_op":
                fetched = window.fetch_and_op(value, op, **where)
            else:
                fetched = window.compare_and_swap(other, value, **where)
            return paths[0].read_bytes(), np.asarray(fetched).tobytes()
        where |= {
            "target_type": target.type.text, "target_count": target.count,
            "origin_type": origin.type.text, "origin_count": origin.count, "origin_disp": origin.start // extent,
        }  # fmt: skip
        if verb == "get_accumulate":
            fetched = window.get_accumulate(None if op == "NO_OP" else paths[1], op, **where).tobytes()
        else:
            window.accumulate(paths[1], op, **where)
        return paths[0].read_bytes(), fetched


def compared(target: Side) -> bytes:
    """Return what a compare-and-swap compares with: the first element, or in half of the cases another."""
    first = bytearray(target.octets[target.places[0] :][: reference.FORMS[target.name][1]])
    first[-1] ^= len(target.octets) % 2
    return bytes(first)


def element(name: str, octets: bytes) -> Any:
    """Return the number, or pair of numbers, that some bytes begin with."""
    numbers = [np.frombuffer(octets[at:].ljust(16, b"\0"), code, 1)[0] for code, at in reference.FORMS[name][0]]
    if name in PAIRS:
        return tuple(numbers)
    return numbers[0] if len(numbers) == 1 else np.array(numbers).view(f"c{2 * numbers[0].itemsize}")[0]


def same(target: Side, found: bytes, expected: bytes) -> bool:
    """Compare all bytes of a window; MPICH takes the six bytes behind a long double for a part of it."""
    found_, expected_, old = bytearray(found), bytearray(expected), target.octets
    for place, (code, at) in itertools.product(target.places, reference.FORMS[target.name][0]):
        if code == "g":
            ours = slice(place + at + 10, place + at + 16)
            assert found_[ours] == old[ours]
            found_[ours] = expected_[ours] = bytes(6)
    return found_ == expected_


def values(name: str, octets: bytes) -> list[bytes]:
    """Return elements without the bytes that carry no value."""
    return [reference.without_padding(name, element) for element in reference.elements(name, octets)]


@pytest.mark.parametrize("kind", ["call", "element"])
def test_random_calls(mpi, tmp_path, long, record_property, kind):
    both, wanted = Both(mpi, tmp_path), 4000 if long else 60
    first = random.SystemRandom().randrange(2**32) if long else 0
    for number in itertools.count():
        getattr(both, kind)(f"{first} {number}")
        if both.calls == wanted:
            break
    record_property("tried", both.calls)
