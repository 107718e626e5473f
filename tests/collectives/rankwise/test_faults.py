"""Kills, errors and a full disk while results are given to the ranks."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import installed, refused, shell, unchanged
from rankwise import NPY, NRANKS, SUM, numbers, prefix, results, same

pytestmark = pytest.mark.usefixtures("without_bytecode")


def injected(folder, name, fault):
    """Scan in place, with a fault in a call of the system."""
    words = f"strace -f -qq -o {os.devnull} -e trace={name} -e inject={name}:{fault}"
    return shell(f'exec {words} "$@"', "scan", *SUM, *NPY, "--in-place", cwd=folder)


@pytest.mark.needs("strace")
def test_killed_at_each_rename(folder):
    """Python uses one of the three calls, and with the others the command comes to its end."""
    killed = set()
    for name, which in (("rename", 1), ("renameat2", 1), *(("renameat", which) for which in range(1, NRANKS + 1))):
        for rank in range(NRANKS):
            np.save(folder / f"r{rank}.npy", numbers(rank))
        if injected(folder, name, f"signal=KILL:when={which}").status:
            killed.add(name)
            assert any(path.endswith(".mpired") for path in os.listdir(folder))
            assert installed("info", NPY[0], cwd=folder).status == 0
        assert same(results(folder, "r{}.npy"), [prefix(rank) for rank in range(NRANKS)]), (name, which)
        assert not any("mpired" in path for path in os.listdir(folder))
    assert len(killed) == 1


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("name", "error"), [("fsync", "EIO"), ("linkat", "ENOSPC"), ("fallocate", "EDQUOT")])
def test_an_error_before_the_commit_changes_nothing(folder, name, error):
    with unchanged(folder):
        refused(injected(folder, name, f"error={error}:when=1"), 4)


def test_full_disk_leaves_all_as_it_was(mounted, tmp_path):
    where = mounted("size=1m")
    for rank in range(3):
        np.zeros(1 << 15).tofile(tmp_path / f"r{rank}.bin")
    (where / "out_1").write_bytes(b"old")
    with unchanged(where):
        paths = [str(tmp_path / f"r{rank}.bin") for rank in (0, 1, 2, 0, 1, 2)]
        words = ("scan", "-f", "-q", "--op", "sum", "--type", "double", *paths, "-o", f"{where}/out_{{rank}}")
        refused(installed(*words, cwd=tmp_path), 4, "No space left", "out_")
