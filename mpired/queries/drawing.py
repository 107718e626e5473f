"""Pictures as PNG, drawn with matplotlib: histograms, and maps of arrays with two dimensions."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from datetime import MAXYEAR, MINYEAR
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from mpired.datatypes import Datatype
from mpired.errors import escaped, shortened
from mpired.queries.elements import are_nan, as_integers
from mpired.queries.figures import ComponentFigures, Figures, Plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

MAX_BUFFERS = 8
"""The maximum number of buffers in a picture."""
_MAX_COMPONENTS = 4
_WIDTH, _HEIGHT = 6.0, 4.2  # inches of a panel
_PAD = 0.12
_DPI = 120
_COLOR = "#0072B2"
_NO_NUMBER_COLOR = "#d9d9d9"
_MAX_TEXT = 70  # characters
_DAY = 86_400_000_000  # microseconds; matplotlib counts days since 1970
_MAX_BOUND, _MIN_RATIO = 1e280, 1e-10  # limits of matplotlib: a bound of a scale, its length relative to the bound
_MAX_ASPECT = 3.0  # of a map with square cells


def png(files: Sequence[str], buffers: Sequence[tuple[Figures, Datatype, Plane | None]]) -> bytes:
    """Return the picture of a file, or of the difference of two files, with a row of panels for each buffer."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        warnings.simplefilter("ignore")  # a name may have letters that the font lacks
        columns = min(_MAX_COMPONENTS, max(len(figures.parts) for figures, _, _ in buffers))
        figure = Figure(
            (_WIDTH * columns, _HEIGHT * len(buffers)), _DPI, layout=ConstrainedLayoutEngine(w_pad=_PAD, h_pad=_PAD)
        )
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(buffers), columns, squeeze=False)
        for panels, (figures, datatype, plane) in zip(grid, buffers, strict=True):
            for number, axes in enumerate(panels):
                if number >= len(figures.parts):
                    axes.set_visible(False)
                    continue
                label = _label(figures, datatype, number)
                if plane is None:
                    _draw_histogram(axes, figures.parts[number], label, figures.nulls)
                else:
                    _draw_map(axes, plane.parts[number], label, plane)
        title, short_title = (" minus ".join(names) for names in (files, map(os.path.basename, files)))
        figure.suptitle(_text(short_title if len(title) > _MAX_TEXT else title), parse_math=False)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _label(figures: Figures, datatype: Datatype, number: int) -> str:
    """Return the label of a component: its name, the datatype and the unit."""
    names, component = figures.name.split(","), figures.parts[number]
    if figures.name and len(names) == len(figures.parts):
        name = names[number]
    else:
        suffix = component.name if len(figures.parts) > 1 else ""
        name = ".".join(filter(None, (figures.name, suffix))) or component.name
    unit = f" [{figures.unit}]" if figures.unit and not number else ""
    return _text(f"{name} ({datatype.numpy_name or datatype}){unit}")


def _text(text: str) -> str:
    return shortened(escaped(text), _MAX_TEXT)


