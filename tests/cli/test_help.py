"""What the program tells of its use: help in two lengths, in the width of a small terminal, and its version."""

from __future__ import annotations

import re

import click
from command import in_child, refused, run
from rows import each

import mpired
from mpired.cli import cli, params
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
    outcome = run(name, "-h", cwd=tmp_path, env={"COLUMNS": "72"})
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


@each("words", ["ops", "types"])
def test_listings_fit_a_terminal(words, tmp_path):
    assert max(map(len, run(words, cwd=tmp_path).out.decode().splitlines())) <= WIDTH


def test_options_are_in_sections_by_need(tmp_path):
    text = _help("reduce", cwd=tmp_path)
    headings = {
        "Op and values": "--op --overflow --exact --index",
        "Result": "-o,.--output --to --split -f,.-O,.--force,.--overwrite",
        "Inputs": "--sort --skip-bad --from",
        "Columns and arrays": "--columns,.--variables --pair --unpack",
        "Raw files": "--type --types --byte-order --datarep --offset --count --header --stride --ranks-in-file",
        "Running": "-j,.--jobs --max-memory -q,.--quiet -v,.--verbose --json --help",
        "Advanced": "--commute --op-timeout --engine --root",
        "Values": "SIZE NAME",
    }
    assert _headings(text) == [*headings]
    sections = re.split(r"^[A-Z][\w -]*:$", text, flags=re.MULTILINE)[1:]
    for section, flags in zip(sections, headings.values(), strict=True):
        missing = [flag for flag in flags.split() if not re.search(rf"^  .*{flag}\b", section, re.MULTILINE)]
        assert missing == []
    of_info = ["Inputs", "Columns and arrays", "Raw files", "Running", "Advanced", "Values"]
    assert _headings(_help("info", cwd=tmp_path)) == of_info
    section = _help("accumulate", cwd=tmp_path).partition("\nTarget and origins:\n")[2].partition("\n\n")[0]
    assert {"--window", "--target-disp", "--at", "--map", "--create", "--once"} <= set(re.findall(r"--[\w-]+", section))


def test_help_names_the_ops_that_the_command_takes(tmp_path):
    def named(command):
        return re.findall(r"\w+", " ".join(_help(command, cwd=tmp_path).split()).partition("Predefined:")[2])

    predefined = "max min sum prod land band lor bor lxor bxor maxloc minloc".split()  # noqa: SIM905 - names
    assert named("reduce")[:13] == [*predefined, "Statistics"]
    assert named("accumulate")[12:14] == ["replace", "required"]
    for command in ("get-accumulate", "fetch-and-op"):
        assert named(command)[12:15] == ["replace", "no_op", "required"]


@each("command, sizes", [("reduce", 3), ("pack", 2), ("info", 1)])
def test_help_of_a_size_says_what_its_units_are(command, sizes, tmp_path):
    text = " ".join(_help(command, cwd=tmp_path).split())
    assert text.count(" SIZE ") == sizes + 1
    assert text.count("SIZE K, KB and KiB are all 1024 bytes") == 1


def test_version(tmp_path):
    for flag in ("-V", "--version"):
        assert run(flag, cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


def test_completion_without_a_shell_names_the_shells(tmp_path):
    message = "mpired: Missing argument 'SHELL'. It is one of bash, zsh, fish; see `mpired completion --help`\n"
    assert run("completion", cwd=tmp_path) == (2, b"", message)
    refused(run("completion", "csh", cwd=tmp_path), 2, "'csh' is not one of 'bash', 'zsh', 'fish'")
