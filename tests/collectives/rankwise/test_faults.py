"""Kills, errors and a full disk while results are given to the ranks."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from command import installed, refused, shell, unchanged
from rankwise import NPY, NRANKS, SUM, numbers, prefix, results, same

pytestmark = pytest.mark.usefixtures("without_bytecode")


@pytest.mark.needs("strace")
@pytest.mark.parametrize("which", range(1, NRANKS + 1))
@pytest.mark.parametrize("name", ["rename", "renameat", "renameat2"])
def test_killed_at_each_rename(folder, name, which):
    """Python may use any of the three calls; where one is not used, the command comes to its end."""
    inject = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={which}"]
    script = f'exec strace {" ".join(inject)} "$@"'
    outcome = shell(script, "scan", *SUM, *NPY, "--in-place", cwd=folder)
    killed = outcome.status in {-signal.SIGKILL, 128 + signal.SIGKILL}
    assert killed or outcome.status == 0, outcome.err
    done = [np.load(folder / path).tolist() == prefix(rank).tolist() for rank, path in enumerate(NPY)]
    if killed:
        assert 1 < sum(done) + 1 <= NRANKS + 1
        assert any(path.endswith(".mpired") for path in os.listdir(folder))
        assert installed("info", NPY[0], cwd=folder).status == 0
    assert same(results(folder, "r{}.npy"), [prefix(rank) for rank in range(NRANKS)])
    assert not any("mpired" in path for path in os.listdir(folder))


@pytest.mark.needs("strace")
def test_a_kill_reaches_the_renames(folder):
    """The test above has teeth: one of the three calls is the one."""
    killed = 0
    for name in "rename", "renameat", "renameat2":
        for rank in range(NRANKS):
            np.save(folder / f"r{rank}.npy", numbers(rank))
        inject = f"-f -qq -o /dev/null -e trace={name} -e inject={name}:signal=KILL:when=2"
        outcome = shell(f'exec strace {inject} "$@"', "scan", *SUM, *NPY, "--in-place", cwd=folder)
        killed += outcome.status != 0
        installed("info", NPY[0], cwd=folder)
    assert killed == 1


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("name", ["fsync", "linkat", "fallocate"])
def test_an_error_before_the_commit_changes_nothing(folder, name, error):
    script = f'exec strace -f -qq -o /dev/null -e trace={name} -e inject={name}:error={error}:when=1 "$@"'
    with unchanged(folder):
        refused(shell(script, "scan", *SUM, *NPY, "--in-place", cwd=folder), 4)


def test_full_disk_leaves_all_as_it_was(mounted, tmp_path):
    where = mounted("size=1m")
    for rank in range(3):
        np.zeros(1 << 15).tofile(tmp_path / f"r{rank}.bin")
    (where / "out_1").write_bytes(b"old")
    with unchanged(where):
        paths = [str(tmp_path / f"r{rank}.bin") for rank in (0, 1, 2, 0, 1, 2)]
        words = ("scan", "-f", "-q", "--op", "sum", "--type", "double", *paths, "-o", f"{where}/out_{{rank}}")
        refused(installed(*words, cwd=tmp_path), 4, "No space left", "out_")