def _draw_histogram(axes: Axes, part: ComponentFigures, label: str, nulls: int) -> None:
    """Draw the histogram of a component."""
    axes.set_xlabel(label, parse_math=False)
    axes.set_ylabel("elements")
    axes.set_title(part.without(nulls), fontsize="small")
    if part.histogram is None:
        _write_text(axes, "no numbers to draw")
        return
    edges, counts = part.histogram
    positions = _axis_positions(edges)
    if positions is None:
        _write_text(axes, f"from {edges[0]} to {edges[-1]}: too close or too large to draw")
        return
    if isinstance(edges[0], np.datetime64):
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    elif not isinstance(edges[0], float):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.bar(positions[:-1], counts, np.diff(positions), align="edge", color=_COLOR, edgecolor="white", linewidth=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def _write_text(axes: Axes, text: str) -> None:
    """Write a text in the place of a drawing."""
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _axis_positions(edges: Sequence[Any]) -> np.ndarray | None:
    """Return the positions of edges on an axis, None if matplotlib cannot draw the axis."""
    array = np.array(edges)
    if array.dtype.kind == "M":
        years = array[[0, -1]].astype("M8[Y]").astype(np.int64) + 1970
        margin = (years[1] - years[0]) // 8 + 1  # of the axis
        if years[0] - margin < MINYEAR or years[1] + margin > MAXYEAR:
            return None
        positions = array.astype("M8[us]").astype(np.int64) / _DAY
    elif isinstance(edges[0], float):
        positions = array
    else:  # the bars are centred on their integers
        integers = array.astype(np.int64) if array.dtype.kind == "m" else array
        positions = integers.astype(np.float64) - 0.5
    return positions if positions[0] < positions[-1] and _has_ticks(positions[0], positions[-1]) else None


def _has_ticks(low: float, high: float) -> bool:
    """Return whether matplotlib can place ticks between two numbers."""
    bound = max(abs(low), abs(high))
    return bool(bound < _MAX_BOUND and (low == high or high - low > max(_MIN_RATIO * bound, 1 / _MAX_BOUND)))


def _draw_map(axes: Axes, numbers: np.ndarray, label: str, plane: Plane) -> None:
    """Draw a map of a component, with the first axis downwards, or latitudes upwards, and the second to the right."""
    drawable = np.ma.masked_invalid(as_integers(numbers).astype(np.float64))
    if (nans := are_nan(numbers)) is not None:
        drawable[nans] = np.ma.masked
    low, high = (drawable.min(), drawable.max()) if drawable.count() else (0.0, 0.0)
    if plane.is_difference:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    if not _has_ticks(low, high):
        _write_text(axes, f"from {low} to {high}: too close or too large to draw")
        return
    colors = mpl.colormaps["RdBu_r" if plane.is_difference else "viridis"].with_extremes(bad=_NO_NUMBER_COLOR)
    scale: dict[str, Any] = {"cmap": colors, "vmin": low, "vmax": high} if plane.is_difference else {"cmap": colors}
    latitudes, longitudes = plane.degrees
    is_mesh = False
    if latitudes is not None and longitudes is not None and latitudes.ndim > 1:
        is_mesh, east = True, np.unwrap(np.unwrap(longitudes, period=360, axis=1), period=360, axis=0)
        image: ScalarMappable = axes.pcolormesh(east, latitudes, drawable, shading="nearest", rasterized=True, **scale)
        spans = [float(np.ptp(degrees)) for degrees in (latitudes, east)]
    else:
        spans = rows, columns = [count * step for count, step in zip(numbers.shape, plane.steps, strict=True)]
        image = axes.imshow(drawable, interpolation="nearest", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5), **scale)
    axes.set_aspect("auto" if max(spans) > _MAX_ASPECT * min(spans) else "equal")
    axis_rows = zip((axes.yaxis, axes.xaxis), plane.axes, plane.steps, plane.degrees, strict=True)
    for axis, name, step, degrees in axis_rows:
        axis.set_label_text(_text(f"{name} (one of {step} shown)" if step > 1 else name), parse_math=False)
        if not is_mesh:
            axis.set_major_locator(MaxNLocator(integer=True))
        if degrees is not None and not is_mesh:
            axis.set_major_formatter(partial(_tick_label, degrees))
    if latitudes is not None and not is_mesh and latitudes[0] < latitudes[-1]:
        axes.invert_yaxis()
    bar = axes.get_figure().colorbar(image, ax=axes)  # type: ignore[union-attr]
    bar.set_label(label, parse_math=False)
    if missing := drawable.size - int(drawable.count()):
        axes.set_title(f"grey: {missing} no finite numbers", fontsize="small")


def _tick_label(coordinates: np.ndarray, index: float, _position: int | None) -> str:
    """Return the coordinate at an index of an axis."""
    return f"{coordinates[int(index)]:g}" if 0 <= index < len(coordinates) else ""
