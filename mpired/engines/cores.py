"""The number of usable processors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence


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
                cores += _quotas(root, path, ["cpu.max"])
            elif "cpu" in controllers.split(","):
                cores += _quotas(f"{root}/{controllers}", path, ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
    return max(1, min(cores))


def _quotas(root: str, path: str, names: Sequence[str]) -> Iterator[int]:
    """Yield the quota of a control group and of each above it, in processors, rounded up; the files have `names`."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts) + 1):
        group = "/".join([root, *parts[:depth]])
        with contextlib.suppress(OSError, ValueError):  # a group without a quota says "max", or nothing
            quota, period = map(int, " ".join(_text(f"{group}/{name}") for name in names).split())
            if quota > 0:
                yield -(-quota // period)


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
