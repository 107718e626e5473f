"""Show the content of a file: in figures, as a table of elements and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from mpired.context import Context
from mpired.datatypes import TIMES, Datatype, Group
from mpired.datatypes.times import as_times, dtype_name
from mpired.errors import BufferFileError, DatatypeError, UsageError, escaped
from mpired.formats import Array, InputOptions, RankFile, open_rank
from mpired.formats.arrays import KeptArrays
from mpired.formats.decoding import Decoder
from mpired.formats.textual import column_names, component_names
from mpired.ops.state import Elements
from mpired.options import Options
from mpired.queries.elements import numbers, scan
from mpired.queries.figures import Bins, Extreme, Figures, Histogram, Part, Plane, Shown, Statistics, Winners
from mpired.queries.pictures import MOST_CELLS, Query, answered, check_picture, check_replaces_none, drawing
from mpired.queries.selection import Selection, cut, pick
from mpired.ranks import check_formats, compare
from mpired.sources.open import check_unchanged

_LAST_TIME = 2**63 - 1
BINS = 20
"""The most bins of a histogram by default."""


def _measure(buffer: Array, decoder: Decoder, bins: int | None, done: list[Figures]) -> Iterator[int]:
    """Read all elements, and again for histograms, add the figures to `done`, and yield bytes as they are read."""
    datatype = buffer.datatype
    names = component_names(datatype)
    components = [Statistics() for _ in names]
    winners = Winners() if datatype.group is Group.PAIR else None
    for start, nbytes, valid, parts in _blocks(buffer, decoder):
        for component, values in zip(components, parts, strict=True):
            component.add(values, partial(_in_c_order, buffer, start, valid))
        if winners:
            winners.add(parts[1])
        yield nbytes
    counters = [None if bins is None or each.drawn is None else Bins(*each.drawn, bins) for each in components]
    for _, nbytes, _, parts in () if bins is None else _blocks(buffer, decoder):
        for counter, values in zip(counters, parts, strict=True):
            if counter:
                counter.add(values)
        yield nbytes
    nulls = buffer.count - components[0].count - components[0].nan
    figures = tuple(map(partial(_part, buffer), names, components, counters))
    texts = buffer.name, str(datatype), dtype_name(datatype)
    done.append(
        Figures(*texts, buffer.count, buffer.shape, buffer.unit, nulls, figures, winners.figures() if winners else None)
    )


def _blocks(buffer: Array, decoder: Decoder) -> Iterator[tuple[int, int, np.ndarray | None, list[np.ndarray]]]:
    """Yield blocks: the first position, the bytes, which elements are not null, and the numbers of each component."""
    for start, ((block, mask),) in scan([buffer], decoder):
        valid = None if mask is None else np.flatnonzero(mask)
        parts = numbers(block, buffer.datatype)
        yield start, block.nbytes, valid, parts if valid is None else [part[valid] for part in parts]


def _in_c_order(buffer: Array, start: int, valid: np.ndarray | None, chosen: np.ndarray) -> np.ndarray:
    """Return the places of chosen numbers of a block in C order."""
    places = start + (chosen if valid is None else valid[chosen])
    if buffer.shape is None or not buffer.fortran_order:
        return places
    return np.ravel_multi_index(np.unravel_index(places, buffer.shape, order="F"), buffer.shape)


def _part(buffer: Array, name: str, statistics: Statistics, counter: Bins | None) -> Part:
    datatype = buffer.datatype

    def extreme(found: Extreme | None) -> tuple[Any, tuple[int, ...] | None]:
        if found is None:
            return None, None
        return _as_number(found.value, datatype), tuple(map(int, np.unravel_index(found.place, buffer.dimensions)))

    return Part(
        name,
        *extreme(statistics.low),
        *extreme(statistics.high),
        None if datatype.group is Group.TIME else statistics.mean,
        statistics.nan,
        statistics.infinite,
        None if counter is None else _of_times(counter.histogram, datatype),
        statistics.beyond,
    )


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


def headings(buffers: Sequence[Array]) -> list[str]:
    """Return what the numbers of an element of each are called."""
    return [escaped(name) for buffer in buffers for name in column_names(buffer)]


class ElementTable(NamedTuple):
    """The elements of a file that are shown one by one: its columns, or its arrays of one shape."""

    file: RankFile
    buffers: Sequence[Array]
    selection: Selection
    is_chosen: bool  # by the user, and not all
    decoder: Decoder

    def rows(self, wanted: Sequence[range]) -> Iterator[tuple[tuple[int, ...], list[str | None]]]:
        """Yield the index of each element, and its numbers as strings, None for one that is null."""
        for indices, picked in _picked(self.buffers, self.selection, wanted, self.decoder):
            elements = zip(picked, self.buffers, strict=True)
            columns = [column for each, buffer in elements for column in _texts(*each, buffer.datatype)]
            places = zip(*(each.tolist() for each in indices), strict=True) if indices else [()]
            yield from zip(places, map(list, zip(*columns, strict=True)), strict=True)


def _texts(block: np.ndarray, valid: np.ndarray | None, datatype: Datatype) -> Iterator[list[str | None]]:
    """Yield the numbers of each component as strings, None for one that is null."""
    is_time = datatype.group in TIMES
    for part in [as_times(block, datatype)] if is_time else numbers(block, datatype):
        texts: list[str | None] = list(map(str, part))
        for place in () if valid is None else np.flatnonzero(~valid):
            texts[place] = None
        yield texts


def _picked(
    buffers: Sequence[Array], selection: Selection, wanted: Sequence[range], decoder: Decoder
) -> Iterator[tuple[list[np.ndarray], list[Elements]]]:
    """Yield the indices of a block of elements, and the elements of each buffer."""
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(decoder.decoding(buffer).open())) for buffer in buffers]
        for block in cut(wanted):
            indices, picked = selection.indices(block.start, block.stop), []
            for reader, buffer in zip(readers, buffers, strict=True):
                positions = selection.positions(indices, fortran_order=buffer.fortran_order)
                picked.append(pick(reader, buffer, positions))
            yield indices, picked


def _is_plane(chosen: Selection) -> bool:
    """Return whether chosen elements are a map, not a line or a point."""
    return len(chosen.kept) == 2 and min(len(chosen.axes[axis]) for axis in chosen.kept) >= 2  # noqa: PLR2004


def _map(file: RankFile, buffers: Sequence[Array], chosen: Selection, decoder: Decoder) -> Plane | None:
    """Return the map of the chosen elements, minus those of a second array; None unless they have two dimensions."""
    if not _is_plane(chosen):
        return None
    axes, (row, column) = list(chosen.axes), chosen.kept
    steps = -(-len(axes[row]) // MOST_CELLS), -(-len(axes[column]) // MOST_CELLS)
    axes[row], axes[column] = axes[row][:: steps[0]], axes[column][:: steps[1]]
    selection = Selection(chosen.shape, tuple(axes), chosen.kept)
    blocks = [parts for _, parts in _picked(buffers, selection, [range(selection.count)], decoder)]
    parts = list(zip(*(_numbers(buffers[0].datatype, *each) for each in blocks), strict=True))
    (row_name, rows), (column_name, columns) = (_axis(file, buffers[0], axis, chosen) for axis in chosen.kept)
    planes = tuple(np.concatenate(part).reshape(len(axes[row]), len(axes[column])) for part in parts)
    return Plane(planes, steps, (row_name, column_name), (rows, columns), len(buffers) > 1)


def _numbers(datatype: Datatype, first: Elements, other: Elements | None = None) -> list[np.ndarray]:
    """Return the components of elements, minus others, with NaN in the place of missing numbers."""
    parts = numbers(first[0], datatype)
    if other is not None:
        pairs = zip(parts, numbers(other[0], datatype), strict=True)
        with np.errstate(all="ignore"):
            parts = [np.subtract(*each, dtype=np.int64 if each[0].dtype.kind in "iu" else None) for each in pairs]
    masks = [each[1] for each in (first, other) if each is not None and each[1] is not None]
    valid = np.logical_and.reduce(masks) if masks else np.True_
    return [part if valid.all() else np.where(valid, part.astype(np.float64), np.nan) for part in parts]


def _axis(file: RankFile, buffer: Array, axis: int, chosen: Selection) -> tuple[str, np.ndarray | None]:
    """Return the label of an axis, and its latitudes or longitudes; without these the slice if it is not all of it."""
    name = next(iter(file.dims.get(buffer.name, ())[axis : axis + 1]), "") or f"axis {axis}"
    indices, dim, kept = chosen.axes[axis], chosen.shape[axis], file.kept
    for each in kept.carried if isinstance(kept, KeptArrays) else ():
        unit = each.attributes.get("units", "")
        if (each.name.rpartition("/")[2], each.shape) == (name, (dim,)) and unit.startswith("degree"):
            return f"{name} [{unit}]", cast("KeptArrays", kept).values(each)[0][list(indices)]
    if indices == range(dim):
        return name, None
    first, second = indices[:2]
    return f"{name}, from {first}" + ("" if second == first + 1 else f" in steps of {second - first}"), None


Tell: TypeAlias = Callable[[Shown, Sequence[ElementTable]], None]
"""Takes the figures of a file, and a table for each shape of its arrays."""


def _shown(
    files: Sequence[RankFile],  # the file, and perhaps another one to subtract
    selections: Mapping[tuple[int, ...], Selection],  # the elements of each table, by their shape
    options: Options,
    tell: Tell,
    context: Context,
) -> tuple[Shown, bytes | None]:
    """Read a file, and tell its content."""
    file, png, picture = files[0], options["png"], None
    bins = options["bins"] or (None if png is None else BINS)
    with closing(Decoder()) as decoder:
        figures: list[Figures] = []
        reads = (nbytes for buffer in file.buffers for nbytes in _measure(buffer, decoder, bins, figures))
        total = sum(buffer.count * buffer.datatype.itemsize for buffer in file.buffers)
        for _ in context.progress(reads, total * (1 if bins is None else 2)):
            pass
        shown = Shown(file.source.name, file.format, tuple(figures))
        if png is not None:
            both = list(zip(*(each.buffers for each in files), strict=True))
            maps = [_map(file, each, selections[each[0].dimensions], decoder) for each in both]
            datatypes = [buffer.datatype for buffer in file.buffers]
            names = [each.source.name for each in files]
            picture = drawing().png(names, list(zip(figures, datatypes, maps, strict=True)))
        tables = []
        for shape, selection in selections.items():
            those = [buffer for buffer in file.buffers if buffer.dimensions == shape]
            tables.append(ElementTable(file, those, selection, options["slice"] is not None, decoder))
        tell(shown, tables)
    check_unchanged([source for each in files for source in each.sources])
    return shown, picture


def _plan(path: str, options: Options, tell: Tell, context: Context) -> Query[Shown]:
    """Check the request; nothing is read but the header."""
    png, text = options["png"], options["slice"]
    check_picture(png)
    inputs = InputOptions.of(options, context)._replace(nullable=True)
    file = open_rank(path, inputs)
    check_formats(inputs, {file.format})
    if not file.buffers:
        if not file.others:
            raise BufferFileError(file.source.name, "holds no array or column")
        reason = f"{file.others[0].reason}; only numbers are shown, `mpired info` lists the rest"
        raise DatatypeError(file.source.name, reason)
    files = [file]
    if options["diff"] is not None:
        files.append(open_rank(options["diff"], inputs).ordered_as(file))
        compare("the file", file, ("OTHER", files[1]))
    check_replaces_none(png, files, options)
    if png is not None and len(file.buffers) > (most := drawing().MOST_BUFFERS):
        reason = f"has {len(file.buffers)} {file.noun}s, and a picture shows {most}; choose some with `columns`"
        raise UsageError(file.source.name, reason)
    shapes = list(dict.fromkeys(buffer.dimensions for buffer in file.buffers))
    if text is not None and len(shapes) > 1:
        raise UsageError("`slice`", "is of arrays of one shape, and these have several; choose some with `columns`")
    selections = {shape: Selection.of("..." if text is None else text, shape) for shape in shapes}
    if png is not None and (text is not None or files[1:]) and not all(map(_is_plane, selections.values())):
        reason = "a picture shows a plane, which has two axes of 2 or more elements, or the histogram of a whole file"
        out = "`diff`" if files[1:] else "`slice`"
        raise UsageError(f"`slice={text or '...'!r}`", f"{reason}; choose a plane, or leave {out} out")
    return partial(_shown, files, selections, options, tell)


def show(path: str, options: Options, context: Context, tell: Tell = lambda *_: None) -> Shown:
    """Show a file; `tell` gets the figures and the tables, before a picture is in place."""
    paths = [path, *filter(None, [options["diff"]])]
    return answered(partial(_plan, path, options, tell), lambda: paths, options, context)
