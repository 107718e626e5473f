"""A file that its writer replaces again and again, faster than it is read: its moments are never mixed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run
from tables import bytes_of

COUNT = 1000
WRITE = {
    "npy": lambda path, values: np.save(path, values),
    "parquet": lambda path, values: path.write(bytes_of(pa.table({"x": values}), "parquet")),
    "arrow": lambda path, values: path.write(bytes_of(pa.table({"x": values}), "arrow")),
}


def _replace_for_ever(path: Path, write) -> None:
    """Write files of one value each, and never wait."""
    number = 0
    while True:
        number += 1
        with open(path.with_name("new"), "wb") as new:
            write(new, np.full(COUNT, float(number)))
        os.replace(path.with_name("new"), path)


@pytest.fixture(params=WRITE)
def replaced(request, tmp_path):
    """The name of a file that another process replaces without end."""
    path = tmp_path / f"a.{request.param}"
    with open(path, "wb") as first:
        WRITE[request.param](first, np.zeros(COUNT))
    writer = os.fork()
    if writer == 0:
        try:
            _replace_for_ever(path, WRITE[request.param])
        finally:
            os._exit(1)
    began = os.stat(path).st_ino
    while os.stat(path).st_ino == began:
        time.sleep(0.001)
    yield path
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)


def test_a_reader_beside_a_writer_that_never_waits(replaced):
    """It may have to give up after some attempts, and never mixes two files."""
    folder, name = replaced.parent, replaced.name
    for jobs in "12":
        outcome = run("reduce", "-q", "--op", "max", name, "--to", "raw", "-j", jobs, cwd=folder)
        if outcome.status:
            refused(outcome, 3, "changed while being read")
            continue
        values = np.frombuffer(outcome.out)
        assert (len(values), len(np.unique(values)), outcome.err) == (COUNT, 1, "")
    outcome = run("accumulate", "-q", "--op", "max", "--create", str(COUNT), "t.npy", name, cwd=folder)
    if outcome.status:
        refused(outcome, 3, "changed while being read")
    else:
        assert len(np.unique(np.load(folder / "t.npy"))) == 1
