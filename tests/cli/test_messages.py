"""What is printed: summaries as JSON, results on a terminal, and a bar that leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from command import run
from rows import each
from terminals import on_terminal

from mpired.cli import progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
END = "<the end>"


@pytest.fixture
def ranks(tmp_path):
    """Ranks out of order."""
    for name in ("rank10", "rank2"):
        np.save(tmp_path / f"{name}.npy", np.array([0.5]))
    return tmp_path


def _line(text):
    (line,) = text.splitlines()
    return json.loads(line)


def test_warnings_are_in_it(ranks):
    words = ("scan", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o")
    for output, status in (("s_{rank}.npy", 0), ("nowhere/s_{rank}.npy", 4)):
        told = _line(run(*words, output, cwd=ranks).out)
        (warning,) = told["warnings"]
        assert "rank10.npy came before rank2.npy" in warning
        assert told.get("exit_status", 0) == status
    outcome = run("accumulate", "--json", "--op", "max", "rank2.npy", "rank2.npy", cwd=ranks)
    (warning,) = _line(outcome.out)["warnings"]
    assert "same file" in warning


def test_recovery_and_examples(ranks):
    outcome = run("recover", "--json", "rank2.npy", "nix.npy", "rank10.npy", cwd=ranks)
    *lines, failure = map(json.loads, (outcome.out.decode() + outcome.err).splitlines())
    assert [(each["file"], each["words"], each["changed"]) for each in lines] == [
        ("rank2.npy", [], False),
        ("rank10.npy", [], False),
    ]
    assert (failure["exit_status"], failure["subject"]) == (outcome.status, "nix.npy")
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["output"] == "new"
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["exit_status"] == 2


TABLE = ["0", "11.5", "1", "2.25", "2", "2.0"]


@each(
    "words, shown",
    [
        ("a.bin b.bin --type double", ["element", "value", *TABLE]),
        ("a.parquet b.parquet -o /dev/stdout", ["element", "x", *TABLE]),
        ("a.npy b.npy --to npy", ["element", "value", *TABLE]),
        ("a.npy b.npy --to csv", ["value", "11.5", "2.25", "2.0"]),
        ("a.npy b.npy -o out.npy", []),
    ],
)
def test_what_a_terminal_shows(words, shown, folder):
    """Text, whatever is asked for, and nothing of a file."""
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", *words.split(), cwd=folder)
    assert outcome == (0, b"", "")
    assert seen.split() == shown


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
