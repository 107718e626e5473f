"""The processes of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from mpired.errors import WorkerError
from mpired.storage import calls

_T = TypeVar("_T")
_R = TypeVar("_R")
_PR_SET_PDEATHSIG = 1


def usable_cores() -> int:
    """Return how many processors this process may use: affinity, cgroup quota and SLURM's allotment."""
    limits = [len(os.sched_getaffinity(0)), _cgroup_cores()]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal():
        limits.append(int(slurm))
    return max(1, min(limits))


def _cgroup_cores() -> int:
    """Return the processors that the quotas of the control groups above this process allow, at least 1."""
    cores = [os.cpu_count() or 1]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                cores += _quotas(Path("/sys/fs/cgroup"), path, _version_2)
            elif "cpu" in controllers.split(","):
                cores += _quotas(Path("/sys/fs/cgroup") / controllers, path, _version_1)
    return max(1, min(cores))


def _quotas(root: Path, path: str, read: Callable[[Path], tuple[str, str]]) -> Iterator[int]:
    """Yield the quota of a control group and of each above it, in processors, rounded up."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts) + 1):
        with contextlib.suppress(OSError, ValueError):
            quota, period = map(int, read(root.joinpath(*parts[:depth])))
            if quota > 0:
                yield -(-quota // period)


def _version_2(group: Path) -> tuple[str, str]:
    quota, period = (group / "cpu.max").read_text().split()
    return quota, period


def _version_1(group: Path) -> tuple[str, str]:
    return (group / "cpu.cfs_quota_us").read_text(), (group / "cpu.cfs_period_us").read_text()


def run(function: Callable[[_T], _R], items: Iterable[_T], jobs: int) -> Iterator[_R]:
    """Apply `function` to every item with `jobs` worker processes; yield the results as they are done.

    The function is sent once to each worker. With one job all runs in this process.

    Raises
    ------
    WorkerError
        If a worker died or ran out of memory; the others are ended first.
    """
    if jobs == 1:
        yield from map(function, items)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: PLC0415 - 20 ms that small jobs save
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import active_children  # noqa: PLC0415

    others = set(active_children())
    executor = ProcessPoolExecutor(jobs, _context(), initializer=_start_worker, initargs=(os.getpid(), function))
    try:
        # Held back until the worker has its own handlers, so that none runs ours.
        with calls.interruptions_blocked():
            futures = [executor.submit(_work, item) for item in items]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        reason = "a worker died, killed from outside or out of memory; nothing was written"
        raise WorkerError("worker pool", reason) from None
    except BaseException:
        for worker in set(active_children()) - others:
            worker.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _context() -> Any:
    """Return how to start workers: fork is fastest, but only safe while there is a single thread."""
    import multiprocessing  # noqa: PLC0415

    single = len(os.listdir("/proc/self/task")) == 1
    return multiprocessing.get_context("fork" if single else "forkserver")


_function: Callable[[Any], Any]


def _start_worker(parent: int, function: Callable[[Any], Any]) -> None:
    """Prepare a worker: ctrl-C is the parent's matter, and no worker outlives the parent."""
    global _function  # noqa: PLW0603 - the initializer's only way to hand something to the tasks
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent and not _has_ancestor(parent):
        os._exit(1)  # the parent died before the line above
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _has_ancestor(process: int) -> bool:
    """Tell whether `process` is alive; a fork server stands between it and the worker."""
    return Path(f"/proc/{process}").exists()


def _work(item: Any) -> Any:
    return _function(item)
