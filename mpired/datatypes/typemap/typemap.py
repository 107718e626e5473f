"""Type maps: which bytes an element of a datatype is made of (MPI-4.1, 5.1).

A map is a tree of runs, copies of another map at equal distances, so that a million entries are as
cheap as one and all figures are computed without looking at the entries. The tree may be deeper than
Python's stack, with a level for each dimension of a subarray: nothing here calls itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from mpired.datatypes import external32

_T = TypeVar("_T")

_LIMIT = 2**63
_MAX_FIELDS = 1000
"""Entries that are looked at one by one, to find the fewest that all the others repeat."""


class Run(NamedTuple):
    """Copies of a map, the first at `disp` bytes, each `stride` bytes after the one before."""

    of: TypeMap
    disp: int = 0
    copies: int = 1
    stride: int = 0

    @property
    def reach(self) -> tuple[int, int]:
        """The displacements of the lowest and of the highest copy."""
        last = self.disp + (self.copies - 1) * self.stride
        return (self.disp, last) if self.disp <= last else (last, self.disp)

    def parts(self) -> Iterator[Run]:
        """Yield what the run is made of: its copies or, if there is one, the runs in it."""
        if self.copies > 1:
            return (Run(self.of, self.disp + copy * self.stride) for copy in range(self.copies))
        return (inner._replace(disp=self.disp + inner.disp) for inner in self.of.runs)


class Entry(NamedTuple):
    """A basic type at a displacement in bytes, or, with a form of that shape, several without a gap."""

    name: str
    form: np.dtype
    disp: int


@dataclass(frozen=True, eq=False)
class TypeMap:
    """The figures of a type map, and its runs in order."""

    size: int  # bytes of all entries together
    entries: int  # how many basic types there are
    true_lb: int  # the first byte of any entry
    true_ub: int  # the end of the last
    lb: int  # the bounds, with the markers and the alignment
    ub: int
    align: int  # the largest alignment of an entry
    dense: bool  # whether the bytes, in the order of the map, are those from `true_lb` to `true_ub` without a gap
    external: int  # bytes of all entries in external32, where no element has gaps
    stretches: int  # how many equal entries are adjacent, by the counts of the runs alone
    marked: bool = False  # whether the bounds were set; they then bind every type made of this one (MPI-4.1, 5.1.7)
    runs: tuple[Run, ...] = field(default=(), repr=False)  # what the map is made of, empty for a basic type
    basic: Entry | None = None  # the basic type, for a map that is one
    paired: bool = False  # whether the entries are value and index of a pair

    @property
    def extent(self) -> int:
        """Bytes from one element to the next."""
        return self.ub - self.lb

    @property
    def true_extent(self) -> int:
        """Bytes from the first byte of an entry to the end of the last."""
        return self.true_ub - self.true_lb

    @property
    def is_component(self) -> bool:
        """Whether it is a basic type or a pair, which counts as one too (MPI-4.1, 12.3.4)."""
        return self.basic is not None or self.paired

    @cached_property
    def unit(self) -> tuple[Entry, ...] | None:
        """The fewest entries that, repeated, are all of the map; None if they are too many to be fields."""
        if not self.entries:
            return ()
        found = self.folded(_unit, lambda of: of.is_component)
        return None if found is None else tuple(itertools.islice(found.of.walk(), len(found.names)))

    def inside(self, is_end: Callable[[TypeMap], bool]) -> list[TypeMap]:
        """Return the maps that the map is made of, each once and after those in it, so that it is the last itself."""
        # Maps inside an end are left out.
        found: dict[TypeMap, None] = {}
        waiting = [self]
        while waiting:
            of = waiting[-1]
            missing = () if is_end(of) else dict.fromkeys(run.of for run in of.runs if run.of not in found)
            waiting += missing
            if not missing:
                found[waiting.pop()] = None
        return list(found)

    def folded(self, value: Callable[[TypeMap, Mapping[TypeMap, _T]], _T], is_end: Callable[[TypeMap], bool]) -> _T:
        """Return the value of a function of the map and of its values for the maps inside, given as a mapping."""
        # Every map is visited once, and its value forgotten when the last map around it is done.
        inside = self.inside(is_end)
        last_in = {run.of: of for of in inside for run in of.runs}
        known: dict[TypeMap, _T] = {}
        for of in inside:
            known[of] = value(of, known)
            for done in {run.of for run in of.runs if last_in[run.of] is of}:
                known.pop(done, None)
        return known[self]

    def entry(self, number: int) -> Entry:
        """Return one entry, numbered from 0 in the order of the map, without looking at the others."""
        of, disp = self, 0
        while of.basic is None:
            for run in of.runs:
                if number < run.copies * run.of.entries:
                    break
                number -= run.copies * run.of.entries
            else:
                raise IndexError(number)
            copy, number = divmod(number, run.of.entries)
            of, disp = run.of, disp + run.disp + copy * run.stride
        return of.basic._replace(disp=disp)

    def walk(self, *, stretches: bool = False) -> Iterator[Entry]:
        """Yield the entries in the order of the map; with `stretches` equal adjacent ones as one."""

        def parts(run: Run) -> Iterator[Run] | None:
            is_one = run.copies == 1 or (stretches and run.stride == run.of.size)
            return None if run.of.basic and is_one else run.parts()

        for run in unfolded(Run(self), parts):
            entry = run.of.entry(0)
            form = entry.form if run.copies == 1 else np.dtype((entry.form, (run.copies,)))
            yield Entry(entry.name, form, run.disp)


def unfolded(whole: _T, parts: Callable[[_T], Iterator[_T] | None]) -> Iterator[_T]:
    """Yield what something is made of, in order: each part is taken apart in its turn, unless it has no parts: None."""
    levels = [iter((whole,))]
    while levels:
        for part in levels[-1]:
            inner = parts(part)
            if inner is None:
                yield part
            else:
                levels.append(inner)
                break
        else:
            levels.pop()


class _Unit(NamedTuple):
    """The names of the entries that a map repeats, and the map in it whose first entries they are."""

    names: tuple[str, ...]
    of: TypeMap


def _unit(of: TypeMap, known: Mapping[TypeMap, _Unit | None]) -> _Unit | None:
    """Return the unit of a map that has entries, by those of the maps in it."""
    if of.is_component:
        return _Unit(tuple(entry.name for entry in of.walk()), of)
    units = [known[inner] for inner in dict.fromkeys(run.of for run in of.runs)]
    if units[0] and all(unit and unit.names == units[0].names for unit in units):
        return units[0]
    if of.entries > _MAX_FIELDS:
        return None
    parts = ((known[run.of], run.copies * run.of.entries) for run in of.runs)
    names = tuple(name for unit, count in parts if unit for name in unit.names * (count // len(unit.names)))
    lengths = (n for n in range(1, len(names) + 1) if len(names) % n == 0)
    return next(_Unit(names[:n], of) for n in lengths if names == names[:n] * (len(names) // n))


def basic(name: str, form: np.dtype) -> TypeMap:
    """Return the map of a type that is one entry."""
    nbytes = form.itemsize
    align = form.alignment if form.fields is None else max(form[name].alignment for name in form.names or ())
    return TypeMap(
        nbytes, 1, 0, nbytes, 0, nbytes, align, dense=True,
        external=external32.form(name, form).itemsize, stretches=1, basic=Entry(name, form, 0),
    )  # fmt: skip


def combined(runs: Sequence[Run], *, is_pair: bool = False) -> TypeMap:
    """Return the map of some runs one after another, its bounds by the rules of MPI-4.1, 5.1.6 and 5.1.7."""
    if len(runs) == 1 and runs[0].copies == 1 and not runs[0].disp:
        return runs[0].of
    kept = tuple([_simplified(run) for run in runs if run.copies and run.of.entries])
    marked = [run for run in runs if run.copies and run.of.marked]
    reaches = [(run.of, *run.reach) for run in kept]
    align = max([run.of.align for run in kept], default=1)
    true_lb = min([low + of.true_lb for of, low, _ in reaches], default=0)
    true_ub = max([high + of.true_ub for of, _, high in reaches], default=0)
    # The padding rounds the extent, not the upper bound: it is the least that makes it a multiple of the alignment.
    lb, ub = true_lb, true_lb + -(-(true_ub - true_lb) // align) * align
    if marked:
        lb = min([run.reach[0] + run.of.lb for run in marked])
        ub = max([run.reach[1] + run.of.ub for run in marked])
    # Copies of a basic type without a gap are one stretch.
    stretches = [1 if run.of.basic and run.stride == run.of.size else run.copies * run.of.stretches for run in kept]
    return _checked(TypeMap(
        size=sum([run.copies * run.of.size for run in kept]),
        entries=sum([run.copies * run.of.entries for run in kept]),
        true_lb=true_lb, true_ub=true_ub, lb=lb, ub=ub, align=align,
        dense=_are_dense(kept, true_lb, true_ub),
        external=sum([run.copies * run.of.external for run in kept]),
        stretches=sum(stretches), marked=bool(marked), runs=kept, paired=is_pair,
    ))  # fmt: skip


def _are_dense(runs: Sequence[Run], true_lb: int, true_ub: int) -> bool:
    at = true_lb
    for run in runs:
        if not run.of.dense or run.disp + run.of.true_lb != at or (run.copies > 1 and run.stride != run.of.size):
            return False
        at += run.copies * run.of.size
    return at == true_ub


def _simplified(run: Run) -> Run:
    """Return a run with the same entries in the same order, and as few levels as possible."""
    while len(run.of.runs) == 1:
        inner = run.of.runs[0]
        if run.copies == 1:
            run = Run(inner.of, run.disp + inner.disp, inner.copies, inner.stride)
        elif inner.copies == 1:
            run = Run(inner.of, run.disp + inner.disp, run.copies, run.stride)
        elif run.stride == inner.copies * inner.stride:
            run = Run(inner.of, run.disp + inner.disp, run.copies * inner.copies, inner.stride)
        else:
            break
    return run


def bounded(inner: TypeMap, lb: int, extent: int) -> TypeMap:
    """Return a map with the same entries and bounds that are set."""
    return _checked(replace(inner, lb=lb, ub=lb + extent, marked=True))


def _checked(made: TypeMap) -> TypeMap:
    bounds_checked(made.size, made.true_lb, made.true_ub, made.lb, made.ub, made.extent, made.true_extent)
    return made


def bounds_checked(*figures: int) -> None:
    """Raise `ValueError` if a size, a bound or an extent does not fit 63 bits."""
    if not (min(figures) >= -_LIMIT and max(figures) < _LIMIT):
        raise ValueError("its size, bounds or extent do not fit 63 bits")
