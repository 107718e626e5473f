"""How many files a process may have open: as many as the system lets it, or fewer if the user says so."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from contextvars import ContextVar

from mpired.errors import UsageError

RESERVED = 24
"""What a process needs for itself: the streams, the output, the pool's pipes, libraries."""
_most: ContextVar[int | None] = ContextVar("_most", default=None)


@contextlib.contextmanager
def limited(most: int | None) -> Iterator[None]:
    """Let this process and its workers each have so many files open while the block runs; None for no limit.

    Raises
    ------
    UsageError
        If that is less than a process needs.
    """
    check(RESERVED + 1, most)
    token = _most.set(most)
    try:
        yield
    finally:
        _most.reset(token)


def check(needed: int, most: int | None = None) -> None:
    """Raise `UsageError` if the limit that the user has set is too small."""
    most = _most.get() if most is None else most
    if most is not None and most < needed:
        raise UsageError("`max_open_files`", f"{most} is too few, a process needs {needed}")


def spare(wanted: int) -> int:
    """Return how many of so many files a process may keep open beside what it needs for itself."""
    most = _most.get()
    return wanted if most is None else min(wanted, most - RESERVED)


def is_limited() -> bool:
    """Tell whether the user has set a limit."""
    return _most.get() is not None


def of_user(allowed: int) -> int:
    """Return how many of those that the system allows the user allows; `resource.RLIM_INFINITY` is any number."""
    most = _most.get()
    if most is None:
        return allowed
    return most if allowed == resource.RLIM_INFINITY else min(most, allowed)
