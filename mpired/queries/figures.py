"""The figures of a file, which `show` prints and draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpired.datatypes import beside
from mpired.errors import escaped
from mpired.queries.statistics import Histogram


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
    """The number of different indices of pairs, and the most frequent ones."""

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
    """The content of a file, in figures."""

    file: str  # its path
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


class Plane(NamedTuple):
    """The numbers of an array of two dimensions, or of some rows and columns of a large one."""

    parts: tuple[np.ndarray, ...]  # the numbers of each component
    steps: tuple[int, int]  # of how many rows and columns one each is there
    axes: tuple[str, str]  # their names
    degrees: tuple[np.ndarray | None, ...]  # the latitudes or longitudes along each of them; None for others
    is_difference: bool  # whether its numbers are differences, drawn with one scale of colours on both sides of 0
