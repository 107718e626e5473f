"""Queries that may draw a picture, and the module that draws."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mpired.attempts import check_results, repeated
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
from mpired.queries.figures import Bins, Figures, Part, Plane
from mpired.ranks.order import RankArgument
from mpired.sources.open import check_no_input

MOST_CELLS = 1000
"""The most cells of a map along each axis."""
_BINS = 100
_MOST_COORDINATES = 1 << 24  # elements of latitudes of a map that are read
_MOST_DEGREES = 720
_NORTH = re.compile(r"degrees?_?n(orth)?", re.IGNORECASE)
_T = TypeVar("_T")
Query: TypeAlias = Callable[[Context], tuple[_T, bytes | None]]
"""Reads files, which have not changed meanwhile, and returns the answer, and a picture if one is wanted."""


def answered(query: Query[_T], words: Sequence[RankArgument], options: Options, context: Context) -> _T:
    """Answer a query and commit its picture; again if a file changed meanwhile."""
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

    return repeated(commit, words, context)


def check_replaces_none(png: str | None, files: Sequence[RankFile], options: Options) -> None:
    """Raise `UsageError` if a picture would replace a file that is read."""
    if png is not None:
        check_no_input(
            [png], [(source, "the elements") for file in files for source in file.sources], "name another picture"
        )
        check_no_input([png], [(options["types"], "the named datatypes")])


def drawing() -> ModuleType:
    """Return the module that draws, or raise `UsageError` if matplotlib is not installed."""
    # It says on standard error when it makes its list of fonts, and where it keeps that.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        from mpired.queries import drawing as module  # noqa: PLC0415 - seldom needed, and slow
    except ImportError as error:
        reason = f"needs matplotlib, which cannot be imported ({error}); install it with {installation('mpired[plot]')}"
        raise UsageError("`png`", reason) from None
    return module


def labelled(
    file: RankFile, array: Array, axes: Sequence[int], indices: Sequence[range], steps: Sequence[int]
) -> tuple[list[str], list[np.ndarray | None]]:
    """Return the labels of axes of a plane, and the latitudes or longitudes along each or of each cell, or None."""
    shown = [*indices]
    for axis, step in zip(axes, steps, strict=True):
        shown[axis] = indices[axis][::step]
    names, degrees = _mesh(file, array, axes, shown)
    for axis in () if names else axes:
        name, own = next(iter(array.dims[axis : axis + 1]), "") or f"axis {axis}", indices[axis]
        place = name, array.dimensions[axis : axis + 1]
        found = next((each for each in _degrees(file) if (each.name.rpartition("/")[2], each.shape) == place), None)
        if found is not None:
            name = f"{name} [{found.unit}]"
        elif len(own) < array.dimensions[axis] or own.step < 0:
            name += f", from {own[0]}" + ("" if own.step == 1 else f" in steps of {own.step}")
        names.append(name)
        degrees.append(None if found is None else _values(file, found)[list(own)])
    return names, degrees


def _mesh(
    file: RankFile, array: Array, axes: Sequence[int], indices: Sequence[range]
) -> tuple[list[str], list[np.ndarray | None]]:
    """Return the names, the latitudes and the longitudes of the cells of a plane; none if the file has none."""
    dims, words = [array.dims[axis] for axis in axes if array.dims], list[str]()
    for header in file.headers:
        words += header.attributes.get("coordinates", "").split() if header.name == array.name else ()
    found: dict[bool, ArrayHeader] = {}
    for each in _degrees(file):
        is_named = each.name.rpartition("/")[2] in words and each.count <= _MOST_COORDINATES
        if is_named and {*dims} <= {*each.dims} <= {*array.dims}:
            found[_NORTH.fullmatch(each.unit) is not None] = each
    names, degrees = list[str](), list[np.ndarray | None]()
    for each in (found[True], found[False]) if len(found) == len({*dims}) == 2 else ():  # noqa: PLR2004 - both axes
        cells = _values(file, each)[np.ix_(*(indices[array.dims.index(dim)] for dim in each.dims))].squeeze()
        if not (np.abs(cells) <= _MOST_DEGREES).all():  # NaN, or a fill value
            return [], []
        degrees.append(cells if each.dims.index(dims[0]) < each.dims.index(dims[1]) else cells.T)
        names.append(f"{each.name.rpartition('/')[2]} [{each.unit}]")
    return names, degrees


def _degrees(file: RankFile) -> list[ArrayHeader]:
    """Return the coordinates of a file that are in degrees; where all arrays are compared they are buffers."""
    kept: Any = file.kept
    headers = [*(kept.carried if isinstance(kept, KeptArrays) else ()), *file.headers]
    return [each for each in headers if each.unit.startswith("degree")]


def _values(file: RankFile, coordinate: ArrayHeader) -> np.ndarray:
    """Return the values of a coordinate, unpacked, with NaN in the place of missing ones."""
    kept: Any = file.kept
    if isinstance(kept, KeptArrays) and coordinate in kept.carried:
        (values,) = kept._replace(carried=(coordinate,)).arrays().values()
        return np.ma.filled(np.ma.asarray(values, np.float64), np.nan)
    array = next(each for each in file.buffers if each.name == coordinate.name)
    values, valid = next(blocks(array, array.count))
    order: Any = "F" if array.fortran_order else "C"
    return (values if valid is None else np.where(valid, values, np.nan)).reshape(array.dimensions, order=order)


class DifferenceMap:
    """The number of elements that differ at each place: a cell of a plane, or else a bin."""

    def __init__(self, array: Array, file: RankFile) -> None:
        self._array, self._file = array, file
        axes = [axis for axis, length in enumerate(array.dimensions) if length > 1]
        self._axes = axes if len(axes) == 2 else []  # noqa: PLR2004 - rows and columns
        lengths = [array.dimensions[axis] for axis in self._axes]
        self._steps = [-(-length // MOST_CELLS) for length in lengths]
        self._bins = Bins(np.int64(0), np.int64(max(array.count, 1) - 1), _BINS)
        self._cells = np.zeros([-(-n // step) for n, step in zip(lengths, self._steps, strict=True)], np.int32)

    def add(self, places: np.ndarray) -> None:
        """Count elements at some places."""
        self._bins.add(places)
        if self._axes:
            order: Any = "F" if self._array.fortran_order else "C"
            index = np.unravel_index(places, self._array.dimensions, order)
            cells = tuple(index[axis] // step for axis, step in zip(self._axes, self._steps, strict=True))
            np.add.at(self._cells, cells, 1)

    def drawn(self, name: str) -> tuple[Figures, Datatype, Plane | None]:
        """Return what a picture has of an array of that name: a histogram, or a map if the elements are on a plane."""
        part = Part("", None, None, None, None, None, 0, 0, 0, self._bins.histogram())
        figures = Figures(name, "", None, self._array.count, self._array.shape, "", 0, (part,), None)
        plane = None
        if self._axes:
            whole = [*map(range, self._array.dimensions)]
            names, degrees = labelled(self._file, self._array, self._axes, whole, self._steps)
            plane = Plane((self._cells,), tuple(self._steps), names, degrees, is_difference=False)
        return figures, value_type("elements that differ"), plane
