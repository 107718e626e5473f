"""Queries with a picture: the answer and the picture are of one state of the files; maps of differences."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mpired.attempts import check_results, retry
from mpired.context import Context
from mpired.datatypes import Datatype, value_type
from mpired.errors import UsageError, installation
from mpired.files import calls
from mpired.files.places import check_are_data
from mpired.files.transaction import open_output
from mpired.formats import Array, RankFile
from mpired.formats.array import blocks
from mpired.formats.arrays import ArrayHeader, KeptArrays
from mpired.options import Options
from mpired.queries.figures import Bins, ComponentFigures, Figures, Plane
from mpired.ranks.order import RankArgument
from mpired.sources.open import check_no_input

MAX_CELLS = 1000
"""The maximum number of cells of a map along each axis."""
_BINS = 100
_MAX_COORDINATES = 1 << 24  # elements of latitudes that are read
_MAX_DEGREES = 720
_NORTH = re.compile(r"degrees?_?n(orth)?", re.IGNORECASE)
_T = TypeVar("_T")
Query: TypeAlias = Callable[[Context], tuple[_T, bytes | None]]
"""Reads files, and returns the answer and, with `png`, a picture; raises an error if a file has changed."""


def answer_query(query: Query[_T], files: Sequence[RankArgument], options: Options, context: Context) -> _T:
    """Return the answer of a query and commit its picture; a query whose files change is repeated."""
    png, overwrite = options["png"], options["overwrite"]
    if png is not None:
        check_are_data([png])
        if os.path.splitext(png)[1].lower() != ".png":
            raise UsageError("`png`", f"{png} is not the name of a PNG picture; write NAME.png")
        drawing()

    def commit(context: Context) -> _T:
        answer, picture = query(context)
        if picture is not None:
            check_results([png], context, overwrite=overwrite)
            with open_output(png, overwrite=overwrite, context=context) as output:
                with calls.errors_name(output.name):
                    calls.pwrite_all(output.fd, picture, 0)
                output.commit(context.on_commit)
        return answer

    return retry(commit, files, context)


def check_replaces_none(png: str | None, files: Sequence[RankFile], options: Options) -> None:
    """Raise `UsageError` if a picture would replace a file that is read."""
    if png is not None:
        check_no_input(
            [png], [(source, "the elements") for file in files for source in file.sources], "name another picture"
        )
        check_no_input([png], [(options["types"], "the named datatypes")])


def drawing() -> ModuleType:
    """Return the module that draws, or raise `UsageError` if matplotlib is not installed."""
    # matplotlib reports on standard error that it builds its cache of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        from mpired.queries import drawing as module  # noqa: PLC0415 - seldom needed, and slow
    except ImportError as error:
        reason = f"needs matplotlib, which cannot be imported ({error}); install it with {installation('mpired[plot]')}"
        raise UsageError("`png`", reason) from None
    return module


def axis_labels(
    file: RankFile, array: Array, axes: Sequence[int], indices: Sequence[range], steps: Sequence[int]
) -> tuple[list[str], list[np.ndarray | None]]:
    """Return the labels of the axes of a plane, and the latitudes or longitudes along each or of each cell, or None."""
    thinned = [*indices]
    for axis, step in zip(axes, steps, strict=True):
        thinned[axis] = indices[axis][::step]
    names, degrees = _curvilinear(file, array, axes, thinned)
    for axis in () if names else axes:
        name, along = next(iter(array.dims[axis : axis + 1]), "") or f"axis {axis}", indices[axis]
        place, coordinate = (name, array.dimensions[axis : axis + 1]), None
        for header in _coordinates_in_degrees(file):
            if coordinate is None and (header.name.rpartition("/")[2], header.shape) == place:
                coordinate = header
        if coordinate is not None:
            name = f"{name} [{coordinate.unit}]"
        elif len(along) < array.dimensions[axis] or along.step < 0:
            name += f", from {along[0]}" + ("" if along.step == 1 else f" in steps of {along.step}")
        names.append(name)
        degrees.append(None if coordinate is None else _values(file, coordinate)[list(along)])
    return names, degrees


def _curvilinear(
    file: RankFile, array: Array, axes: Sequence[int], indices: Sequence[range]
) -> tuple[list[str], list[np.ndarray | None]]:
    """Return the labels, the latitudes and the longitudes of the cells of a plane; nothing if the file has none."""
    dims, coordinate_names = [array.dims[axis] for axis in axes if array.dims], list[str]()
    for header in file.headers:
        if header.name == array.name:
            coordinate_names += header.attributes.get("coordinates", "").split()
    coordinates: dict[bool, ArrayHeader] = {}  # by whether these are latitudes
    for header in _coordinates_in_degrees(file):
        is_named = header.name.rpartition("/")[2] in coordinate_names and header.count <= _MAX_COORDINATES
        if is_named and {*dims} <= {*header.dims} <= {*array.dims}:
            coordinates[_NORTH.fullmatch(header.unit) is not None] = header
    names, degrees = list[str](), list[np.ndarray | None]()
    has_both = len(coordinates) == len({*dims}) == 2  # noqa: PLR2004 - coordinates, and axes
    for header in (coordinates[True], coordinates[False]) if has_both else ():
        cells = _values(file, header)[np.ix_(*(indices[array.dims.index(dim)] for dim in header.dims))].squeeze()
        if not (np.abs(cells) <= _MAX_DEGREES).all():  # NaN, or a fill value
            return [], []
        degrees.append(cells if header.dims.index(dims[0]) < header.dims.index(dims[1]) else cells.T)
        names.append(f"{header.name.rpartition('/')[2]} [{header.unit}]")
    return names, degrees


def _coordinates_in_degrees(file: RankFile) -> list[ArrayHeader]:
    """Return the headers of coordinates in degrees; a comparison of all arrays has them among its buffers."""
    kept: Any = file.kept
    headers = [*(kept.headers if isinstance(kept, KeptArrays) else ()), *file.headers]
    return [header for header in headers if header.unit.startswith("degree")]


def _values(file: RankFile, coordinate: ArrayHeader) -> np.ndarray:
    """Return the values of a coordinate, unpacked, with NaN for missing values."""
    kept: Any = file.kept
    if isinstance(kept, KeptArrays) and coordinate in kept.headers:
        (values,) = kept._replace(headers=(coordinate,)).arrays().values()
        return np.ma.filled(np.ma.asarray(values, np.float64), np.nan)
    array = next(buffer for buffer in file.buffers if buffer.name == coordinate.name)
    values, valid = next(blocks(array, array.count))
    order: Any = "F" if array.fortran_order else "C"
    return (values if valid is None else np.where(valid, values, np.nan)).reshape(array.dimensions, order=order)


class DifferenceMap:
    """The number of elements that differ in each cell of a plane or, in other arrays, in each bin."""

    def __init__(self, array: Array, file: RankFile) -> None:
        self._array, self._file = array, file
        axes = [axis for axis, length in enumerate(array.dimensions) if length > 1]
        self._axes = axes if len(axes) == 2 else []  # noqa: PLR2004 - rows and columns
        lengths = [array.dimensions[axis] for axis in self._axes]
        self._steps = [-(-length // MAX_CELLS) for length in lengths]
        self._bins = Bins(np.int64(0), np.int64(max(array.count, 1) - 1), _BINS)
        self._cells = np.zeros([-(-n // step) for n, step in zip(lengths, self._steps, strict=True)], np.int32)

    def add(self, positions: np.ndarray) -> None:
        """Count elements that differ, at these positions in the array."""
        self._bins.add(positions)
        if self._axes:
            order: Any = "F" if self._array.fortran_order else "C"
            index = np.unravel_index(positions, self._array.dimensions, order)
            cells = tuple(index[axis] // step for axis, step in zip(self._axes, self._steps, strict=True))
            np.add.at(self._cells, cells, 1)

    def panel(self, name: str) -> tuple[Figures, Datatype, Plane | None]:
        """Return the data of the panel of this array: a histogram, and a map if the array is a plane."""
        part = ComponentFigures("", None, None, None, None, None, 0, 0, 0, self._bins.histogram())
        figures = Figures(name, "", None, self._array.count, self._array.shape, "", 0, (part,), None)
        plane = None
        if self._axes:
            whole = [*map(range, self._array.dimensions)]
            names, degrees = axis_labels(self._file, self._array, self._axes, whole, self._steps)
            plane = Plane((self._cells,), tuple(self._steps), names, degrees, is_difference=False)
        return figures, value_type("elements that differ"), plane
