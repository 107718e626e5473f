"""Type maps: the basic types of an element and their displacements (MPI-4.1, 5.1).

A type map is a tree of runs. A run has copies of another type map at equal distances, so that all figures are computed
without a loop over the entries. The tree may be deeper than the stack of Python, because each dimension of a subarray
is a level: no function here is recursive. The pieces of a type map are its byte ranges without a gap. Arrays hold the
elements as structures one extent apart, or packed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from mpired.datatypes import external32

_T = TypeVar("_T")

_LIMIT = 2**63
_MAX_FIELDS = 1000
"""Maximum number of fields of a structure, and of entries in which the shortest repeated sequence is searched."""
_MAX_ITEMSIZE = 2**31 - 1
_LARGE = 1 << 20  # bytes
_MAX_STRETCHES = 100_000  # visited one by one, to join stretches into fields and to find overlaps
MOST_GAPS = 8
"""Maximum ratio of extent to size of a datatype that is not mostly gaps."""
_MAX_PIECES = 1 << 20


class Run(NamedTuple):
    """Copies of a type map, the first at `disp` bytes, with `stride` bytes from each copy to the next."""

    of: TypeMap
    disp: int = 0
    copies: int = 1
    stride: int = 0

    @property
    def disp_range(self) -> tuple[int, int]:
        """The displacements of the lowest and of the highest copy."""
        last = self.disp + (self.copies - 1) * self.stride
        return (self.disp, last) if self.disp <= last else (last, self.disp)

    @property
    def reach(self) -> tuple[int, int]:
        """The first byte of all entries, and the end of the last."""
        low, high = self.disp_range
        return low + self.of.true_lb, high + self.of.true_ub

    def parts(self) -> Iterator[Run]:
        """Yield the copies of the run, or the runs in its type map if there is one copy."""
        if self.copies > 1:
            return (Run(self.of, self.disp + copy * self.stride) for copy in range(self.copies))
        return (inner._replace(disp=self.disp + inner.disp) for inner in self.of.runs)


class Entry(NamedTuple):
    """A basic type at a displacement in bytes; if the form has a shape, adjacent entries of that type."""

    name: str
    form: np.dtype
    disp: int


@dataclass(frozen=True, eq=False)
class TypeMap:
    """The figures of a type map, and its runs in order. Sizes, bounds and displacements are in bytes."""

    size: int  # the size of all entries
    entries: int  # the number of basic types
    true_lb: int  # the first byte of all entries
    true_ub: int  # the end of the last entry
    lb: int  # the lower bound, from the entries or set
    ub: int  # the upper bound, which includes the padding for the alignment
    align: int  # the maximum alignment of an entry
    dense: bool  # whether the entries in their order fill the bytes from `true_lb` to `true_ub` without a gap
    external: int  # the size of all entries in external32
    stretches: int  # an upper limit of the number of stretches: adjacent entries of one type
    marked: bool = False  # whether the bounds are set, which binds all types made of this one (MPI-4.1, 5.1.7)
    runs: tuple[Run, ...] = field(default=(), repr=False)  # empty for a basic type
    basic: Entry | None = None  # the entry of a basic type, else None
    paired: bool = False  # whether the entries are value and index of a pair

    def __post_init__(self) -> None:
        """Check that the figures fit 63 bits."""
        check_range(self.size, self.true_lb, self.true_ub, self.lb, self.ub, self.extent, self.true_extent)

    @property
    def extent(self) -> int:
        """Bytes from one element to the next."""
        return self.ub - self.lb

    @property
    def true_extent(self) -> int:
        """Bytes from the first byte of all entries to the end of the last entry."""
        return self.true_ub - self.true_lb

    @property
    def is_component(self) -> bool:
        """Whether the map is a predefined type: a basic type or a pair (MPI-4.1, 12.3.4)."""
        return self.basic is not None or self.paired

    @cached_property
    def unit(self) -> tuple[Entry, ...] | None:
        """The shortest sequence of entries that the map repeats; None if it is too long for a structure."""
        if not self.entries:
            return ()
        unit = self.folded(_unit, lambda typemap: typemap.is_component)
        return None if unit is None else tuple(itertools.islice(unit.of.walk(), len(unit.names)))

    @cached_property
    def memory(self) -> MemoryForm:
        """The form of the elements in arrays."""
        return MemoryForm(self)

    def elements(self, count: int, disp: int = 0) -> Run:
        """Return the run of `count` elements one extent apart, the first at `disp` bytes."""
        return Run(self, disp, count, self.extent)

    def reach(self, count: int, disp: int = 0) -> tuple[int, int]:
        """Return the first byte of all these elements, and the end of the last; both are 0 without elements."""
        return self.elements(count, disp).reach if count * self.size else (0, 0)

    def inside(self, is_end: Callable[[TypeMap], bool]) -> list[TypeMap]:
        """Return the type maps of the tree, each once and after the maps in it; the last is this map."""
        # Maps inside an end are left out.
        typemaps: dict[TypeMap, None] = {}
        waiting = [self]
        while waiting:
            typemap = waiting[-1]
            missing = () if is_end(typemap) else dict.fromkeys(run.of for run in typemap.runs if run.of not in typemaps)
            waiting += missing
            if not missing:
                typemaps[waiting.pop()] = None
        return list(typemaps)

    def folded(self, value: Callable[[TypeMap, Mapping[TypeMap, _T]], _T], is_end: Callable[[TypeMap], bool]) -> _T:
        """Compute a value of this map bottom-up: `value` takes a map, and the values of the maps in it."""
        # Each map is visited once, and its value is deleted after the last map that contains it.
        typemaps = self.inside(is_end)
        last_user = {run.of: typemap for typemap in typemaps for run in typemap.runs}
        values: dict[TypeMap, _T] = {}
        for typemap in typemaps:
            values[typemap] = value(typemap, values)
            for unused in {run.of for run in typemap.runs if last_user[run.of] is typemap}:
                values.pop(unused, None)
        return values[self]

    def entry(self, number: int) -> Entry:
        """Return the entry with a number, counted from 0 in the order of the map."""
        typemap, disp = self, 0
        while typemap.basic is None:
            for run in typemap.runs:
                if number < run.copies * run.of.entries:
                    break
                number -= run.copies * run.of.entries
            else:
                raise IndexError(number)
            copy, number = divmod(number, run.of.entries)
            typemap, disp = run.of, disp + run.disp + copy * run.stride
        return typemap.basic._replace(disp=disp)

    def walk(self, *, stretches: bool = False) -> Iterator[Entry]:
        """Yield the entries in the order of the map; with `stretches` adjacent copies are one entry."""

        def children(run: Run) -> Iterator[Run] | None:
            is_entry = run.copies == 1 or (stretches and run.stride == run.of.size)
            return None if run.of.basic and is_entry else run.parts()

        for run in unfolded(Run(self), children):
            entry = run.of.entry(0)
            form = entry.form if run.copies == 1 else np.dtype((entry.form, (run.copies,)))
            yield Entry(entry.name, form, run.disp)


def unfolded(root: _T, children: Callable[[_T], Iterator[_T] | None]) -> Iterator[_T]:
    """Yield the leaves of a tree in order; `children` of a leaf is None."""
    levels = [iter((root,))]
    while levels:
        for node in levels[-1]:
            level = children(node)
            if level is None:
                yield node
            else:
                levels.append(level)
                break
        else:
            levels.pop()


class _Unit(NamedTuple):
    """A sequence of entries that a map repeats."""

    names: tuple[str, ...]  # the names of the basic types
    of: TypeMap  # a map that begins with these entries


def _unit(typemap: TypeMap, units_inside: Mapping[TypeMap, _Unit | None]) -> _Unit | None:
    """Return the unit of a map from the units of the maps in it; None if it is too long."""
    if typemap.is_component:
        return _Unit(tuple(entry.name for entry in typemap.walk()), typemap)
    units = [units_inside[inner] for inner in dict.fromkeys(run.of for run in typemap.runs)]
    if units[0] and all(unit and unit.names == units[0].names for unit in units):
        return units[0]
    if typemap.entries > _MAX_FIELDS:
        return None
    parts = ((units_inside[run.of], run.copies * run.of.entries) for run in typemap.runs)
    names = tuple(name for unit, count in parts if unit for name in unit.names * (count // len(unit.names)))
    lengths = (n for n in range(1, len(names) + 1) if len(names) % n == 0)
    return next(_Unit(names[:n], typemap) for n in lengths if names == names[:n] * (len(names) // n))


def basic(name: str, form: np.dtype) -> TypeMap:
    """Return the type map of a basic type."""
    nbytes = form.itemsize
    align = form.alignment if form.fields is None else max(form[name].alignment for name in form.names or ())
    return TypeMap(
        nbytes, 1, 0, nbytes, 0, nbytes, align, dense=True,
        external=external32.form(name, form).itemsize, stretches=1, basic=Entry(name, form, 0),
    )  # fmt: skip


def combined(runs: Sequence[Run], *, is_pair: bool = False) -> TypeMap:
    """Return the type map of consecutive runs, with the bounds of MPI-4.1, 5.1.6 and 5.1.7."""
    if len(runs) == 1 and runs[0].copies == 1 and not runs[0].disp:
        return runs[0].of
    filled = tuple([_simplify(run) for run in runs if run.copies and run.of.entries])
    marked = [run for run in runs if run.copies and run.of.marked]
    align = max([run.of.align for run in filled], default=1)
    true_lb = min([run.disp_range[0] + run.of.true_lb for run in filled], default=0)
    true_ub = max([run.disp_range[1] + run.of.true_ub for run in filled], default=0)
    # The padding makes the extent a multiple of the alignment, not the upper bound.
    lb, ub = true_lb, true_lb + -(-(true_ub - true_lb) // align) * align
    if marked:
        lb = min([run.disp_range[0] + run.of.lb for run in marked])
        ub = max([run.disp_range[1] + run.of.ub for run in marked])
    # Adjacent copies of a basic type are one stretch.
    stretches = [1 if run.of.basic and run.stride == run.of.size else run.copies * run.of.stretches for run in filled]
    return TypeMap(
        size=sum([run.copies * run.of.size for run in filled]),
        entries=sum([run.copies * run.of.entries for run in filled]),
        true_lb=true_lb, true_ub=true_ub, lb=lb, ub=ub, align=align,
        dense=_are_dense(filled, true_lb, true_ub),
        external=sum([run.copies * run.of.external for run in filled]),
        stretches=sum(stretches), marked=bool(marked), runs=filled, paired=is_pair,
    )  # fmt: skip


def _are_dense(runs: Sequence[Run], true_lb: int, true_ub: int) -> bool:
    """Return whether the runs in their order fill the bytes between two bounds without a gap."""
    end = true_lb
    for run in runs:
        if not run.of.dense or run.disp + run.of.true_lb != end or (run.copies > 1 and run.stride != run.of.size):
            return False
        end += run.copies * run.of.size
    return end == true_ub


def _simplify(run: Run) -> Run:
    """Return a run with the same entries in the same order, and fewer levels if possible."""
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
    """Return a type map with the same entries and other bounds, which bind types made of it."""
    return replace(inner, lb=lb, ub=lb + extent, marked=True)


def check_range(*figures: int) -> None:
    """Raise `ValueError` if a size, a bound or an extent does not fit 63 bits."""
    if not (min(figures) >= -_LIMIT and max(figures) < _LIMIT):
        raise ValueError("its size, bounds or extent do not fit 63 bits")


def pieces(typemap: TypeMap, limit: int = _MAX_PIECES) -> np.ndarray | None:
    """Return start and end of each piece in the order of the map; None if there are more than `limit`."""
    if not typemap.size:
        return np.empty((0, 2), np.int64)
    too_many = typemap.folded(_count, lambda inner: inner.dense) > limit
    return None if too_many else typemap.folded(_pieces, lambda inner: inner.dense)


def _count(typemap: TypeMap, counts: Mapping[TypeMap, int]) -> int:
    """Return the number of pieces of a map from those of the maps in it."""
    return 1 if typemap.dense else sum(run.copies * counts[run.of] for run in typemap.runs)


def _pieces(typemap: TypeMap, pieces_inside: Mapping[TypeMap, np.ndarray]) -> np.ndarray:
    """Return the pieces of a map from those of the maps in it."""
    if typemap.dense:
        return np.array([[typemap.true_lb, typemap.true_ub]], np.int64)
    groups = itertools.groupby(typemap.runs, key=lambda run: None if run.of.dense else run.of)
    return np.concatenate([
        _pieces_of_runs(list(runs), None if inner is None else pieces_inside[inner]) for inner, runs in groups
    ])  # fmt: skip


def _pieces_of_runs(runs: list[Run], inner: np.ndarray | None) -> np.ndarray:
    """Return the pieces of runs of one map with the pieces `inner`; None if all of the maps are dense."""
    copies = np.array([run.copies for run in runs], np.int64)
    disps = np.array([_wrap(run.disp) for run in runs], np.int64)
    strides = np.array([_wrap(run.stride) for run in runs], np.int64)
    numbers = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    shifts = np.repeat(disps, copies) + np.repeat(strides, copies) * numbers
    if inner is None:
        bounds = np.array([[(run.of.true_lb, run.of.true_ub)] for run in runs], np.int64)
        inner = np.repeat(bounds, copies, axis=0)
    shifted: np.ndarray = (inner + shifts[:, None, None]).reshape(-1, 2)
    return shifted


def _wrap(number: int) -> int:
    """Return a number modulo 2**64: displacements of entries fit 63 bits, but their terms may not."""
    return (number + 2**63) % 2**64 - 2**63


def overlaps(typemap: TypeMap, count: int, limit: int = _MAX_PIECES) -> bool | None:
    """Return whether entries of `count` elements overlap; None if there are more than `limit` pieces."""
    # No entry of a target may overlap another (MPI-4.1, 5.1.11, 12.3.1).
    if not count or not typemap.size or _have_disjoint_spans(typemap.elements(count)):
        return False
    if typemap.size > typemap.true_extent:  # more bytes than the range has
        return True
    ranges = pieces(typemap, limit)
    if ranges is None:
        return None
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if (ranges[1:, 0] < ranges[:-1, 1]).any():
        return True
    return count > 1 and _copies_overlap(ranges, count, abs(typemap.extent))


def _have_disjoint_spans(run: Run) -> bool:
    """Return whether the spans of all parts of a run are disjoint; if spans overlap, entries need not."""
    waiting, visited = [run], set()
    while waiting:
        # Runs that differ only by their displacement are visited once.
        run = waiting.pop()._replace(disp=0)
        typemap = run.of
        if run.copies > 1 and abs(run.stride) < typemap.true_extent:
            return False
        if run in visited or typemap.dense:
            continue
        visited.add(run)
        spans = sorted(inner.reach for inner in typemap.runs)
        if any(low < end for (_, end), (low, _) in itertools.pairwise(spans)):
            return False
        waiting += typemap.runs
    return True


def _copies_overlap(ranges: np.ndarray, count: int, stride: int) -> bool | None:
    """Return whether disjoint byte ranges overlap in `count` copies with a distance of `stride` bytes."""
    # Bytes of two ranges overlap in some copies if they have the same remainder modulo the stride, and if their
    # quotients differ by less than the number of copies.
    if stride == 0 or (ranges[:, 1] - ranges[:, 0] > stride).any():
        return True
    starts, ends = ranges[:, 0], ranges[:, 1]
    border = (starts // stride + 1) * stride
    crossing = ends > border
    starts = np.concatenate([starts, border[crossing]])
    ends = np.concatenate([np.minimum(ends, border), ends[crossing]])
    quotients, lows = np.divmod(starts, stride)
    highs = lows + (ends - starts)
    # Ranges of remainders that are cut at all of their bounds are equal or disjoint.
    bounds = np.unique(np.concatenate([lows, highs]))
    first, last = np.searchsorted(bounds, lows), np.searchsorted(bounds, highs)
    widths = last - first
    if widths.sum() > _MAX_PIECES:
        return None
    cells = np.repeat(first - np.cumsum(widths) + widths, widths) + np.arange(widths.sum())
    quotients = np.repeat(quotients, widths)
    order = np.lexsort([quotients, cells])
    same = np.diff(cells[order]) == 0
    return bool((same & (np.diff(quotients[order]) < count)).any())


@dataclass(frozen=True, eq=False)
class MemoryForm:
    """The NumPy form of the elements of a type map."""

    typemap: TypeMap

    @cached_property
    def is_spread(self) -> bool:
        """Whether arrays hold the elements packed, not as structures one extent apart."""
        # Such elements overlap the next element, have too many stretches, or are large and mostly gaps.
        typemap = self.typemap
        many = min(typemap.entries, typemap.stretches) > _MAX_FIELDS
        hollow = typemap.extent > max(_LARGE, MOST_GAPS * typemap.size)
        return many or hollow or typemap.true_extent > typemap.extent or typemap.extent > _MAX_ITEMSIZE

    @property
    def origin(self) -> int:
        """The byte of an element with displacement 0, which may be outside the element."""
        typemap = self.typemap
        return 0 if typemap.true_lb >= 0 and typemap.true_ub <= typemap.extent else -typemap.true_lb

    @cached_property
    def obstacle(self) -> str:
        """The reason why an array cannot hold the elements; "" if it can."""
        if not self.typemap.entries:
            return "it has no entries"
        if self.is_spread and self.typemap.size > _MAX_ITEMSIZE:
            return f"its {self.typemap.size} bytes are more than {_MAX_ITEMSIZE}"
        if not self.fields:
            return f"its {self.typemap.entries} entries of several types would be more than {_MAX_FIELDS} fields"
        overlap = overlaps(self.typemap, 1, _MAX_STRETCHES)
        if overlap is None:
            return "it has too many pieces to tell that none overlap"
        return "its entries overlap" if overlap else ""

    @cached_property
    def form(self) -> np.dtype | None:
        """The structure with the fields f0, f1, ..., numbered in the order of the map; None if there is an obstacle."""
        if self.obstacle:
            return None
        # NumPy exports buffers only of structures with fields in ascending order; the names keep the order of the map.
        numbered = sorted(enumerate(self.fields), key=lambda item: item[1].disp)
        names, entries = [f"f{i}" for i, _ in numbered], [entry for _, entry in numbered]
        start, itemsize = (0, self.typemap.size) if self.is_spread else (self.origin, self.typemap.extent)
        formats, offsets = [entry.form for entry in entries], [start + entry.disp for entry in entries]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    @cached_property
    def fields(self) -> tuple[Entry, ...]:
        """The fields of the structure: the entries, joined if there are many; empty if they are still too many."""
        # Entries of one type are joined if they are adjacent, for a spread element when packed.
        if self.typemap.entries <= _MAX_FIELDS:
            entries = self.typemap.walk()
        else:
            entries = self._packed_entries() if self.is_spread else self.typemap.walk(stretches=True)
        fields = tuple(map(_as_field, itertools.islice(entries, _MAX_FIELDS + 1)))
        if len(fields) > _MAX_FIELDS:
            return ()
        if not self.is_spread:
            return fields
        disps = itertools.accumulate((entry.form.itemsize for entry in fields), initial=0)
        return tuple(entry._replace(disp=disp) for entry, disp in zip(fields, disps, strict=False))

    def _packed_entries(self) -> Iterator[Entry]:
        """Yield the packed entries, joined where they have one type; nothing if the map has too many stretches."""
        typemap = self.typemap
        types = {inner.basic.name: inner.basic for inner in typemap.inside(lambda _: False) if inner.basic}
        if len(types) == 1:
            yield _repeated(next(iter(types.values())), typemap.entries)
        elif typemap.stretches <= _MAX_STRETCHES:
            for _, group in itertools.groupby(typemap.walk(stretches=True), key=lambda entry: entry.name):
                entries = list(group)
                yield _repeated(entries[0], sum(math.prod(entry.form.shape) for entry in entries))


def _repeated(entry: Entry, count: int) -> Entry:
    """Return an entry for `count` adjacent entries."""
    return entry._replace(form=np.dtype((entry.form.base, (count,))))


def _as_field(entry: Entry) -> Entry:
    """Return an entry whose form has no fields: for a complex number of two binary16 an array of two numbers."""
    base, shape = entry.form.base, entry.form.shape
    if base.fields is None:
        return entry
    return entry._replace(form=np.dtype((base[0], (*shape, len(base.fields)))))
