"""Pictures of a file as PNG, by matplotlib: histograms, and maps of arrays of two dimensions."""

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
from mpired.queries.figures import Figures, Part, Plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

MOST_BUFFERS = 8
"""The most columns of a picture."""
_MOST_PARTS = 4
_WIDTH, _HEIGHT = 6.0, 4.2  # inches of a panel
_PAD = 0.12
_DPI = 120
_COLOR = "#0072B2"
_NO_NUMBER = "#d9d9d9"
_LONGEST = 70
_DAY = 86_400_000_000  # microseconds; matplotlib counts days since 1970
_HUGE, _CLOSE = 1e280, 1e-10  # bounds of the scales that matplotlib can have
_EQUAL = 3.0  # the most that a map is longer in one direction and still has square elements


def png(files: Sequence[str], buffers: Sequence[tuple[Figures, Datatype, Plane | None]]) -> bytes:
    """Return the picture of a file, or of one minus another one, a row of panels for each buffer."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        warnings.simplefilter("ignore")  # a name may have letters that the font lacks
        columns = min(_MOST_PARTS, max(len(figures.parts) for figures, _, _ in buffers))
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
        title, short = (" minus ".join(each) for each in (files, map(os.path.basename, files)))
        figure.suptitle(_text(short if len(title) > _LONGEST else title), parse_math=False)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _label(figures: Figures, datatype: Datatype, number: int) -> str:
    """Return the label of the numbers of a part: its name, the datatype and the unit."""
    names, part = figures.name.split(","), figures.parts[number]
    if figures.name and len(names) == len(figures.parts):
        name = names[number]
    else:
        component = part.name if len(figures.parts) > 1 else ""
        name = ".".join(filter(None, (figures.name, component))) or part.name
    unit = f" [{figures.unit}]" if figures.unit and not number else ""
    return _text(f"{name} ({datatype.numpy_name or datatype}){unit}")


def _text(text: str) -> str:
    return shortened(escaped(text), _LONGEST)


def _draw_histogram(axes: Axes, part: Part, label: str, nulls: int) -> None:
    axes.set_xlabel(label, parse_math=False)
    axes.set_ylabel("elements")
    axes.set_title(part.without(nulls), fontsize="small")
    if part.histogram is None:
        _write_instead(axes, "no numbers to draw")
        return
    edges, counts = part.histogram
    places = _on_axis(edges)
    if places is None:
        _write_instead(axes, f"from {edges[0]} to {edges[-1]}: too close or too large to draw")
        return
    if isinstance(edges[0], np.datetime64):
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    elif not isinstance(edges[0], float):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.bar(places[:-1], counts, np.diff(places), align="edge", color=_COLOR, edgecolor="white", linewidth=0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def _write_instead(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True, transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def _on_axis(edges: Sequence[Any]) -> np.ndarray | None:
    """Return where edges are on an axis; None if matplotlib has no axis for them."""
    array = np.array(edges)
    if array.dtype.kind == "M":
        years = array[[0, -1]].astype("M8[Y]").astype(np.int64) + 1970
        margin = (years[1] - years[0]) // 8 + 1  # of the axis
        if years[0] - margin < MINYEAR or years[1] + margin > MAXYEAR:
            return None
        places = array.astype("M8[us]").astype(np.int64) / _DAY
    elif isinstance(edges[0], float):
        places = array
    else:  # a bin of whole numbers is around them
        whole = array.astype(np.int64) if array.dtype.kind == "m" else array
        places = whole.astype(np.float64) - 0.5
    return places if places[0] < places[-1] and _is_scale(places[0], places[-1]) else None


def _is_scale(low: float, high: float) -> bool:
    """Return whether matplotlib finds ticks between two numbers: neither huge nor too close, nor tiny."""
    size = max(abs(low), abs(high))
    return bool(size < _HUGE and (low == high or high - low > max(_CLOSE * size, 1 / _HUGE)))


def _draw_map(axes: Axes, numbers: np.ndarray, label: str, plane: Plane) -> None:
    """Draw numbers where they are: the first axis downwards, but latitudes to the north, the second to the right."""
    drawable = np.ma.masked_invalid(as_integers(numbers).astype(np.float64))
    if (nans := are_nan(numbers)) is not None:
        drawable[nans] = np.ma.masked
    low, high = (drawable.min(), drawable.max()) if drawable.count() else (0.0, 0.0)
    if plane.is_difference:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    if not _is_scale(low, high):
        _write_instead(axes, f"from {low} to {high}: too close or too large to draw")
        return
    rows, columns = (count * step for count, step in zip(numbers.shape, plane.steps, strict=True))
    colors = mpl.colormaps["RdBu_r" if plane.is_difference else "viridis"].with_extremes(bad=_NO_NUMBER)
    scale: dict[str, Any] = {"cmap": colors, "vmin": low, "vmax": high} if plane.is_difference else {"cmap": colors}
    lats, lons = plane.degrees
    is_mesh = False
    if lats is not None and lons is not None and lats.ndim > 1:
        is_mesh, east = True, np.unwrap(np.unwrap(lons, period=360, axis=1), period=360, axis=0)  # around the earth
        image: ScalarMappable = axes.pcolormesh(east, lats, drawable, shading="nearest", rasterized=True, **scale)
        spans = [float(np.ptp(each)) for each in (lats, east)]
    else:
        spans = rows, columns = [count * step for count, step in zip(numbers.shape, plane.steps, strict=True)]
        image = axes.imshow(drawable, interpolation="nearest", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5), **scale)
    axes.set_aspect("auto" if max(spans) > _EQUAL * min(spans) else "equal")
    each = zip((axes.yaxis, axes.xaxis), plane.axes, plane.steps, plane.degrees, strict=True)
    for axis, name, step, degrees in each:
        axis.set_label_text(_text(f"{name} (one of {step} shown)" if step > 1 else name), parse_math=False)
        if not is_mesh:
            axis.set_major_locator(MaxNLocator(integer=True))
        if degrees is not None and not is_mesh:
            axis.set_major_formatter(partial(_tick, degrees))
    if lats is not None and not is_mesh and lats[0] < lats[-1]:
        axes.invert_yaxis()
    bar = axes.get_figure().colorbar(image, ax=axes)  # type: ignore[union-attr]
    bar.set_label(label, parse_math=False)
    if missing := drawable.size - int(drawable.count()):
        axes.set_title(f"grey: {missing} no finite numbers", fontsize="small")


def _tick(values: np.ndarray, at: float, _position: int | None) -> str:
    """Return the value at a place on an axis."""
    return f"{values[int(at)]:g}" if 0 <= at < len(values) else ""
