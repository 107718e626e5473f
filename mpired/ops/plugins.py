"""Installed user-defined ops: the entry points of the group `mpired.ops`.

No package's code runs to find them, and a package whose metadata cannot be read is as good as not
installed: it must not spoil the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from mpired.errors import UserOpError

GROUP = "mpired.ops"


def entry_points() -> dict[str, list[Any]]:
    """Return the entry points of the group by name, without loading any."""
    from importlib import metadata  # noqa: PLC0415 - slow, and seldom needed

    found: dict[str, list[Any]] = {}
    seen = set()
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):  # whatever is wrong with the metadata of somebody's package
            points = list(_points(distribution))
            # Python imports the first of two that are installed under one name.
            if points and distribution.name not in seen:
                seen.add(distribution.name)
                for point in points:
                    found.setdefault(point.name, []).append(point)
    return found


def _points(distribution: Any) -> Iterator[Any]:
    if GROUP in (distribution.read_text("entry_points.txt") or ""):
        yield from distribution.entry_points.select(group=GROUP)


def load(name: str) -> Any:
    """Import what the entry point of that name means; for workers only.

    Raises
    ------
    UserOpError
        If there is none, or there are several.
    """
    points = entry_points().get(name, [])
    if len(points) != 1:
        raise UserOpError(name, ambiguity(points) if points else "is no entry point")
    return points[0].load()


def ambiguity(points: Sequence[Any]) -> str:
    """Return the reason why several entry points of one name cannot be used."""
    homes = ", ".join(sorted(f"{point.value} of {point.dist.name}" for point in points))
    return f"is the name of {len(points)} entry points ({homes}); write the place of one instead"
