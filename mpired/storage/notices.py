"""Tells of updates that an interrupted command had committed and another one has finished.

By default they go to the logger `mpired`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

Listener = Callable[[Sequence[str], str], None]
"""Takes the paths of the files that were finished, and the words that say what was done."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let a listener, and no other one, hear what is finished while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(paths: Sequence[str], words: str) -> None:
    """Say what was finished."""
    listener = _listeners[-1] if _listeners else _log
    listener(paths, words)


def _log(paths: Sequence[str], words: str) -> None:
    """Log it, as a warning: a program that repeats the call which was interrupted would count twice."""
    import logging  # noqa: PLC0415 - only after an interruption

    logging.getLogger("mpired").warning("%s: %s", paths[0], words)
