"""Messages for the logger `mpired`: notices, and the steps of a call with their times."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

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


class StepTimes:
    """The plans and the steps of a call in their order. A step excludes the time of the steps within it."""

    def __init__(self) -> None:
        self.plans: list[str] = []
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()
        self._within = [0.0]

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to a step."""
        self.seconds.setdefault(name, 0.0)
        self._within.append(0.0)
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self.seconds[name] += seconds - self._within.pop()
            self._within[-1] += seconds

    def lines(self) -> Iterator[str]:
        """Yield the lines of `--verbose`."""
        yield from self.plans
        for name, seconds in self.seconds.items():
            yield f"{seconds:.3f} s {name}"
        yield f"{time.monotonic() - self._started:.3f} s in all"


_collected: dict[int, StepTimes] = {}  # by thread


@contextlib.contextmanager
def collect_steps(write: Callable[[str], object] | None) -> Iterator[None]:
    """Collect the steps of this thread in the block, and write their lines; a call within another adds to its steps."""
    thread = threading.get_ident()
    if write is None or thread in _collected:
        yield
        return
    _collected[thread] = steps = StepTimes()
    try:
        yield
    finally:
        del _collected[thread]
    for line in steps.lines() if steps.seconds else ():
        write(line)


def step(name: str) -> contextlib.AbstractContextManager[None]:
    """Measure the time of the block as a step, if steps are collected."""
    steps = _collected.get(threading.get_ident())
    return contextlib.nullcontext() if steps is None else steps.measure(name)


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
