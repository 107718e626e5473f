"""Installed user-defined ops: the entry points of the group `mpired.ops`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from mpired import installed
from mpired.errors import UserOpError

entry_points = functools.partial(installed.entry_points, "mpired.ops")


def load(name: str) -> Any:
    """Import what the entry point of that name means; for workers only."""
    points = entry_points().get(name, [])
    if len(points) != 1:
        raise UserOpError(name, ambiguity(points) if points else "is not an entry point")
    return points[0].load()


def ambiguity(points: Sequence[Any]) -> str:
    """Return the reason why several entry points of one name cannot be used."""
    homes = installed.homes(points)
    return f"is the name of {len(points)} entry points ({homes}); write the place of one instead"
