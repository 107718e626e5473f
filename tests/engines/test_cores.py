"""How many processors the pool takes: affinity, control groups, SLURM."""

from __future__ import annotations

import builtins
import io
import os

import pytest
from command import in_child

from mpired.engines import cores

A_B = "/proc/self/cgroup", "0::/a/b\n"
# Quotas of control groups, by group, of version 2; and the processors that they leave of 64.
QUOTAS = [
    ({"": "max 100000"}, 64),
    ({"/a/b": "400000 100000\n"}, 4),
    ({"/a/b": "150000 100000"}, 2),
    ({"/a/b": "1000 100000"}, 1),
    ({"/a/b": "max 100000", "/a": "300000 100000", "": "max 100000"}, 3),
    ({"/a/b": "800000 100000", "/a": "300000 100000"}, 3),
    ({"/a/b": "200000 100000", "/a": "300000 100000"}, 2),
    ({"/a/b": "9900000 100000"}, 64),
    ({"/a/b": "junk"}, 64),
    ({"/a/b": ""}, 64),
    ({"/a/other": "100000 100000"}, 64),
]
GROUP_1 = "/sys/fs/cgroup/cpu,cpuacct/docker/x"
IN_GROUP_1 = "12:memory:/m\n5:cpu,cpuacct:/docker/x\n3:cpuset:/s\n0::/\n"


@pytest.fixture
def files(monkeypatch) -> dict[str, str]:
    """The files that tell of control groups, on a machine of 64 cores."""
    files: dict[str, str] = {}
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)))
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)

    def open_one(path: str, *arguments: object, **settings: object) -> io.TextIOBase:
        if not str(path).startswith(("/proc/self/cgroup", "/sys/fs/cgroup")):
            return builtins.open(path, *arguments, **settings)
        if str(path) not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return io.StringIO(files[str(path)])

    monkeypatch.setattr(cores, "open", open_one, raising=False)
    return files


def test_cores_are_those_of_the_affinity():
    def bound() -> int:
        os.environ.pop("SLURM_CPUS_PER_TASK", None)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return cores.usable_cores()

    assert in_child(bound) == 1


def test_slurm_limits(files, monkeypatch):
    expected = {"1": 1, "6": 6, "64": 64, "1000": 64, "": 64, "all": 64, "-3": 64, "0": 1}
    found = {}
    for value in expected:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", value)
        found[value] = cores.usable_cores()
    assert found == expected


def test_quotas_of_control_groups(files):
    found = []
    for quotas, _ in QUOTAS:
        files.clear()
        files.update([A_B, *((f"/sys/fs/cgroup{group}/cpu.max", text) for group, text in quotas.items())])
        found.append((quotas, cores.usable_cores()))
    assert found == QUOTAS
    version_1 = {"-1": 64, "250000": 3, "100000": 1, "junk": 64}
    files.clear()
    files.update({"/proc/self/cgroup": IN_GROUP_1, f"{GROUP_1}/cpu.cfs_period_us": "100000\n"})
    for quota, count in version_1.items():
        files[f"{GROUP_1}/cpu.cfs_quota_us"] = quota
        assert cores.usable_cores() == count, quota


def test_smallest_limit_counts(files, monkeypatch):
    assert cores.usable_cores() == 64
    files.update([A_B, ("/sys/fs/cgroup/a/cpu.max", "500000 100000")])
    assert cores.usable_cores() == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert cores.usable_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 2})
    assert cores.usable_cores() == 2
