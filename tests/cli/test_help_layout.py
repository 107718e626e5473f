"""Help: what is needed first, in the width of a small terminal."""

from __future__ import annotations

import re

import click
import pytest
from command import run

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


@pytest.mark.parametrize("words", ["ops", "types"])
def test_listings_fit_a_terminal(words, tmp_path):
    lines = run(words, cwd=tmp_path).out.decode().splitlines()
    assert max(map(len, lines)) <= WIDTH


def test_options_of_reduce_are_in_sections_by_need(tmp_path):
    text = _help("reduce", cwd=tmp_path)
    assert _headings(text) == ["Op and type", "Result", "Inputs", "Columns", "User-defined ops", "Running"]
    sections = re.split(r"^[A-Z][\w -]*:$", text, flags=re.MULTILINE)[1:]
    for section, flags in zip(
        sections, ("--op --type --overflow", "--output --to --root", "--from --offset", "--columns --pair",
                   "--commute --op-timeout", "--jobs --max-memory --quiet --help"), strict=True
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
    assert {"replace", "no_op"} <= set(named("accumulate")[:14])
