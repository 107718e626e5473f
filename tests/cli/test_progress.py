"""The bar on a terminal: it shows how far the work is, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import Outcome, run

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


def test_bar_shows_how_far_the_work_is(monkeypatch):
    with terminal(monkeypatch) as shown:
        assert list(progress.bar([10, 20, 70], 100)) == [10, 20, 70]
        text = shown()
    assert all(f"{percent}%" in text for percent in (10, 30, 100))
    assert "GB/s" in text


def test_what_has_no_known_end_shows_no_share(monkeypatch):
    with terminal(monkeypatch) as shown:
        assert list(progress.bar([10, 20, 70], 0)) == [10, 20, 70]
        text = shown()
    assert "GB/s" in text
    assert "%" not in text


@pytest.mark.parametrize("end", [KeyboardInterrupt, MemoryError, None])
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


def test_short_work_has_no_bar(monkeypatch):
    with terminal(monkeypatch, patience=60.0) as shown:
        assert list(progress.bar([50, 50], 100)) == [50, 50]
        assert shown() == ""


def on_terminal(*words: str, cwd: Path) -> tuple[Outcome, str]:
    """Run the command with a terminal as standard error; return the outcome and what is seen."""
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    outcome = run(*words, cwd=cwd, setup=lambda: os.dup2(os.open(name, os.O_RDWR | os.O_NOCTTY), 2))
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(master, 65536):
            seen += part
    os.close(master)
    return outcome, seen.decode()


@pytest.mark.parametrize("to", ["parquet", "arrow", "csv"])
def test_what_the_terminal_shows_of_a_command(to, folder, monkeypatch):
    """Ranks as they are checked, bytes as they are combined, and the result as it is encoded; `-q` shows nothing."""
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "c.npy", "-f", "-o", f"out.{to}")
    outcome, seen = on_terminal(*words, cwd=folder)
    assert (outcome.status, outcome.out) == (0, b""), seen
    checked, combined, encoded = seen.index("3/3"), seen.index("GB/s"), seen.index("1/1")
    assert seen.index("checking ranks") < checked < combined < seen.index("encoding results") < encoded
    assert seen.rindex(SHOW) > seen.rindex(HIDE)
    assert on_terminal(*words, "-q", cwd=folder) == (Outcome(0, b"", ""), "")
    assert "checking" not in run(*words, cwd=folder).err


def test_thousands_of_ranks_are_few_lines(monkeypatch):
    things = range(100_000)
    with terminal(monkeypatch) as shown, monkeypatch.context() as changed:
        changed.setattr(progress, "_STEPS", 20)
        assert list(progress.count(things, "checking ranks")) == list(things)
        text = shown()
    assert "100000/100000" in text
    assert text.count("\r") < 100
