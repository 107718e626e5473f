"""What the program tells of itself: ops, datatypes, help and version."""

from __future__ import annotations

import json

import click
import pytest
from command import refused, run

from mpired.cli import cli

_PREDEFINED = [
    "MAX",
    "MIN",
    "SUM",
    "PROD",
    "LAND",
    "BAND",
    "LOR",
    "BOR",
    "LXOR",
    "BXOR",
    "MAXLOC",
    "MINLOC",
    "REPLACE",
    "NO_OP",
]


def test_ops(folder):
    outcome = run("ops", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0].upper() for line in outcome.out.decode().splitlines()[1:15]] == _PREDEFINED
    rows = json.loads(run("ops", "--json", cwd=folder).out)
    assert [row["name"] for row in rows] == [f"MPI_{name}" for name in _PREDEFINED]
    datatypes = {row["name"]: set(row["datatypes"]) for row in rows}
    assert {"MPI_DOUBLE", "MPI_INT", "MPI_COMPLEX"} <= datatypes["MPI_SUM"]
    assert "MPI_COMPLEX" not in datatypes["MPI_MAX"]
    assert datatypes["MPI_MAXLOC"] == datatypes["MPI_MINLOC"] >= {"MPI_DOUBLE_INT", "MPI_2REAL"}
    assert [row["commute"] for row in rows] == [True] * 12 + [False] * 2


def test_types(folder):
    outcome = run("types", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    lines = {line.split()[0]: line for line in outcome.out.decode().splitlines()}
    assert "12     16" in lines["MPI_DOUBLE_INT"]
    assert "not available" in lines["MPI_REAL16"]
    rows = {row["name"]: row for row in json.loads(run("types", "--json", cwd=folder).out)}
    assert (rows["MPI_SHORT_INT"]["size"], rows["MPI_SHORT_INT"]["extent"]) == (6, 8)
    assert rows["MPI_REAL16"]["numpy"] is None
    assert rows["MPI_DOUBLE"]["numpy"] == "<f8"
    assert "MPI_LONG_LONG" in rows["MPI_LONG_LONG_INT"]["synonyms"]


@pytest.mark.parametrize(
    "words", [(), ("reduce",), ("ops",), ("types",), ("info",), ("pack",), ("unpack",)], ids=" ".join
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(words, flag, tmp_path):
    outcome = run(*words, flag, cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    text = outcome.out.decode()
    assert text.startswith(f"Usage: {' '.join(('mpired', *words))} [OPTIONS]")
    assert "\b" not in text
    assert "\\b" not in text
    if words:
        assert f"\n    mpired {words[0]}" in text.replace("      ", "    ")


def test_help_has_every_option(tmp_path):
    text = run("reduce", "--help", cwd=tmp_path).out.decode()
    for option in (
        *("--op", "--type", "--from", "--to", "-o, --output", "-f, -O, --force, --overwrite", "-j, --jobs"),
        *("-q, --quiet", "-v, --verbose", "--columns", "--pair", "--offset", "--count", "--byte-order", "--root"),
        *("--in-place", "--max-memory", "--json", "--types", "--datarep"),
    ):
        assert f"  {option} " in text


def test_every_command_has_a_line_of_help(tmp_path):
    text = run("--help", cwd=tmp_path).out.decode()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert f"\n  {name} " in text
        assert run(name, "--help", cwd=tmp_path).status == 0


def test_version(tmp_path):
    import mpired

    assert run("--version", cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


def test_no_command_is_answered_with_help(tmp_path):
    outcome = run(cwd=tmp_path)
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("Usage: mpired")
    refused(run("reduse", cwd=tmp_path), 2, "reduse")
