"""Progress reports."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeAlias, TypeVar

from mpired import interrupts
from mpired.errors import UsageError

Progress: TypeAlias = Callable[[Iterable[int], int], Iterable[int]]
"""Watches the bytes as they are done, out of a total."""


PERIOD = 0.1
"""Seconds between two times that a worker tells how far it is: each wakes the process that shows it."""


_T = TypeVar("_T")


def track(things: Iterable[_T], _total: int = 0) -> Iterator[_T]:
    """Iterate over things, and show nothing; ctrl-C can end the work between them."""
    for thing in things:
        interrupts.rest()
        yield thing


no_progress: Progress = track
Steps: TypeAlias = Callable[[range], Iterable[object]]
"""Takes a range, and gives one thing after another of it, as a bar of tqdm does."""
_STEP_BYTES = 1_000_000


def shown_by(show: Steps) -> Progress:
    """Return what lets a caller in Python show how far the work is: he gets a range with an item for each megabyte."""
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
