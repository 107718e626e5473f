"""Messages between the processes of MPI: values with their arrays, and waiting that takes no core."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from typing import Any

HEAD, BODY, STOP = 1, 2, 3
_LEAST_PAUSE, _MOST_PAUSE = 20e-6, 1e-3  # seconds between two looks for a message


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
    """Begin to send a message whose arrays stay as they are; return requests that are done when it is received.

    Not when it is sent: small messages are kept by MPI, any number of them.
    """
    head, views = _parts(message)
    return [world.issend(head, to, HEAD), *(world.Issend(view, to, BODY) for view in views)]


def are_taken(requests: Iterable[Any]) -> bool:
    """Tell whether what was posted is received."""
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
