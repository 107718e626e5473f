"""Show the content of a file: in figures, as a table of elements and as a picture."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.context import Context
from mpired.datatypes import TIMES, Datatype, Group, beside
from mpired.datatypes.times import as_times, dtype_name
from mpired.errors import BufferFileError, DatatypeError, UsageError, escaped, installation
from mpired.files import calls
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.names import check_are_data
from mpired.files.output import open_output
from mpired.formats import Array, InputOptions, RankFile, Source, open_rank
from mpired.formats.decoding import Decoder
from mpired.formats.textual import column_names, component_names
from mpired.options import Options
from mpired.queries.elements import Read, numbers, reading
from mpired.queries.histogram import Counter, Histogram
from mpired.queries.selection import Selection, blocks, pick
from mpired.queries.statistics import BLOCK, Statistics, Winners
from mpired.ranks import check_use
from mpired.sources.open import check_no_input, check_no_other_input

_BLOCK_NBYTES = 4 << 20
_MOST_WINNERS = 20
_MOST_CELLS = 1000  # of a map, along each axis
_LAST_TIME = 2**63 - 1
BINS = 20
"""The most bins of a histogram by default."""


class Part(NamedTuple):
    """Figures of the numbers of a buffer, or of a component of its elements."""

    name: str  # "value", or the name of the component: "index" of pairs, "real" or "imag"
    min: Any  # infinities too; None if there is no number, which NaN, NaT and nulls are not
    min_at: tuple[int, ...] | None  # the first of them in C order
    max: Any
    max_at: tuple[int, ...] | None
    mean: float | None  # exact, rounded once to a double; None without numbers, and of points in time
    nan: int  # or NaT
    infinite: int
    histogram: Histogram | None = None  # of finite numbers
    beyond: int = 0  # how many long doubles are finite and too large for a double; a histogram leaves them out

    def without(self, nulls: int) -> str:
        """Return what the histogram leaves out, in words; "" if nothing."""
        counts = (
            (nulls, "null" if nulls == 1 else "nulls"),
            (self.nan, "NaN"),
            (self.infinite, "infinite"),
            (self.beyond, "beyond a double"),
        )
        texts = [f"{count} {what}" for count, what in counts if count]
        return f"without {' and '.join([', '.join(texts[:-1]), texts[-1]] if texts[1:] else texts)}" if texts else ""


class Indices(NamedTuple):
    """How many different indices pairs have, and which are in the most pairs."""

    distinct: int  # of more than 1,048,576 only this lower bound is known
    exact: bool
    most: tuple[tuple[Any, int], ...]  # up to 20 indices, each with the number of its elements, the most frequent first


@dataclass(frozen=True)
class Figures:
    """Figures of a buffer."""

    name: str
    datatype: str
    dtype: str | None  # NumPy's name of the datatype, if there is one
    count: int
    shape: tuple[int, ...] | None
    unit: str  # that of the metadata of a column, or ""
    nulls: int  # they are among the count
    parts: tuple[Part, ...]  # one for a plain datatype, else one for each component
    indices: Indices | None  # of pairs


class Shown(NamedTuple):
    """The content of a file, in figures.

    Parameters
    ----------
    file
        Its path.
    format
        Its format.
    buffers
        Figures of each buffer.
    """

    file: str
    format: str
    buffers: tuple[Figures, ...]

    def __repr__(self) -> str:
        """Say it on one line."""
        texts = []
        for each in self.buffers:
            first = each.parts[0]
            extremes = "" if first.min is None else f" from {first.min} to {first.max}"
            name = f"{escaped(each.name)}: " if each.name else ""
            texts.append(f"{name}{each.count} x {beside(each.datatype, each.dtype)}{extremes}")
        return f"<{self.format} file {self.file!r}: {', '.join(texts)}>"


class Map(NamedTuple):
    """The numbers of an array of two dimensions, or of some rows and columns of a large one."""

    parts: tuple[np.ndarray, ...]  # the numbers of each component
    steps: tuple[int, int]  # of how many rows and columns one each is there
    axes: tuple[str, str]  # their names


class _Counting:
    """Figures of a buffer in the making."""

    def __init__(self, buffer: Array, decoder: Decoder) -> None:
        self.buffer, self._decoder = buffer, decoder
        self._names = component_names(buffer.datatype)
        self._statistics = [Statistics() for _ in self._names]
        self._counters: list[Counter | None] = [None] * len(self._names)
        self._winners = Winners() if buffer.datatype.group is Group.PAIR else None
        self._nulls = 0

    def read(self, bins: int | None) -> Iterator[int]:
        """Read all elements, and again for histograms of at most `bins` bins; yield bytes as they are done."""
        for start, nbytes, parts in self._blocks():
            for statistics, (values, places) in zip(self._statistics, parts, strict=True):
                statistics.add(values, lambda numbers, at=start, those=places: self._places(numbers, at, those))  # type: ignore[misc]
            if self._winners:
                self._winners.add(parts[1][0])
            yield nbytes
        if bins is None:
            return
        self._counters = [_counter(statistics, bins) for statistics in self._statistics]
        for _, nbytes, parts in self._blocks():
            for counter, (values, _) in zip(self._counters, parts, strict=True):
                if counter:
                    counter.add(values)
            yield nbytes

    def _blocks(self) -> Iterator[tuple[int, int, list[tuple[np.ndarray, np.ndarray | None]]]]:
        """Yield blocks: the first position, the bytes, and of each component the numbers, and which of the block."""
        buffer = self.buffer
        most = max(1, min(BLOCK, _BLOCK_NBYTES // buffer.datatype.itemsize))
        nulls = 0
        with reading(buffer, self._decoder) as read:
            for start in range(0, buffer.count, most):
                block, missing = read(start, min(most, buffer.count - start))
                there = None if missing is None else np.flatnonzero(~missing)
                parts = numbers(block, buffer.datatype)
                nulls += 0 if there is None else len(block) - len(there)
                yield start, block.nbytes, [(part if there is None else part[there], there) for part in parts]
        self._nulls = nulls

    def _places(self, chosen: np.ndarray, start: int, there: np.ndarray | None) -> np.ndarray:
        """Return where numbers of a block are in C order."""
        found = start + (chosen if there is None else there[chosen])
        if self.buffer.shape is None or not self.buffer.fortran_order:
            return found
        return np.ravel_multi_index(np.unravel_index(found, self.buffer.shape, order="F"), self.buffer.shape)

    def figures(self) -> Figures:
        """Return the figures."""
        buffer = self.buffer
        parts = map(self._part, self._names, self._statistics, self._counters)
        indices = None
        if winners := self._winners:
            order = np.argsort(-winners.counts, kind="stable")[:_MOST_WINNERS]
            most = zip(winners.indices[order].tolist(), winners.counts[order].tolist(), strict=True)
            indices = Indices(len(winners.indices), winners.exact, tuple(most) if winners.exact else ())
        unit = buffer.unit
        names = buffer.name, str(buffer.datatype), dtype_name(buffer.datatype)
        return Figures(*names, buffer.count, buffer.shape, unit, self._nulls, tuple(parts), indices)

    def _part(self, name: str, statistics: Statistics, counter: Counter | None) -> Part:
        datatype = self.buffer.datatype
        low, high = (None if each is None else _as_number(each, datatype) for each in (statistics.low, statistics.high))
        return Part(
            name,
            low,
            self._index(statistics.low_at),
            high,
            self._index(statistics.high_at),
            None if datatype.group is Group.TIME else statistics.mean,
            statistics.nan,
            statistics.infinite,
            None if counter is None else _of_times(counter.histogram, datatype),
            statistics.beyond,
        )

    def _index(self, place: int) -> tuple[int, ...] | None:
        return None if place < 0 else tuple(map(int, np.unravel_index(place, _shape(self.buffer))))


def _as_number(value: Any, datatype: Datatype) -> Any:
    """Return a number as Python has it, if Python has it exactly; points in time as NumPy's."""
    if datatype.group in TIMES:
        return as_times(np.array([value]), datatype)[0]
    return value.item() if value.dtype.kind in "iu" or value.dtype.char == "d" else value


