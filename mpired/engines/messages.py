"""Messages between the processes of MPI: values with their arrays, and waiting that takes no core.

In a line of stages each worker does its items with the values of the worker before, and hands on new values. No two
stages wait for each other: one waits for the stage before or the one after it, the last one for rank 0, which takes
all.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from mpired.engines.table import IN_FLIGHT, Lines

HEAD, BODY, STOP = 1, 2, 3
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


def send(world: Any, message: tuple[str, Any], to: int) -> None:
    """Send a message, arrays in it without a copy."""
    head, views = _parts(message)
    world.send(head, to, HEAD)
    for view in views:
        world.Send(view, to, BODY)


def post(world: Any, message: tuple[str, Any], to: int) -> list[Any]:
    """Begin to send a message whose arrays stay as they are; return requests that are done when it is received."""
    # Not when it is sent: small messages are kept by MPI, any number of them.
    head, views = _parts(message)
    return [world.issend(head, to, HEAD), *(world.Issend(view, to, BODY) for view in views)]


def are_taken(requests: Iterable[Any]) -> bool:
    """Return whether the posted message was received."""
    return all(request.Test() for request in requests)


def received(world: Any, source: int) -> tuple[str, Any]:
    """Receive a message."""
    head, sizes = world.recv(None, source, HEAD)
    bodies = []
    if sizes:
        import numpy as np  # noqa: PLC0415 - there are arrays

        for nbytes in sizes:
            bodies.append(np.empty(nbytes, np.uint8))
            world.Recv(bodies[-1], source, BODY)
    message: tuple[str, Any] = pickle.loads(head, buffers=bodies)  # noqa: S301 - of the same user
    return message


def _parts(message: tuple[str, Any]) -> tuple[tuple[bytes, list[int]], list[memoryview]]:
    bodies: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, 5, buffer_callback=bodies.append)
    views = [body.raw() for body in bodies]
    return (head, [view.nbytes for view in views]), views


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


class Neighbours:
    """The stages before and after this one: a `Link`."""

    def __init__(self, world: Any, task: Task, stops: Stops) -> None:
        self._world, self._stops = world, stops
        self._before, self._after = task.before, task.after
        self._has_ended = task.before is None
        self._posted: deque[list[Any]] = deque()

    def receive(self) -> Any:
        """Wait for the next value of the stage before, and return it."""
        self._wait(lambda: self._world.iprobe(self._before, HEAD))
        kind, value = received(self._world, self._before or 0)
        if kind == _END:  # it has failed
            self._has_ended = True
            self._wait(lambda: False)
        return value

    def send(self, value: Any) -> None:
        """Hand a value, which does not change any more, to the next stage, or raise `Stopped`."""
        self._wait(lambda: self._waiting() < IN_FLIGHT)
        self._post(_VALUE, value)

    def end(self) -> None:
        """Leave the line with no message under way, whatever is missing."""
        if self._after is not None:
            self._post(_END, None)
        wait(self._is_over)

    def _is_over(self) -> bool:
        if not self._has_ended and self._world.iprobe(self._before, HEAD):
            self._has_ended = received(self._world, self._before or 0)[0] == _END
        return not self._waiting() and self._has_ended

    def _wait(self, ready: Callable[[], object]) -> None:
        sent_at = time.monotonic()

        def is_asked_or_ready() -> object:
            nonlocal sent_at
            if self._stops.stop_requested():
                raise Stopped
            if time.monotonic() > sent_at + _PERIOD:
                send(self._world, (WAITING, None), 0)
                sent_at = time.monotonic()
            return ready()

        wait(is_asked_or_ready)

    def _post(self, kind: str, value: Any) -> None:
        assert self._after is not None  # noqa: S101 - the last stage has no next one
        self._posted.append(post(self._world, (kind, value), self._after))

    def _waiting(self) -> int:
        """Return how many values the next stage has not taken."""
        while self._posted and are_taken(self._posted[0]):
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
