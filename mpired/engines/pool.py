"""The processes of this machine."""

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

from mpired import interrupts, machine
from mpired.engines.table import Limits
from mpired.engines.worker import Channel, channel, flush_streams, results, work
from mpired.errors import WorkerError
from mpired.log import step

_T = TypeVar("_T")
_PR_SET_CHILD_SUBREAPER = 36
_GENERATIONS = 8
_CAUSES: dict[int, str] = {
    signal.SIGKILL: ", perhaps because memory ran out",
    signal.SIGXCPU: ", after all the processor time that it may take",
}
# Seconds that a worker has to end in after its connection has failed.
_PATIENCE = 1.0
# What a new interpreter runs. Its module path is this process's before it imports anything of mpired.
_START = "import sys; sys.path[:] = sys.argv[4:]; del sys.argv[4:]; from mpired.engines.worker import start; start()"


def is_crash(error: WorkerError) -> bool:
    """Return whether a worker ended by its own fault: not for want of memory, nor because it could not be started."""
    return error.exitcode not in {None, -signal.SIGKILL}


def run(
    function: Callable[[_T], Any], items: Iterable[_T], jobs: int, *, isolated: bool = False
) -> Generator[Any, None, None]:
    """Apply `function` to every item with `jobs` worker processes; yield the results as they are done."""
    # What a generator function yields are results. The function is sent once to each worker. An item is taken from
    # `items` when a worker is free for it. With one job all runs in this process, unless it must be isolated.
    # At the end no worker is left, and nothing that one may have started.
    if jobs == 1 and not isolated:
        for item in items:
            yield from results(function, item)
        return
    rest = iter(items)
    first = list(itertools.islice(rest, jobs))
    workers: list[_Worker] = []
    try:
        # Held back until the worker has its own handlers, so that none runs ours.
        with step("starting workers"), interrupts.defer_signals():
            workers.extend(_Worker(function) for _ in first)
        for worker, item in zip(workers, first, strict=True):
            worker.give(item)
        yield from _results(workers, rest)
    finally:
        with interrupts.defer_signals():  # one that came between would leave the others
            for worker in workers:
                worker.end()
            # The processes that they started in other groups, and then those that these leave, a few generations down.
            for _ in range(_GENERATIONS if _adopting else 0):
                for pid in set(_children()) - _spared - _alive:
                    with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)


