"""What the program tells of itself: help in the width of a small terminal, ops, examples; and the ways to start it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
from command import COMMAND, Outcome, installed, refused, run, succeeded
from rows import each

import mpired
from mpired.cli import cli
from mpired.errors import OpError

COMMANDS = cli.list_commands(click.Context(cli))
WIDTH = 80


def _help(*words, cwd):
    outcome = run(*words, "--help", cwd=cwd, env={"COLUMNS": "200"})
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out.decode()


def test_help_of_all(tmp_path):
    text = _help(cwd=tmp_path)
    assert run("help", cwd=tmp_path, env={"COLUMNS": "200"}).out.decode() == text
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [name for name in COMMANDS if f"\n  {name} " not in text] == []
    assert text.rstrip().splitlines()[-3:] == [
        "    mpired examples try && cd try",
        "    mpired reduce --op mean sample_data/tas_?.nc -o mean.nc",
        "    mpired reduce -h",
    ]
    outcome = run(cwd=tmp_path)
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("Usage: mpired")
    lines = run("help", "statuses", cwd=tmp_path).out.decode().splitlines()
    assert [line.split()[0] for line in lines[1:11]] == list("0123456789")
    assert all(any(status in line for line in lines) for status in ("129", "130", "143", "141", "70"))


def test_short_help_of_reduce_has_what_most_jobs_need(tmp_path):
    text = run("reduce", "-h", cwd=tmp_path).out.decode()
    shown = re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)
    needed = (
        "op nan nulls weights index output to force split sort expect-ranks skip-bad columns keep type offset count"
        " jobs quiet json dry-run help"
    )
    assert sorted(shown) == sorted(needed.split())
    left = len(re.findall(r"^  (?:-\w, )*--[\w-]+", _help("reduce", cwd=tmp_path), re.MULTILINE)) - len(shown)
    assert f"`mpired reduce --help` has {left} more options." in text


def test_ops_tells_which_take_times(folder):
    """The marks are those that calls on arrays of datetime64 and timedelta64 bear out."""
    lines = run("ops", "--matrix", cwd=folder).out.decode().splitlines()
    marks = {line.split()[0]: line.split()[1] for line in lines[1:13]}
    for letter, code in (("t", "M8[s]"), ("d", "m8[s]")):
        (first,) = (number for number, line in enumerate(lines) if line.startswith(f"{letter}  "))
        assert np.dtype(code).name.partition("[")[0] in " ".join(lines[first : first + 2])
        taken = []
        for op in marks:
            with contextlib.suppress(OpError):
                mpired.reduce([np.ones(2, code)], op)
                taken.append(op)
        assert [op for op in marks if letter in marks[op]] == taken


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


def test_module_is_the_command(folder):
    words = ("reduce", "--op", "sum", "a.npy", "bad.npy")
    as_module = subprocess.run([sys.executable, "-m", "mpired", *words], cwd=folder, capture_output=True, check=False)
    refused(Outcome(as_module.returncode, as_module.stdout, as_module.stderr.decode()), 4, "bad.npy")
    assert installed(*words, cwd=folder) == (as_module.returncode, as_module.stdout, as_module.stderr.decode())
