"""Commands about mpired itself: its version, its help, its examples."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import click
import pytest
from command import refused, run, succeeded, unchanged

import mpired
from mpired.cli import cli

COMMANDS = cli.list_commands(click.Context(cli))
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(flag, tmp_path):
    assert run(flag, cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_of_a_command_is_that_of_its_flag(words, tmp_path):
    asked = run("help", *words, cwd=tmp_path)
    assert asked.out.startswith(b"Usage: mpired ")
    assert asked == run(*words, "--help", cwd=tmp_path)


def test_help_of_what_is_no_command(tmp_path):
    refused(run("help", "nonsense", cwd=tmp_path), 2, "No such command 'nonsense'")


@pytest.mark.parametrize("directory", ["new", "empty", "empty/.", "."])
def test_examples_are_copied_into_a_new_or_an_empty_directory(directory, tmp_path):
    folder = tmp_path / "here"
    (folder / "empty").mkdir(parents=True) if directory != "." else folder.mkdir()
    succeeded(run("examples", "-q", directory, cwd=folder))
    for name in ("sample_data", "examples"):
        copies, originals = folder / directory / name, ROOT / name
        there = {path.relative_to(originals) for path in originals.rglob("*") if "__pycache__" not in path.parts}
        assert {path.relative_to(copies) for path in copies.rglob("*")} == there
        files = [path for path in there if (originals / path).is_file()]
        assert all((copies / path).read_bytes() == (originals / path).read_bytes() for path in files)
    assert os.access(folder / directory / "sample_data/counts_0.npy", os.W_OK)


def test_a_command_runs_on_the_copies(tmp_path):
    succeeded(run("examples", "-q", "new", cwd=tmp_path))
    words = ("reduce", "-q", "--op", "examples/ops.py:sum_or_max", "sample_data/counts_0.npy", "--to", "text")
    outcome = run(*words, cwd=tmp_path / "new")
    succeeded(outcome)
    assert outcome.out.startswith(b"2\n6\n1\n")


@pytest.mark.parametrize(
    ("directory", "status", "reason"),
    [
        ("full", 2, "already exists, and is not an empty directory; name a new one"),
        ("full/file", 2, "already exists, and is not an empty directory; name a new one"),
        ("missing/new", 4, "No such directory: missing"),
    ],
)
def test_examples_are_not_copied_over_anything(directory, status, reason, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with unchanged(tmp_path):
        refused(run("examples", directory, cwd=tmp_path), status, f"mpired: {directory}: {reason}")


@pytest.mark.parametrize("directory", ["new", "empty"])
def test_nothing_is_left_of_a_copy_that_fails(directory, tmp_path):
    (tmp_path / "empty").mkdir()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    before = sorted(os.listdir(tmp_path))
    refused(run("examples", directory, cwd=tmp_path, setup=limit), 4, f"{directory}: File too large")
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(tmp_path / "empty") == []


def test_completion_of_an_unknown_shell(tmp_path):
    refused(run("completion", "tcsh", cwd=tmp_path), 2, "tcsh", "bash")
