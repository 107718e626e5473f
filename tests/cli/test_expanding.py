"""Small files that unfold to many elements: how far the work is shows, and ctrl-C ends it."""

from __future__ import annotations

import os
import pty
import re
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Child, unchanged

from mpired.cli import progress

GROUPS, ROWS = 100, 1 << 20  # of a byte: much longer work than that of the first group
WORK = {
    "reduce": ("reduce", "--op", "sum", "-j", "1", "many.parquet", "many.parquet", "-o", "sum.npy"),
    "reduce to parquet": ("reduce", "--op", "sum", "-j", "1", "many.parquet", "many.parquet", "-o", "sum.parquet"),
    "accumulate": ("accumulate", "--op", "sum", "total.npy", "many.parquet", "many.parquet"),
    "get-accumulate": ("get-accumulate", "--op", "sum", "--fetch", "old.npy", "total.npy", "many.parquet"),
    "accumulate into parquet": ("accumulate", "--op", "sum", "many.parquet", "total.npy"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("expanding")
    table = pa.table({"x": pa.array(np.zeros(ROWS, np.int8))})
    with pq.ParquetWriter(where / "many.parquet", table.schema, compression="zstd") as writer:
        for _ in range(GROUPS):
            writer.write_table(table)
    assert (where / "many.parquet").stat().st_size < 1 << 20
    np.save(where / "total.npy", np.zeros(GROUPS * ROWS, np.int8))
    return where


@pytest.mark.parametrize("command", WORK)
def test_how_far_the_work_is_shows_and_an_interrupt_ends_it(command, folder):
    """The bar is there long before the end, and nothing is left of a command that is interrupted then."""
    master, slave = pty.openpty()
    terminal = os.ttyname(slave)

    def setup() -> None:
        os.dup2(os.open(terminal, os.O_RDWR | os.O_NOCTTY), 2)
        progress._PATIENCE = -1.0  # noqa: SLF001 - a bar at once, however fast the machine is

    with unchanged(folder):
        child, text = Child(*WORK[command], cwd=folder, setup=setup), ""
        while not re.search(r"[1-9]\d*%", text):
            text += os.read(master, 10_000).decode(errors="replace")
        os.kill(child.pid, signal.SIGINT)
        os.close(slave)
        assert child.finish().status == -signal.SIGINT
    os.close(master)
    assert "100%" not in text
