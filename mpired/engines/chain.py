"""Stages: each worker of a line does its items with what the worker before hands on, and hands on what comes of them.

No two stages wait for each other: one waits for the stage before or the one after it, the last one for rank 0, which
takes all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpired.engines import messages
from mpired.engines.table import IN_FLIGHT, Lines

WAITING = "waiting"
"""What a stage says to rank 0 again and again while it waits, so that another one is taken for the one that stands."""
_VALUE, _END = "value", "end"
_PERIOD = 0.5  # seconds between two times that it is said


class Task(NamedTuple):
    """What a stage does: its items, and the processes of the stages before and after it; None for none."""

    items: tuple[Any, ...]
    before: int | None
    after: int | None


class Stopped(BaseException):
    """Rank 0 does not want what this process does."""


class Stops:
    """What rank 0 says of runs that are to end, of which `number` is the one under way."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.number = 0
        self.heard = 0

    def asked(self) -> bool:
        """Tell whether the run that is under way is to end."""
        while self._world.iprobe(0, messages.STOP):
            self.heard += 1
            if self._world.recv(None, 0, messages.STOP) == self.number:  # not one of a run before
                return True
        return False


class Neighbours:
    """The stages before and after this one: a `Link`."""

    def __init__(self, world: Any, task: Task, stops: Stops) -> None:
        self._world, self._stops = world, stops
        self._before, self._after = task.before, task.after
        self._has_ended = task.before is None
        self._posted: deque[list[Any]] = deque()

    def taken(self) -> Any:
        """Wait for the next value of the stage before, and return it."""
        self._wait(lambda: self._world.iprobe(self._before, messages.HEAD))
        kind, value = messages.received(self._world, self._before or 0)
        if kind == _END:  # it has failed
            self._has_ended = True
            self._wait(lambda: False)
        return value

    def hand(self, value: Any) -> None:
        """Hand a value, which does not change any more, to the next stage; `Stopped` as of `taken`."""
        self._wait(lambda: self._waiting() < IN_FLIGHT)
        self._post(_VALUE, value)

    def end(self) -> None:
        """Leave the line with no message under way, whatever is missing."""
        if self._after is not None:
            self._post(_END, None)
        messages.wait(self._is_over)

    def _is_over(self) -> bool:
        if not self._has_ended and self._world.iprobe(self._before, messages.HEAD):
            self._has_ended = messages.received(self._world, self._before or 0)[0] == _END
        return not self._waiting() and self._has_ended

    def _wait(self, ready: Callable[[], object]) -> None:
        said = time.monotonic()

        def is_asked_or_ready() -> object:
            nonlocal said
            if self._stops.asked():
                raise Stopped
            if time.monotonic() > said + _PERIOD:
                messages.send(self._world, (WAITING, None), 0)
                said = time.monotonic()
            return ready()

        messages.wait(is_asked_or_ready)

    def _post(self, kind: str, value: Any) -> None:
        assert self._after is not None  # noqa: S101 - the last stage has no next one
        self._posted.append(messages.post(self._world, (kind, value), self._after))

    def _waiting(self) -> int:
        """Return how many values the next stage has not taken."""
        while self._posted and messages.are_taken(self._posted[0]):
            self._posted.popleft()
        return len(self._posted)


def lines_of(hosts: Sequence[str], most: int) -> Lines:
    """Return lines of workers on these hosts, with at most `most` stages: a host is a stage, or else a worker."""
    on_host: dict[str, list[int]] = {}
    for worker, name in enumerate(hosts):
        on_host.setdefault(name, []).append(worker)
    stages = list(on_host.values())
    if len(stages) == 1:
        width = len(hosts) // (number := min(most, len(hosts)))
        stages = [stages[0][stage * width : (stage + 1) * width] for stage in range(number)]
    return tuple(zip(*stages[:most], strict=False))
