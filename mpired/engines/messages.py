"""Messages between the processes of MPI, by a communicator that sends arrays apart; waiting takes no core.

In a line of stages each worker does its items with the values of the worker before, and hands on new values. No two
stages wait for each other: one waits for the stage before or the one after it, the last one for rank 0, which takes
all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpired.engines.table import IN_FLIGHT, Lines

WORK, STOP = 1, 2  # tags
_LEAST_PAUSE, _MOST_PAUSE = 20e-6, 1e-3  # seconds between two looks for a message
WAITING = "waiting"
"""The message of a waiting stage to rank 0, so that rank 0 does not take it for the lost one."""
_VALUE, _END = "value", "end"
_PERIOD = 0.5  # seconds between two signs of life


def wait(ready: Callable[[], object], until: float | None = None) -> None:
    """Wait until something is ready, or raise `TimeoutError` at a time of `time.monotonic`."""
    pause = _LEAST_PAUSE
    while not ready():
        if until is not None and time.monotonic() > until:
            raise TimeoutError
        time.sleep(pause)  # so that a process that waits takes no core
        pause = min(2 * pause, _MOST_PAUSE)


class Task(NamedTuple):
    """The task of a stage: its items, and the ranks of the stages before and after it, or None."""

    items: tuple[Any, ...]
    before: int | None
    after: int | None


class Stopped(BaseException):
    """Raised when rank 0 has stopped the run."""


class Stops:
    """Requests of rank 0 to stop; `number` is the current run."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.number = 0
        self.received = 0

    def stop_requested(self) -> bool:
        """Return whether the run that is under way is to end."""
        while self._world.iprobe(0, STOP):
            self.received += 1
            if self._world.recv(None, 0, STOP) == self.number:  # not one of a run before
                return True
        return False


class Link:
    """The connection of a stage with the stages before and after it."""

    def __init__(self, world: Any, task: Task, stops: Stops) -> None:
        self._world, self._stops = world, stops
        self._before, self._after = task.before, task.after
        self._has_ended = task.before is None
        self._posted: deque[Any] = deque()

    def receive(self) -> Any:
        """Wait for the next value of the stage before, and return it."""
        self._wait(lambda: self._world.iprobe(self._before, WORK))
        kind, value = self._world.recv(None, self._before, WORK)
        if kind == _END:  # it has failed
            self._has_ended = True
            self._wait(lambda: False)
        return value

    def send(self, value: Any) -> None:
        """Hand a value, which does not change any more, to the next stage; wait while too many are on the way."""
        self._wait(lambda: self._waiting() < IN_FLIGHT)
        self._post(_VALUE, value)

    def end(self) -> None:
        """Leave the line with no message under way, whatever is missing."""
        if self._after is not None:
            self._post(_END, None)
        while not self._has_ended:
            wait(lambda: self._world.iprobe(self._before, WORK))
            self._has_ended = self._world.recv(None, self._before, WORK)[0] == _END
        wait(lambda: not self._waiting())

    def _wait(self, ready: Callable[[], object]) -> None:
        sent_at = time.monotonic()

        def is_asked_or_ready() -> object:
            nonlocal sent_at
            if self._stops.stop_requested():
                raise Stopped
            if time.monotonic() > sent_at + _PERIOD:
                self._world.send((WAITING, None), 0, WORK)
                sent_at = time.monotonic()
            return ready()

        wait(is_asked_or_ready)

    def _post(self, kind: str, value: Any) -> None:
        # In a mode that ends when it is received, not when it is sent: small messages are kept by MPI, any number.
        self._posted.append(self._world.issend((kind, value), self._after, WORK))

    def _waiting(self) -> int:
        """Return how many values the next stage has not taken."""
        while self._posted and self._posted[0].test()[0]:
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
