"""In and out of pipes and terminals."""

from __future__ import annotations

from rows import each
from terminals import on_terminal

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
