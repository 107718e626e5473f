"""What is printed: summaries as JSON, results on a terminal, a bar, and options of the environment."""

import contextlib
import json
import os
import pty
from pathlib import Path

import numpy as np
import pytest
import setups
from command import Outcome, run
from rows import each

from mpired.cli import messages

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


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


def on_terminal(*words: str, cwd: Path, stream: int = 1) -> tuple[Outcome, str]:
    """Run the command with a terminal as standard output or error; return the outcome and what is seen."""
    master, slave = pty.openpty()
    outcome = run(*words, cwd=cwd, setup=setups.on_terminal(os.ttyname(slave), stream))
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(master, 65536):
            seen += part
    os.close(master)
    return outcome, seen.decode().replace("\r\n", "\n")


TABLE = ["0", "11.5", "1", "2.25", "2", "2.0"]


@each("words, shown", [
    ("a.bin b.bin --type double", ["element", "value", *TABLE]),
    ("a.parquet b.parquet -o /dev/stdout", ["element", "x", *TABLE]),
    ("a.npy b.npy --to npy", ["element", "value", *TABLE]),
    ("a.npy b.npy --to csv", ["value", "11.5", "2.25", "2.0"]),
    ("a.npy b.npy -o out.npy", []),
])  # fmt: skip
def test_what_a_terminal_shows(words, shown, folder):
    """Text, whatever is asked for, and nothing of a file."""
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", *words.split(), cwd=folder)
    assert outcome == (0, b"", "")
    assert seen.split() == shown


def test_the_bar_leaves_the_terminal_as_it_was(folder, monkeypatch):
    monkeypatch.setattr(messages, "_PATIENCE", -1.0)
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "-f", "-o", "out.npy")
    outcome, seen = on_terminal(*words, cwd=folder, stream=2)
    assert (outcome.status, outcome.out) == (0, b"")
    assert "GB/s" in seen
    assert seen.rindex(SHOW) > seen.rindex(HIDE)
    assert on_terminal(*words, "-q", cwd=folder, stream=2)[1] == ""


@each("words, env, told", [
    ("info --json a.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
    ("reduce -q --op sum a.npy --to text", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
    ("accumulate -q --op sum a.npy b.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
    ("reduce --op sum a.npy -o new.npy", {"MPIRED_QUIET": "1"}, "--quiet (MPIRED_QUIET)"),
    ("reduce -v --op sum a.npy b.npy -o c.npy", {"MPIRED_FORCE": "1"}, "--overwrite (MPIRED_FORCE)"),
    ("reduce --json --op sum a.npy b.npy -o c.npy", {"MPIRED_OVERWRITE": "1"}, "--overwrite (MPIRED_OVERWRITE)"),
])  # fmt: skip
def test_an_option_of_the_environment_is_told_once_by_every_command(words, env, told, folder):
    outcome = run(*words.split(), cwd=folder, env=env)
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("from the environment: ") == 1
    assert outcome.err.endswith(f"from the environment: {told}\n") or "-v" in words
