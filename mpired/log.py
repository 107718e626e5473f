"""Messages for the logger `mpired`: notices, and the steps of a call with their times."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Listener = Callable[[Sequence[str], str], None]
"""Takes the paths that a notice is about, and its text."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def notices_to(listener: Listener) -> Iterator[None]:
    """Give the notices in the block to a function, not to the logger."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def notice(paths: Sequence[str], text: str, level: str = "WARNING") -> None:
    """Log a message about files; a recovery is a warning, because to repeat the interrupted call would count twice."""
    if _listeners:
        _listeners[-1](paths, text)
        return
    import logging  # noqa: PLC0415 - few calls have notices

    logging.getLogger("mpired").log(getattr(logging, level), "%s: %s", paths[0], text)


class _Steps(NamedTuple):
    """The plans and the steps of a call, in their order."""

    plans: list[str]
    seconds: dict[str, float]  # of each step, without those of the steps within it
    within: list[float]  # of the steps within those that run


_collected: dict[int, _Steps] = {}  # by thread


@contextlib.contextmanager
def collect_steps(write: Callable[[str], object] | None) -> Iterator[None]:
    """Collect the steps of this thread in the block, and write their lines; a call within another adds to its steps."""
    thread, started = threading.get_ident(), time.monotonic()
    if write is None or thread in _collected:
        yield
        return
    _collected[thread] = steps = _Steps([], {}, [0.0])
    try:
        yield
    finally:
        del _collected[thread]
    if steps.seconds:
        lines = (f"{seconds:.3f} s {name}" for name, seconds in steps.seconds.items())
        for line in (*steps.plans, *lines, f"{time.monotonic() - started:.3f} s in all"):
            write(line)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Measure the time of the block as a step, if steps are collected."""
    steps = _collected.get(threading.get_ident())
    if steps is None:
        yield
        return
    steps.seconds.setdefault(name, 0.0)
    steps.within.append(0.0)
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - started
        steps.seconds[name] += seconds - steps.within.pop()
        steps.within[-1] += seconds


def plan(text: str) -> None:
    """Note how the work is cut."""
    steps = _collected.get(threading.get_ident())
    if steps is not None and text not in steps.plans:
        steps.plans.append(text)


def log_steps() -> contextlib.AbstractContextManager[None]:
    """Log the steps of the block as information of the logger `mpired`, if it is enabled for that."""
    logging = sys.modules.get("logging")  # the caller has set it up, and so has imported it
    logger = logging.getLogger("mpired") if logging else None
    if logger is None or not logger.isEnabledFor(20):  # INFO
        return contextlib.nullcontext()
    return collect_steps(functools.partial(logger.info, "%s"))
