"""Values and their places as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def place_text(column: str, index: Sequence[int], field: str = "") -> str:
    """Return the place of an element, or of a field of it: `[3, 0]`, `energy[4]` or `[3].value`."""
    return f"{column}[{', '.join(map(str, index))}]{f'.{field}' if field else ''}"


def in_json(value: Any, *, short: bool = False) -> Any:
    """Return a value as JSON can hold it: numbers without a form in JSON as strings, such as "nan", and so times."""
    # With `short` floats have the digits that tell them from others of their own precision.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: in_json(each, short=short) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(each, short=short) for each in value]
    if short and isinstance(value, np.floating) and math.isfinite(float(value)):
        value = float(str(value))
    if value is None or isinstance(value, str | np.datetime64 | np.timedelta64):
        return None if value is None else str(value)
    number = value.item() if isinstance(value, np.generic) and not isinstance(value, np.longdouble) else value
    is_number = isinstance(number, int) or (isinstance(number, float) and math.isfinite(number))
    return number if is_number else str(value)
