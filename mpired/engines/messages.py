"""Messages between the processes of MPI, which sleep while they wait.

In a line of stages each worker combines its items with the values of the stage before it, and sends new values to the
stage after it. The last stage sends them to rank 0, which always receives, so no stages wait for each other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpired.engines.table import IN_FLIGHT, Lines

WORK, STOP = 1, 2  # tags
_MIN_PAUSE, _MAX_PAUSE = 20e-6, 1e-3  # seconds between two tests for a message
WAITING = "waiting"  # message of a waiting stage to rank 0, which would take a silent worker for a lost one
_VALUE, _END = "value", "end"
_PERIOD = 0.5  # seconds between two such messages


def wait(ready: Callable[[], object], until: float | None = None) -> None:
    """Wait until `ready` returns a true value, or raise `TimeoutError` at a time of `time.monotonic`."""
    pause = _MIN_PAUSE
    while not ready():
        if until is not None and time.monotonic() > until:
            raise TimeoutError
        time.sleep(pause)  # MPI itself would use a core to wait
        pause = min(2 * pause, _MAX_PAUSE)


class Task(NamedTuple):
    """The task of a stage."""

    items: tuple[Any, ...]
    previous: int | None  # rank of the stage before it; None if it is the first one
    next: int | None  # rank of the stage after it; None if it is the last one


class Stopped(BaseException):
    """Raised when rank 0 has stopped the run."""


class Stops:
    """Requests of rank 0 to stop a run."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.run = 0  # number of the current run
        self.received = 0  # requests, of all runs

    def stop_requested(self) -> bool:
        """Return whether rank 0 has stopped the current run."""
        while self._world.iprobe(0, STOP):
            self.received += 1
            if self._world.recv(None, 0, STOP) == self.run:  # not an earlier run
                return True
        return False


class Link:
    """The connection of a stage with the stages before and after it."""

    def __init__(self, world: Any, task: Task, stops: Stops) -> None:
        self._world, self._stops = world, stops
        self._previous, self._next = task.previous, task.next
        self._previous_has_ended = task.previous is None
        self._posted: deque[Any] = deque()  # requests of messages that the next stage may not have received

    def receive(self) -> Any:
        """Wait for the next value of the stage before, and return it."""
        self._wait(lambda: self._world.iprobe(self._previous, WORK))
        kind, value = self._world.recv(None, self._previous, WORK)
        if kind == _END:  # the stage has failed, and rank 0 stops the run
            self._previous_has_ended = True
            self._wait(lambda: False)
        return value

    def send(self, value: Any) -> None:
        """Send a value, which must not change, to the next stage; wait while `IN_FLIGHT` values are on their way."""
        self._wait(lambda: self._count_posted() < IN_FLIGHT)
        self._post(_VALUE, value)

    def end(self) -> None:
        """Leave the line when all its messages are received, also after an error."""
        if self._next is not None:
            self._post(_END, None)
        while not self._previous_has_ended:
            wait(lambda: self._world.iprobe(self._previous, WORK))
            self._previous_has_ended = self._world.recv(None, self._previous, WORK)[0] == _END
        wait(lambda: not self._count_posted())

    def _wait(self, ready: Callable[[], object]) -> None:
        """Wait like `wait`; tell rank 0 that this stage waits, and raise `Stopped` if rank 0 stops the run."""
        due = time.monotonic() + _PERIOD

        def stopped_or_ready() -> object:
            nonlocal due
            if self._stops.stop_requested():
                raise Stopped
            if time.monotonic() > due:
                self._world.send((WAITING, None), 0, WORK)
                due = time.monotonic() + _PERIOD
            return ready()

        wait(stopped_or_ready)

    def _post(self, kind: str, value: Any) -> None:
        # A synchronous send completes when the message is received; others complete before, if MPI buffers the message.
        self._posted.append(self._world.issend((kind, value), self._next, WORK))

    def _count_posted(self) -> int:
        """Return the number of messages that the next stage has not received."""
        while self._posted and self._posted[0].test()[0]:
            self._posted.popleft()
        return len(self._posted)


def lines_of(hosts: Sequence[str], max_stages: int) -> Lines:
    """Return lines of at most `max_stages` stages: each host is a stage, or on a single host each worker."""
    workers: dict[str, list[int]] = {}  # of each host
    for worker, host in enumerate(hosts):
        workers.setdefault(host, []).append(worker)
    stages = list(workers.values())
    if len(stages) == 1:
        nstages = min(max_stages, len(hosts))
        width = len(hosts) // nstages
        stages = [stages[0][stage * width : (stage + 1) * width] for stage in range(nstages)]
    return tuple(zip(*stages[:max_stages], strict=False))
