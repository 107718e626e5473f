"""The context of a call: its settings, made by the API or the command line and passed down; limits of the machine."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mpired import interrupts
from mpired.errors import UsageError, without_secrets
from mpired.log import Progress, no_progress
from mpired.options import Options

LOCK_TIMEOUT = 60.0  # seconds

BASE_NBYTES = 60 << 20
"""Memory of a process without blocks: Python and NumPy."""
STREAMED_BASE_NBYTES = 188 << 20
"""Memory of a process with pyarrow and a decoded file; of two processes if a worker decodes."""
STREAMED_LEAST_NBYTES = 100 << 20
"""The part of this memory for Python, NumPy and pyarrow."""
SMALL_NBYTES = 1 << 10
"""The maximum size of a small file, about the memory for its header."""
RESERVED = 24
"""Open files of a process besides ranks: standard streams, the output, pipes of the pool, libraries."""


class Context(NamedTuple):
    """Settings of a call. A worker gets only the limits."""

    max_memory: int | None = None  # bytes of all processes together; None without a limit
    max_open_files: int | None = None  # of each process; None without a limit
    lock_timeout: float = LOCK_TIMEOUT  # seconds
    is_group_limit: bool = False  # whether `max_memory` is the limit of the control group
    jobs: int = 0  # maximum number of workers; 0 for all workers of the engine
    spread: str = "elements"  # what workers divide: "elements", "ranks", or "auto" to limit the open files
    engine: Any = None  # `Engine`; None for the pool of this process
    dry_run: bool = False  # whether leftovers of interrupted commands are only reported
    progress: Progress = no_progress  # watches the bytes done
    on_commit: Callable[[], None] = interrupts.committed  # called when the results are in place
    argv: tuple[str, ...] = ()  # command line, for `history` attributes; () in Python
    record: Mapping[str, Any] = {}  # description of the call for its provenance; {} without provenance
    worker: Any = None  # `Decoder` for files that may be damaged; None for a new one each time
    prefetch: Any = None  # `ReadAhead` of ranks; None if ranks are inspected one after another
    small_nbytes: int = SMALL_NBYTES  # maximum size of a file that is read when it is inspected

    @classmethod
    def of(cls, options: Options, **settings: Any) -> Context:
        """Return the context of a call with these checked options and other settings."""
        memory, seconds, open_files = map(options.get, ("max_memory", "lock_timeout", "max_open_files"))
        is_group_limit = memory is None and (memory := usable_memory()) is not None
        context = cls(
            memory,
            open_files,
            LOCK_TIMEOUT if seconds is None else seconds,
            is_group_limit,
            options.get("jobs", 0),
            options.get("spread", "auto"),
            **settings,
        )
        if open_files is not None:
            context.check_open_files(RESERVED + 1)
        return context

    def __reduce__(self) -> tuple[Any, ...]:
        return Context, (self.max_memory, self.max_open_files, self.lock_timeout, self.is_group_limit)

    def check_memory(self, needed: int) -> None:
        """Raise `UsageError` if the memory limit is below `needed` bytes."""
        if self.max_memory is not None and self.max_memory < needed:
            reason = f"{self.max_memory} bytes is too little, one process needs {-(-needed >> 20)}M"
            reason += "; it is the limit of the control group, give more to try it all the same" * self.is_group_limit
            raise UsageError("`max_memory`", reason)

    def spare_memory(self, needed: int) -> int | None:
        """Return the bytes between `needed` and the memory limit; None without a limit."""
        return None if self.max_memory is None else max(0, self.max_memory - needed)

    def allowed(self, nbytes: int, default: int) -> int:
        """Return `nbytes` of memory, but at most `default` if the limit is not from the user."""
        return min(nbytes, default) if self.is_group_limit else nbytes

    def check_open_files(self, needed: int) -> None:
        """Raise `UsageError` if the limit of open files is below `needed`."""
        if self.max_open_files is not None and self.max_open_files < needed:
            raise UsageError("`max_open_files`", f"{self.max_open_files} is too few, a process needs {needed}")

    def history(self) -> str:
        """Return the line of a `history` attribute: time and command line."""
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "")  # for reproducible results
        now = time.gmtime(int(epoch)) if epoch.isdecimal() else time.localtime()
        command = shlex.join(map(without_secrets, self.argv)) or "mpired, called from Python"
        return f"{time.asctime(now)}: {command}"


NO_LIMITS = Context()

_GROUPS = "/sys/fs/cgroup"
# Of each limit: its files in version 2, the controller and its files in version 1, the count of its numbers.
_PROCESSORS = (["cpu.max"], "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"], 2)
_MEMORY = (["memory.max"], "memory", ["memory.limit_in_bytes"], 1)


def usable_cores() -> int:
    """Return the number of processors that this process may use."""
    limits = [len(os.sched_getaffinity(0)), os.cpu_count() or 1]
    limits += [-(-quota // period) for quota, period in _limits(*_PROCESSORS) if quota > 0]
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdecimal():
        limits.append(int(slurm))
    return max(1, min(limits))


@functools.cache
def usable_memory() -> int | None:
    """Return the memory limit of the control groups in bytes; None if the memory of the machine is smaller."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((limit for (limit,) in _limits(*_MEMORY) if limit < memory), default=None)


def _limits(names: Sequence[str], controller: str, old_names: Sequence[str], count: int) -> Iterator[Sequence[int]]:
    """Yield the limits of the control groups of this process, and of their parents."""
    with contextlib.suppress(OSError):
        for line in _text("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root, files = (f"{_GROUPS}/{controllers}", old_names) if controllers else (_GROUPS, names)
            parts = [part for part in path.split("/") if part and part != ".."]
            for depth in range(len(parts) + 1):
                group = "/".join([root, *parts[:depth]])
                with contextlib.suppress(OSError, ValueError):  # a group without a limit has "max", or no file
                    numbers = [*map(int, " ".join(_text(f"{group}/{name}") for name in files).split())]
                    if len(numbers) == count:
                        yield numbers


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
