"""Processors and memory that a process may use: affinity, control groups, SLURM."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence

_GROUPS = "/sys/fs/cgroup"
# Of each limit: its files in version 2, the controller and its files in version 1, the number of its numbers.
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
