"""A file that its writer replaces again and again, faster than it is read, is read as it is at one of the moments."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import run
from tables import bytes_of

from mpired.context import NO_LIMITS
from mpired.sources import local
from mpired.sources.open import open_source

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
    folder, name = replaced.parent, replaced.name
    for jobs in "12":
        outcome = run("reduce", "-q", "--op", "max", name, "--to", "raw", "-j", jobs, cwd=folder)
        assert (outcome.status, outcome.err) == (0, "")
        values = np.frombuffer(outcome.out)
        assert (len(values), len(np.unique(values))) == (COUNT, 1)
    outcome = run("accumulate", "-q", "--op", "max", "--create", str(COUNT), "t.npy", name, cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert len(np.unique(np.load(folder / "t.npy"))) == 1


def test_few_files_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_MOST_HELD", 3)
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.zeros(2))
    before = len(os.listdir("/proc/self/fd"))
    context = NO_LIMITS._replace(keep_open=True)
    files = [open_source(str(tmp_path / f"{number}.npy"), context) for number in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del files
    assert len(os.listdir("/proc/self/fd")) == before
