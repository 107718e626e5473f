"""The engine `local`: worker processes of this machine.

Workers are forked if this process has one thread; else each is a new interpreter. A run ends all its workers, and the
processes that these have started.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar

from mpired import interrupts
from mpired.context import usable_cores
from mpired.engines.table import Limits
from mpired.engines.worker import Channel, channel, flush_streams, results, work
from mpired.errors import WorkerError
from mpired.log import step

_T = TypeVar("_T")
_PR_SET_CHILD_SUBREAPER = 36
_GENERATIONS = 8  # of orphans: children of killed processes, and their children
_CAUSES: dict[int, str] = {
    signal.SIGKILL: ", perhaps because memory ran out",
    signal.SIGXCPU: ", after all the processor time that it may take",
}
_PATIENCE = 1.0  # seconds to wait for the end of a worker whose connection has failed
# The program of a new interpreter. It gets the module path of this process before it imports mpired.
_START = "import sys; sys.path[:] = sys.argv[4:]; del sys.argv[4:]; from mpired.engines.worker import start; start()"


def is_crash(error: WorkerError) -> bool:
    """Return whether a worker ended by a fault of its code: neither out of memory nor at its start."""
    return error.exitcode not in {None, -signal.SIGKILL}


def run(
    function: Callable[[_T], Any], items: Iterable[_T], jobs: int, *, isolated: bool = False
) -> Generator[Any, None, None]:
    """Apply `function` to every item in `jobs` workers, and yield the results in the order of their completion.

    Each value that a generator function yields is a result. With one job this process does the work, unless that is
    `isolated`. The function is sent once to each worker, and an item is taken when a worker is free. At the end no
    worker is left, nor a process that a worker has started.
    """
    if jobs == 1 and not isolated:
        for item in items:
            yield from results(function, item)
        return
    queue = iter(items)
    first = list(itertools.islice(queue, jobs))
    workers: list[_Worker] = []
    try:
        # Signals wait until a worker has handlers of its own: it must not run those of this process.
        with step("starting workers"), interrupts.defer_signals():
            workers.extend(_Worker(function) for _ in first)
        for worker, item in zip(workers, first, strict=True):
            worker.send(item)
        yield from _results(workers, queue)
    finally:
        with interrupts.defer_signals():  # a signal between two workers would leave the second one alive
            for worker in workers:
                worker.end()
            # Processes that workers have started in other groups are children of this process now, see `adopt_orphans`.
            for _ in range(_GENERATIONS if _adopting else 0):
                for pid in set(_children()) - _spared - _alive:
                    with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)


def limits() -> Limits:
    """Return the limits of the workers, which are those of this process."""
    return Limits(usable_cores(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class _Worker:
    """A process that applies the function to one item after another."""

    # `multiprocessing` runs the caller's script again where it cannot fork, and prints its errors. `concurrent.futures`
    # waits for ever where a thread cannot be started.

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._pid = 0
        try:
            self.connection, far_end = channel()
            with closing(far_end):
                self._pid, self._first_messages = _start(function, far_end)
            self.pidfd = os.pidfd_open(self._pid)
            _alive.add(self._pid)
        except OSError as error:  # EAGAIN of fork
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            reason = f"no worker could be started ({error.strerror}); use `jobs=1`, or raise the limit of processes"
            raise OSError(error.errno, reason, "worker pool") from None

    def send(self, item: Any) -> None:
        """Send an item."""
        try:
            for message in (*self._first_messages, item):
                self.connection.send(message)
        except OSError as error:
            raise self.lost(error) from None
        self._first_messages = ()

    def lost(self, error: Exception | None = None) -> WorkerError:
        """Return the error of a lost worker: how its process ended, or the error of its connection."""
        if not _ready([self.pidfd], _PATIENCE):
            reason = f"the connection to a worker was lost ({error or 'closed by it'}); nothing was written"
            return WorkerError("worker pool", reason)
        status = None
        # The caller of the Python API may ignore SIGCHLD, or wait for any child.
        with contextlib.suppress(ChildProcessError):
            status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        if status is None:
            return WorkerError("worker pool", "a worker died; nothing was written")
        number = code = status.si_status
        fate = f"ended with status {number}"
        if status.si_code != os.CLD_EXITED:
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            code, fate = -number, f"was killed by {name}{_CAUSES.get(number, '')}"
        return WorkerError("worker pool", f"a worker died: it {fate}; nothing was written", code)

    def end(self) -> None:
        """Kill the process and its group; it has nothing to finish, and might wait for a thread of an op for ever."""
        for kill in (os.killpg, os.kill):  # a process that has just started has no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        _alive.discard(self._pid)
        self.connection.close()
        os.close(self.pidfd)


def _ready(descriptors: Iterable[int], timeout: float | None = None) -> set[int]:
    """Wait until some of the descriptors can be read, at most `timeout` seconds, and return these descriptors."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    milliseconds = None if timeout is None else timeout * 1000
    return {descriptor for descriptor, _ in interrupts.interruptible(poll.poll, milliseconds)}


