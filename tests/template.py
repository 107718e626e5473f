"""Small processes that fork for each command: a fork of a test process, which has imported much, takes far longer.

They are forked themselves when the tests begin, and know nothing of what tests change later in modules.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import select
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

# Libraries of extras, which one of two templates has imported: others make a fork take longer.
_LIBRARIES = ("boto3", "h5py", "matplotlib.figure", "mpired.formats.hierarchy", "mpired.queries.drawing", "obstore")
_NEEDS_LIBRARIES = re.compile(r"[.](h5|hdf5?|nc4?)\b|^\w+://|^--png")
patches: list[pytest.MonkeyPatch] = []
"""Those that may have changed something."""
_servers: list[socket.socket] = []
_modules: set[str] = set()
"""What the templates have imported."""


class Request(NamedTuple):
    """What a command gets, besides its three streams."""

    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    umask: int
    filters: list[object]  # of warnings
    setup: Callable[[], object] | None  # that templates know


def start(become: Callable[..., object]) -> None:
    """Fork both, which call `become(words, folder, streams, environment, setup)` for each command."""
    _modules.update(sys.modules)
    for libraries in ((), _LIBRARIES):
        mine, its = socket.socketpair()
        if os.fork() == 0:
            try:
                _serve(its, become, libraries)
            finally:
                os._exit(1)
        its.close()
        _servers.append(mine)


def stop() -> None:
    """Let both end, which wait for another command."""
    while _servers:
        _servers.pop().close()


def is_like_this_process() -> bool:
    """Tell whether there is a template, and no test has changed modules here."""
    changed = any(
        patch._setattr or any(where is not os.environ for where, *_ in patch._setitem)  # noqa: SLF001
        for patch in patches
    )
    return bool(_servers) and not changed


def knows(setup: Callable[[], object] | None) -> bool:
    """Return whether the templates find a setup by its name, or a `partial` of it."""
    function = getattr(setup, "func", setup)
    return setup is None or (function.__module__ in _modules and "<" not in function.__qualname__)


def filters() -> list[object]:
    """Return the filters of warnings, without those for classes that a command would have to import."""
    return [each for each in warnings.filters if each[2].__module__ in _modules]


def run(request: Request, streams: tuple[int, int, int]) -> int:
    """Let a copy of the template become a command; return its exit status, negative for a signal."""
    server = _servers[any(map(_NEEDS_LIBRARIES.search, request.words))]
    mine, its = socket.socketpair()
    with mine:
        with its:
            socket.send_fds(server, [b"+"], [its.fileno()])
        socket.send_fds(mine, [b"+"], list(streams))
        mine.sendall(pickle.dumps(request))
        return int(mine.recv(8).decode())


def _serve(requests: socket.socket, become: Callable[..., object], libraries: tuple[str, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own = requests.fileno()
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    os.closerange(3, own)
    os.closerange(own + 1, 4096)
    select.select([requests], [], [])  # import nothing before the first command
    import_libraries(libraries)

    def received() -> socket.socket:
        _, fds, _, _ = socket.recv_fds(requests, 1, 1)
        if not fds:  # the tests are over
            os._exit(0)
        return socket.socket(fileno=fds[0])

    serve(requests, received, lambda connection: _become(connection, become))


def import_libraries(names: tuple[str, ...]) -> None:
    """Import libraries of extras, as far as they are there."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve(
    requests: socket.socket, received: Callable[[], socket.socket], become: Callable[[socket.socket], object]
) -> None:
    """Fork for each connection, let the child `become` the command of it, and tell its exit status at its end."""
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                connection = received()
                pid = os.fork()
                if pid == 0:
                    become(connection)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                selector.unregister(key.fd)
                os.close(key.fd)
                _tell_status(*key.data)


def _tell_status(pid: int, connection: socket.socket) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with connection, contextlib.suppress(BrokenPipeError):
        connection.sendall(str(status).encode())


def _become(connection: socket.socket, become: Callable[..., object]) -> None:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as file:
        request = pickle.load(file)
    os.umask(request.umask)
    warnings.resetwarnings()
    warnings.filters.extend(request.filters)  # type: ignore[attr-defined]
    os.environ.clear()
    become(request.words, request.folder, tuple(streams), request.environment, request.setup)
