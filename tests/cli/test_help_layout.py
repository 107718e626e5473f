"""Help: what is needed first, in the width of a small terminal."""

from __future__ import annotations

import re

import click
import pytest
from command import run

from mpired.buffers.formats import FORMATS
from mpired.cli import cli

COMMANDS = cli.list_commands(click.Context(cli))
WIDTH = 80


def _help(*words, cwd):
    outcome = run(*words, "--help", cwd=cwd, env={"COLUMNS": "200"})
    assert outcome.status == 0
    return outcome.out.decode()


def _headings(text):
    return re.findall(r"^([A-Z][\w -]*):$", text, re.MULTILINE)


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=str)
def test_help_fits_a_terminal_and_has_the_example_before_the_options(words, tmp_path):
    text = _help(*words, cwd=tmp_path)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert 0 < text.index("Examples:") < min(text.index(f"\n{heading}:") for heading in _headings(text))
    assert text.rstrip().splitlines()[-1].strip().startswith("130/143/129 ended by a signal")


def test_help_of_reduce_names_the_formats_that_are_read(tmp_path):
    named = set(re.findall(r"\.\w+", _help("reduce", cwd=tmp_path).partition("Each RANK")[2]))
    read = [row for name, row in FORMATS.items() if row.readable and name != "raw"]
    assert [row.name for row in read if named.isdisjoint((*row.suffixes, *row.directories))] == []


@pytest.mark.parametrize("words", ["ops", "types"])
def test_listings_fit_a_terminal(words, tmp_path):
    lines = run(words, cwd=tmp_path).out.decode().splitlines()
    assert max(map(len, lines)) <= WIDTH


def test_options_of_reduce_are_in_sections_by_need(tmp_path):
    text = _help("reduce", cwd=tmp_path)
    assert _headings(text) == ["Op and type", "Result", "Ranks", "Inputs", "Columns", "User-defined ops", "Running"]
    assert _headings(_help("info", cwd=tmp_path)) == ["Datatype", "Ranks", "Inputs", "Columns", "Running"]
    sections = re.split(r"^[A-Z][\w -]*:$", text, flags=re.MULTILINE)[1:]
    for section, flags in zip(
        sections, ("--op --type --overflow", "--output --to --root", "--sort --skip-bad", "--from --offset",
                   "--columns --pair", "--commute --op-timeout", "--jobs --max-memory --quiet --help"), strict=True
    ):  # fmt: skip
        for flag in flags.split():
            assert re.search(rf"^  .*{flag}\b", section, re.MULTILINE), flag


def test_options_of_accumulate_have_the_target_in_a_section(tmp_path):
    text = _help("accumulate", cwd=tmp_path)
    section = text.partition("\nTarget and origins:\n")[2].partition("\n\n")[0]
    assert {"--window", "--target-disp", "--at", "--map", "--create", "--once"} <= set(re.findall(r"--[\w-]+", section))


def test_help_names_the_ops_that_the_command_takes(tmp_path):
    def named(command):
        return re.findall(r"\w+", " ".join(_help(command, cwd=tmp_path).split()).partition("Predefined:")[2])

    assert named("reduce")[:13] == [
        "max",
        "min",
        "sum",
        "prod",
        "land",
        "band",
        "lor",
        "bor",
        "lxor",
        "bxor",
        "maxloc",
        "minloc",
        "required",
    ]
    assert named("accumulate")[12:14] == ["replace", "required"]
    for command in ("get-accumulate", "fetch-and-op"):
        assert named(command)[12:15] == ["replace", "no_op", "required"]
