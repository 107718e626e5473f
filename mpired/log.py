"""Messages of the logger `mpired`: notices, and the steps of a call with their times."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

Listener = Callable[[Sequence[str], str], None]
"""Takes the paths that a notice is about, and its text."""

_listeners: list[Listener] = []
_STEPS = "mpired.steps"


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
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


class Steps:
    """The plans and the steps of a call in their order. A step excludes the time of the steps within it."""

    def __init__(self) -> None:
        self._plans: list[str] = []
        self._seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._started = time.monotonic()
        self._within = [0.0]

    def take(self, record: logging.LogRecord) -> bool:
        """Note a plan, or the begin or the end of a step, and let no other handler have it."""
        if record.thread != self._thread:
            return True
        name, event, seconds = record.getMessage(), record.__dict__["event"], record.__dict__["seconds"]
        if event == "plan" and name not in self._plans:
            self._plans.append(name)
        elif event == "begin":
            self._seconds.setdefault(name, 0.0)
            self._within.append(0.0)
        elif event == "end":
            self._seconds[name] += seconds - self._within.pop()
            self._within[-1] += seconds
        return False

    def lines(self) -> Iterator[str]:
        """Yield the lines of `--verbose`."""
        yield from self._plans
        for name, seconds in self._seconds.items():
            yield f"{seconds:.3f} s {name}"
        yield f"{time.monotonic() - self._started:.3f} s in all"

    @property
    def is_empty(self) -> bool:
        """Whether there was no step."""
        return not self._seconds


@contextlib.contextmanager
def collect_steps() -> Iterator[Steps]:
    """Collect the steps of this thread while the block runs."""
    import logging  # noqa: PLC0415 - few calls collect them

    logger, steps = logging.getLogger(_STEPS), Steps()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addFilter(steps.take)
    try:
        yield steps
    finally:
        logger.removeFilter(steps.take)


def _log_step(name: str, event: str, seconds: float = 0.0) -> bool:
    """Log an event of a step, if `logging` is loaded and steps are collected."""
    logging = sys.modules.get("logging")
    logger = logging.getLogger(_STEPS) if logging else None
    if logger is None or not logger.filters:
        return False
    logger.info("%s", name, extra={"event": event, "seconds": seconds})
    return True


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Log the time of the block as a step."""
    if not _log_step(name, "begin"):
        yield
        return
    started = time.monotonic()
    try:
        yield
    finally:
        _log_step(name, "end", time.monotonic() - started)


def plan(text: str) -> None:
    """Log how the work is cut."""
    _log_step(text, "plan")


@contextlib.contextmanager
def log_steps() -> Iterator[None]:
    """Log the steps of the block as information of the logger `mpired`, if it is enabled for that."""
    logging = sys.modules.get("logging")  # the caller has set it up, and so has imported it
    logger = logging.getLogger("mpired") if logging else None
    if logger is None or not logger.isEnabledFor(20):  # INFO
        yield
        return
    with collect_steps() as steps:
        yield
    for line in () if steps.is_empty else steps.lines():
        logger.info("%s", line)
