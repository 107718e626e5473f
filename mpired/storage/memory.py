"""How much memory a command may hold: as much as it takes, or less if the user says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from mpired.errors import UsageError

BASE_NBYTES = 60 << 20
"""What a process needs before its blocks: Python and NumPy."""
STREAMED_BASE_NBYTES = 180 << 20
"""The same with pyarrow, for formats with columns; for all processes if the one that reads is a worker."""
STREAMED_LEAST_NBYTES = 100 << 20
"""Of that, what is needed before anything is decoded."""
_most: ContextVar[int | None] = ContextVar("_most", default=None)


@contextlib.contextmanager
def limited(most: int | None) -> Iterator[None]:
    """Let all processes of a call hold so many bytes together while the block runs; None for no limit."""
    token = _most.set(most)
    try:
        yield
    finally:
        _most.reset(token)


def check(needed: int, most: int | None = None) -> None:
    """Raise `UsageError` if a limit, the user's or the one that is given, is less than is needed."""
    most = _most.get() if most is None else most
    if most is not None and most < needed:
        raise UsageError("`max_memory`", f"{most} bytes is too little, one process needs {-(-needed >> 20)}M")


def spare(needed: int) -> int | None:
    """Return how many bytes are left beside what is needed; None if there is no limit."""
    most = _most.get()
    return None if most is None else max(0, most - needed)
