"""The bar on a terminal: it shows how far the work is, and leaves the terminal as it was; ctrl-C ends the work."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Child, Outcome, run, unchanged
from rows import each
from terminals import on_terminal

from mpired.cli import progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
END = "<the end>"


@contextlib.contextmanager
def terminal(monkeypatch, patience: float = -1.0) -> Iterator[Callable[[], str]]:
    """Make a terminal of standard error, and give what reads the text that it shows."""
    master, slave = pty.openpty()

    def shown() -> str:
        # The kernel hands the text over piece by piece, so it is read up to a mark.
        sys.stderr.write(END)
        sys.stderr.flush()
        text = ""
        while not text.endswith(END):
            text += os.read(master, 100_000).decode()
        return text.removesuffix(END)

    with os.fdopen(slave, "w") as stream, monkeypatch.context() as changed:
        changed.setattr(progress, "_PATIENCE", patience)
        changed.setattr(sys, "stderr", stream)
        yield shown
    os.close(master)


@each("patience, total, shares", [(-1.0, 100, ["10%", "30%", "100%"]), (-1.0, 0, []), (60.0, 100, None)])
def test_bar_shows_how_far_the_work_is(patience, total, shares, monkeypatch):
    """Work without a known end has no share, and short work no bar."""
    with terminal(monkeypatch, patience) as shown:
        assert list(progress.bar([10, 20, 70], total)) == [10, 20, 70]
        text = shown()
    assert ("GB/s" in text, text == "") == (shares is not None, shares is None)
    assert ("%" in text) == bool(shares)
    assert [share for share in shares or () if share not in text] == []


@each("end", [KeyboardInterrupt, MemoryError, None])
def test_the_cursor_comes_back(end, monkeypatch):
    def work() -> Iterator[int]:
        yield 10
        if end is not None:
            raise end
        yield 90

    with terminal(monkeypatch) as shown:
        watched = progress.bar(work(), 100)
        next(watched)
        if end is None:
            watched.close()
        else:
            with pytest.raises(end):
                next(watched)
        text = shown()
    assert HIDE in text
    assert text.rindex(SHOW) > text.rindex(HIDE)


@each("to", ["parquet", "arrow", "csv"])
def test_what_the_terminal_shows_of_a_command(to, folder, monkeypatch):
    """The bytes as they are combined; `-q` shows nothing."""
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "c.npy", "-f", "-o", f"out.{to}")
    outcome, seen = on_terminal(*words, cwd=folder, stream=2)
    assert (outcome.status, outcome.out) == (0, b""), seen
    assert "GB/s" in seen
    assert seen.rindex(SHOW) > seen.rindex(HIDE)
    assert on_terminal(*words, "-q", cwd=folder, stream=2) == (Outcome(0, b"", ""), "")
    assert "GB/s" not in run(*words, cwd=folder).err


# Small files that unfold to many elements

GROUPS, ROWS = 100, 1 << 20  # of a byte: much longer work than that of the first group
WORK = {
    "reduce to parquet": ("reduce", "--op", "sum", "-j", "1", "many.parquet", "many.parquet", "-o", "sum.parquet"),
    "get-accumulate": ("get-accumulate", "--op", "sum", "--fetch", "old.npy", "total.npy", "many.parquet"),
    "accumulate into parquet": ("accumulate", "--op", "sum", "many.parquet", "total.npy"),
}


@pytest.fixture(scope="module")
def expanding(tmp_path_factory):
    where = tmp_path_factory.mktemp("expanding")
    table = pa.table({"x": pa.array(np.zeros(ROWS, np.int8))})
    with pq.ParquetWriter(where / "many.parquet", table.schema, compression="zstd") as writer:
        for _ in range(GROUPS):
            writer.write_table(table)
    assert (where / "many.parquet").stat().st_size < 1 << 20
    np.save(where / "total.npy", np.zeros(GROUPS * ROWS, np.int8))
    return where


@pytest.mark.parametrize("name", WORK)
def test_how_far_the_work_is_shows_and_an_interrupt_ends_it(name, expanding):
    """The bar is there long before the end, and nothing is left of a command that is interrupted then."""
    master, slave = pty.openpty()
    terminal = os.ttyname(slave)

    def setup() -> None:
        os.dup2(os.open(terminal, os.O_RDWR | os.O_NOCTTY), 2)
        progress._PATIENCE = -1.0  # noqa: SLF001 - a bar at once, however fast the machine is

    with unchanged(expanding):
        child, text = Child(*WORK[name], cwd=expanding, setup=setup), ""
        while not re.search(r"[1-9]\d*%", text):
            text += os.read(master, 10_000).decode(errors="replace")
        os.kill(child.pid, signal.SIGINT)
        os.close(slave)
        assert child.finish().status == -signal.SIGINT
    os.close(master)
    assert "100%" not in text
