"""`mpired show`: the figures of a file, a table of its elements, and a picture."""

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
from mpired.datatypes.dtypes import as_times
from mpired.errors import BufferFileError, DatatypeError, UsageError, escaped
from mpired.formats import Array, InputOptions, RankFile, open_rank
from mpired.formats.array import Reader
from mpired.formats.textual import column_names
from mpired.ops.state import Elements
from mpired.options import Options
from mpired.queries.elements import numbers
from mpired.queries.figures import Figures, Plane, Shown, measure
from mpired.queries.pictures import MAX_CELLS, answer_query, axis_labels, check_replaces_none, drawing
from mpired.ranks.opening import check_formats, compare, warn_of_units
from mpired.sources.open import check_unchanged
from mpired.values import parsed_index

BINS = 20
"""The default maximum number of bins of a histogram."""
_BLOCK = 1 << 14  # elements that are picked at a time
# Elements of one window are read together if the gaps between them are small: to read a gap costs less than a system
# call, and in a file that a library decodes in sequence less than to start again.
_WINDOW = 1 << 18  # elements
_MAX_GAP_NBYTES = 64 << 10
_MAX_DECODED_GAP = 1 << 20  # elements
NULL = "null"
"""The text of a missing element."""


@dataclass(frozen=True)
class Selection:
    """Selected elements of an array, numbered in C order of the selection."""

    shape: tuple[int, ...]  # of the array
    axes: tuple[range, ...]  # selected indices along each axis
    kept: tuple[int, ...]  # the axes of the selection: an integer drops its axis, as in NumPy

    @classmethod
    def of(cls, text: str, shape: tuple[int, ...]) -> Selection:
        """Return the selection that an index in NumPy's notation makes."""
        parts = parsed_index("slice", text, shape)
        slices = [part if isinstance(part, slice) else slice(part, part + 1) for part in parts]
        axes = tuple(range(length)[chosen] for length, chosen in zip(shape, slices, strict=True))
        return cls(shape, axes, tuple(axis for axis, part in enumerate(parts) if isinstance(part, slice)))

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(map(len, self.axes))

    @property
    def is_plane(self) -> bool:
        """Whether a map can show the elements: two axes with several indices each."""
        return len(self.kept) == 2 and min(len(self.axes[axis]) for axis in self.kept) >= 2  # noqa: PLR2004

    def read(
        self, arrays: Sequence[Array], elements: Iterable[range]
    ) -> Iterator[tuple[list[np.ndarray], list[Elements]]]:
        """Yield elements of the selection in blocks: their indices along each axis, and their values in each array."""
        lengths = tuple(map(len, self.axes))
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(array.open())) for array in arrays]
            for block in (part[i : i + _BLOCK] for part in elements for i in range(0, len(part), _BLOCK)):
                positions = np.unravel_index(np.arange(block.start, block.stop), lengths) if lengths else ()
                indices = [axis.start + axis.step * along for axis, along in zip(self.axes, positions, strict=True)]
                yield indices, [_pick(reader, array, indices) for reader, array in zip(readers, arrays, strict=True)]


