"""Ranks that a library looks at in a worker: that looks at the next ones, too, while the command checks the last."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections import Counter

import h5py
import netCDF4
import numpy as np
import pytest
from command import refused, run, succeeded

NRANKS = 150  # more than a worker is asked for at once, twice
BAD = (0, 1, 40, 64, 65, 149)
# To look at a file with "bad" in its name ends the process.
ABORTING = """
import os
from mpired.formats import hierarchy
opened = hierarchy.HdfFile.__init__
def abort(self, source, *rest, **more):
    if "bad" in os.path.basename(source.name): os.abort()
    opened(self, source, *rest, **more)
hierarchy.HdfFile.__init__ = abort
from mpired.cli import main
os._exit(main())
"""

# A look at such a file does not end.
ENDLESS = """
from mpired.formats import decoding
decoding._LOOK_SECONDS = 1
def endless():
    while True: pass
""" + ABORTING.replace("os.abort()", "endless()")

# Each file that the library opens is a line in "opened".
COUNTING = """
import os
from mpired.formats import hierarchy
init = hierarchy.HdfFile.__init__
def count(self, source, *rest, **more):
    with open("opened", "a") as file:
        file.write(source.name + chr(10))
    init(self, source, *rest, **more)
hierarchy.HdfFile.__init__ = count
from mpired.cli import main
os._exit(main())
"""


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


def reduce(tmp_path, names, *words):
    succeeded(run("reduce", "-q", "-f", "--op", "sum", *words, "-o", "sum.npy", *names, cwd=tmp_path))
    return np.load(tmp_path / "sum.npy")


def test_many_ranks(ranks, tmp_path):
    """Each once, some twice, and a few of other formats and kinds among them."""
    assert reduce(tmp_path, ranks).tolist() == [sum(range(NRANKS))] * 3
    os.symlink(ranks[7], tmp_path / "link.h5")
    np.save(tmp_path / "one.npy", np.ones(3))
    with gzip.open(tmp_path / "packed.h5.gz", "wb") as file:
        file.write((tmp_path / ranks[9]).read_bytes())
    write(tmp_path / "other.hdf5", np.full(3, 0.5))
    names = [*ranks[:5], "link.h5", ranks[3], "one.npy", ranks[3], ranks[3], "packed.h5.gz", "other.hdf5", *ranks[5:8]]
    numbers = [0, 1, 2, 3, 4, 7, 3, 1, 3, 3, 9, 0.5, 5, 6, 7]
    assert reduce(tmp_path, names).tolist() == [sum(numbers)] * 3


def test_a_pipe_among_them(ranks, tmp_path):
    """It is read in its turn, once, and not before."""
    os.mkfifo(tmp_path / "pipe.h5")
    with subprocess.Popen(["sh", "-c", 'cat "$0" > pipe.h5', ranks[5]], cwd=tmp_path) as cat:
        assert reduce(tmp_path, [*ranks[:5], "pipe.h5", *ranks[6:9]]).tolist() == [sum(range(9))] * 3
    assert cat.returncode == 0


def test_damaged_ranks(ranks, tmp_path):
    """Each is named with its own reason, and those that are good are combined."""
    for i in BAD:
        content = (tmp_path / ranks[i]).read_bytes()
        (tmp_path / ranks[i]).write_bytes(content[: len(content) // 2])
    outcome = run("reduce", "-q", "--op", "sum", "-o", "sum.npy", *ranks, cwd=tmp_path)
    refused(outcome, 3, f"{len(BAD)} of {NRANKS} ranks: ", *(ranks[i] for i in BAD[:3]))
    good = sum(i for i in range(NRANKS) if i not in BAD)
    outcome = run("reduce", "-q", "--op", "sum", "--skip-bad", "-o", "sum.npy", *ranks, cwd=tmp_path)
    assert (outcome.status, outcome.out) == (9, b"")
    assert np.load(tmp_path / "sum.npy").tolist() == [good] * 3


def test_the_file_that_ends_the_worker_is_blamed(ranks, tmp_path):
    """Not the one whose turn it is; a new worker looks at the others."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot fork
    words = ["reduce", "--op", "sum", "--skip-bad", "-o", "sum.npy", *ranks]
    outcome = subprocess.run(
        [sys.executable, "-c", ABORTING, *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert outcome.returncode == 9, outcome.stderr
    reason = "cannot be decoded, the file is damaged (a worker died: it was killed by SIGABRT)"
    assert outcome.stderr.startswith(f"mpired: {len(BAD)} of {NRANKS} ranks left out: {reason}: {ranks[0]}, {ranks[1]}")
    assert np.load(tmp_path / "sum.npy").tolist() == [sum(i for i in range(NRANKS) if i not in BAD)] * 3


def test_a_look_that_does_not_end(tmp_path):
    """In some damaged files the library goes round in a circle."""
    for i, name in enumerate(("good.h5", "bad.h5", "other.h5")):
        write(tmp_path / name, np.full(3, float(i)), i)
    words = ["reduce", "--skip-bad", "--op", "sum", "-o", "sum.npy", "good.h5", "bad.h5", "other.h5"]
    outcome = subprocess.run(
        [sys.executable, "-c", ENDLESS, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 9, outcome.stderr
    how = "a worker died: it was killed by SIGXCPU, after all the processor time that it may take"
    assert f"bad.h5: cannot be decoded, the file is damaged ({how})" in outcome.stderr
    assert np.load(tmp_path / "sum.npy").tolist() == [2.0] * 3


@pytest.mark.parametrize("others", ["of another suffix", "that the library does not read"])
def test_each_file_is_opened_once(tmp_path, others):
    """Files of two kinds in turn: the library looks at none again."""
    names = [f"r{i:02}.nc" for i in range(40)]
    if others == "of another suffix":
        names[1::2] = [name.replace(".nc", ".h5") for name in names[1::2]]
    for i, name in enumerate(names):
        if i % 2 and others == "that the library does not read":
            with netCDF4.Dataset(tmp_path / name, "w", format="NETCDF3_CLASSIC") as file:
                file.createDimension("n", 3)
                file.createVariable("x", "f8", ("n",))[:] = i
        else:
            write(tmp_path / name, np.full(3, float(i)), i)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as above
    words = ["reduce", "-q", "--op", "sum", "-o", "sum.npy", *names]
    subprocess.run([sys.executable, "-c", COUNTING, *words], cwd=tmp_path, env=environment, check=True)
    assert np.load(tmp_path / "sum.npy").tolist() == [sum(range(40))] * 3
    opened = Counter((tmp_path / "opened").read_text().split())
    assert set(names[::2]) <= opened.keys()
    assert set(opened.values()) == {1}


def test_the_reasons_of_all(tmp_path):
    """Ranks of other shapes and without the array, in any order."""
    for i in range(8):
        write(tmp_path / f"{i}.h5", np.ones(4 if i == 5 else 3))
    with h5py.File(tmp_path / "2.h5", "w") as file:
        file["y"] = np.ones(3)
    outcome = run(
        "reduce", "--op", "sum", "--columns", "x", "-o", "n.npy", *(f"{i}.h5" for i in range(8)), cwd=tmp_path
    )
    refused(outcome, 3, "2 of 8 ranks", "2.h5", "5.h5")
