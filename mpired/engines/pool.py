"""The processes of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from mpired.errors import WorkerError
from mpired.storage import calls

_T = TypeVar("_T")
_R = TypeVar("_R")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IOLBF = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 20
_GENERATIONS = 8
_PATIENCE = 0.05  # seconds


def usable_cores() -> int:
    """Return how many processors this process may use: affinity, cgroup quota and SLURM's allotment."""
    limits = [len(os.sched_getaffinity(0)), _cgroup_cores()]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal():
        limits.append(int(slurm))
    return max(1, min(limits))


def _cgroup_cores(root: str = "/sys/fs/cgroup") -> int:
    """Return the processors that the quotas of the control groups above this process allow, at least 1."""
    cores = [os.cpu_count() or 1]
    with contextlib.suppress(OSError):
        for line in _text("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                cores += _quotas(root, path, _version_2)
            elif "cpu" in controllers.split(","):
                cores += _quotas(f"{root}/{controllers}", path, _version_1)
    return max(1, min(cores))


def _quotas(root: str, path: str, read: Callable[[str], list[str]]) -> Iterator[int]:
    """Yield the quota of a control group and of each above it, in processors, rounded up."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts) + 1):
        with contextlib.suppress(OSError, ValueError):  # a group without a quota says "max", or nothing
            quota, period = map(int, read("/".join([root, *parts[:depth]])))
            if quota > 0:
                yield -(-quota // period)


def _version_2(group: str) -> list[str]:
    return _text(f"{group}/cpu.max").split()


def _version_1(group: str) -> list[str]:
    return [_text(f"{group}/cpu.cfs_quota_us"), _text(f"{group}/cpu.cfs_period_us")]


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def run(function: Callable[[_T], _R], items: Iterable[_T], jobs: int, *, isolated: bool = False) -> Iterator[_R]:
    """Apply `function` to every item with `jobs` worker processes; yield the results as they are done.

    The function is sent once to each worker. With one job all runs in this process, unless it is to
    be isolated from it. At the end no worker is left, and nothing that one may have started.

    Raises
    ------
    WorkerError
        If a worker died; the others are ended first.
    """
    if jobs == 1 and not isolated:
        yield from map(function, items)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: PLC0415 - 20 ms that small jobs save
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

    threads = _threads()
    executor = ProcessPoolExecutor(jobs, _context(), initializer=_start_worker, initargs=(os.getpid(), function))
    processes: list[Any] = []
    try:
        # Held back until the worker has its own handlers, so that none runs ours.
        with calls.interruptions_blocked(), _main_hidden():
            try:
                futures = _submitted(executor, items)
            finally:
                # Not active_children(), which has those of other threads too.
                processes = list((executor._processes or {}).values())  # noqa: SLF001
        for future in as_completed(futures):
            yield future.result()
    except BaseException as error:
        _end(executor, processes)
        if isinstance(error, BrokenProcessPool):
            raise _death(process.exitcode for process in processes) from None
        raise
    _end(executor, processes)
    _wait_for_threads(threads)


def _end(executor: Any, processes: Iterable[Any]) -> None:
    """End the workers, which have nothing to finish: one that waits for a thread of an op would never end."""
    for process in processes:
        # Each worker leads a process group, in which is what it started.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not have got that far, and waits for a lock that another one has taken along
    with contextlib.suppress(RuntimeError):  # of an executor that could not start its thread
        executor.shutdown(wait=True, cancel_futures=True)
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
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel keeps no such file
            found += map(int, _text(f"/proc/self/task/{thread}/children").split())
    return found


def _death(exitcodes: Iterable[int | None]) -> WorkerError:
    """Return the error for workers of which one died by itself; then the executor ended the others by SIGTERM."""
    codes = [code for code in exitcodes if code is not None]
    code = next((code for code in codes if code not in (-signal.SIGTERM, -signal.SIGKILL)), -signal.SIGKILL)
    if len(codes) == 1:
        code = codes[0]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    cause = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
    return WorkerError("worker pool", f"a worker died: it {how}{cause}; nothing was written", code)


def _submitted(executor: Any, items: Iterable[Any]) -> list[Any]:
    """Hand all items to the executor, which starts its workers."""
    from concurrent.futures import BrokenExecutor  # noqa: PLC0415

    try:
        return [executor.submit(_work, item) for item in items]
    except BrokenExecutor:
        raise  # a worker died already
    except (OSError, RuntimeError) as error:  # EAGAIN of fork, or "can't start new thread"
        reason = f"no worker could be started ({error}); run with --jobs 1, or raise the limit of processes"
        raise WorkerError("worker pool", reason) from None


def _context() -> Any:
    """Return how to start workers: fork is fastest, but only safe while there is a single thread."""
    import multiprocessing  # noqa: PLC0415

    return multiprocessing.get_context("fork" if _threads() == 1 else "forkserver")


def _threads() -> int:
    """Return how many threads this process has, not only those of Python."""
    return len(os.listdir("/proc/self/task"))


def _wait_for_threads(count: int) -> None:
    """Wait until no more threads are left than there were; one that has been joined takes a moment to be gone."""
    until = time.monotonic() + _PATIENCE
    while _threads() > count and time.monotonic() < until:
        time.sleep(_PATIENCE / 100)


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Hide the caller's script: a fork server would run it again in each worker, which needs nothing of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = type(sys)("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_function: Callable[[Any], Any]


def _start_worker(parent: int, function: Callable[[Any], Any]) -> None:
    """Prepare a worker: ctrl-C is the parent's matter, and no worker outlives the parent."""
    global _function  # noqa: PLW0603 - the initializer's only way to hand something to the tasks
    _function = function
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    _keep_pipes_from_children()
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


def _keep_pipes_from_children() -> None:
    """Let no child that an op forks hold the pipes by which the pool notices that this worker has died."""
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    pipes = []
    for fd in fds:
        with contextlib.suppress(OSError):  # the one that listed them
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode):  # noqa: PLR2004 - after the standard streams
                pipes.append(fd)

    def close() -> None:
        for fd in pipes:
            with contextlib.suppress(OSError):
                os.close(fd)

    os.register_at_fork(after_in_child=close)


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


def _work(item: Any) -> Any:
    try:
        return _function(item)
    finally:
        _flush_streams()


def _flush_streams() -> None:
    """Write out what is printed without an end of line: the worker will be killed."""
    with contextlib.suppress(Exception):  # an op may have done anything to them
        sys.stdout.flush()
        sys.stderr.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))