def _pick(reader: Reader, array: Array, indices: Sequence[np.ndarray]) -> Elements:
    """Return the elements of an array with these indices along each axis."""
    order: Literal["C", "F"] = "F" if array.fortran_order else "C"
    positions = (
        np.ravel_multi_index(tuple(indices), array.dimensions, order=order) if indices else np.zeros(1, np.int64)
    )
    ascending = np.argsort(positions, kind="stable")
    max_gap = _MAX_DECODED_GAP if array.isolated else max(1, _MAX_GAP_NBYTES // array.datatype.itemsize)
    gaps, windows = np.diff(positions[ascending]), np.diff(positions[ascending] // _WINDOW)
    elements, valid = np.empty(len(positions), array.datatype.form), None
    for piece in np.split(ascending, np.flatnonzero((gaps > max_gap) | (windows > 0)) + 1):
        first, last = int(positions[piece[0]]), int(positions[piece[-1]])
        block = np.empty(last + 1 - first, elements.dtype)
        mask = reader.read(first, block)
        elements[piece] = block[positions[piece] - first]
        if mask is not None:
            valid = np.ones(len(positions), np.bool_) if valid is None else valid
            valid[piece] = mask[positions[piece] - first]
    return elements, valid


class ElementTable(NamedTuple):
    """A table of elements: of the columns of a file, or of its arrays with one shape."""

    file: RankFile
    buffers: Sequence[Array]
    selection: Selection
    is_chosen: bool  # whether `slice` chooses the elements

    def rows(self, elements: Iterable[range]) -> Iterator[tuple[tuple[int, ...], list[str]]]:
        """Yield the index of each element, and its components as strings."""
        for indices, values in self.selection.read(self.buffers, elements):
            columns = []
            for array, (block, valid) in zip(self.buffers, values, strict=True):
                is_time = array.datatype.group in TIMES
                for component in [as_times(block, array.datatype)] if is_time else numbers(block, array.datatype):
                    column = list(map(str, component))
                    for missing in () if valid is None else np.flatnonzero(~valid):
                        column[missing] = NULL
                    columns.append(column)
            index = zip(*(along.tolist() for along in indices), strict=True) if indices else [()]
            yield from zip(index, map(list, zip(*columns, strict=True)), strict=True)


def headings(buffers: Sequence[Array]) -> list[str]:
    """Return the names of the columns of a table of these buffers: one for each component."""
    return [escaped(name) for buffer in buffers for name in column_names(buffer)]


def _plane(file: RankFile, buffers: Sequence[Array], chosen: Selection) -> Plane:
    """Return the plane of the selected elements, minus those of a second array."""
    axes, steps = list(chosen.axes), [-(-len(chosen.axes[axis]) // MAX_CELLS) for axis in chosen.kept]
    for axis, step in zip(chosen.kept, steps, strict=True):
        axes[axis] = axes[axis][::step]
    thinned = replace(chosen, axes=tuple(axes))
    blocks = thinned.read(buffers, [range(thinned.count)])
    parts = zip(*(_components(buffers[0].datatype, *elements) for _, elements in blocks), strict=True)
    shape = [len(axes[axis]) for axis in chosen.kept]
    names, degrees = axis_labels(file, buffers[0], chosen.kept, chosen.axes, steps)
    planes = tuple(np.concatenate(part).reshape(shape) for part in parts)
    return Plane(planes, tuple(steps), names, degrees, len(buffers) > 1)


def _components(datatype: Datatype, left: Elements, right: Elements | None = None) -> list[np.ndarray]:
    """Return the components of elements, or of differences, with NaN for missing elements."""
    parts, masks = numbers(left[0], datatype), [left[1]]
    if right is not None:
        pairs = zip(parts, numbers(right[0], datatype), strict=True)
        with np.errstate(all="ignore"):
            parts = [np.subtract(a, b, dtype=np.int64 if a.dtype.kind in "iu" else None) for a, b in pairs]
        masks.append(right[1])
    known = [mask for mask in masks if mask is not None]
    valid = np.logical_and.reduce(known) if known else np.True_
    return [part if valid.all() else np.where(valid, part.astype(np.float64), np.nan) for part in parts]


Printer: TypeAlias = Callable[[Shown, Sequence[ElementTable]], None]
"""Takes the figures of a file, and a table for each shape of its arrays."""


def _read(
    files: Sequence[RankFile],  # the file, and the file to subtract, if any
    selections: Mapping[tuple[int, ...], Selection],  # the elements of each table, by the shape of its arrays
    options: Options,
    write: Printer,
    context: Context,
) -> tuple[Shown, bytes | None]:
    """Read a file, pass its figures and tables to `write`, and return the figures and the picture."""
    file, png, picture = files[0], options["png"], None
    bins = options["bins"] or (None if png is None else BINS)
    figures: list[Figures] = []
    reads = (nbytes for buffer in file.buffers for nbytes in measure(buffer, bins, figures))
    total = sum(buffer.count * buffer.datatype.itemsize for buffer in file.buffers)
    for _ in context.progress(reads, total * (1 if bins is None else 2)):
        pass
    shown = Shown(file.source.name, file.format.name, tuple(figures))
    if png is not None:
        panels = []
        for number, array_figures in enumerate(figures):
            buffers = [opened.buffers[number] for opened in files]
            chosen = selections[buffers[0].dimensions]
            plane = _plane(file, buffers, chosen) if chosen.is_plane else None
            panels.append((array_figures, buffers[0].datatype, plane))
        picture = drawing().png([opened.source.name for opened in files], panels)
    tables = []
    for shape, selection in selections.items():
        buffers = [buffer for buffer in file.buffers if buffer.dimensions == shape]
        tables.append(ElementTable(file, buffers, selection, options["slice"] is not None))
    write(shown, tables)
    check_unchanged([source for opened in files for source in opened.sources])
    return shown, picture


def _show(path: str, options: Options, write: Printer, context: Context) -> tuple[Shown, bytes | None]:
    """Check the options against the header of the file, and read the file."""
    png, text = options["png"], options["slice"]
    inputs = InputOptions.of(options, context)._replace(nullable=True)
    file = open_rank(path, inputs)
    check_formats(inputs, {file.format})
    if not file.buffers:
        if not file.others:
            raise BufferFileError(file.source.name, "holds no array or column")
        other = next((other for other in file.others if other.hint), file.others[0])
        hint = other.hint or "only numbers are shown, `mpired info` lists the rest"
        raise DatatypeError(file.source.name, f"{other.reason}; {hint}")
    files = [file]
    if options["diff"] is not None:
        files.append(open_rank(options["diff"], inputs).in_order_of(file))
        compare("the file", file, ("OTHER", files[1]))
        if inputs.check_coordinates and file.kept and files[1].kept:
            files[1].kept.check_same(file.kept, "OTHER", are_combined=False)
        warn_of_units([files])
    check_replaces_none(png, files, options)
    if png is not None and len(file.buffers) > (limit := drawing().MAX_BUFFERS):
        reason = f"has {len(file.buffers)} {file.format.noun}s, and a picture shows {limit}; choose some with `columns`"
        raise UsageError(file.source.name, reason)
    shapes = list(dict.fromkeys(buffer.dimensions for buffer in file.buffers))
    if text is not None and len(shapes) > 1:
        raise UsageError("`slice`", "is of arrays of one shape, and these have several; choose some with `columns`")
    files = [opened._replace(buffers=list(map(context.worker.decoding, opened.buffers))) for opened in files]
    selections = {shape: Selection.of("..." if text is None else text, shape) for shape in shapes}
    are_planes = all(selection.is_plane for selection in selections.values())
    if png is not None and (text is not None or files[1:]) and not are_planes:
        if text is None:
            has_planes = len(shapes) == 1 and sum(length > 1 for length in shapes[0]) > 1  # more than a line
            hint = "choose a plane with `slice`" if has_planes else "`mpired diff` compares all"
            raise UsageError("`diff`", f"draws planes, which have two axes of 2 or more elements; {hint}")
        reason = "a picture shows a plane, which has two axes of 2 or more elements, or the histogram of a whole file"
        option = "`diff`" if files[1:] else "`slice`"
        raise UsageError(f"`slice={text!r}`", f"{reason}; choose a plane, or leave {option} out")
    return _read(files, selections, options, write, context)


def show(path: str, options: Options, context: Context, write: Printer = lambda *_: None) -> Shown:
    """Return the figures of a file; `write` gets them with the tables, before the picture is committed."""
    paths = [path, *filter(None, [options["diff"]])]
    return answer_query(partial(_show, path, options, write), paths, options, context)
