"""Whether this process only looks, as for a dry run: what an interrupted command has left stays as it is then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_only: ContextVar[bool] = ContextVar("_only", default=False)


@contextlib.contextmanager
def only() -> Iterator[None]:
    """Let nothing be finished or removed while the block runs; it is told instead."""
    token = _only.set(True)
    try:
        yield
    finally:
        _only.reset(token)


def is_all() -> bool:
    """Tell whether nothing may be finished now."""
    return _only.get()
