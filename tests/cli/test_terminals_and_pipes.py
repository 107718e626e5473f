"""In and out of pipes and terminals."""

from __future__ import annotations

import os
import pty

import numpy as np
from command import Child, reduce, refused, run, shell
from rows import each
from terminals import on_terminal
from three_ranks import PAIR, A, B, C, fold


@each("suffix", ["npy", "parquet", "arrow", "bin"])
def test_standard_input(suffix, folder):
    """A file, and a pipe."""
    content = (folder / f"b.{suffix}").read_bytes()
    words = ("reduce", "-q", "--op", "sum", "--type", "double", f"a.{suffix}", "-", "--to", "raw")
    assert run(*words, cwd=folder, stdin=content) == (0, (A + B).tobytes(), "")
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    assert run(*words, cwd=folder, stdin=read) == (0, (A + B).tobytes(), "")
    os.close(read)


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


TABLE = ["0", "11.5", "1", "2.25", "2", "2.0"]


@each(
    "words, shown",
    [
        *((f"a.{suffix} b.{suffix}", ["element", "value", *TABLE]) for suffix in ("npy", "bin")),
        *((f"a.{suffix} b.{suffix}", ["element", "x", *TABLE]) for suffix in ("parquet", "arrow")),
        *((f"a.npy b.npy {to}", ["element", "value", *TABLE]) for to in ("--to raw", "--to npy", "--to parquet")),
        *((f"a.npy b.npy -o {way}", ["element", "value", *TABLE]) for way in ("-", "/dev/stdout", "/proc/self/fd/1")),
        ("a.npy b.npy --to csv", ["value", "11.5", "2.25", "2.0"]),
        ("a.npy b.npy --to text", ["11.5", "2.25", "2.0"]),
        ("a.npy b.npy -o out.npy", []),
    ],
)
def test_what_a_terminal_shows(words, shown, folder):
    """Text, whatever is asked for, and nothing of a file."""
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", "--type", "double", *words.split(), cwd=folder)
    assert outcome == (0, b"", "")
    assert seen.split() == shown


def test_the_name_of_a_terminal_is_no_way_to_binary(folder):
    master, slave = pty.openpty()
    words = ("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "-o", os.ttyname(slave))
    assert Child(*words, cwd=folder, stdout=slave).finish() == (0, b"", "")
    assert os.read(master, 10_000).decode().split() == ["element", "value", *TABLE]
    os.close(master)
    os.close(slave)


def test_terminal_shows_pairs_and_a_summary(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(i, 9 - i) for i in range(30)], PAIR))
    outcome, seen = on_terminal("reduce", "--op", "maxloc", "a.npy", "a.npy", cwd=tmp_path)
    assert (outcome.status, outcome.out) == (0, b"")
    assert "2 ranks, 30 x MPI_DOUBLE_INT" in outcome.err
    assert seen.splitlines()[0].split() == ["element", "value", "index"]
    assert seen.splitlines()[11].split() == ["...", "(15", "more)"]
    assert seen.splitlines()[-1].split() == ["29", "29.0", "-20"]


def test_file_size_limit_of_standard_output_names_it(folder):
    with open(folder / "large.bin", "wb") as file:
        file.truncate(1 << 20)
    script = 'ulimit -f 100; "$@" > out'
    outcome = shell(script, "reduce", "-q", "--op", "sum", "--type", "double", "large.bin", cwd=folder)
    refused(outcome, 4, "mpired: standard output, kept in ", "File too large")