def _start(function: Callable[[Any], Any], connection: Channel) -> tuple[int, tuple[Any, ...]]:
    """Start a worker; return its process ID, and the messages to send before the first item."""
    parent = os.getpid()
    if can_fork():
        flush_streams()  # or both processes would write the buffered bytes
        pid = os.fork()
        if not pid:
            work(parent, connection, function)
        return pid, ()
    import subprocess  # noqa: PLC0415 - only where there are threads

    # A new interpreter with the same module path, which does not run the caller's script.
    program = sys.executable
    if not program or getattr(sys, "frozen", False):
        raise OSError(errno.ENOENT, "there is no interpreter to run it")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    ends = connection.incoming, connection.outgoing
    arguments = [program, *flags, "-P", "-c", _START, *map(str, (parent, *ends)), *sys.path]
    file_actions = [(os.POSIX_SPAWN_DUP2, end, end) for end in ends]  # the worker inherits them with these numbers
    return os.posix_spawn(program, arguments, os.environ, file_actions=file_actions), (function,)


def _results(workers: list[_Worker], queue: Iterator[Any]) -> Iterator[Any]:
    """Yield the results of busy workers; each worker that becomes free gets the next item of the queue."""
    busy = {worker.connection.incoming: worker for worker in workers}
    processes = {worker.pidfd: worker for worker in workers}
    while busy:
        ready = _ready([*busy, *processes])
        for pidfd in processes.keys() & ready:
            if processes[pidfd].connection.incoming not in ready:  # else its last results are read first
                raise processes[pidfd].lost()
        for connection in busy.keys() & ready:
            worker = busy[connection]
            try:
                message = worker.connection.recv()
            except (OSError, EOFError) as connection_error:
                raise worker.lost(connection_error) from None
            if message is not None:  # None follows the last result of an item
                error, result = message
                if error is not None:
                    raise error
                yield result
                continue
            for item in queue:
                worker.send(item)
                break
            else:
                del busy[connection], processes[worker.pidfd]


_adopting = False  # whether this process is the parent of orphans
_spared: frozenset[int] = frozenset()  # process IDs of children that this process had before its first worker
_alive: set[int] = set()  # process IDs of the workers of all runs, such as one that decodes while others fold


def adopt_orphans() -> None:
    """Become the parent of processes that workers leave behind, to kill them; called before the first worker starts."""
    # A shell that became this command by exec may have started children, such as the writer of a pipe.
    global _adopting, _spared  # noqa: PLW0603 - properties of the process
    _spared = frozenset(_children())
    _adopting = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _children() -> list[int]:
    """Return the process IDs of the children that the threads of this process have started or adopted."""
    pids: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        # The thread may have ended, and some kernels keep no such file.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
            pids += map(int, children.read().split())
    return pids


def can_fork() -> bool:
    """Return whether a worker can be a fork of this process."""
    # A fork is fastest, but safe only without other threads, also of libraries: a lock that another thread holds stays
    # locked in the child.
    return len(os.listdir("/proc/self/task")) == 1
