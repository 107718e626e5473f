"""What calls warn of, and who hears it: Python's `warnings`, unless somebody listens."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Listener = Callable[[Warning], None]


def warn(caution: Warning) -> None:
    """Warn the caller of this package by `warnings`; a filter may make an error of it, which ends the call."""
    names = [str(each.frame.f_globals.get("__name__")) for each in inspect.stack(0)]
    level = max(level for level, name in enumerate(names) if name.startswith("mpired."))
    warnings.warn(caution, stacklevel=level + 2)


_listener: ContextVar[Listener] = ContextVar("_listener", default=warn)


def tell(caution: Warning) -> None:
    """Warn of something, before anything has changed."""
    _listener.get()(caution)


@contextlib.contextmanager
def heard(also: Listener | None = None) -> Iterator[list[Warning]]:
    """Collect what is warned of while the block runs, of which nobody else hears but `also`."""
    found: list[Warning] = []

    def listen(caution: Warning) -> None:
        found.append(caution)
        if also is not None:
            also(caution)

    token = _listener.set(listen)
    try:
        yield found
    finally:
        _listener.reset(token)
