"""What the program tells of itself: help in the width of a small terminal, ops, examples; and the ways to start it."""

import os
import subprocess
import sys
from pathlib import Path

import click
from command import COMMAND, run, succeeded
from rows import each

from mpired.cli import cli

COMMANDS = cli.list_commands(click.Context(cli))
WIDTH = 80


def test_help_of_all(tmp_path):
    outcome = run("--help", cwd=tmp_path, env={"COLUMNS": "200"})
    assert outcome == run("help", cwd=tmp_path, env={"COLUMNS": "200"})
    assert (outcome.status, outcome.err) == (0, "")
    text = outcome.out.decode()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == []


ROOT = Path(__file__).parents[2]


@each("directory", ["new", "empty/."])
def test_examples_are_copied_into_a_new_or_an_empty_directory(directory, tmp_path):
    folder = tmp_path / f"for {directory.replace('/', '_')}"
    folder.mkdir()
    if directory.startswith("empty"):
        (folder / "empty").mkdir()
    succeeded(run("examples", "-q", directory, cwd=folder))
    for name in ("sample_data", "examples"):
        copies, originals = folder / directory / name, ROOT / name
        there = {path.relative_to(originals) for path in originals.rglob("*") if "__pycache__" not in path.parts}
        assert {path.relative_to(copies) for path in copies.rglob("*")} == there
        files = [path for path in there if (originals / path).is_file()]
        assert all((copies / path).read_bytes() == (originals / path).read_bytes() for path in files)
    assert os.access(folder / directory / "sample_data/counts_0.npy", os.W_OK)
    words = ("reduce", "-q", "--op", "examples/ops.py:sum_or_max", "sample_data/counts_0.npy", "--to", "text")
    assert run(*words, cwd=folder / directory).out.startswith(b"2\n6\n1\n")


HOSTILE = "raise SystemExit('the folder of the data was searched for modules')\n"
NAMES = ("numpy", "json", "click", "mpired", "pyarrow", "signal", "typing", "concurrent", "encodings")


@each("start", [[sys.executable, "-P", "-m", "mpired"], [COMMAND], [sys.executable, "-m", "mpired"]])
def test_folder_of_the_data_is_not_searched_for_modules(start, folder):
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE)
    if start[1:] == ["-m", "mpired"]:  # without -P a mpired.py there is what -m asks for
        (folder / "mpired.py").unlink()
    words = [*start, "reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "--to", "json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
