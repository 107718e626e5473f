"""In and out of pipes and terminals."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import numpy as np
import pytest
from command import Child, Outcome, reduce, refused, run, shell
from three_ranks import PAIR, A, B, C, fold


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
@pytest.mark.parametrize("way", ["file", "pipe"])
def test_standard_input(suffix, way, folder):
    content = (folder / f"b.{suffix}").read_bytes()
    words = ("reduce", "-q", "--op", "sum", "--type", "double", f"a.{suffix}", "-", "--to", "raw")
    if way == "file":
        outcome = run(*words, cwd=folder, stdin=content)
    else:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        outcome = run(*words, cwd=folder, stdin=read)
        os.close(read)
    assert outcome == (0, (A + B).tobytes(), "")


def test_standard_input_as_the_only_rank_and_first(folder):
    words = ("--op", "sum", "--to", "text", "--type", "double")
    assert reduce(*words, "-", cwd=folder, stdin=A.tobytes()).out == b"1.5\n2.0\n-3.0\n"
    assert reduce(*words, "-", "b.npy", cwd=folder, stdin=A.tobytes()).out == b"11.5\n2.25\n2.0\n"
    outcome = reduce("--op", "sum", "-", cwd=folder, stdin=A.tobytes())
    refused(outcome, 2, "standard input", "--type")


def test_shell_pipeline(folder):
    script = '"$@" <(cat a.npy) <(cat b.npy) | "$1" reduce -q --op sum - <(cat c.npy) -o out.npy'
    assert shell(script, "reduce", "-q", "--op", "sum", cwd=folder) == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "out.npy"), fold(np.add, A, B, C))


def on_terminal(*words: str, cwd: Path) -> tuple[Outcome, str]:
    """Run with a terminal as standard output; return the outcome and what is seen."""
    master, slave = pty.openpty()
    outcome = Child(*words, cwd=cwd, stdout=slave).finish()
    os.close(slave)
    seen = b""
    with open(master, "rb", buffering=0) as terminal:
        try:
            while part := terminal.read(65536):
                seen += part
        except OSError:  # the other end is closed
            pass
    return outcome, seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
@pytest.mark.parametrize("to", [(), ("--to", "raw"), ("--to", "parquet"), ("-o", "-")])
def test_terminal_shows_a_table(suffix, to, folder):
    words = ("reduce", "-q", "--op", "sum", "--type", "double", f"a.{suffix}", f"b.{suffix}", *to)
    outcome, seen = on_terminal(*words, cwd=folder)
    assert outcome == (0, b"", "")
    name = "x" if suffix in ("parquet", "arrow") else "value"
    assert [line.split() for line in seen.splitlines()] == [
        ["element", name],
        ["0", "11.5"],
        ["1", "2.25"],
        ["2", "2.0"],
    ]


def test_terminal_shows_pairs_and_a_summary(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(i, 9 - i) for i in range(30)], PAIR))
    outcome, seen = on_terminal("reduce", "--op", "maxloc", "a.npy", "a.npy", cwd=tmp_path)
    assert (outcome.status, outcome.out) == (0, b"")
    assert "2 ranks, 30 x MPI_DOUBLE_INT" in outcome.err
    assert seen.splitlines()[0].split() == ["element", "value", "index"]
    assert seen.splitlines()[11].split() == ["...", "(15", "more)"]
    assert seen.splitlines()[-1].split() == ["29", "29.0", "-20"]


@pytest.mark.parametrize(("to", "expected"), [("csv", "value\n11.5\n2.25\n2.0\n"), ("text", "11.5\n2.25\n2.0\n")])
def test_terminal_shows_text_that_was_asked_for(to, expected, folder):
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "--to", to, cwd=folder)
    assert (outcome, seen) == ((0, b"", ""), expected)


def test_file_named_at_a_terminal_is_binary(folder):
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "-o", "out.npy", cwd=folder)
    assert (outcome, seen) == ((0, b"", ""), "")
    np.testing.assert_array_equal(np.load(folder / "out.npy"), A + B)


@pytest.mark.parametrize("way", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "the terminal's name"])
def test_no_way_to_a_terminal_is_binary(way, folder):
    master, slave = pty.openpty()
    target = os.ttyname(slave) if way.startswith("the") else way
    child = Child("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "-o", target, cwd=folder, stdout=slave)
    outcome = child.finish()
    shown = os.read(master, 10_000).decode()
    os.close(master)
    os.close(slave)
    assert (outcome.status, outcome.err) == (0, "")
    assert shown.split() == ["element", "value", "0", "11.5", "1", "2.25", "2", "2.0"]


def test_file_size_limit_of_standard_output_names_it(folder):
    with open(folder / "large.bin", "wb") as file:
        file.truncate(1 << 20)
    script = 'ulimit -f 100; "$@" > out'
    outcome = shell(script, "reduce", "-q", "--op", "sum", "--type", "double", "large.bin", cwd=folder)
    refused(outcome, 4, "mpired: standard output, kept in ", "File too large")
