"""How values and their places are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def place_text(column: str, index: Sequence[int], field: str = "") -> str:
    """Return the place of an element, or of a field of it, as `[3, 0]`, `energy[4]` or `[3].value`."""
    return f"{column}[{', '.join(map(str, index))}]{f'.{field}' if field else ''}"


def in_json(value: Any) -> Any:
    """Return a number as JSON can hold it; one that it has no form for as text, as "nan", and so times."""
    if value is None or isinstance(value, str | tuple | bool):
        return value
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    number = value.item() if isinstance(value, np.generic) and not isinstance(value, np.longdouble) else value
    if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)):
        return number
    return str(value)
