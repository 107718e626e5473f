"""Draws the plots of docs/performance.md and docs/scaling.md from measured.json: `make bench-plot` and `make docs`.

python docs/plots/draw.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from model import CLUSTER, DIGEST, GB, JOB, MEASURED, NODES, elements, machine, ranks, reading

# The colours of Okabe and Ito, which people see apart who see fewer; and a shape for each.
_MARKS = (
    ("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#D55E00", "v"), ("#000000", "x"),
)  # fmt: skip
_FEW_DECADES = 200
_WIDTH = 6.4  # inches; readable on a telephone, too
_SETTINGS = {"svg.hashsalt": "mpired", "svg.fonttype": "none", "font.size": 11, "font.family": "sans-serif"}


def kernels() -> Figure:
    """Draw how fast blocks in the caches are combined, and how fast they are read."""
    rows = MEASURED["kernels"]
    types = list(dict.fromkeys(row["type"] for row in rows))[::-1]
    figure, axes = _figure(5.4)
    for (colour, mark), op in zip(_MARKS, dict.fromkeys(row["op"] for row in rows), strict=True):
        mine = [row for row in rows if row["op"] == op]
        speeds = [row["rate"] * row["itemsize"] for row in mine]
        axes.plot(speeds, [types.index(row["type"]) for row in mine], mark, color=colour, label=op)
    axes.axvline(MEASURED["memory"]["reading by blocks"], color="#666666", linestyle="--", label="reading")
    axes.set_yticks(range(len(types)), types)
    axes.set_xscale("log")
    _name_axes(axes, "GB/s of one worker", "")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.13), frameon=False)
    return figure


def growth() -> Figure:
    """Draw the time of a sum as its ranks get longer, and as they get more."""
    labels = {"lengths": "16 ranks, longer ones", "ranks": "more ranks of 34 MB"}
    measured = {
        label: {int(nbytes) / GB: taken for nbytes, taken in MEASURED[what].items()} for what, label in labels.items()
    }
    sizes = sorted(int(nbytes) for nbytes in MEASURED["lengths"])
    return _beside_the_model(measured, {nbytes / GB: machine().seconds(16, nbytes) for nbytes in sizes}, "GB in all")


def many() -> Figure:
    """Draw the time of a sum of small ranks."""
    measured = {int(number): taken for number, taken in MEASURED["small"].items()}
    model = {number: machine().seconds(number, number * 4096) for number in measured}
    return _beside_the_model({"measured": measured}, model, "ranks of 4 KiB")


def _beside_the_model(measured: dict[str, dict[float, float]], model: dict[float, float], across: str) -> Figure:
    """Draw measured seconds, by label, and those of the model."""
    figure, axes = _figure(4.2)
    for (colour, mark), (label, points) in zip(_MARKS, measured.items(), strict=False):
        axes.plot(list(points), list(points.values()), mark, color=colour, label=label)
    axes.plot(list(model), list(model.values()), color="#666666", linestyle="--", label="model")
    axes.set_xscale("log")
    axes.set_yscale("log")
    _name_axes(axes, across, "seconds")
    axes.legend(frameon=False)
    return figure


def nodes() -> Figure:
    """Draw what is to be expected of many machines."""
    figure, axes = _figure(4.4)
    ways = (("each worker some elements", elements), ("each machine some ranks", ranks), ("reading alone", reading))
    for (colour, mark), (label, seconds) in zip(_MARKS, ways, strict=False):
        line = ":" if seconds is reading else "-"
        axes.plot(NODES, [seconds(JOB, count) / 60 for count in NODES], mark + line, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _name_axes(axes, f"machines, {CLUSTER.workers} workers each", "minutes")
    axes.legend(frameon=False)
    return figure


PLOTS = {"kernels": kernels, "growth": growth, "many": many, "nodes": nodes}


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure((_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _name_axes(axes: Axes, across: str, upwards: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(upwards)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5) if high < _FEW_DECADES * low else (1,)))
            axis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
            axis.set_minor_formatter(mpl.ticker.NullFormatter())


def main() -> None:
    """Write the files into a folder."""
    (folder,) = map(Path, sys.argv[1:])
    with mpl.rc_context(_SETTINGS):
        for name, draw in PLOTS.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None, "Description": f"measured.json {DIGEST}"})


if __name__ == "__main__":
    main()
