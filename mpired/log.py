"""Reports of a call that runs: notices, the steps with their times, and the progress."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from mpired import interrupts
from mpired.errors import UsageError

Listener = Callable[[Sequence[str], str], None]
"""Takes the paths that a notice is about, and its text."""
Progress: TypeAlias = Callable[[Iterable[int], int], Iterable[int]]
"""Watches the bytes as they are done, out of a total."""
PERIOD = 0.1
"""Seconds between two times that a worker tells how far it is: each wakes the process that shows it."""
_STEP_BYTES = 1_000_000
_T = TypeVar("_T")

_listeners: list[Listener] = []


@contextlib.contextmanager
def notices_to(listener: Listener) -> Iterator[None]:
    """Give the notices in the block to a function, not to the logger `mpired`."""
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


def track(things: Iterable[_T], _total: int = 0) -> Iterator[_T]:
    """Iterate over things, and show nothing; ctrl-C can end the work between them."""
    for thing in things:
        interrupts.rest()
        yield thing


no_progress: Progress = track


def shown_by(show: Callable[[range], Iterable[object]]) -> Progress:
    """Return the progress that a caller in Python shows: of a range with an item for each megabyte, as tqdm takes."""
    if not callable(show):
        raise UsageError(
            "`progress`", f"{show!r} is not a function such as tqdm.tqdm, which takes a range and yields its items"
        )

    def watch(done: Iterable[int], total: int) -> Generator[int, None, None]:
        count = max(1, -(-total // _STEP_BYTES))
        given: object = show(range(count))
        if not isinstance(given, Iterable):
            reason = f"returned {type(given).__name__}; it takes a range and yields its items, as tqdm does"
            raise UsageError("`progress`", reason)
        shown = iter(given)
        try:
            next(shown, None)
            read = steps = 0
            for nbytes in track(done):
                read += nbytes
                while steps < min(count - 1, read // _STEP_BYTES):
                    next(shown, None)
                    steps += 1
                yield nbytes
            for _ in zip(range(count - steps), shown, strict=False):  # to its end, so that a bar shows that all is done
                pass
        finally:
            getattr(shown, "close", int)()  # of a generator, when the work fails

    return watch
