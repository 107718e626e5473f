"""The bar on a terminal: it shows how far the work is, and leaves the terminal as it was; ctrl-C ends the work."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from collections.abc import Callable, Iterator

import pytest
from rows import each

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


# Small files that unfold to many elements
