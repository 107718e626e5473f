"""Ranks that a library looks at in a worker, one after another."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded

NRANKS = 50
BAD = (0, 1, 40, 49)
GOOD_SUM = sum(range(NRANKS)) - sum(BAD)
# Runs the command, which calls a function for each file that the library opens.
OPENING = """
import os
from mpired.cli import main
from mpired.formats import decoding, hierarchy
plain = hierarchy.HdfFile.__init__
def init(self, source, *rest, **more):
    opened(os.path.basename(source.name))
    plain(self, source, *rest, **more)
hierarchy.HdfFile.__init__ = init
{}
os._exit(main())
"""
# To look at a file with "bad" in its name ends the process, or does not end.
ABORT = "opened = lambda name: os.abort() if 'bad' in name else None"
ENDLESS = """
decoding._LOOK_SECONDS = 1
def opened(name):
    while "bad" in name: pass
"""


def command(how, *words, cwd):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot fork
    command = [sys.executable, "-c", OPENING.format(how), *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def write(path, values, number=None):
    """Write an array, with a number so that the file differs from others in more than its elements."""
    with h5py.File(path, "w") as file:
        file["x"] = values
        if number is not None:
            file.attrs["number"] = number


@pytest.fixture
def ranks(tmp_path):
    """Return the names of many ranks of which rank i has 3 elements of i."""
    names = [f"{'bad' if i in BAD else 'rank'}{i:03}.h5" for i in range(NRANKS)]
    for i, name in enumerate(names):
        write(tmp_path / name, np.full(3, float(i)), i)
    return names


def reduce(tmp_path, names):
    succeeded(run("reduce", "-q", "-f", "--op", "sum", "-o", "sum.npy", *names, cwd=tmp_path))
    return np.load(tmp_path / "sum.npy").tolist()


def test_many_ranks(ranks, tmp_path):
    """Each once, some twice, and a few of other formats and kinds among them; a pipe is read in its turn, once."""
    assert reduce(tmp_path, ranks) == [sum(range(NRANKS))] * 3
    os.symlink(ranks[7], tmp_path / "link.h5")
    np.save(tmp_path / "one.npy", np.ones(3))
    with gzip.open(tmp_path / "packed.h5.gz", "wb") as file:
        file.write((tmp_path / ranks[9]).read_bytes())
    write(tmp_path / "other.hdf5", np.full(3, 0.5))
    names = [*ranks[:5], "link.h5", ranks[3], "one.npy", ranks[3], ranks[3], "packed.h5.gz", "other.hdf5", *ranks[5:8]]
    numbers = [0, 1, 2, 3, 4, 7, 3, 1, 3, 3, 9, 0.5, 5, 6, 7]
    assert reduce(tmp_path, names) == [sum(numbers)] * 3
    os.mkfifo(tmp_path / "pipe.h5")
    with subprocess.Popen(["sh", "-c", 'cat "$0" > pipe.h5', ranks[5]], cwd=tmp_path) as cat:
        assert reduce(tmp_path, [*ranks[:5], "pipe.h5", *ranks[6:9]]) == [sum(range(9))] * 3
    assert cat.returncode == 0


def test_damaged_ranks(ranks, tmp_path):
    """Each is named with its own reason, and those that are good are combined."""
    for i in BAD:
        content = (tmp_path / ranks[i]).read_bytes()
        (tmp_path / ranks[i]).write_bytes(content[: len(content) // 2])
    words = ("reduce", "-q", "--op", "sum", "-o", "sum.npy", *ranks)
    refused(run(*words, cwd=tmp_path), 3, f"{len(BAD)} of {NRANKS} ranks: ", *(ranks[i] for i in BAD[:3]))
    outcome = run(*words, "--skip-bad", cwd=tmp_path)
    assert (outcome.status, outcome.out) == (9, b"")
    assert np.load(tmp_path / "sum.npy").tolist() == [GOOD_SUM] * 3


def test_the_file_that_ends_the_worker_is_blamed(ranks, tmp_path):
    """Not the one whose turn it is; a new worker looks at the others. A look that goes round in a circle is ended."""
    words = ("reduce", "--op", "sum", "--skip-bad", "-f", "-o", "sum.npy")
    outcome = command(ABORT, *words, *ranks, cwd=tmp_path)
    assert outcome.returncode == 9, outcome.stderr
    reason = "cannot be decoded, the file is damaged (a worker died: it was killed by SIGABRT)"
    assert outcome.stderr.startswith(f"mpired: {len(BAD)} of {NRANKS} ranks left out: {reason}: {ranks[0]}, {ranks[1]}")
    assert np.load(tmp_path / "sum.npy").tolist() == [GOOD_SUM] * 3
    outcome = command(ENDLESS, *words, ranks[2], ranks[40], ranks[3], cwd=tmp_path)
    assert outcome.returncode == 9, outcome.stderr
    how = "a worker died: it was killed by SIGXCPU, after all the processor time that it may take"
    assert f"{ranks[40]}: cannot be decoded, the file is damaged ({how})" in outcome.stderr
    assert np.load(tmp_path / "sum.npy").tolist() == [5.0] * 3
