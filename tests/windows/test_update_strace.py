"""The installed command, killed or failed by the kernel's own tracer at each of its system calls."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND
from faults import recover
from values import folder_in_memory

pytestmark = [pytest.mark.needs("strace"), pytest.mark.usefixtures("without_bytecode")]

# The calls that change files; and in the long form all that touch one.
CHANGING = ("pwrite64", "copy_file_range", "fallocate", "fsync", "fdatasync", "linkat", "renameat", "unlinkat")
CALLS = ("openat", "pwrite64", "copy_file_range", "ftruncate", "fallocate", "fchmod", "fchown", "fsync", "fdatasync",
         "linkat", "renameat", "unlinkat", "fcntl", "ioctl", "close")  # fmt: skip
COUNT = 2000


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as outside:
        np.save(outside / "o.npy", np.full(COUNT, 2.0))
        (outside / "targets").mkdir()
        yield outside


def reset(folder: Path) -> None:
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / "t.npy", np.ones(COUNT))


def value(folder: Path) -> float | None:
    elements = np.load(folder / "targets" / "t.npy")
    return float(elements[0]) if (elements == elements[0]).all() else None


def strace(folder: Path, commit: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = (COMMAND, "accumulate", "-q", "--op", "sum", "--commit", commit, "targets/t.npy", "o.npy")
    return subprocess.run(
        ["strace", "-f", "-qq", "-o", "trace", *options, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def points(folder: Path, commit: str, calls: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the calls after the opening of the target, each with its number among those of its name."""
    reset(folder)
    assert strace(folder, commit, "-e", f"trace={','.join(CALLS)}").returncode == 0
    seen: Counter[str] = Counter()
    found, begun = [], False
    for line in (folder / "trace").read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\((.*)", line)
        if match is None:
            continue
        seen[match[1]] += 1
        begun = begun or ("t.npy" in match[2] and "O_RDWR" in match[2])
        if begun:
            found.append((match[1], seen[match[1]]))
    # What comes after the last change is the end of the interpreter.
    last = max(i for i, (name, _) in enumerate(found) if name in {"fsync", "unlinkat", "renameat"})
    return [(name, number) for name, number in found[: last + 2] if name in calls]


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_kill_at_each_call(commit, long, record_property, folder):
    ends = set()
    tried = points(folder, commit, CALLS if long else CHANGING)
    for name, number in tried:
        reset(folder)
        done = strace(folder, commit, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}")
        if commit == "rename":
            assert value(folder) in {1, 3}, (name, number)
        recover(folder / "targets" / "t.npy")
        assert value(folder) in {1, 3}, (name, number)
        assert os.listdir(folder / "targets") == ["t.npy"]
        assert done.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, (name, number, done)
        ends.add(value(folder))
    assert ends == {1, 3}
    assert len(tried) >= (15 if long else 5), tried
    record_property("tried", len(tried))


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_error_at_each_call(commit, long, folder):
    ends = set()
    tried = points(folder, commit, CALLS if long else CHANGING)
    for name_of, (name, when) in itertools.product(("EIO", "ENOSPC", "EDQUOT") if long else ("EIO",), tried):
        reset(folder)
        done = strace(folder, commit, "-e", f"trace={name}", "-e", f"inject={name}:error={name_of}:when={when}")
        assert done.returncode in {0, 4, 6}, (name, when, done)
        assert done.stderr.count("\n") == (done.returncode != 0), done.stderr
        left = value(folder)
        recover(folder / "targets" / "t.npy")
        assert value(folder) == (1 if done.returncode == 4 else 3), (name, when, done)
        assert done.returncode != 4 or left == 1
        ends.add(done.returncode)
    assert {4, 6} <= ends