def _of_times(histogram: Histogram, datatype: Datatype) -> Histogram:
    """Return a histogram of points in time with these as its edges."""
    if datatype.group is not Group.TIME:
        return histogram
    edges = [min(edge, _LAST_TIME) for edge in histogram.edges]  # the last one may be beyond
    return histogram._replace(edges=tuple(as_times(np.array(edges, np.int64), datatype)))


def _counter(statistics: Statistics, bins: int) -> Counter | None:
    if statistics.drawn is None:
        return None
    low, high = statistics.drawn
    return Counter(low, high, bins) if low.dtype.kind == "f" else Counter(int(low), int(high), bins)


def _shape(buffer: Array) -> tuple[int, ...]:
    return (buffer.count,) if buffer.shape is None else buffer.shape


def headings(buffers: Sequence[Array]) -> list[str]:
    """Return what the numbers of an element of each are called."""
    return [escaped(name) for buffer in buffers for name in column_names(buffer)]


class Table(NamedTuple):
    """The elements of a file that are shown one by one: its columns, or its arrays of one shape."""

    file: RankFile
    buffers: Sequence[Array]
    selection: Selection
    is_chosen: bool  # by the user, and not all
    decoder: Decoder

    @property
    def headings(self) -> list[str]:
        """What the numbers of an element are called."""
        return headings(self.buffers)

    def rows(self, wanted: Sequence[range]) -> Iterator[tuple[tuple[int, ...], list[str | None]]]:
        """Yield the index of each element, and its numbers as strings, None for one that is null."""
        with ExitStack() as stack:
            readers = [(buffer, stack.enter_context(reading(buffer, self.decoder))) for buffer in self.buffers]
            for block in blocks(wanted):
                indices = self.selection.indices(block.start, block.stop)
                picked = (_picked(buffer, read, self.selection, indices) for buffer, read in readers)
                texts = (_texts(*each, buffer.datatype) for each, (buffer, _) in zip(picked, readers, strict=True))
                places = zip(*(each.tolist() for each in indices), strict=True) if indices else [()]
                columns = [column for each in texts for column in each]
                yield from zip(places, map(list, zip(*columns, strict=True)), strict=True)


