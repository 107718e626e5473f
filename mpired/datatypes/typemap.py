"""Type maps: which bytes an element of a datatype is made of (MPI-4.1, 5.1).

A map is a tree of runs, copies of another map at equal distances, so that a million entries are as
cheap as one and all figures are computed without looking at the entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpired.datatypes import external32

_LIMIT = 2**63
_MAX_FIELDS = 1000
"""Entries that are looked at one by one, to find the fewest that all the others repeat."""


class Run(NamedTuple):
    """So many copies of a map, the first at `disp` bytes, each `stride` bytes after the one before."""

    of: TypeMap
    disp: int = 0
    copies: int = 1
    stride: int = 0

    @property
    def reach(self) -> tuple[int, int]:
        """The displacements of the lowest and of the highest copy."""
        last = self.disp + (self.copies - 1) * self.stride
        return min(self.disp, last), max(self.disp, last)


class Entry(NamedTuple):
    """A basic type at a displacement in bytes, or, with a form of that shape, several without a gap."""

    name: str
    form: np.dtype
    disp: int


@dataclass(frozen=True, eq=False)
class TypeMap:
    """The figures of a type map, and its runs in order.

    Parameters
    ----------
    size
        Bytes of all entries together.
    entries
        How many basic types there are.
    true_lb, true_ub
        The first byte of any entry, and the end of the last.
    lb, ub
        The bounds, with the markers and the alignment.
    align
        The greatest alignment of an entry.
    marked
        Whether the bounds were set; they then bind every type made of this one (MPI-4.1, 5.1.7).
    runs
        What the map is made of, empty for a basic type.
    basic
        The basic type, for a map that is one.
    paired
        Whether the entries are value and index of a pair.
    """

    size: int
    entries: int
    true_lb: int
    true_ub: int
    lb: int
    ub: int
    align: int
    marked: bool = False
    runs: tuple[Run, ...] = ()
    basic: Entry | None = None
    paired: bool = False

    @property
    def extent(self) -> int:
        """Bytes from one element to the next."""
        return self.ub - self.lb

    @property
    def true_extent(self) -> int:
        """Bytes from the first byte of an entry to the end of the last."""
        return self.true_ub - self.true_lb

    @cached_property
    def dense(self) -> bool:
        """Whether the bytes, in the order of the map, are those from `true_lb` to `true_ub` without a gap."""
        at = self.true_lb
        for run in self.runs:
            if not run.of.dense or run.disp + run.of.true_lb != at or (run.copies > 1 and run.stride != run.of.size):
                return False
            at += run.copies * run.of.size
        return self.basic is not None or at == self.true_ub

    @cached_property
    def external(self) -> int:
        """Bytes of all entries in external32, where no element has gaps."""
        if self.basic is not None:
            return external32.form(self.basic.name, self.basic.form).itemsize
        return sum(run.copies * run.of.external for run in self.runs)

    @cached_property
    def unit(self) -> tuple[Entry, ...] | None:
        """The fewest entries that, repeated, are all of the map; None if they are too many to be fields."""
        if self.basic is not None:
            return (self.basic,)
        if self.paired:
            return tuple(self.walk())
        units = [of.unit for of in dict.fromkeys(run.of for run in self.runs)]
        if units and units[0] and all(_names(unit or ()) == _names(units[0]) for unit in units):
            return units[0]
        if self.entries > _MAX_FIELDS:
            return None
        entries = tuple(self.walk())
        names = _names(entries)
        lengths = (n for n in range(1, len(names) + 1) if len(names) % n == 0)
        return next((entries[:n] for n in lengths if names == names[:n] * (len(names) // n)), ())

    def entry(self, number: int) -> Entry:
        """Return one entry, numbered from 0 in the order of the map, without looking at the others."""
        if self.basic is not None:
            return self.basic
        for run in self.runs:
            if number < run.copies * run.of.entries:
                copy, inner = divmod(number, run.of.entries)
                found = run.of.entry(inner)
                return found._replace(disp=run.disp + copy * run.stride + found.disp)
            number -= run.copies * run.of.entries
        raise IndexError(number)

    @cached_property
    def stretches(self) -> int:
        """How many times equal entries lie one after another, as the runs tell without being looked into."""
        of_each = [1 if _is_stretch(run) else run.copies * run.of.stretches for run in self.runs]
        return sum(of_each) if self.basic is None else 1

    def walk_stretches(self, disp: int = 0) -> Iterator[Entry]:
        """Yield the stretches of equal entries in the order of the map, each as one entry with a shape."""
        if self.basic is not None:
            yield self.basic._replace(disp=disp)
        for run in self.runs:
            if _is_stretch(run):
                entry = run.of.entry(0)
                yield entry._replace(form=np.dtype((entry.form, (run.copies,))), disp=disp + run.disp)
                continue
            for copy in range(run.copies):
                yield from run.of.walk_stretches(disp + run.disp + copy * run.stride)

    def walk(self, disp: int = 0) -> Iterator[Entry]:
        """Yield the entries in the order of the map."""
        if self.basic is not None:
            yield self.basic._replace(disp=disp)
        for run in self.runs:
            for copy in range(run.copies):
                yield from run.of.walk(disp + run.disp + copy * run.stride)


def _is_stretch(run: Run) -> bool:
    return run.of.basic is not None and run.copies > 1 and run.stride == run.of.size


def basic(name: str, form: np.dtype) -> TypeMap:
    """Return the map of a type that is one entry."""
    nbytes = form.itemsize
    return TypeMap(nbytes, 1, 0, nbytes, 0, nbytes, _alignment(form), basic=Entry(name, form, 0))


def _names(entries: Sequence[Entry]) -> list[str]:
    return [entry.name for entry in entries]


def _alignment(form: np.dtype) -> int:
    return form.alignment if form.fields is None else max(form[name].alignment for name in form.names or ())


def combined(runs: Sequence[Run]) -> TypeMap:
    """Return the map of some runs one after another, its bounds by the rules of MPI-4.1, 5.1.6 and 5.1.7.

    Raises
    ------
    ValueError
        If a figure is 2**63 or more.
    """
    kept = tuple(_simplified(run) for run in runs if run.copies and run.of.entries)
    marked = [run for run in runs if run.copies and run.of.marked]
    align = max((run.of.align for run in kept), default=1)
    true_lb = min((run.reach[0] + run.of.true_lb for run in kept), default=0)
    true_ub = max((run.reach[1] + run.of.true_ub for run in kept), default=0)
    # The padding rounds the extent, not the upper bound: it is the least that makes it a multiple of the alignment.
    lb, ub = true_lb, true_lb + -(-(true_ub - true_lb) // align) * align
    if marked:
        lb = min(run.reach[0] + run.of.lb for run in marked)
        ub = max(run.reach[1] + run.of.ub for run in marked)
    size = sum(run.copies * run.of.size for run in kept)
    entries = sum(run.copies * run.of.entries for run in kept)
    return _checked(TypeMap(size, entries, true_lb, true_ub, lb, ub, align, marked=bool(marked), runs=kept))


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
    for figure in (made.size, made.true_lb, made.true_ub, made.lb, made.ub, made.extent, made.true_extent):
        bounds_checked(figure)
    return made


def bounds_checked(nbytes: int) -> int:
    """Return a size, a bound or an extent; raise `ValueError` if it does not fit 63 bits."""
    if not -_LIMIT <= nbytes < _LIMIT:
        raise ValueError("its size, bounds or extent do not fit 63 bits")
    return nbytes