def limits() -> Limits:
    """Return what workers may use: they have the limits of this process."""
    return Limits(machine.usable_cores(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class _Worker:
    """A process that applies the function to one item after another."""

    # Not one of `multiprocessing`, which runs the caller's script again where it cannot fork, and tells the errors of
    # its own on standard error; nor of `concurrent.futures`, which waits for ever where a thread cannot be started.

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._pid = 0
        try:
            self.connection, far_end = channel()
            with closing(far_end):
                self._pid, self._sent_first = _start(function, far_end)
            self.ended = os.pidfd_open(self._pid)
            _alive.add(self._pid)
        except OSError as error:  # EAGAIN of fork
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            reason = f"no worker could be started ({error.strerror}); use `jobs=1`, or raise the limit of processes"
            raise OSError(error.errno, reason, "worker pool") from None

    def give(self, item: Any) -> None:
        """Hand over an item."""
        try:
            for each in (*self._sent_first, item):
                self.connection.send(each)
        except OSError as error:
            raise self.death(error) from None
        self._sent_first = ()

    def death(self, lost: Exception | None = None) -> WorkerError:
        """Return the error that says how the process ended, or else what `lost` the connection to it."""
        if not _ready([self.ended], _PATIENCE):
            reason = f"the connection to a worker was lost ({lost or 'closed by it'}); nothing was written"
            return WorkerError("worker pool", reason)
        try:
            status = os.waitid(os.P_PIDFD, self.ended, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # the caller of the Python API ignores SIGCHLD, or waits for any child
            status = None
        if status is None:
            return WorkerError("worker pool", "a worker died; nothing was written")
        if status.si_code == os.CLD_EXITED:
            code, how = status.si_status, f"ended with status {status.si_status}"
        else:
            number = status.si_status
            name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
            code, how = -number, f"was killed by {name}"
        cause = _CAUSES.get(-code, "")
        return WorkerError("worker pool", f"a worker died: it {how}{cause}; nothing was written", code)

    def end(self) -> None:
        """End the process, which has nothing to finish: one that waits for a thread of an op would never end."""
        for kill in (os.killpg, os.kill):  # it leads a group of the processes that it started, if it got that far
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        _alive.discard(self._pid)
        self.connection.close()
        os.close(self.ended)


def _ready(descriptors: Iterable[int], timeout: float | None = None) -> set[int]:
    """Wait until some of the descriptors can be read, at most `timeout` seconds, and return these."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {
        descriptor for descriptor, _ in interrupts.interruptible(poll.poll, None if timeout is None else timeout * 1000)
    }


def _start(function: Callable[[Any], Any], connection: Channel) -> tuple[int, tuple[Any, ...]]:
    """Start a worker; return its process, and the messages that it needs before the first item."""
    parent = os.getpid()
    if can_fork():
        flush_streams()  # or both would write the bytes in the buffers
        pid = os.fork()
        if not pid:
            work(parent, connection, function)
        return pid, ()
    import subprocess  # noqa: PLC0415 - only where there are threads

    # An interpreter of its own, which imports what this one would, but not the caller's script.
    program = sys.executable
    if not program or getattr(sys, "frozen", False):
        raise OSError(errno.ENOENT, "there is no interpreter to run it")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    ends = connection.incoming, connection.outgoing
    words = [program, *flags, "-P", "-c", _START, *map(str, (parent, *ends)), *sys.path]
    kept = [(os.POSIX_SPAWN_DUP2, end, end) for end in ends]  # it has them under the same numbers
    return os.posix_spawn(program, words, os.environ, file_actions=kept), (function,)


def _results(workers: list[_Worker], rest: Iterator[Any]) -> Iterator[Any]:
    """Yield the results of an item that each worker has, and of the rest, which goes to the next free worker."""
    busy = {worker.connection.incoming: worker for worker in workers}
    deaths = {worker.ended: worker for worker in workers}
    while busy:
        ready = _ready([*busy, *deaths])
        for ended in deaths.keys() & ready:
            if deaths[ended].connection.incoming not in ready:  # else it had results before
                raise deaths[ended].death()
        for connection in busy.keys() & ready:
            worker = busy[connection]
            try:
                message = worker.connection.recv()
            except (OSError, EOFError) as lost:
                raise worker.death(lost) from None
            if message is not None:  # which comes after the last result of an item
                error, result = message
                if error is not None:
                    raise error
                yield result
                continue
            for item in rest:
                worker.give(item)
                break
            else:
                del busy[connection], deaths[worker.ended]


_adopting = False
_spared: frozenset[int] = frozenset()
_alive: set[int] = set()  # the workers of other runs, as one that decodes beside those that fold


def adopt_orphans() -> None:
    """Become the parent of what workers leave behind, to end it; all other children have to be there by now."""
    # Those it spares: a shell that became this command by exec may have started something to read from.
    global _adopting, _spared  # noqa: PLW0603 - properties of the process
    _spared = frozenset(_children())
    _adopting = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _children() -> list[int]:
    """Return the children of this process that its threads have started or adopted."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        # The thread may have ended, and some kernels keep no such file.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
            found += map(int, children.read().split())
    return found


def can_fork() -> bool:
    """Return whether a worker can be a fork of this process."""
    # That is fastest, but only safe while there is a single thread, not only of Python's: what another one holds is
    # held in the child for ever.
    return len(os.listdir("/proc/self/task")) == 1
