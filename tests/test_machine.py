"""How many processors and how much memory commands take: affinity, control groups, SLURM."""

import builtins
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from rows import check_refused

from mpired import context

A_B = "/proc/self/cgroup", "0::/a/b\n"
# Quotas of control groups, by group, of version 2; and the processors that they leave of 64.
QUOTAS = [
    ({"": "max 100000"}, 64), ({"/a/b": "400000 100000\n"}, 4), ({"/a/b": "150000 100000"}, 2),
    ({"/a/b": "1000 100000"}, 1), ({"/a/b": "max 100000", "/a": "300000 100000", "": "max 100000"}, 3),
    ({"/a/b": "800000 100000", "/a": "300000 100000"}, 3), ({"/a/b": "200000 100000", "/a": "300000 100000"}, 2),
    ({"/a/b": "9900000 100000"}, 64), ({"/a/b": "junk"}, 64), ({"/a/b": ""}, 64), ({"/a/other": "100000 100000"}, 64),
]  # fmt: skip
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

    monkeypatch.setattr(context, "open", open_one, raising=False)
    return files


def test_quotas_of_control_groups(files):
    found = []
    for quotas, _ in QUOTAS:
        files.clear()
        files.update([A_B, *((f"/sys/fs/cgroup{group}/cpu.max", text) for group, text in quotas.items())])
        found.append((quotas, context.usable_cores()))
    assert found == QUOTAS
    version_1 = {"-1": 64, "250000": 3, "100000": 1, "junk": 64}
    files.clear()
    files.update({"/proc/self/cgroup": IN_GROUP_1, f"{GROUP_1}/cpu.cfs_period_us": "100000\n"})
    for quota, count in version_1.items():
        files[f"{GROUP_1}/cpu.cfs_quota_us"] = quota
        assert context.usable_cores() == count, quota


def test_smallest_limit_counts(files, monkeypatch):
    assert context.usable_cores() == 64
    files.update([A_B, ("/sys/fs/cgroup/a/cpu.max", "500000 100000")])
    assert context.usable_cores() == 5
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert context.usable_cores() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1, 2})
    assert context.usable_cores() == 2


def test_memory_of_control_groups(files):
    """Limits of no less than the memory of the machine limit nothing."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = [
        ({"/a/b/memory.max": "max\n"}, None),
        ({"/a/b/memory.max": "1048576\n"}, 1 << 20),
        ({"/a/b/memory.max": "max", "/a/memory.max": "3000000", "/memory.max": "4000000"}, 3_000_000),
        ({"/a/memory.max": f"{there}"}, None),
        ({"/memory/m/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ({"/memory/m/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ]
    for limits, expected in rows:
        files.clear()
        files.update({"/proc/self/cgroup": f"4:memory:/m\n{A_B[1]}"})
        files.update((f"/sys/fs/cgroup{path}", text) for path, text in limits.items())
        assert context.usable_memory.__wrapped__() == expected, limits


def test_the_memory_of_the_control_group_is_the_default(tmp_path, monkeypatch):
    """An option that gives more has its way; the bits are the same."""
    pq.write_table(pa.table({"x": np.arange(200_000.0)}), tmp_path / "r.parquet")
    np.save(tmp_path / "r.npy", np.arange(5.0))
    little = "it is the limit of the control group, give more to try it all the same"
    monkeypatch.setattr("mpired.context.usable_memory", lambda: 120 << 20)
    check_refused(tmp_path, "reduce --op sum r.parquet r.parquet", 2, "--max-memory: 125829120 bytes", little)
    check_refused(tmp_path, "reduce --op sum r.npy -o r.npy.xz --level 9", 2, "--max-memory: ", little)
    monkeypatch.setattr("mpired.context.usable_memory", lambda: 256 << 20)
    for words in "r.parquet r.parquet", "--max-memory 1G r.parquet r.parquet":
        outcome = run("reduce", "--op", "sum", *words.split(), "--to", "raw", "-q", cwd=tmp_path)
        assert outcome == (0, (2 * np.arange(200_000.0)).tobytes(), "")
