"""What the program tells of itself: help in the width of a small terminal, the lists of ops, its version; examples."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
from pathlib import Path

import click
import numpy as np
from command import in_child, refused, run, succeeded
from rows import check_refused, each

import mpired
from mpired.cli import cli, params
from mpired.errors import OpError
from mpired.formats.recognise import FORMATS

COMMANDS = cli.list_commands(click.Context(cli))
WIDTH = 80


def _help(*words, cwd):
    outcome = run(*words, "--help", cwd=cwd, env={"COLUMNS": "200"})
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out.decode()


def _headings(text):
    return re.findall(r"^([A-Z][\w -]*):$", text, re.MULTILINE)


def test_a_command_has_the_short_and_the_whole_help_without_those_of_the_group():
    def flags() -> list[list[str]]:
        context = params.Command(name="other", callback=lambda: None, help="Do it.").make_context("other", [])
        return [each.opts for each in context.command.get_params(context)]

    assert in_child(flags) == [["-h"], ["--help"]]  # messages of this process would be of that command


@each("name", COMMANDS)
def test_help_of_a_command(name, tmp_path):
    """The whole is that of `mpired help`; both lengths fit a terminal, and have the examples before the options."""
    text = _help(name, cwd=tmp_path)
    assert text.startswith(f"Usage: mpired {name} [OPTIONS]")
    assert 0 < text.index("Examples:") < min(text.index(f"\n{heading}:") for heading in _headings(text))
    assert f"\n    mpired {name}" in text.replace("      ", "    ")
    assert run("help", name, cwd=tmp_path, env={"COLUMNS": "200"}).out.decode() == text
    outcome = run(name, "-h", cwd=tmp_path, env={"COLUMNS": "200"})
    short = outcome.out.decode()
    assert (outcome.status, outcome.err) == (0, "")
    assert len(short.splitlines()) <= 60
    assert "\n  Examples:\n" in short
    assert not short.endswith("\n\n")
    for line in (text + short).splitlines():
        assert len(line) <= WIDTH
        assert "\b" not in line
        assert "\\b" not in line


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


def test_help_of_reduce_names_the_formats_that_are_read(tmp_path):
    named = set(re.findall(r"\.\w+", _help("reduce", cwd=tmp_path).partition("Each RANK")[2]))
    read = [row for name, row in FORMATS.items() if row.readable and name != "raw"]
    assert [row.name for row in read if named.isdisjoint((*row.suffixes, *row.directories))] == []


def test_version(tmp_path):
    for flag in ("-V", "--version"):
        assert run(flag, cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


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


def test_ops_names_the_kinds_of_numbers_that_each_takes(folder):
    lines = run("ops", cwd=folder).out.decode().splitlines()
    takes = {line.split()[0]: set(line[11:38].replace(",", "").split()) for line in lines[1:13]}
    kinds = {"integers": "i4", "floats": "f8", "bools": "?", "complex": "c16", "times": "M8[s]"}
    for op, named in takes.items():
        taken = set()
        for kind, code in kinds.items():
            with contextlib.suppress(OpError):
                mpired.reduce([np.ones(2, code)], op)
                taken.add(kind)
        assert named - {"bytes", "pairs"} == taken, op


ROOT = Path(__file__).parents[2]


@each("directory", ["new", "empty", "empty/.", "."])
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


@each(
    "directory, status, reason",
    [
        ("full", 2, "already exists, and is not an empty directory; name a new one"),
        ("full/file", 2, "already exists, and is not an empty directory; name a new one"),
        ("missing/new", 4, "No such directory: missing"),
    ],
)
def test_examples_are_not_copied_over_anything(directory, status, reason, tmp_path):
    (tmp_path / "full").mkdir(exist_ok=True)
    (tmp_path / "full/file").touch()
    check_refused(tmp_path, ("examples", directory), status, f"mpired: {directory}: {reason}")


@each("directory", ["new", "empty"])
def test_nothing_is_left_of_a_copy_that_fails(directory, tmp_path):
    (tmp_path / "empty").mkdir(exist_ok=True)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    refused(run("examples", directory, cwd=tmp_path, setup=limit), 4, f"{directory}: File too large")
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []
