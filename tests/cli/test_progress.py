"""The bar on a terminal: it shows how far the work is, and leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator

import pytest

from mpired.cli import progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch) -> Iterator[int]:
    """The other end of a terminal that is standard error; no patience is needed."""
    master, slave = pty.openpty()
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    with os.fdopen(slave, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield master
    os.close(master)


def shown(terminal: int) -> str:
    sys.stderr.flush()
    return os.read(terminal, 100_000).decode()


def test_bar_shows_how_far_the_work_is(terminal):
    assert list(progress.bar([10, 20, 70], 100)) == [10, 20, 70]
    text = shown(terminal)
    assert all(f"{percent}%" in text for percent in (10, 30, 100))
    assert "GB/s" in text


@pytest.mark.parametrize("end", [KeyboardInterrupt, MemoryError, None])
def test_the_cursor_comes_back(end, terminal):
    def work() -> Iterator[int]:
        yield 10
        if end is not None:
            raise end
        yield 90

    watched = progress.bar(work(), 100)
    next(watched)
    if end is None:
        watched.close()
    else:
        with pytest.raises(end):
            next(watched)
    text = shown(terminal)
    assert HIDE in text
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_short_work_has_no_bar(monkeypatch, terminal):
    monkeypatch.setattr(progress, "_PATIENCE", 60.0)
    assert list(progress.bar([50, 50], 100)) == [50, 50]
    os.set_blocking(terminal, False)
    with pytest.raises(BlockingIOError):
        shown(terminal)
