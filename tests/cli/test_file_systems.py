"""File systems with ways of their own: FUSE, which keeps a name of what is open, and those without locks."""

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import run, succeeded
from faults import failing
from needs import needs
from rows import each

RANKS = [f"r{rank}.npy" for rank in range(4)]
SCAN = (1.0, 3.0, 6.0, 10.0)
# Commands, and what their results hold.
MANY = [
    (("scan", "-f", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": SCAN[rank] for rank in range(4)}),
    (("scan", *RANKS, "--in-place"), {f"r{rank}.npy": SCAN[rank] for rank in range(4)}),
    (("allreduce", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
    (("allreduce", "--link", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
    (("reduce-scatter-block", *RANKS, "-o", "s{rank}.npy"), {f"s{rank}.npy": 10.0 for rank in range(4)}),
]
ONE = [
    (("reduce", *RANKS, "-o", "x.npy"), {"x.npy": 10.0}),
    (("reduce", "-f", *RANKS[:3], "-o", "other.npy"), {"other.npy": 6.0}),
    (("reduce-local", "r0.npy", "r1.npy"), {"r1.npy": 3.0}),
    (("accumulate", "r0.npy", "r1.npy"), {"r0.npy": 3.0}),
    (("accumulate", "--commit", "journal", "r0.npy", "r1.npy"), {"r0.npy": 3.0}),
]


@pytest.fixture
def fuse(open_folder: Path) -> Iterator[Path]:
    """A folder on a FUSE file system, which passes everything on to another folder."""
    needs("bindfs")
    below, folder = open_folder / "below", open_folder / "mounted"
    below.mkdir()
    folder.mkdir()
    subprocess.run(["bindfs", below, folder], capture_output=True, check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def check(folder: Path, words: tuple[str, ...], results: dict[str, float], setup: Callable[[], None] | None) -> None:
    """Run a command on ranks of ones, twos, threes and fours, and look at its results and at what it leaves."""
    for path in folder.glob("*.npy"):
        path.unlink()
    for rank, name in enumerate(RANKS):
        np.save(folder / name, np.full(8, rank + 1.0))
    if "-f" in words:
        for name in results:
            np.save(folder / name, np.zeros(3))
    succeeded(run(words[0], "-q", "--op", "sum", *words[1:], cwd=folder, setup=setup))
    assert {name: np.load(folder / name)[0] for name in results} == results
    assert [name for name in os.listdir(folder) if "mpired" in name or name.startswith(".")] == []


@each("words, results", [*MANY, *ONE])
def test_results_on_fuse(words, results, fuse):
    check(fuse, words, results, None)


@each("words, results", MANY)
@each("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_many_results_without_locks(words, results, number, tmp_path):
    no_locks = failing(number, "fcntl", module=fcntl, when=lambda _fd, request, *_: request == fcntl.F_OFD_SETLK)
    check(tmp_path, words, results, no_locks)
