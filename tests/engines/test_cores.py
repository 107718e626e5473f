"""How many processors the pool takes: affinity, control groups, SLURM."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Mapping

import pytest
from command import in_child

from mpired.engines import cores


@pytest.fixture
def machine(monkeypatch) -> Callable[[Mapping[str, str]], None]:
    """A machine of 64 cores, on which only the given files tell of control groups."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)))
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)

    def with_files(files: Mapping[str, str]) -> None:
        def open_one(path: str, *arguments: object, **settings: object) -> io.TextIOBase:
            if str(path).startswith(("/proc/self/cgroup", "/sys/fs/cgroup")):
                if str(path) not in files:
                    raise FileNotFoundError(2, "No such file or directory", path)
                return io.StringIO(files[str(path)])
            return builtins.open(path, *arguments, **settings)

        monkeypatch.setattr(cores, "open", open_one, raising=False)

    with_files({})
    return with_files


def test_cores_are_those_of_the_affinity():
    def bound() -> int:
        os.environ.pop("SLURM_CPUS_PER_TASK", None)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return cores.usable_cores()

    assert in_child(bound) == 1
    assert 1 <= cores.usable_cores() <= len(os.sched_getaffinity(0))


def test_cores_without_a_limit(machine):
    assert cores.usable_cores() == 64


def test_affinity_limits(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5, 7})
    assert cores.usable_cores() == 3


@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("6", 6), ("64", 64), ("1000", 64), ("", 64), ("all", 64), ("-3", 64), ("0", 1)]
)
def test_slurm_limits(value, count, machine, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", value)
    assert cores.usable_cores() == count


@pytest.mark.parametrize(
    ("quotas", "count"),
    [
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
    ],
)
def test_quota_of_control_groups_version_2(quotas, count, machine):
    files = {f"/sys/fs/cgroup{group}/cpu.max": text for group, text in quotas.items()}
    machine({"/proc/self/cgroup": "0::/a/b\n", **files})
    assert cores.usable_cores() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 64), ("250000", 3), ("100000", 1), ("junk", 64)])
def test_quota_of_control_groups_version_1(quota, count, machine):
    text = "12:memory:/m\n5:cpu,cpuacct:/docker/x\n3:cpuset:/s\n0::/\n"
    group = "/sys/fs/cgroup/cpu,cpuacct/docker/x"
    machine({"/proc/self/cgroup": text, f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": "100000\n"})
    assert cores.usable_cores() == count


def test_smallest_limit_counts(machine, monkeypatch):
    machine({"/proc/self/cgroup": "0::/a\n", "/sys/fs/cgroup/a/cpu.max": "500000 100000"})
    assert cores.usable_cores() == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert cores.usable_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 2})
    assert cores.usable_cores() == 2
