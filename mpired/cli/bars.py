"""Histograms as lines of text, by rich."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mpired.queries.figures import Histogram

_DIGITS = range(3, 18)
_LEAST_BAR = 8
_COLOR = "cyan"


@dataclass
class _Marks:
    """A bar of plain ASCII."""

    share: float

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("#" * round(options.max_width * self.share), style=_COLOR, no_wrap=True)


def lines(histogram: Histogram, width: int, *, ascii_only: bool, color: bool) -> list[str]:
    """Return a histogram as lines of at most `width` columns: the bounds of each bin, its count, and a bar."""
    labels = _labels(histogram.edges)
    columns = [["from", *labels[:-1]], ["to", *labels[1:]], ["elements", *map(str, histogram.counts)]]
    if sum(max(map(len, column)) + 1 for column in columns) + _LEAST_BAR > width:
        del columns[1]
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for _ in columns:
        table.add_column(justify="right", no_wrap=True, overflow="crop")
    table.add_column(ratio=1, no_wrap=True)
    most = max(histogram.counts) or 1
    bars = [_Marks(count / most) if ascii_only else Bar(most, 0, count, color=_COLOR) for count in histogram.counts]
    for cells in zip(*columns, ["", *bars], strict=True):
        table.add_row(*cells)
    file = io.StringIO()
    Console(
        file=file, width=width, force_terminal=color, color_system="standard" if color else None, legacy_windows=False
    ).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _labels(edges: Sequence[Any]) -> list[str]:
    """Return edges with as few digits as tell them apart."""
    is_float = isinstance(edges[0], float)
    for digits in _DIGITS if is_float else ():
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(texts):
            return texts
    return list(map(repr if is_float else str, edges))
