"""The steps of a call and how long each took: what `--verbose` says, and in Python the logger `mpired`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar


class Steps:
    """Notes the plans and the steps of a call in their order. A step within another one counts by itself alone."""

    def __init__(self) -> None:
        self.plans: list[str] = []
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()
        self._within = [0.0]

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a step."""
        self.seconds.setdefault(name, 0.0)
        self._within.append(0.0)
        started = time.monotonic()
        try:
            yield
        finally:
            passed = time.monotonic() - started
            self.seconds[name] += passed - self._within.pop()
            self._within[-1] += passed

    def lines(self) -> Iterator[str]:
        """Yield what there is to say."""
        yield from self.plans
        for name, seconds in self.seconds.items():
            yield f"{seconds:.3f} s {name}"
        yield f"{time.monotonic() - self._started:.3f} s in all"


_noting: ContextVar[Steps | None] = ContextVar("_noting", default=None)


@contextlib.contextmanager
def noted() -> Iterator[Steps]:
    """Note the steps while the block runs."""
    steps = Steps()
    token = _noting.set(steps)
    try:
        yield steps
    finally:
        _noting.reset(token)


def step(name: str) -> contextlib.AbstractContextManager[None]:
    """Let the block count as a step, if steps are noted."""
    steps = _noting.get()
    return contextlib.nullcontext() if steps is None else steps.timed(name)


def planned(text: str) -> None:
    """Note how the work is cut, if that is noted."""
    steps = _noting.get()
    if steps is not None and text not in steps.plans:
        steps.plans.append(text)


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """Log the steps of the block as information, if the logger `mpired` hears it."""
    logging = sys.modules.get("logging")  # who has set it up has imported it
    logger = logging.getLogger("mpired") if logging else None
    if logger is None or not logger.isEnabledFor(logging.INFO):  # type: ignore[union-attr]
        yield
        return
    with noted() as steps:
        yield
    for line in steps.lines() if steps.seconds else ():
        logger.info("%s", line)
