"""The processes of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

from mpired.errors import WorkerError
from mpired.storage import interruptions

_T = TypeVar("_T")
_R = TypeVar("_R")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IOLBF = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 20
_GENERATIONS = 8


def run(
    function: Callable[[_T], _R], items: Iterable[_T], jobs: int, *, isolated: bool = False
) -> Generator[_R, None, None]:
    """Apply `function` to every item with `jobs` worker processes; yield the results as they are done.

    The function is sent once to each worker. With one job all runs in this process, unless it is to
    be isolated from it. At the end no worker is left, and nothing that one may have started.

    Raises
    ------
    WorkerError
        If a worker died or could not be started; the others are ended first.
    """
    if jobs == 1 and not isolated:
        yield from map(function, items)
        return
    waiting = list(items)
    workers: list[_Worker] = []
    try:
        # Held back until the worker has its own handlers, so that none runs ours.
        with interruptions.blocked(), _main_hidden():
            workers.extend(_Worker(function) for _ in waiting[:jobs])
        yield from _results(workers, waiting)
    finally:
        _end(workers)


class _Worker:
    """A process that applies the function to one item after another.

    A pool of `concurrent.futures` has threads, and waits for ever where one cannot be started.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = _context()
        self.connection, far_end = context.Pipe()
        self.process = context.Process(target=_work, args=(os.getpid(), function, far_end))
        try:
            self.process.start()
            self.ended = os.pidfd_open(self.process.pid)
        except (OSError, EOFError) as error:  # EAGAIN of fork, or of the fork server
            if self.process.pid is not None:
                self.process.kill()
            reason = f"no worker could be started ({error}); run with --jobs 1, or raise the limit of processes"
            raise WorkerError("worker pool", reason) from None
        finally:
            far_end.close()

    def give(self, item: Any) -> None:
        """Hand over an item."""
        try:
            self.connection.send(item)
        except OSError:
            raise self.death() from None

    def result(self) -> Any:
        """Return the result of the item, or raise what came of it."""
        try:
            error, result = self.connection.recv()
        except (OSError, EOFError):
            raise self.death() from None
        if error is not None:
            raise error
        return result

    def death(self) -> WorkerError:
        """Wait for the end of the process, and return the error that says how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        cause = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
        return WorkerError("worker pool", f"a worker died: it {how}{cause}; nothing was written", code)

    def end(self) -> None:
        """End the process, which has nothing to finish: one that waits for a thread of an op would never end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # it leads a group, in which is what it started
        self.process.kill()  # it may not have got that far
        self.process.join()
        self.connection.close()
        os.close(self.ended)


def _results(workers: list[_Worker], items: list[Any]) -> Iterator[Any]:
    """Yield what the workers make of the items, each of which goes to the next that is free."""
    from multiprocessing.connection import wait  # noqa: PLC0415 - with it come sockets, which small jobs need not

    rest = iter(items)
    for worker, item in zip(workers, rest, strict=False):
        worker.give(item)
    busy = {worker.connection: worker for worker in workers}
    deaths = {worker.ended: worker for worker in workers}
    while busy:
        ready = wait([*busy, *deaths])
        for connection in busy.keys() & ready:
            worker = busy[connection]
            yield worker.result()
            for item in rest:
                worker.give(item)
                break
            else:
                del busy[connection], deaths[worker.ended]
        for ended in deaths.keys() & ready:
            raise deaths[ended].death()


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _end(workers: Iterable[_Worker]) -> None:
    """End all workers, and what they may have left behind."""
    with interruptions.blocked():  # one that came between would leave the others
        for worker in workers:
            worker.end()
        if _adopting:
            _end_adopted()


_adopting = False
_spared: frozenset[int] = frozenset()


def adopt_orphans() -> None:
    """Become the parent of what workers leave behind, to end it; for a process whose other children are there by now.

    Those it spares: a shell that became this command by exec may have started something to read from.
    """
    global _adopting, _spared  # noqa: PLW0603 - properties of the process
    _spared = frozenset(_children())
    _adopting = ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def _end_adopted() -> None:
    """End what workers started in process groups of its own, and then what that leaves, a few generations down."""
    for _ in range(_GENERATIONS):
        for pid in set(_children()) - _spared:
            with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Return the children of this process that its threads have started or adopted."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        # The thread may have ended, and some kernels keep no such file.
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
            found += map(int, children.read().split())
    return found


def _context() -> Any:
    """Return how to start workers: fork is fastest, but only safe while there is a single thread."""
    import multiprocessing  # noqa: PLC0415

    return multiprocessing.get_context("fork" if _threads() == 1 else "forkserver")


def _threads() -> int:
    """Return how many threads this process has, not only those of Python."""
    return len(os.listdir("/proc/self/task"))


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the caller's script: a fork server would run it again in each worker, which needs nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = type(sys)("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(parent: int, function: Callable[[Any], Any], connection: Any) -> None:
    """Be a worker: apply the function to what comes through the connection until the end of the process."""
    _start_worker(parent)
    while True:
        item = connection.recv()
        outcome: tuple[BaseException | None, Any]
        try:
            outcome = None, function(item)
        except BaseException as error:  # noqa: BLE001 - raised again by the parent
            import traceback  # noqa: PLC0415 - only for an error

            error.add_note("".join(traceback.format_tb(error.__traceback__)).rstrip())
            outcome = error, None
        _flush_streams()
        connection.send(outcome)


def _start_worker(parent: int) -> None:
    """Prepare a worker: ctrl-C is the parent's matter, and no worker outlives the parent."""
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    _redirect_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # a fork server stands between, or the parent died before the line above
        _end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_freed_memory()


def _end_with(process: int) -> None:
    """End this worker when `process` ends, which is not its parent."""
    import select  # noqa: PLC0415
    import threading  # noqa: PLC0415

    try:
        ended = select.poll()
        ended.register(os.pidfd_open(process), select.POLLIN)
    except ProcessLookupError:
        os._exit(1)

    def wait() -> None:
        ended.poll()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _redirect_streams() -> None:
    """Send what an op prints to standard error, line by line: it must not mix with a result, nor get lost."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)


def keep_freed_memory() -> None:
    """Let the C library keep what a kernel's temporaries free, instead of faulting it in for every block.

    By default glibc maps arrays from 128 KiB on afresh, which costs a kernel up to half its speed.
    """
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 4 * _KEPT_BYTES)


def _flush_streams() -> None:
    """Write out what is printed without an end of line: the worker will be killed."""
    with contextlib.suppress(Exception):  # an op may have done anything to them
        sys.stdout.flush()
        sys.stderr.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))
