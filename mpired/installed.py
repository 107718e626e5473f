"""What installed packages add to mpired: their entry points, by group.

No package's code runs to find them, and a package whose metadata cannot be read is as good as not
installed: it must not spoil the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any


def entry_points(group: str) -> dict[str, list[Any]]:
    """Return the entry points of a group by name, without loading any."""
    from importlib import metadata  # noqa: PLC0415 - slow, and seldom needed

    found: dict[str, list[Any]] = {}
    seen = set()
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):  # whatever is wrong with the metadata of somebody's package
            points = list(_points(distribution, group))
            # Python imports the first of two that are installed under one name.
            if points and distribution.name not in seen:
                seen.add(distribution.name)
                for point in points:
                    found.setdefault(point.name, []).append(point)
    return found


def _points(distribution: Any, group: str) -> Iterator[Any]:
    if group in (distribution.read_text("entry_points.txt") or ""):
        yield from distribution.entry_points.select(group=group)


def homes(points: Sequence[Any]) -> str:
    """Return the places that entry points name, each with its package."""
    return ", ".join(sorted(f"{point.value} of {point.dist.name}" for point in points))
