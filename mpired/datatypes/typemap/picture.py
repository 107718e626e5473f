"""Pictures of elements in text, with a character for one or more bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpired.datatypes.typemap.pieces import pieces
from mpired.datatypes.typemap.typemap import TypeMap

_COLUMNS = 64
_MAX_ENTRIES = 8 * _COLUMNS  # drawn with their numbers
_MAX_PIECES = 1 << 17
_GLYPHS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NONE, _SOME, _ALL = ".+#"


class Picture(NamedTuple):
    """A picture of the bytes from `start` to `stop`, with a character for `nbytes` bytes."""

    text: str
    start: int
    stop: int
    nbytes: int


def draw(typemap: TypeMap) -> Picture | None:
    """Draw an element with bars for its bounds; return None if it has no bytes, or too many pieces."""
    # If a character is a byte, it is the number of the entry with this byte, or `.` for a gap. If a character is
    # several bytes, or there are many entries, `#` means that all bytes are in entries, `+` some, `.` none.
    start = min(typemap.lb, typemap.ub, typemap.true_lb)
    stop = max(typemap.lb, typemap.ub, typemap.true_ub)
    width = -(-(stop - start) // _COLUMNS)
    if not width:
        return None
    if width == 1 and typemap.entries <= _MAX_ENTRIES:
        cells = [_NONE] * (stop - start)
        for number, entry in enumerate(typemap.walk()):
            index = entry.disp - start
            cells[index : index + entry.form.itemsize] = _GLYPHS[number % len(_GLYPHS)] * entry.form.itemsize
    else:
        ranges = pieces(typemap, _MAX_PIECES)
        if ranges is None:
            return None
        cells = _cells(*_merge(ranges), range(start, stop, width))
    text = "".join(cells)
    for bound in sorted({typemap.lb, typemap.ub}, reverse=True):
        index = -(-(bound - start) // width)
        text = f"{text[:index]}|{text[index:]}"
    return Picture(text, start, stop, width)


def _cells(starts: np.ndarray, ends: np.ndarray, lows: range) -> list[str]:
    """Return the characters of the cells that begin at `lows`: whether all, some or no bytes are in a piece."""
    cells = []
    for low in lows:
        high = min(low + lows.step, lows.stop)
        first = int(np.searchsorted(ends, low, side="right"))  # the first piece that ends in the cell or after it
        if first == len(starts) or starts[first] >= high:
            cells.append(_NONE)
        else:
            cells.append(_ALL if starts[first] <= low and ends[first] >= high else _SOME)
    return cells


def _merge(ranges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of byte ranges in ascending order; ranges that touch or overlap are merged."""
    if not len(ranges):
        return ranges[:, 0], ranges[:, 1]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    last = np.flatnonzero(ranges[1:, 0] > ends[:-1])  # the ranges before a gap
    return ranges[np.r_[0, last + 1], 0], ends[np.r_[last, len(ranges) - 1]]
