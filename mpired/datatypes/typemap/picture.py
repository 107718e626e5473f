"""Pictures of elements: a character for each byte, or for several."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpired.datatypes.typemap.pieces import pieces
from mpired.datatypes.typemap.typemap import TypeMap

_COLUMNS = 64
_MAX_ENTRIES = 8 * _COLUMNS  # that are drawn with their numbers
_MAX_PIECES = 1 << 17
_GLYPHS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NONE, _SOME, _ALL = ".+#"


class Picture(NamedTuple):
    """A picture of the bytes from `start` to `stop`, with a character for each `nbytes` of them."""

    text: str
    start: int
    stop: int
    nbytes: int


def draw(typemap: TypeMap) -> Picture | None:
    """Draw an element, its bounds as bars; None if it has no bytes, or too many pieces to look at."""
    # Where a character is a byte, it is the number of the entry that the byte belongs to, or `.`. Where it is several,
    # or the entries are many, `#` says that all of the bytes belong to entries, `+` some, `.` none.
    start = min(typemap.lb, typemap.ub, typemap.true_lb)
    stop = max(typemap.lb, typemap.ub, typemap.true_ub)
    width = -(-(stop - start) // _COLUMNS)
    if not width:
        return None
    if width == 1 and typemap.entries <= _MAX_ENTRIES:
        cells = [_NONE] * (stop - start)
        for number, entry in enumerate(typemap.walk()):
            at = entry.disp - start
            cells[at : at + entry.form.itemsize] = _GLYPHS[number % len(_GLYPHS)] * entry.form.itemsize
    else:
        found = pieces(typemap, _MAX_PIECES)
        if found is None:
            return None
        cells = _shares(*_merged(found), start, stop, width)
    text = "".join(cells)
    for bound in sorted({typemap.lb, typemap.ub}, reverse=True):
        at = -(-(bound - start) // width)
        text = f"{text[:at]}|{text[at:]}"
    return Picture(text, start, stop, width)


def _shares(starts: np.ndarray, ends: np.ndarray, start: int, stop: int, width: int) -> list[str]:
    """Return for each `width` bytes whether all, some or none of them are in pieces."""
    cells = []
    for low in range(start, stop, width):
        high = min(low + width, stop)
        first = int(np.searchsorted(ends, low, side="right"))  # the first piece that ends in the cell or after
        if first == len(starts) or starts[first] >= high:
            cells.append(_NONE)
        else:
            cells.append(_ALL if starts[first] <= low and ends[first] >= high else _SOME)
    return cells


def _merged(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of pieces in ascending order, those that touch or overlap as one."""
    if not len(found):
        return found[:, 0], found[:, 1]
    found = found[np.argsort(found[:, 0], kind="stable")]
    reached = np.maximum.accumulate(found[:, 1])
    apart = np.flatnonzero(found[1:, 0] > reached[:-1])
    return found[np.r_[0, apart + 1], 0], reached[np.r_[apart, len(found) - 1]]