def _texts(block: np.ndarray, missing: np.ndarray | None, datatype: Datatype) -> Iterator[list[str | None]]:
    """Yield the numbers of each component as texts."""
    is_time = datatype.group in TIMES
    for part in [as_times(block, datatype)] if is_time else numbers(block, datatype):
        texts: list[str | None] = list(map(str, part))
        for place in () if missing is None else np.flatnonzero(missing):
            texts[place] = None
        yield texts


def _picked(
    buffer: Array, read: Read, selection: Selection, indices: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray | None]:
    positions = selection.positions(indices, fortran_order=buffer.fortran_order)
    return pick(read, positions, itemsize=buffer.datatype.itemsize, decoded=buffer.isolated)


def _is_plane(chosen: Selection) -> bool:
    """Return whether chosen elements are a map, not a line or a point."""
    return len(chosen.kept) == 2 and min(len(chosen.axes[axis]) for axis in chosen.kept) >= 2  # noqa: PLR2004


def _map(buffer: Array, chosen: Selection, decoder: Decoder) -> Map | None:
    """Return the map of the chosen elements; None unless they have two dimensions."""
    if not _is_plane(chosen):
        return None
    axes, (row, column) = list(chosen.axes), chosen.kept
    steps = -(-len(axes[row]) // _MOST_CELLS), -(-len(axes[column]) // _MOST_CELLS)
    axes[row], axes[column] = axes[row][:: steps[0]], axes[column][:: steps[1]]
    selection = Selection(chosen.shape, tuple(axes), chosen.kept)
    parts: list[list[np.ndarray]] = []
    with reading(buffer, decoder) as read:
        for block in blocks([range(selection.count)]):
            found, _ = _picked(buffer, read, selection, selection.indices(block.start, block.stop))
            parts.append(numbers(found, buffer.datatype))  # arrays have no nulls
    names = [_axis_name(axis, chosen.axes[axis], chosen.shape[axis]) for axis in chosen.kept]
    dims = len(axes[row]), len(axes[column])
    planes = tuple(np.concatenate(part).reshape(dims) for part in zip(*parts, strict=True))
    return Map(planes, steps, (names[0], names[1]))


def _axis_name(axis: int, indices: Sequence[int], dim: int) -> str:
    """Return the label of an axis, with the slice if it is not all of it."""
    if indices == range(dim):
        return f"axis {axis}"
    first, second = indices[:2]
    return f"axis {axis}, from {first}" + ("" if second == first + 1 else f" in steps of {second - first}")


Tell: TypeAlias = Callable[[Shown, Sequence[Table]], None]
"""Takes the figures of a file, and a table for each shape of its arrays."""


@dataclass(frozen=True)
class Showing:
    """A look at a file that has passed all checks."""

    file: RankFile
    tell: Tell  # gets the figures and the tables, before a picture is in place
    selections: Mapping[tuple[int, ...], Selection]  # the elements of each table, by their shape
    is_chosen: bool  # by the user
    bins: int | None  # the most of a histogram; None for no histogram
    png: str | None  # where a picture goes

    @property
    def sources(self) -> list[Source]:
        """The file."""
        return [self.file.source]

    @property
    def paths(self) -> list[str]:
        """Where the picture goes."""
        return [] if self.png is None else [self.png]

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Read the file, return its content, and commit the picture; `held` has the file that it replaces."""
        buffers = self.file.buffers
        with closing(Decoder()) as decoder:
            countings = [_Counting(buffer, decoder) for buffer in buffers]
            reads = (nbytes for counting in countings for nbytes in counting.read(self.bins))
            total = sum(buffer.count * buffer.datatype.itemsize for buffer in buffers)
            for _ in context.progress(reads, total * (1 if self.bins is None else 2)):
                pass
            shown = Shown(self.file.source.name, self.file.format, tuple(each.figures() for each in countings))
            picture = b""
            if self.png is not None:
                maps = [_map(buffer, self.selections[_shape(buffer)], decoder) for buffer in buffers]
                datatypes = [buffer.datatype for buffer in buffers]
                picture = _drawing().png(shown, list(zip(datatypes, maps, strict=True)))
            tables = []
            for shape, selection in self.selections.items():
                those = [buffer for buffer in buffers if _shape(buffer) == shape]
                tables.append(Table(self.file, those, selection, self.is_chosen, decoder))
            self.tell(shown, tables)
        self.file.source.check_unchanged()
        if self.png is not None:
            with open_output(self.png, overwrite=overwrite, context=context, held=held) as output:
                with calls.blaming(output.name):
                    calls.pwrite_all(output.fd, picture, 0)
                output.commit()


def plan_show(path: str, options: Options, tell: Tell, context: Context, *, text: str | None = None) -> Showing:
    """Check the request; nothing is read but the header. `text` slices what the table shows, None for all."""
    png = options["png"]
    if png is None and options["overwrite"]:
        raise UsageError("`overwrite`", "is for a picture; name one with `png`")
    if png is not None:
        check_are_data([png])
        if os.path.splitext(png)[1].lower() != ".png":
            raise UsageError("`png`", f"{png} is not the name of a PNG picture; write NAME.png")
        _drawing()
    inputs = InputOptions.of(options, context)._replace(nullable=True)
    file = open_rank(path, inputs)
    check_use(inputs, [file])
    if not file.buffers:
        if not file.others:
            raise BufferFileError(file.source.name, "holds no array or column")
        reason = f"{file.others[0].reason}; only numbers are shown, `mpired info` lists the rest"
        raise DatatypeError(file.source.name, reason)
    if png is not None:
        check_no_input([png], [(file.source, "the elements")], "name another picture")
        check_no_other_input([png], [(options["types"], "the named datatypes")])
        if len(file.buffers) > (most := _drawing().MOST_BUFFERS):
            reason = f"has {len(file.buffers)} {file.noun}s, and a picture shows {most}; choose some with `columns`"
            raise UsageError(file.source.name, reason)
    shapes = list(dict.fromkeys(map(_shape, file.buffers)))
    if text is not None and len(shapes) > 1:
        raise UsageError("`slice`", "is of arrays of one shape, and these have several; choose some with `columns`")
    selections = {shape: Selection.of("..." if text is None else text, shape) for shape in shapes}
    if png is not None and text is not None and not all(map(_is_plane, selections.values())):
        reason = "a picture shows a plane, which has two axes of 2 or more elements, or the histogram of a whole file"
        raise UsageError(f"`slice={text!r}`", f"{reason}; choose a plane, or leave `slice` out")
    bins = options["bins"] or (None if png is None else BINS)
    return Showing(file, tell, selections, text is not None, bins, png)


def _drawing() -> ModuleType:
    """Return the module that draws, or raise `UsageError` if matplotlib is not installed."""
    # It says on standard error when it makes its list of fonts, and where it keeps that.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        from mpired.queries import drawing  # noqa: PLC0415 - seldom needed, and slow
    except ImportError as error:
        reason = f"needs matplotlib, which cannot be imported ({error}); install it with {installation('mpired[plot]')}"
        raise UsageError("`png`", reason) from None
    return drawing
