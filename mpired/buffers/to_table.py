"""Results for a person at a terminal: the first and the last elements, one a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from mpired.buffers import textual
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.format import Encoder
from mpired.buffers.model import Model
from mpired.errors import escaped

_FIRST = 10
_LAST = 5


def prepare(_model: Model) -> Encoder:
    """Say how any result becomes a short table."""
    return textual.encoder(_lines)


def _lines(results: Sequence[FlatBuffer]) -> Iterator[str]:
    count = results[0].count
    shown = list(range(count)) if count <= _FIRST + _LAST + 1 else [*range(_FIRST), *range(count - _LAST, count)]
    columns = [["element", *map(str, shown)]]
    for result in results:
        names = map(escaped, textual.column_names(result))
        columns += [[name, *texts] for name, texts in zip(names, _shown(result, shown), strict=True)]
    widths = [max(map(len, column)) for column in columns]
    for line, row in enumerate(zip(*columns, strict=True)):
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        if line == _FIRST and len(shown) < count:
            yield f"{'...'.rjust(widths[0])}  ({count - len(shown)} more)"


def _shown(result: FlatBuffer, shown: list[int]) -> list[list[str]]:
    block = np.empty(len(shown), result.datatype.form)
    there = np.ones(len(shown), np.bool_)
    with closing(result.open()) as reader:
        for i, element in enumerate(shown):
            if (valid := reader.read(element, block[i : i + 1])) is not None:
                there[i] = valid[0]
    parts = textual.components(block, result.datatype)
    return [[str(value) if valid else "null" for value, valid in zip(part, there, strict=True)] for part in parts]
