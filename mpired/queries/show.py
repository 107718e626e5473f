"""Show the content of a file: in figures, as a table of elements and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from mpired.context import Context
from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.times import as_times
from mpired.errors import BufferFileError, DatatypeError, UsageError, escaped
from mpired.formats import Array, InputOptions, RankFile, open_rank
from mpired.formats.array import Reader
from mpired.formats.textual import column_names
from mpired.ops.state import Elements
from mpired.options import Options
from mpired.queries.elements import numbers
from mpired.queries.figures import Figures, Plane, Shown, measure
from mpired.queries.pictures import MOST_CELLS, answered, check_replaces_none, drawing, labelled
from mpired.ranks.opening import check_formats, compare, warn_of_units
from mpired.sources.open import check_unchanged
from mpired.values import parsed_index

BINS = 20
"""The most bins of a histogram by default."""
_BLOCK = 1 << 14  # elements that are picked at a time
# Elements are read together if they are within a window, and the bytes between two of them are few: a call of the
# system costs as much. What a library decodes in sequence is read through up to here: to begin anew costs more.
_WINDOW = 1 << 18
_NEAR_NBYTES = 64 << 10
_NEAR_DECODED = 1 << 20
NULL = "null"
"""The text of an element that is missing."""


@dataclass(frozen=True)
class Selection:
    """Some elements of an array, numbered in C order of the selection."""

    shape: tuple[int, ...]  # the dimensions of the array
    axes: tuple[range, ...]  # the indices along each of them, in order
    kept: tuple[int, ...]  # the axes that the result has: an integer drops its axis, as in NumPy

    @classmethod
    def of(cls, text: str, shape: tuple[int, ...]) -> Selection:
        """Return what a text selects of an array."""
        parts = parsed_index("slice", text, shape)
        slices = [each if isinstance(each, slice) else slice(each, each + 1) for each in parts]
        axes = tuple(range(n)[each] for n, each in zip(shape, slices, strict=True))
        return cls(shape, axes, tuple(axis for axis, each in enumerate(parts) if isinstance(each, slice)))

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(map(len, self.axes))

    @property
    def is_plane(self) -> bool:
        """Whether they are a map, not a line or a point."""
        return len(self.kept) == 2 and min(len(self.axes[axis]) for axis in self.kept) >= 2  # noqa: PLR2004

    def read(
        self, arrays: Sequence[Array], wanted: Iterable[range]
    ) -> Iterator[tuple[list[np.ndarray], list[Elements]]]:
        """Yield the indices of wanted elements, some at a time, and these elements of each array."""
        dims = tuple(map(len, self.axes))
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(array.open())) for array in arrays]
            for some in (each[at : at + _BLOCK] for each in wanted for at in range(0, len(each), _BLOCK)):
                places = np.unravel_index(np.arange(some.start, some.stop), dims) if dims else ()
                indices = [axis.start + axis.step * each for axis, each in zip(self.axes, places, strict=True)]
                yield indices, [_pick(*each, indices) for each in zip(readers, arrays, strict=True)]


def _pick(reader: Reader, array: Array, indices: Sequence[np.ndarray]) -> Elements:
    """Return the elements of an array with these indices along each dimension."""
    order: Literal["C", "F"] = "F" if array.fortran_order else "C"
    positions = (
        np.ravel_multi_index(tuple(indices), array.dimensions, order=order) if indices else np.zeros(1, np.int64)
    )
    ascending = np.argsort(positions, kind="stable")
    near = _NEAR_DECODED if array.isolated else max(1, _NEAR_NBYTES // array.datatype.itemsize)
    gaps, windows = np.diff(positions[ascending]), np.diff(positions[ascending] // _WINDOW)
    found, valid = np.empty(len(positions), array.datatype.form), None
    for piece in np.split(ascending, np.flatnonzero((gaps > near) | (windows > 0)) + 1):
        first, last = int(positions[piece[0]]), int(positions[piece[-1]])
        block = np.empty(last + 1 - first, found.dtype)
        mask = reader.read(first, block)
        found[piece] = block[positions[piece] - first]
        if mask is not None:
            valid = np.ones(len(positions), np.bool_) if valid is None else valid
            valid[piece] = mask[positions[piece] - first]
    return found, valid


class ElementTable(NamedTuple):
    """The elements of a file that are shown one by one: its columns, or its arrays of one shape."""

    file: RankFile
    buffers: Sequence[Array]
    selection: Selection
    is_chosen: bool  # by the user, and not all

    def rows(self, wanted: Iterable[range]) -> Iterator[tuple[tuple[int, ...], list[str]]]:
        """Yield the index of each element, and the numbers of each component as strings."""
        for indices, elements in self.selection.read(self.buffers, wanted):
            columns = []
            for array, (block, valid) in zip(self.buffers, elements, strict=True):
                is_time = array.datatype.group in TIMES
                for part in [as_times(block, array.datatype)] if is_time else numbers(block, array.datatype):
                    texts = list(map(str, part))
                    for place in () if valid is None else np.flatnonzero(~valid):
                        texts[place] = NULL
                    columns.append(texts)
            places = zip(*(each.tolist() for each in indices), strict=True) if indices else [()]
            yield from zip(places, map(list, zip(*columns, strict=True)), strict=True)


def headings(buffers: Sequence[Array]) -> list[str]:
    """Return what the numbers of an element of each are called."""
    return [escaped(name) for buffer in buffers for name in column_names(buffer)]


def _map(file: RankFile, buffers: Sequence[Array], chosen: Selection) -> Plane:
    """Return the map of the chosen elements, minus those of a second array."""
    axes, steps = list(chosen.axes), [-(-len(chosen.axes[axis]) // MOST_CELLS) for axis in chosen.kept]
    for axis, step in zip(chosen.kept, steps, strict=True):
        axes[axis] = axes[axis][::step]
    shown = replace(chosen, axes=tuple(axes))
    blocks = shown.read(buffers, [range(shown.count)])
    parts = zip(*(_numbers(buffers[0].datatype, *elements) for _, elements in blocks), strict=True)
    shape = [len(axes[axis]) for axis in chosen.kept]
    names, degrees = labelled(file, buffers[0], chosen.kept, chosen.axes, steps)
    planes = tuple(np.concatenate(part).reshape(shape) for part in parts)
    return Plane(planes, tuple(steps), names, degrees, len(buffers) > 1)


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
    figures: list[Figures] = []
    reads = (nbytes for buffer in file.buffers for nbytes in measure(buffer, bins, figures))
    total = sum(buffer.count * buffer.datatype.itemsize for buffer in file.buffers)
    for _ in context.progress(reads, total * (1 if bins is None else 2)):
        pass
    shown = Shown(file.source.name, file.format, tuple(figures))
    if png is not None:
        drawn = []
        for number, each in enumerate(figures):
            buffers = [one.buffers[number] for one in files]
            chosen = selections[buffers[0].dimensions]
            plane = _map(file, buffers, chosen) if chosen.is_plane else None
            drawn.append((each, buffers[0].datatype, plane))
        picture = drawing().png([each.source.name for each in files], drawn)
    tables = []
    for shape, selection in selections.items():
        those = [buffer for buffer in file.buffers if buffer.dimensions == shape]
        tables.append(ElementTable(file, those, selection, options["slice"] is not None))
    tell(shown, tables)
    check_unchanged([source for each in files for source in each.sources])
    return shown, picture


def _show(path: str, options: Options, tell: Tell, context: Context) -> tuple[Shown, bytes | None]:
    """Check the request by the header of the file, and read it."""
    png, text = options["png"], options["slice"]
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
        if inputs.check_coordinates and file.kept and files[1].kept:
            files[1].kept.check_same(file.kept, "OTHER")
        warn_of_units([files])
    check_replaces_none(png, files, options)
    if png is not None and len(file.buffers) > (most := drawing().MOST_BUFFERS):
        reason = f"has {len(file.buffers)} {file.noun}s, and a picture shows {most}; choose some with `columns`"
        raise UsageError(file.source.name, reason)
    shapes = list(dict.fromkeys(buffer.dimensions for buffer in file.buffers))
    if text is not None and len(shapes) > 1:
        raise UsageError("`slice`", "is of arrays of one shape, and these have several; choose some with `columns`")
    files = [each._replace(buffers=list(map(context.worker.decoding, each.buffers))) for each in files]
    selections = {shape: Selection.of("..." if text is None else text, shape) for shape in shapes}
    if png is not None and (text is not None or files[1:]) and not all(each.is_plane for each in selections.values()):
        if text is None:
            has_planes = len(shapes) == 1 and sum(length > 1 for length in shapes[0]) > 1  # more than a line
            hint = "choose a plane with `slice`" if has_planes else "`mpired diff` compares all"
            raise UsageError("`diff`", f"draws planes, which have two axes of 2 or more elements; {hint}")
        reason = "a picture shows a plane, which has two axes of 2 or more elements, or the histogram of a whole file"
        out = "`diff`" if files[1:] else "`slice`"
        raise UsageError(f"`slice={text!r}`", f"{reason}; choose a plane, or leave {out} out")
    return _shown(files, selections, options, tell, context)


def show(path: str, options: Options, context: Context, tell: Tell = lambda *_: None) -> Shown:
    """Show a file; `tell` gets the figures and the tables, before a picture is in place."""
    paths = [path, *filter(None, [options["diff"]])]
    return answered(partial(_show, path, options, tell), paths, options, context)
