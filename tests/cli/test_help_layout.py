"""Help: what is needed first, in the width of a small terminal."""

from __future__ import annotations

import re

import click
import pytest
from command import run

from mpired.cli import cli
from mpired.formats.recognise import FORMATS

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
    if words:
        assert 0 < text.index("Examples:") < min(text.index(f"\n{heading}:") for heading in _headings(text))
    else:
        assert text.rstrip().splitlines()[-3:] == [
            "    mpired examples try && cd try",
            "    mpired reduce --op mean sample_data/tas_?.nc -o mean.nc",
            "    mpired reduce -h",
        ]


@pytest.mark.parametrize("columns", ["72", "200"])
@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_has_the_examples_and_the_common_options(name, columns, tmp_path):
    outcome = run(name, "-h", cwd=tmp_path, env={"COLUMNS": columns})
    assert outcome.status == 0
    lines = outcome.out.decode().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= WIDTH
    assert "  Examples:" in lines
    assert not outcome.out.decode().endswith("\n\n")


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


def test_help_lists_the_exit_statuses(tmp_path):
    lines = run("help", "statuses", cwd=tmp_path).out.decode().splitlines()
    assert [line.split()[0] for line in lines[1:11]] == list("0123456789")
    assert all(any(status in line for line in lines) for status in ("129", "130", "143", "141", "70"))


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
    headings = {
        "Op and values": "--op --overflow --exact --index",
        "Result": "--output --to --split",
        "Inputs": "--sort --skip-bad --from",
        "Columns and arrays": "--columns --pair --unpack",
        "Raw files": "--type --types --byte-order --datarep --offset --count --header --stride --ranks-in-file",
        "Running": "--jobs --max-memory --quiet --help",
        "Advanced": "--commute --op-timeout --engine --root",
        "Values": "SIZE NAME",
    }
    assert _headings(text) == [*headings]
    assert _headings(_help("info", cwd=tmp_path)) == [
        "Inputs",
        "Columns and arrays",
        "Raw files",
        "Running",
        "Advanced",
        "Values",
    ]
    sections = re.split(r"^[A-Z][\w -]*:$", text, flags=re.MULTILINE)[1:]
    for section, flags in zip(sections, headings.values(), strict=True):
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
        "Statistics",
    ]
    assert named("accumulate")[12:14] == ["replace", "required"]
    for command in ("get-accumulate", "fetch-and-op"):
        assert named(command)[12:15] == ["replace", "no_op", "required"]
